"""The verbs on runs: submit (`submit.py`), drive or follow, stop, reconcile.

Any number of processes may use them at the same time. The holder of the lease acts; the others follow logs
and read the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from orch.runner.errors import BadRunName, LedgerUnusable, RunnerError
from orch.runner.events import Notice
from orch.runner.ledger.lease import LeaseLost, Renewal
from orch.runner.ledger.ledger import Ledger
from orch.runner.ledger.patience import LEDGER_PAUSE_S, LedgerPatience
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import ArrayKey, Desired, RunRow
from orch.runner.ledger.run_folder import folders_with_secrets
from orch.runner.metrics.sampling import keeping_samples
from orch.runner.processes import process_owner
from orch.runner.runs.arrays.drive import ArrayDriver, forget_ended
from orch.runner.runs.attempts import end_waiting, remove_earlier_attempts
from orch.runner.runs.context import RunnerContext
from orch.runner.runs.decide import Phase, Verdict
from orch.runner.runs.driver import Driver
from orch.runner.runs.follow import follow
from orch.runner.runs.ranks import collect_ranks
from orch.runner.runs.submit import check_task, submit, waiting_for_nodes
from orch.runner.user_hosts import close_entry
from orch.spec.errors import ExitCode

__all__ = [
    "Advanced",
    "RunnerContext",
    "advance",
    "check_task",
    "collect_leftovers",
    "drive",
    "end_unbegun",
    "exit_code",
    "forget_machines",
    "reconcile_once",
    "stop",
    "submit",
    "waiting_for_nodes",
]


def drive(runner: RunnerContext, row: RunRow, *, follow_logs: bool = True) -> RunRow:
    """Drive a run to its end, or follow the process that does. Returns the ended run.

    When the acting process dies, this one takes over. What the run uses is kept in the ledger meanwhile.
    KeyboardInterrupt passes through and leaves the run as it is.
    """
    if not row.active:
        return row
    plan_of(row)
    with keeping_samples(runner, row.id):
        return _drive(runner, row, process_owner(), follow_logs)


def _drive(runner: RunnerContext, row: RunRow, owner: str, follow_logs: bool) -> RunRow:
    patience = LedgerPatience(lambda text: runner.processor.handle(Notice(text, "warning")))
    followed = False
    while row.active:
        try:
            lease = runner.ledger.take(row.id, owner)
            if lease is not None:
                row = runner.ledger.by_id(row.id)
        except LedgerUnusable as error:
            if not followed:
                raise
            patience.bear(error)
            time.sleep(LEDGER_PAUSE_S)
            continue
        patience.found()
        if lease is None:
            row, followed = follow(runner, row, follow_logs), True
            continue
        driver = Driver(runner.context(row), row, lease, follow_logs=follow_logs)
        try:
            driver.follow_all()
            row = driver.run()
        except LeaseLost:
            row = runner.ledger.by_id(row.id)
            continue
        finally:
            runner.ledger.release(lease)
        driver.tell_rest()
    return row


def stop(runner: RunnerContext, row: RunRow, *, abort: bool = False) -> RunRow:
    """Stop a run and wait for its end: within its `stop_duration`, or with `abort` at once. Of one that has
    ended, what it left on nodes is removed where they answer."""
    if not row.active:
        collect_leftovers(runner, [row])
        return runner.ledger.by_id(row.id)
    desired: Desired = "abort" if abort else "stop"
    runner.ledger.set_desired(row.id, desired)
    try:
        plan_of(row)
    except BadRunName as error:
        return _write_off(runner, row, error)
    return drive(runner, runner.ledger.by_id(row.id), follow_logs=False)


def _write_off(runner: RunnerContext, row: RunRow, error: BadRunName) -> RunRow:
    """End a run in the ledger only: its name is invalid, so no node can have anything of it."""
    lease = runner.ledger.take(row.id, process_owner())
    if lease is None:
        raise error
    try:
        runner.ledger.finish(lease, "terminated", "stopped_by_user", error.summary)
    finally:
        runner.ledger.release(lease)
    return runner.ledger.by_id(row.id)


def end_unbegun(runner: RunnerContext, row: RunRow, why: str) -> bool:
    """End a run that nobody has begun, so that nothing of it is anywhere.

    False where somebody has begun it, or acts on it now."""
    lease = runner.ledger.take(row.id, process_owner())
    if lease is None:
        return False
    try:
        now = runner.ledger.by_id(row.id)
        if now.phase != "submitted" and (now.phase != "waiting" or now.attempts):
            return False
        verdict = Verdict("failed", "job_failed", why)
        end_waiting(runner.context(now), lease, now, verdict, status="failed", reason="executor_error")
        return True
    finally:
        runner.ledger.release(lease)


@dataclass(frozen=True)
class Advanced:
    """What one pass did for a run: its row before and after, and the error that kept it from more."""

    before: RunRow
    after: RunRow
    error: RunnerError | None = None


def reconcile_once(
    runner: RunnerContext, rows: Sequence[RunRow] | None = None, *, begin: bool = False
) -> tuple[Advanced, ...]:
    """One pass over active runs without a driver: record ends, stop, clean up. Starts nothing unless `begin`.

    Also cleans up nodes that were silent when their run ended. `rows`: only these runs.
    """
    active = rows if rows is not None else runner.ledger.runs(active_only=True)
    passes: list[Advanced | None] = []
    arrays: dict[ArrayKey, list[int]] = {}
    # The oldest first, which has the first claim on nodes.
    for row in sorted(active, key=lambda row: row.id):
        if row.array is None:
            passes.append(advance(runner, row, begin=begin))
        elif begin:
            arrays.setdefault(row.array, []).append(row.id)
        elif row.status != "pending" or row.desired != "run":  # to begin one is all that may be left to do
            passes.append(advance(runner, row, begin=False))
    for array, members in arrays.items():
        steps = ArrayDriver(runner, array, only=None if rows is None else members).pass_once()
        passes += [Advanced(each.before, each.after, each.error) for each in steps]
    collect_leftovers(runner, rows)
    return tuple(each for each in passes if each is not None)


def advance(runner: RunnerContext, row: RunRow, *, begin: bool) -> Advanced | None:
    """One pass over one run; None where it has a driver, has ended, or cannot be read."""
    if not row.active or row.held or not _has_readable_plan(runner, row):
        return None
    if not begin and row.desired == "run" and row.phase in (Phase.WAITING, Phase.SUBMITTED):
        return Advanced(row, row)  # only its beginning is left to do; a lease takes three commits
    lease = runner.ledger.take(row.id, process_owner())
    if lease is None:
        return None
    try:
        present = runner.ledger.by_id(row.id)
        driver = Driver(runner.context(present), present, lease, follow_logs=False)
        # Nodes that do not answer may hold a pass up for longer than a lease lasts.
        with Renewal(runner.ledger, lease):
            return Advanced(row, driver.pass_once(begin=begin))
    except LeaseLost:
        return None
    except RunnerError as error:  # one run must not keep the others waiting
        runner.processor.handle(Notice(f"run {row.name}: {error.summary}", "warning"))
        return Advanced(row, row, error)
    finally:
        runner.ledger.release(lease)


def collect_leftovers(runner: RunnerContext, rows: Sequence[RunRow] | None = None) -> None:
    """Clean up what ended runs have left: on nodes that were silent then, and of their variables here.

    All runs at once: a node that never comes back is waited for in each pass, and is one of many."""
    selected_ids = None if rows is None else {row.id for row in rows}
    left = [
        row
        for row in runner.ledger.uncollected()
        if (selected_ids is None or row.id in selected_ids) and _has_readable_plan(runner, row, warn=False)
    ]
    if left:
        owner = process_owner()
        with ThreadPoolExecutor(len(left), thread_name_prefix="orch-left") as pool:
            list(pool.map(lambda row: _collect_late(runner, row, owner), left))
    _forget_ended(runner)


def _forget_ended(runner: RunnerContext) -> None:
    """Remove from this machine the variables of runs that somebody elsewhere has ended."""
    folders = folders_with_secrets(runner.dot)
    ended = runner.ledger.ended_of({folder.number for _, folder in folders})
    for name, folder in folders:
        if (name, folder.number) in ended:
            folder.forget_secrets()
            close_entry(folder, name)
    forget_ended(runner)


def _has_readable_plan(runner: RunnerContext, row: RunRow, *, warn: bool = True) -> bool:
    """Whether a run's plan can be read; an unreadable run must not block the others."""
    try:
        plan_of(row)
    except RunnerError as error:
        if warn:
            hint = f"; {error.hint}" if error.hint else ""
            runner.processor.handle(Notice(f"{error.summary}{hint}", "warning"))
        return False
    return True


