"""The life of a run, as the command line asks for it: submit, drive or follow, stop, look.

Any number of processes may do so at once. The lease decides which one acts; the others follow logs and read
the ledger.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orch.runner.errors import BadRunName, LedgerUnusable, RunnerError
from orch.runner.events import Notice
from orch.runner.launch.compile import CompiledRun, RunRequest, compile_run, set_variables
from orch.runner.launch.run_plan import plan_of
from orch.runner.launch.seats import choose_seats
from orch.runner.ledger.lease import Renewal
from orch.runner.ledger.ledger import LeaseLost
from orch.runner.ledger.records import Desired, RunRow
from orch.runner.ledger.run_folder import open_folder
from orch.runner.ledger.run_names import RunName
from orch.runner.node.connector import fan_out
from orch.runner.node.stage import check_files, pack_files
from orch.runner.processes import process_owner
from orch.runner.runs.context import RunnerContext, collect_rank
from orch.runner.runs.driver import Driver
from orch.runner.runs.follow import follow
from orch.runner.runs.packing import source_of
from orch.spec.errors import ExitCode
from orch.spec.state import FleetState, NodeState

if TYPE_CHECKING:
    from orch.spec.models import Task


def check_task(task: Task, base: Path, caller_env: Mapping[str, str]) -> None:
    """What can be wrong with a run before there are nodes: unset variables, missing files. Raises BadTask."""
    set_variables(task.env, caller_env)
    check_files(source_of(base, item.local_path) for item in task.files)


def submit(
    workplace: RunnerContext,
    task: Task,
    fleet: FleetState,
    *,
    image: str,
    base: Path,
    name: str | None = None,
    stem: str = "run",
    run_args: Sequence[str] = (),
    cli_env: Mapping[str, str] | None = None,
    caller_env: Mapping[str, str] | None = None,
) -> RunRow:
    """Write a run into the ledger, with all it needs to be started from here; nodes are only looked at.

    `base` is the folder `files` are relative to; an unnamed run is called `stem` and four random characters.
    Raises BadRunName, Conflict (a run of that name is active), NodeCordoned, NodeUnfit, NoFit, BadTask,
    HostfileIncomplete or LedgerUnusable.
    """
    wanted = name if name is not None else task.name
    chosen = RunName.made(stem) if wanted is None else RunName.given(wanted)
    seats = choose_seats(workplace, task, fleet)
    compiled: list[CompiledRun] = []
    told: list[str] = []

    def build(number: int) -> str:
        result = compile_run(
            RunRequest(
                task=task,
                name=chosen,
                number=number,
                fleet=fleet,
                seats=seats,
                image=image,
                base=base,
                token=secrets.token_hex(8),
                run_args=tuple(run_args),
                cli_env=cli_env or {},
                caller_env=caller_env or {},
            )
        )
        check_files(item.source for item in result.plan.files)
        folder = open_folder(workplace.dot, chosen, number)
        try:
            folder.write_environments(result.environments)
            told.extend(pack_files(result.plan, folder.files))
        except OSError as error:
            raise LedgerUnusable(
                "the folder of a run cannot be written",
                where=str(folder.path),
                detail=error.strerror or str(error),
            ) from error
        compiled.append(result)
        return result.plan.model_dump_json()

    row = workplace.ledger.create(chosen, fleet.name, [seat.node.name for seat in seats], build)
    for warning in compiled[0].warnings:
        workplace.processor.handle(Notice(warning, "warning"))
    for line in told:
        level, _, text = line.partition(": ")
        workplace.processor.handle(Notice(text, level))
    return row


def drive(workplace: RunnerContext, row: RunRow, *, follow_logs: bool = True) -> RunRow:
    """See a run to its end: by acting on it, or by following whoever does. Returns it as it ended.

    When the acting process dies, this one takes over. KeyboardInterrupt passes through and leaves the run as
    it is.
    """
    owner = process_owner()
    if row.active:
        plan_of(row)
    while row.active:
        lease = workplace.ledger.take(row.id, owner)
        if lease is None:
            row = follow(workplace, row, follow_logs)
            continue
        driver = Driver(workplace.desk(row), workplace.ledger.by_id(row.id), lease, follow_logs=follow_logs)
        try:
            driver.follow_all()
            return driver.run()
        except LeaseLost:
            row = workplace.ledger.by_id(row.id)
        finally:
            workplace.ledger.release(lease)
    return row


def stop(workplace: RunnerContext, row: RunRow, *, abort: bool = False) -> RunRow:
    """Ask a run to end and see it through: politely within its `stop_duration`, or with `abort` at once."""
    if not row.active:
        return row
    desired: Desired = "abort" if abort else "stop"
    workplace.ledger.want(row.id, desired)
    try:
        plan_of(row)
    except BadRunName as error:
        return _write_off(workplace, row, error)
    return drive(workplace, workplace.ledger.by_id(row.id), follow_logs=False)


def _write_off(workplace: RunnerContext, row: RunRow, error: BadRunName) -> RunRow:
    """End a run that nothing can be done for, because nothing of it can be on a node."""
    lease = workplace.ledger.take(row.id, process_owner())
    if lease is None:
        raise error
    try:
        workplace.ledger.finish(lease, "terminated", "stopped_by_user", error.summary)
    finally:
        workplace.ledger.release(lease)
    return workplace.ledger.by_id(row.id)


def reconcile_once(workplace: RunnerContext, rows: Sequence[RunRow] | None = None) -> None:
    """One pass over active runs that nobody drives: notice ends, stop, clean up. Starts nothing.

    Also cleans up after ended runs whose nodes were silent then and answer now. `rows`: no others than these.
    """
    owner = process_owner()
    for row in rows if rows is not None else workplace.ledger.runs(active_only=True):
        if not row.active or row.held or not _readable(workplace, row):
            continue
        lease = workplace.ledger.take(row.id, owner)
        if lease is None:
            continue
        try:
            driver = Driver(workplace.desk(row), workplace.ledger.by_id(row.id), lease, follow_logs=False)
            # Nodes that do not answer may hold a pass up for longer than a lease lasts.
            with Renewal(workplace.ledger, lease):
                driver.pass_once()
        except LeaseLost:
            continue
        finally:
            workplace.ledger.release(lease)
    meant = None if rows is None else {row.id for row in rows}
    for row in workplace.ledger.uncollected():
        if meant is not None and row.id not in meant:
            continue
        if _readable(workplace, row, told=False):
            _collect_late(workplace, row, owner)


def _readable(workplace: RunnerContext, row: RunRow, *, told: bool = True) -> bool:
    """Whether anything can be done for a run: one that cannot be read must not keep the others waiting."""
    try:
        plan_of(row)
    except RunnerError as error:
        if told:
            hint = f"; {error.hint}" if error.hint else ""
            workplace.processor.handle(Notice(f"{error.summary}{hint}", "warning"))
        return False
    return True


def _collect_late(workplace: RunnerContext, row: RunRow, owner: str) -> None:
    lease = workplace.ledger.take(row.id, owner)
    if lease is None:
        return
    plan, desk = plan_of(row), workplace.desk(row)
    left = [plan.ranks[one.rank] for one in row.ranks if not one.collected]
    rank_of = {rank.node.name: rank.rank for rank in left}

    def collect(node: NodeState) -> None:
        collect_rank(desk, plan, rank_of[node.name], tell=False, deadline_s=2.0)

    try:
        with Renewal(workplace.ledger, lease):
            for result in fan_out([rank.node for rank in left], collect):
                if result.ok:
                    workplace.ledger.change_rank(lease, row.attempt, rank_of[result.node.name], collected=1)
    except LeaseLost:
        return
    finally:
        workplace.ledger.release(lease)


def exit_code(row: RunRow) -> ExitCode:
    """What the command line exits with for a run that ended."""
    if row.status in ("done", "terminated"):
        return ExitCode.OK
    if row.started_at is None:
        reasons = {rank.reason for rank in row.ranks}
        if reasons & {"instance_unreachable", "health_failure"}:
            return ExitCode.HOSTS
        if "failed_to_start_due_to_no_capacity" in reasons:
            return ExitCode.CONFLICT
    return ExitCode.RUN_FAILED
