"""Carrying one run out, by the holder of its lease: look, decide, write the intention, act; and again.

All state is on the nodes and in the ledger, so a driver may be killed at any point and another one goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from orch.runner import images, job, logs
from orch.runner.decide import (
    Began,
    Collect,
    Go,
    Known,
    Phase,
    Start,
    Stop,
    Verdict,
    Wait,
    decide,
    rank_reason,
)
from orch.runner.errors import (
    CommandTimeout,
    HostfileIncomplete,
    HostUnreachable,
    NodesBusy,
    RunFailed,
    RunnerError,
)
from orch.runner.events import Notice, Processor, RankChanged, RunChanged
from orch.runner.job import Seen
from orch.runner.ledger import RENEW_S, Lease, LeaseLost, Ledger, RunRow
from orch.runner.plan import RunPlan
from orch.runner.stage import stage
from orch.runner.store import RunFolder
from orch.runner.transport import NodeResult, Transport, fan_out
from orch.spec.errors import OrchError
from orch.spec.state import NodeState

# A look costs each node one `docker inspect`. Its log's end wakes the driver sooner; the pause grows with
# the run.
LOOK_EVERY_S = 1.0
LOOKS_PER_S = 32.0
LOOK_DEADLINE_S = 3.0


@dataclass(frozen=True)
class Desk:
    """What driving needs: the ledger, the way to the nodes, the run's folder, and who is told."""

    ledger: Ledger
    transport: Transport
    folder: RunFolder
    processor: Processor