def _collect_late(runner: RunnerContext, row: RunRow, owner: str) -> None:
    lease = runner.ledger.take(row.id, owner)
    if lease is None:
        return
    plan, context = plan_of(row), runner.context(row)
    uncollected = [one.rank for one in row.ranks if not one.collected]
    try:
        with Renewal(runner.ledger, lease):
            remove_earlier_attempts(context, row, lease)
            results = collect_ranks(context, plan, uncollected, tell=False, deadline_s=2.0)
            collected = {rank: {"collected": 1} for rank, error in results.items() if error is None}
            runner.ledger.change_ranks(lease, row.attempt, collected)
    except LeaseLost:
        return
    finally:
        runner.ledger.release(lease)


def forget_machines(ledger: Ledger, rows: Iterable[RunRow], machines: Collection[str]) -> None:
    """Wait no longer for what ended runs have left on machines that are gone for good.

    `machines`: as `NodeState.access.machine`. A run whose plan cannot be read is passed over.
    """
    for row in rows:
        with suppress(LeaseLost, RunnerError):
            lease = ledger.take(row.id, process_owner())
            if lease is None:
                continue
            try:
                attempts = [(row.attempt, row.plan, row.ranks)]
                attempts += [(each.attempt, each.plan, each.ranks) for each in row.attempts]
                for attempt, text, ranks in attempts:
                    plan = plan_of(replace(row, plan=text))
                    gone = [
                        rank.rank
                        for rank in ranks
                        if not rank.collected and plan.ranks[rank.rank].node.access.machine in machines
                    ]
                    ledger.change_ranks(lease, attempt, {rank: {"collected": 1} for rank in gone})
            finally:
                ledger.release(lease)


def exit_code(row: RunRow) -> ExitCode:
    """The exit code of the command line for a run that ended."""
    if row.status in ("done", "terminated"):
        return ExitCode.OK
    if row.started_at is None:
        reasons = {rank.reason for rank in row.ranks}
        if reasons & {"instance_unreachable", "health_failure"}:
            return ExitCode.HOSTS
        if "failed_to_start_due_to_no_capacity" in reasons:
            return ExitCode.CONFLICT
    return ExitCode.RUN_FAILED
