"""Drives one run as the holder of its lease: observe, decide, write the decision, act, repeat.

All state is on the nodes and in the ledger: a driver may be killed at any point, and another one continues.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from orch.runner.errors import HostUnreachable, LedgerUnusable, RunFailed, error_text, start_reason
from orch.runner.events import Notice, RankChanged, RunChanged
from orch.runner.ledger import patience
from orch.runner.ledger.lease import LeaseLost, Renewal
from orch.runner.ledger.patience import LedgerPatience
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import Lease, RankRow, RunRow
from orch.runner.node import logs
from orch.runner.node.runtime import CloudNotice, ObservedRank
from orch.runner.plan.run_names import as_argument
from orch.runner.runs.attempts import (
    EarlierAttempts,
    begin_attempt,
    begins_here,
    end_attempt,
    end_waiting,
    may_look,
    waits_for_array,
)
from orch.runner.runs.context import RunContext
from orch.runner.runs.decide import (
    INTERRUPTED,
    Collect,
    MarkRunning,
    Phase,
    ReleaseBarrier,
    RunView,
    Signal,
    Start,
    Stop,
    Verdict,
    Wait,
    decide,
    departed_ranks,
    end_reason,
    rank_reason,
    rank_status,
    verdict_of,
)
from orch.runner.runs.first_failure import first_failure, first_failure_text
from orch.runner.runs.pods.admission import brings_pods, why_taken
from orch.runner.runs.ranks import (
    collect_ranks,
    first_ranks,
    lift_barriers,
    observe_ranks,
    signal_ranks,
    start_ranks,
    stop_ranks,
)
from orch.runner.upload.snapshot import Snapshots
from orch.spec.confidential import hidden
from orch.spec.errors import OrchError
from orch.spec.grammar.hosts import fold

# A look costs each node one `docker inspect`. Its log's end wakes the driver sooner; the pause grows with
# the run.
LOOK_EVERY_S = 1.0
LOOKS_PER_S = 32.0

# How long the end of a log, and a screen that takes no lines, are waited for when a run has ended.
FOLLOWER_S = 3.0

# How often what a run takes along is marked as used, for its later attempts.
USE_FILES_EVERY_S = 3600.0


class Driver:
    """Drives one run under one lease. `follow_logs`: store and report log lines while they are written."""

    def __init__(self, context: RunContext, row: RunRow, lease: Lease, *, follow_logs: bool) -> None:
        self._lease = lease
        self._follow_logs = follow_logs
        self._wake = threading.Event()
        self._patience = LedgerPatience(lambda text: self._context.processor.handle(Notice(text, "warning")))
        self._files_used_at = -USE_FILES_EVERY_S
        self._earlier = EarlierAttempts(context, lease)
        self._telling: list[logs.Follower] = []
        self._take_attempt(context, row)

    def _take_attempt(self, context: RunContext, row: RunRow) -> None:
        """Drive the latest attempt of the run from here on."""
        self._context = context.of_attempt(row.attempt)
        self._row = row
        self._plan = plan_of(row)
        self._followers: dict[int, logs.Follower] = {}
        self._ended: dict[int, ObservedRank] = {}
        self._departed: frozenset[int] = frozenset()
        self._reported_status: dict[int, str] = {}
        self._taken: str | None = None

    def run(self) -> RunRow:
        """Drive to the end.

        Raises LeaseLost when another process took over, LedgerUnusable when the ledger stays away."""
        with Renewal(self._context.ledger, self._lease) as renewal:
            try:
                while self._row.active:
                    if renewal.lost:
                        raise LeaseLost("another process took this run over")
                    try:
                        if self.step():
                            self._wake.wait(self._pause_s())
                            self._wake.clear()
                        self._reload()
                        if self._row.active:
                            self._earlier.remove(self._row)
                            self._use_files()
                        self._patience.found()
                    except LedgerUnusable as error:
                        self._wait_for_ledger(error)
                self._earlier.join()
            except BaseException:
                self._stop_followers()
                raise
        return self._row

    def tell_rest(self) -> None:
        """Tell the rest of the logs, after the lease was given back: a screen that stands still keeps nothing
        else waiting."""
        try:
            for follower in self._telling:
                follower.tell_rest()
        finally:
            self._stop_followers()

    def _stop_followers(self) -> None:
        for follower in (*self._followers.values(), *self._telling):
            follower.stop()

    def _pause_s(self) -> float:
        if self._row.phase == Phase.WAITING:
            return LOOK_EVERY_S  # for a stop: no node is asked
        return max(LOOK_EVERY_S, len(self._plan.ranks) / LOOKS_PER_S)

    def _wait_for_ledger(self, error: LedgerUnusable) -> None:
        """Wait while the ledger is unavailable, then reload the run.

        A decision that could not be written is made again from the ledger's record, as by a driver that takes
        over. Raises LedgerUnusable when it has stayed away for too long.
        """
        self._patience.bear(error)
        time.sleep(patience.LEDGER_PAUSE_S)
        with suppress(LedgerUnusable):
            self._reload()

    def step(self, *, only_end: bool = False) -> bool:
        """One observation and one act. True when there is nothing to do until something changes.

        `only_end`: start nothing, only record ends and clean up, as listing runs may do. Raises RunFailed for
        the next attempt of a run that was submitted from another machine.
        """
        if self._row.phase == Phase.WAITING:
            return self._wait_for_attempt(only_end=only_end)
        if self._row.phase == Phase.SUBMITTED and self._row.desired == "run":
            if only_end:
                return True
            # Nothing can be there yet, so the first look is saved.
            self._start(tuple(rank.rank for rank in self._plan.ranks))
            return False
        observations = self._observe()
        self._record_begin(observations)
        self._record_changes(observations)
        self._tell_departures(observations)
        act = decide(self._plan, self._view(observations), observations)
        if isinstance(act, Stop) and act.verdict.status == "failed" and self._row.reason is None:
            # Nodes are asked at the same time, and answer at different ones: whoever failed before the rank
            # that was seen has ended by now, and must not pass for one that was stopped because of it.
            observations = self._observe()
            self._record_changes(observations)
            act = decide(self._plan, self._view(observations), observations)
        if isinstance(act, Wait):
            return True
        if isinstance(act, Signal):
            signal_ranks(self._context, self._plan, act.ranks)
            return True
        if isinstance(act, Stop):
            self._stop(act, observations)
            # What is asked for again did not help at once before.
            return act.kill and all("stopping" in observations[rank].marks for rank in act.ranks)
        if isinstance(act, Collect):
            self._collect(act.verdict, observations)
        elif only_end:
            return True
        elif isinstance(act, Start):
            self._start(act.ranks)
        elif isinstance(act, ReleaseBarrier):
            self._release(act.ranks)
        elif isinstance(act, MarkRunning):
            self._context.ledger.change(self._lease, "running", phase=Phase.RUNNING.value, status="running")
            self._tell_run("running")
        return False

    def pass_once(self, *, begin: bool = False) -> RunRow:
        """Advance the run as far as possible without waiting; `begin`: also start what may begin here.

        Returns the run as it is then."""
        while self._row.active and not self.step(
            only_end=not (begin and begins_here(self._context, self._row))
        ):
            self._reload()
        return self._row

    def _reload(self) -> None:
        previous, self._row = self._row, self._context.ledger.by_id(self._lease.run_id)
        if (self._row.attempt, self._row.plan) != (previous.attempt, previous.plan):
            self._take_attempt(self._context, self._row)

    def _view(self, observations: Sequence[ObservedRank]) -> RunView:
        row = self._row
        notices = {r.rank: CloudNotice.recorded(r.notice) for r in row.ranks}
        left = [each.ended_at for each in observations if rank_reason(each) == INTERRUPTED and each.ended_at]
        return RunView(
            desired=row.desired,
            phase=Phase(row.phase),
            verdict=verdict_of(row),
            silent_s={r.rank: row.now - r.silent_since for r in row.ranks if r.silent_since is not None},
            given_up=frozenset(
                r.rank
                for r in row.ranks
                if r.reason in ("instance_unreachable", INTERRUPTED) and r.exit_code is None
            ),
            notices={rank: notice for rank, notice in notices.items() if notice is not None},
            interrupted_s=time.time() - min(left) if left else 0.0,
        )

    # --- looking

    def _observe(self) -> tuple[ObservedRank, ...]:
        """One observation per rank. The node of a rank that has ended is not asked again."""
        ranks = [rank.rank for rank in self._plan.ranks if rank.rank not in self._ended]
        observations = observe_ranks(self._context, self._plan, ranks)
        self._ended.update(
            {rank: observation for rank, observation in observations.items() if observation.ended}
        )
        known = {**observations, **self._ended}
        return tuple(known[rank.rank] for rank in self._plan.ranks)

    def _record_begin(self, observations: Sequence[ObservedRank]) -> None:
        """Record that commands have begun: a driver that was killed may have had no time to."""
        begun = tuple(each.rank for each in observations if "started" in each.marks)
        if begun and self._row.phase == Phase.STARTING and self._row.started_at is None:
            self._context.ledger.mark_started(self._lease, _ranks(begun))
            self._reload()

    def _record_changes(self, observations: Sequence[ObservedRank]) -> None:
        """Record changes of ranks: silence, what their clouds announce, start, end."""
        changes: dict[int, dict[str, object]] = {}
        tell: list[Callable[[], None]] = []
        for observation, row in zip(observations, self._row.ranks, strict=True):
            rank, values = observation.rank, dict[str, object]()
            silent = observation.state == "silent"
            if silent != (row.silent_since is not None):
                values["silent_since"] = self._row.now if silent else None
                node = self._plan.ranks[rank].node.name
                text = f"node {node} does not answer" if silent else f"node {node} answers again"
                text = f"{text}: {observation.detail}" if observation.detail else text
                tell.append(partial(self._context.processor.handle, Notice(text, "warning")))
            if _has_new_notice(observation, row):
                values["notice"] = observation.notice.word if observation.notice is not None else None
                if observation.notice is not None and observation.notice.interrupts:
                    self._ask_why_taken()
                text = f"node {row.node}: {observation.notice or 'what its cloud announced is withdrawn'}"
                tell.append(partial(self._tell_notice, text))
            status, reason = rank_status(observation, row.status, self._row.reason)
            if (status, reason) != (row.status, row.reason) and row.reason is None:
                if reason == INTERRUPTED:
                    self._ask_why_taken()
                values |= {"status": status, "reason": reason, "exit_code": observation.exit_code}
                tell.append(partial(self._tell_rank, rank, status, observation.exit_code, reason))
            if values:
                changes[rank] = values
        self._change_ranks(changes)
        for each in tell:
            each()
        if changes:
            self._reload()

    def _tell_notice(self, text: str) -> None:
        self._context.ledger.change(self._lease, "notice", text)
        self._context.processor.handle(Notice(text, "warning"))

    # --- acting

    def _start(self, ranks: tuple[int, ...]) -> None:
        """Start the containers of `ranks`. A failure becomes the run's verdict."""
        plan, context = self._plan, self._context
        context.ledger.change(
            self._lease, "starting", _ranks(ranks), phase=Phase.STARTING.value, status="provisioning"
        )
        self._tell_run("provisioning")
        starts = start_ranks(context, plan, ranks, self._on_pull, self._is_wanted)
        if starts.errors:
            self._fail_start(starts.errors)
            return
        self._change_ranks({started.rank: {"status": "provisioning"} for started in starts.started})
        for started in starts.started:
            for notice in started.notices:
                context.processor.handle(Notice(notice, "warning"))
            if started.port is not None:
                context.ledger.change(self._lease, master_port=started.port)
        if starts.started and all(started.begun for started in starts.started):
            context.ledger.mark_started(self._lease, _ranks(ranks))
            self._follow(ranks)
            self._reload()
            return
        self._reload()
        if len(ranks) == len(plan.ranks) and self._row.desired == "run":
            self._release(first_ranks(plan))

    def _is_wanted(self) -> bool:
        self._reload()
        return self._row.desired == "run"

    def _on_pull(self, ranks: Sequence[int]) -> None:
        self._change_ranks({rank: {"status": "pulling"} for rank in ranks})
        for rank in ranks:
            self._tell_rank(rank, "pulling")

    def _fail_start(self, errors: Sequence[tuple[int, OrchError]]) -> None:
        """Record that the run failed before all commands began; the next steps clean up the other nodes."""
        failed = {rank: (start_reason(error), error_text(error)) for rank, error in errors}
        self._change_ranks(
            {
                rank: {"status": "failed", "reason": reason, "message": message}
                for rank, (reason, message) in failed.items()
            }
        )
        for rank, (reason, message) in failed.items():
            self._tell_rank(rank, "failed", None, reason, message)
        first = min(errors, key=lambda pair: (isinstance(pair[1], HostUnreachable), pair[0]))[1]
        others = len(errors) - 1
        message = error_text(first) + (f" (and {others} more)" if others else "")
        if first.hint is not None:
            message += f"; what to do: {hidden(first.hint)}"
        self._set_verdict(Verdict("failed", "job_failed", message))

    def _release(self, ranks: tuple[int, ...]) -> None:
        plan, context = self._plan, self._context
        context.ledger.mark_started(self._lease, _ranks(ranks))
        self._follow(ranks)
        if errors := lift_barriers(context, plan, ranks, self._row.master_port):
            self._fail_start(errors)

    def _follow(self, ranks: Sequence[int]) -> None:
        if self._follow_logs:
            for rank in ranks:
                self._follower(rank)

    def _follower(self, rank: int) -> None:
        if rank not in self._followers:
            context = self._context
            follower = logs.Follower(
                context.connector,
                context.runtime(self._plan.ranks[rank].node),
                self._plan,
                rank,
                folder=context.folder,
                processor=context.processor,
                on_end=self._wake.set,
            )
            self._followers[rank] = follower
            follower.start()

    def follow_all(self) -> None:
        """Follow every rank's log from where it stopped: the first act of a driver that took over."""
        if self._follow_logs and self._row.phase in (Phase.GOING, Phase.RUNNING, Phase.STOPPING):
            self._follow([rank.rank for rank in self._plan.ranks])

    def _set_verdict(self, verdict: Verdict) -> None:
        self._context.ledger.change(
            self._lease,
            "ending",
            verdict.message or verdict.reason,
            phase=Phase.STOPPING.value,
            status="terminating",
            reason=verdict.reason,
            message=verdict.message,
        )
        self._tell_run("terminating", verdict.reason, verdict.message)

    def _stop(self, act: Stop, observations: Sequence[ObservedRank]) -> None:
        if self._row.reason is None:
            self._set_verdict(act.verdict)
            self._mark_lost(observations)
        stop_ranks(self._context, self._plan, act.ranks, kill=act.kill)

    def _mark_lost(self, observations: Sequence[ObservedRank]) -> None:
        """Record a reason for ranks that are silent or have disappeared."""
        changes: dict[int, dict[str, object]] = {}
        silent: list[tuple[ObservedRank, str]] = []
        for observation, row in zip(observations, self._row.ranks, strict=True):
            notice = CloudNotice.recorded(row.notice)
            taken = notice is not None and notice.interrupts
            if observation.state == "silent" and row.reason is None:
                reason = INTERRUPTED if taken else "instance_unreachable"
                changes[observation.rank] = {
                    "status": "failed",
                    "reason": reason,
                    "message": observation.detail,
                }
                silent.append((observation, reason))
            elif (
                observation.state == "absent"
                and row.reason is None
                and (self._row.phase in (Phase.GOING, Phase.RUNNING) or row.status == "running")
            ):
                reason = INTERRUPTED if taken else "executor_error"
                changes[observation.rank] = {"status": "failed", "reason": reason}
        self._change_ranks(changes)
        for observation, reason in silent:
            self._tell_rank(observation.rank, "failed", None, reason, observation.detail)

    def _collect(self, verdict: Verdict, observations: Sequence[ObservedRank]) -> None:
        """Fetch the logs, clean up the nodes, finish the run. Silent nodes are cleaned up in later passes."""
        context, plan = self._context, self._plan
        if self._row.reason is None:
            self._set_verdict(verdict)
            self._mark_lost(observations)
        context.ledger.change(self._lease, phase=Phase.COLLECTING.value)
        for observation in observations:
            follower = self._followers.get(observation.rank)
            if follower is not None:
                follower.finish(patience_s=0.0 if observation.state == "silent" else FOLLOWER_S)
        answering = [observation.rank for observation in observations if observation.state != "silent"]
        if self._row.started_at is None:
            plan = plan.model_copy(update={"outputs": ()})  # no command has made any
        results = collect_ranks(
            context, plan, answering, tell=self._follow_logs, followed=frozenset(self._followers)
        )
        for follower in self._followers.values():
            if not follower.tell_rest(FOLLOWER_S):
                break  # the screen stands still: the others would wait in vain, too
        self._telling += self._followers.values()
        self._followers = {}
        self._change_ranks({rank: {"collected": 1} for rank, error in results.items() if error is None})
        for rank, error in results.items():
            if error is not None:
                text = f"node {plan.ranks[rank].node.name} was not cleaned up: {error_text(error)}"
                if error.hint is not None:
                    text += f"; what to do: {error.hint}"
                context.processor.handle(Notice(text, "warning"))
        self._reload()
        if verdict.status == "failed":
            verdict = self._tell_first_failure(verdict, observations)
            verdict = self._tell_why_taken(verdict, observations)
            self._mark_lost(observations)
            self._reload()
        reason = end_reason(verdict)
        end = {"status": "done" if reason == "done" else "terminated", "reason": reason}
        self._change_ranks({row.rank: end for row in self._row.ranks if row.reason is None})
        self._reload()
        end_attempt(context, self._lease, self._row, plan, verdict)

    def _tell_first_failure(self, verdict: Verdict, observations: Sequence[ObservedRank]) -> Verdict:
        """The verdict with the rank that failed first, by what their logs say, and its last words."""
        folder, plan = self._context.folder, self._plan
        failure = first_failure(observations, {rank.rank: folder.log(rank.rank) for rank in plan.ranks})
        if failure is None:
            return verdict
        reason = "container_exited_with_error"
        message = failure.line or "failed first"
        self._change_ranks({failure.rank: {"status": "failed", "reason": reason, "message": message}})
        return replace(verdict, message=first_failure_text(plan, observations, failure))

    def _tell_why_taken(self, verdict: Verdict, observations: Sequence[ObservedRank]) -> Verdict:
        """The verdict with what its cluster says of pods that it took: a rank knows only that it must go."""
        if not brings_pods(self._plan) or INTERRUPTED not in map(rank_reason, observations):
            return verdict
        why = self._taken or why_taken(self._plan)
        return verdict if why is None else replace(verdict, message=why)

    def _ask_why_taken(self) -> None:
        """Ask at once why pods are taken away: those that are evicted do not stay for long."""
        if self._taken is None and brings_pods(self._plan):
            self._taken = why_taken(self._plan, wait_s=0.0)

    # --- between attempts

    def _wait_for_attempt(self, *, only_end: bool) -> bool:
        """One look at a run between two attempts. True when it has to wait on."""
        context, row = self._context, self._row
        if row.desired != "run":
            reason = "aborted_by_user" if row.desired == "abort" else "stopped_by_user"
            verdict = Verdict("terminated", reason)
            end_waiting(context, self._lease, row, verdict, status="terminated", reason=end_reason(verdict))
            return False
        if only_end:
            return True
        if not context.folder.has_launch:
            raise RunFailed(
                f"the next attempt of run {row.name} cannot begin from here",
                where=str(context.folder.path),
                detail=f"its variables are kept only where it was submitted, by {row.submitted_by}",
                hint=f"run `orch attach {as_argument(row.name)}` there, or end it with "
                f"`orch stop {as_argument(row.name)}`",
            )
        if not may_look(row, context.ledger.line) or waits_for_array(context, self._lease, row):
            return True
        self._earlier.remove(row, at_once=True)
        begin_attempt(context, self._lease, row, self._plan, self._earlier.leftovers)
        return False

    def _use_files(self) -> None:
        """Keep what the run takes along for its later attempts, on the machine where these begin."""
        folder, files = self._context.folder, self._plan.files
        due = time.monotonic() - self._files_used_at > USE_FILES_EVERY_S
        if due and files and self._plan.retry is not None and folder.has_launch:
            self._files_used_at = time.monotonic()
            with suppress(LedgerUnusable):  # its disk may be full now, and not in an hour
                Snapshots(folder.path.parents[1]).use({file.tree for file in files})

    def _change_ranks(self, changes: Mapping[int, Mapping[str, object]]) -> None:
        self._context.ledger.change_ranks(self._lease, self._row.attempt, changes)

    def _tell_departures(self, observations: Sequence[ObservedRank]) -> None:
        """Tell once which ranks an elastic run goes on without."""
        departed = departed_ranks(self._plan, self._view(observations), observations)
        new, self._departed = departed - self._departed, departed
        if new:
            names = fold([self._plan.ranks[rank].node.name for rank in sorted(new)])
            left = len(observations) - len(departed)
            self._context.processor.handle(
                Notice(
                    f"{names} left the run, which goes on with {left} of {len(observations)} nodes", "warning"
                )
            )

    def _tell_run(self, status: str, reason: str | None = None, message: str | None = None) -> None:
        self._context.processor.handle(RunChanged(self._row.name, status, reason, message))

    def _tell_rank(
        self,
        rank: int,
        status: str,
        code: int | None = None,
        reason: str | None = None,
        message: str | None = None,
    ) -> None:
        if self._reported_status.get(rank) == status:
            return
        self._reported_status[rank] = status
        node = self._plan.ranks[rank].node.name
        self._context.processor.handle(RankChanged(self._row.name, rank, node, status, code, reason, message))


def _ranks(ranks: Sequence[int]) -> str:
    return "ranks " + ",".join(str(rank) for rank in ranks)


def _has_new_notice(observation: ObservedRank, row: RankRow) -> bool:
    """The cloud announces something else of a rank's node than the ledger has."""
    word = observation.notice.word if observation.notice is not None else None
    return observation.state != "silent" and not observation.ended and word != row.notice