class Driver:
    """Drives one run under one lease. `follow_logs`: keep and tell log lines while they are written."""

    def __init__(self, desk: Desk, row: RunRow, lease: Lease, *, follow_logs: bool) -> None:
        self._desk = desk
        self._lease = lease
        self._row = row
        self._plan = RunPlan.model_validate_json(row.plan)
        self._follow_logs = follow_logs
        self._followers: dict[int, logs.Follower] = {}
        self._ended: dict[int, Seen] = {}
        self._told: dict[int, str] = {}
        self._wake = threading.Event()

    def run(self) -> RunRow:
        """Drive to the end. Raises LeaseLost when another process took over."""
        with _Renewal(self._desk.ledger, self._lease) as renewal:
            try:
                while self._row.active:
                    if renewal.lost:
                        raise LeaseLost("another process took this run over")
                    if self.step():
                        self._wake.wait(max(LOOK_EVERY_S, len(self._plan.ranks) / LOOKS_PER_S))
                        self._wake.clear()
                    self._reload()
            finally:
                for follower in self._followers.values():
                    follower.stop()
        return self._row

    def step(self, *, only_end: bool = False) -> bool:
        """One look and one act. True when there is nothing to do before the world changes.

        `only_end`: start nothing, only notice ends and clean up; what looking at a list of runs may do.
        """
        if self._row.phase == Phase.SUBMITTED and self._row.desired == "run":
            if only_end:
                return True
            # Nothing can be there yet, so the first look is saved.
            self._start(tuple(rank.rank for rank in self._plan.ranks))
            return False
        seen = self._look()
        self._note(seen)
        act = decide(self._plan, self._known(), seen)
        if isinstance(act, Wait):
            return True
        if isinstance(act, Stop):
            self._stop(act, seen)
        elif isinstance(act, Collect):
            self._collect(act.verdict, seen)
        elif only_end:
            return True
        elif isinstance(act, Start):
            self._start(act.ranks)
        elif isinstance(act, Go):
            self._go(act.ranks)
        elif isinstance(act, Began):
            self._desk.ledger.change(self._lease, "running", phase=Phase.RUNNING.value, status="running")
            self._tell_run("running")
        return False

    def pass_once(self) -> None:
        """Bring the run as far as it goes without waiting for anything, starting nothing."""
        while self._row.active and not self.step(only_end=True):
            self._reload()

    def _reload(self) -> None:
        self._row = self._desk.ledger.by_id(self._lease.run_id)

    def _known(self) -> Known:
        row = self._row
        return Known(
            desired=row.desired,
            phase=Phase(row.phase),
            verdict=_verdict_of(row),
            silent_s={r.rank: row.now - r.silent_since for r in row.ranks if r.silent_since is not None},
            given_up=frozenset(r.rank for r in row.ranks if r.reason == "instance_unreachable"),
        )

    # --- looking

    def _look(self) -> tuple[Seen, ...]:
        """One observation per rank. An ended job stays ended, so its node is not asked again."""
        asked = [rank for rank in self._plan.ranks if rank.rank not in self._ended]
        by_node = {rank.node.name: rank.rank for rank in asked}

        def look(node: NodeState) -> Seen:
            rank = by_node[node.name]
            command = job.observe_command(self._plan, rank)
            try:
                return job.read_seen(
                    rank, self._desk.transport.run(node, command, deadline_s=LOOK_DEADLINE_S)
                )
            except (HostUnreachable, CommandTimeout) as error:
                return job.read_seen(rank, error)

        found = {
            result.value.rank: result.value
            for result in fan_out([rank.node for rank in asked], look)
            if result.value is not None
        }
        self._ended.update({rank: one for rank, one in found.items() if one.ended})
        return tuple({**found, **self._ended}[rank.rank] for rank in self._plan.ranks)

    def _note(self, seen: Sequence[Seen]) -> None:
        """Write down what changed about ranks: silence, running, ends."""
        changed = False
        for one, row in zip(seen, self._row.ranks, strict=True):
            silent = one.state == "silent"
            if silent != (row.silent_since is not None):
                since = self._row.now if silent else None
                self._change_rank(one.rank, silent_since=since)
                node = self._plan.ranks[one.rank].node.name
                text = f"node {node} does not answer" if silent else f"node {node} answers again"
                self._desk.processor.handle(
                    Notice(f"{text}: {one.detail}" if one.detail else text, "warning")
                )
                changed = True
            status, reason = _rank_status(one, row.status, self._row.reason)
            if (status, reason) != (row.status, row.reason) and row.reason is None:
                self._change_rank(one.rank, status=status, reason=reason, exit_code=one.exit_code)
                self._tell_rank(one.rank, status, one.exit_code, reason)
                changed = True
        if changed:
            self._reload()

    # --- acting

    def _start(self, ranks: tuple[int, ...]) -> None:
        """Containers for `ranks`, with images where they are missing. A failure becomes the run's verdict."""
        plan, desk = self._plan, self._desk
        desk.ledger.change(
            self._lease, "starting", _ranks(ranks), phase=Phase.STARTING.value, status="provisioning"
        )
        self._tell_run("provisioning")
        try:
            environments = desk.folder.environments()
            keys = desk.folder.keys(len(plan.ranks)) if plan.ssh_between else None
        except RunFailed as error:
            self._fail_start([(rank, error) for rank in ranks])
            return
        files = desk.folder.files if plan.files else None
        rank_of = {plan.ranks[rank].node.name: rank for rank in ranks}

        def start(node: NodeState) -> job.Started:
            rank = rank_of[node.name]
            archive = stage(plan, rank, environments[rank], keys, files)
            return job.read_started(
                plan, rank, desk.transport.run(node, job.start_command(plan, rank, archive))
            )

        results = fan_out([plan.ranks[rank].node for rank in ranks], start)
        missing = [result.node for result in results if isinstance(result.error, job.ImageMissing)]
        serious = [r for r in results if r.error is not None and not isinstance(r.error, job.ImageMissing)]
        if missing and not serious:
            for node in missing:
                self._change_rank(rank_of[node.name], status="pulling")
                self._tell_rank(rank_of[node.name], "pulling")
            provided = self._provide(missing)
            again = fan_out([result.node for result in provided if result.ok], start)
            done: dict[str, NodeResult[job.Started]] = {result.node.name: result for result in again}
            failed = {result.node.name: result.error for result in provided if not result.ok}
            results = tuple(
                NodeResult(r.node, error=failed[r.node.name])
                if r.node.name in failed
                else done.get(r.node.name, r)
                for r in results
            )
        errors = [(rank_of[result.node.name], result.error) for result in results if result.error is not None]
        if errors:
            self._fail_start(errors)
            return
        for result in results:
            if result.value is None:
                continue
            for notice in result.value.notices:
                desk.processor.handle(Notice(notice, "warning"))
            self._change_rank(result.value.rank, status="provisioning")
            if result.value.port is not None:
                desk.ledger.change(self._lease, master_port=result.value.port)
        self._reload()
        if len(ranks) == len(plan.ranks) and self._row.desired == "run":
            self._go(_first_to_go(plan))

    def _provide(self, nodes: Sequence[NodeState]) -> Sequence[NodeResult[None]]:
        try:
            return images.provide(self._desk.transport, nodes, self._plan.image, self._desk.processor)
        except OrchError as error:
            return [NodeResult(node, error=error) for node in nodes]

    def _fail_start(self, errors: Sequence[tuple[int, OrchError]]) -> None:
        """The run failed before any command; the next steps remove what other nodes hold of it."""
        for rank, error in errors:
            reason = _start_reason(error)
            self._change_rank(rank, status="failed", reason=reason, message=_told(error))
            self._tell_rank(rank, "failed", None, reason, _told(error))
        first = min(errors, key=lambda pair: (isinstance(pair[1], HostUnreachable), pair[0]))[1]
        others = len(errors) - 1
        message = _told(first) + (f" (and {others} more)" if others else "")
        self._set_verdict(Verdict("failed", "job_failed", message))

    def _go(self, ranks: tuple[int, ...]) -> None:
        plan, desk = self._plan, self._desk
        desk.ledger.going(self._lease, _ranks(ranks))
        if self._follow_logs:
            for rank in ranks:
                self._follower(rank)
        rank_of = {plan.ranks[rank].node.name: rank for rank in ranks}
        port = self._row.master_port

        def go(node: NodeState) -> None:
            desk.transport.run(node, job.go_command(plan, rank_of[node.name], port), deadline_s=10.0)

        # A node that fails here is seen to be silent, or still waiting, at the next look.
        fan_out([plan.ranks[rank].node for rank in ranks], go)

    def _follower(self, rank: int) -> None:
        if rank not in self._followers:
            desk = self._desk
            follower = logs.Follower(
                desk.transport, self._plan, rank, desk.folder, desk.processor, self._wake.set
            )
            self._followers[rank] = follower
            follower.start()

    def follow_all(self) -> None:
        """Follow every rank's log from where it stopped: what a driver that took over does first."""
        if self._follow_logs and self._row.phase in (Phase.GOING, Phase.RUNNING, Phase.STOPPING):
            for rank in self._plan.ranks:
                self._follower(rank.rank)

    def _set_verdict(self, verdict: Verdict) -> None:
        self._desk.ledger.change(
            self._lease,
            "ending",
            verdict.message or verdict.reason,
            phase=Phase.STOPPING.value,
            status="terminating",
            reason=verdict.reason,
            message=verdict.message,
        )
        self._tell_run("terminating", verdict.reason, verdict.message)

    def _stop(self, act: Stop, seen: Sequence[Seen]) -> None:
        plan, desk = self._plan, self._desk
        if self._row.reason is None:
            self._set_verdict(act.verdict)
            self._mark_lost(seen)
        rank_of = {plan.ranks[rank].node.name: rank for rank in act.ranks}

        def stop(node: NodeState) -> None:
            desk.transport.run(
                node, job.stop_command(plan, rank_of[node.name], kill=act.kill), deadline_s=LOOK_DEADLINE_S
            )

        fan_out([plan.ranks[rank].node for rank in act.ranks], stop)

    def _mark_lost(self, seen: Sequence[Seen]) -> None:
        """Give silent ranks their reason, when it is their silence that ends the run."""
        for one, row in zip(seen, self._row.ranks, strict=True):
            if one.state == "silent" and row.reason is None:
                self._change_rank(
                    one.rank, status="failed", reason="instance_unreachable", message=one.detail
                )
                self._tell_rank(one.rank, "failed", None, "instance_unreachable", one.detail)
            elif (
                one.state == "absent"
                and row.reason is None
                and self._row.phase in (Phase.GOING, Phase.RUNNING)
            ):
                self._change_rank(one.rank, status="failed", reason="executor_error")

    def _collect(self, verdict: Verdict, seen: Sequence[Seen]) -> None:
        """Logs here, nothing left there, the run finished. A silent node is left for later passes."""
        desk, plan = self._desk, self._plan
        if self._row.reason is None:
            self._set_verdict(verdict)
            self._mark_lost(seen)
        desk.ledger.change(self._lease, phase=Phase.COLLECTING.value)
        for follower in self._followers.values():
            follower.finish(patience_s=3.0)
        answering = [plan.ranks[one.rank] for one in seen if one.state != "silent"]
        rank_of = {rank.node.name: rank.rank for rank in answering}

        def collect(node: NodeState) -> None:
            collect_rank(desk, plan, rank_of[node.name], tell=self._follow_logs)

        for result in fan_out([rank.node for rank in answering], collect):
            if result.ok:
                self._change_rank(rank_of[result.node.name], collected=1)
            else:
                why = result.error.summary if result.error else ""
                text = f"node {result.node.name} was not cleaned up: {why}"
                desk.processor.handle(Notice(text, "warning"))
        desk.folder.forget_secrets()
        self._reload()
        for row in self._row.ranks:
            if row.reason is None:
                reason = _end_reason(verdict)
                status = "done" if reason == "done" else "terminated"
                self._change_rank(row.rank, status=status, reason=reason)
        desk.ledger.finish(self._lease, verdict.status, verdict.reason, verdict.message)
        self._tell_run(verdict.status, verdict.reason, verdict.message)

    # --- telling

    def _change_rank(self, rank: int, **values: object) -> None:
        self._desk.ledger.change_rank(self._lease, self._row.attempt, rank, **values)

    def _tell_run(self, status: str, reason: str | None = None, message: str | None = None) -> None:
        self._desk.processor.handle(RunChanged(self._row.name, status, reason, message))

    def _tell_rank(
        self,
        rank: int,
        status: str,
        code: int | None = None,
        reason: str | None = None,
        message: str | None = None,
    ) -> None:
        if self._told.get(rank) == status:
            return
        self._told[rank] = status
        node = self._plan.ranks[rank].node.name
        self._desk.processor.handle(RankChanged(self._row.name, rank, node, status, code, reason, message))


def collect_rank(desk: Desk, plan: RunPlan, rank: int, *, tell: bool, deadline_s: float = 10.0) -> None:
    """Complete a rank's log, then remove all of it from its node. Raises RunnerError."""
    node = plan.ranks[rank].node
    logs.fetch_rest(desk.transport, plan, rank, desk.folder, desk.processor if tell else None, deadline_s)
    done = desk.transport.run(node, job.release_command(plan, rank), deadline_s=deadline_s)
    if not done.ok:
        raise RunnerError(
            f"the container of rank {rank} could not be removed", where=node.name, detail=done.stderr
        )


class _Renewal:
    """Keeps a lease alive from a thread, while long acts hold the driver up."""

    def __init__(self, ledger: Ledger, lease: Lease) -> None:
        self._ledger = ledger
        self._lease = lease
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orch-lease", daemon=True)
        self.lost = False

    def __enter__(self) -> _Renewal:
        self._thread.start()
        return self

    def __exit__(self, *told: object) -> None:
        self._stop.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stop.wait(RENEW_S):
            try:
                self._ledger.renew(self._lease)
            except LeaseLost:
                self.lost = True
                return
            except RunnerError:
                # A ledger that is busy or away for a moment; the next renewal, or the driver itself, will
                # tell.
                continue


def _first_to_go(plan: RunPlan) -> tuple[int, ...]:
    everyone = tuple(rank.rank for rank in plan.ranks)
    if plan.startup_order == "any" or len(everyone) == 1:
        return everyone
    return everyone[:1] if plan.startup_order == "master-first" else everyone[1:]


def _verdict_of(row: RunRow) -> Verdict | None:
    """The verdict that was reached, if any: the ledger gets a reason together with it and never before."""
    if row.reason is None:
        return None
    if row.reason in ("stopped_by_user", "aborted_by_user"):
        return Verdict("terminated", row.reason, row.message)
    return Verdict("done" if row.reason == "all_jobs_done" else "failed", row.reason, row.message)


def _rank_status(one: Seen, before: str, run_reason: str | None) -> tuple[str, str | None]:
    """Status and termination reason of a rank as now observed."""
    reason = rank_reason(one)
    if reason is None:
        if one.alive and "started" in one.marks:
            return ("terminating" if "stopping" in one.marks else "running"), None
        return before, None
    if "stopping" in one.marks and reason != "max_duration_exceeded":
        ended_well = run_reason == "all_jobs_done"
        told = {"stopped_by_user": "terminated_by_user", "aborted_by_user": "aborted_by_user"}
        if ended_well:
            return "done", "done"
        return "terminated", told.get(run_reason or "", "sibling_failed")
    return ("done" if reason == "done" else "failed"), reason


def _end_reason(verdict: Verdict) -> str:
    """The reason of a rank that never came to an end of its own."""
    if verdict.status == "done":
        return "done"
    if verdict.reason == "aborted_by_user":
        return "aborted_by_user"
    return "terminated_by_user" if verdict.status == "terminated" else "sibling_failed"


def _start_reason(error: OrchError) -> str:
    if isinstance(error, NodesBusy):
        return "failed_to_start_due_to_no_capacity"
    if isinstance(error, (HostUnreachable, CommandTimeout)):
        return "instance_unreachable"
    if isinstance(error, HostfileIncomplete):
        return "hostfile_incomplete"
    return error.reason if isinstance(error, RunFailed) else "creating_container_error"


def _told(error: OrchError) -> str:
    return f"{error.summary}: {error.detail}" if error.detail else error.summary


def _ranks(ranks: Sequence[int]) -> str:
    return "ranks " + ",".join(str(rank) for rank in ranks)
