"""The verbs on runs: submit, drive or follow, stop, reconcile.

Any number of processes may use them at the same time. The holder of the lease acts; the others follow logs
and read the ledger.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orch.runner.errors import (
    BadRunName,
    HostUnreachable,
    LedgerUnusable,
    NodeCordoned,
    NodesBusy,
    NodeUnfit,
    RunnerError,
    error_text,
    nodes_in_use,
)
from orch.runner.events import Notice
from orch.runner.launch.compile import CompiledRun, RepoName, RunRequest, compile_run
from orch.runner.launch.launch_record import LaunchRecord
from orch.runner.launch.run_plan import DevPlan, plan_of
from orch.runner.launch.variables import set_variables
from orch.runner.launch.volumes import NO_VOLUMES, Volumes
from orch.runner.ledger.lease import LeaseLost, Renewal
from orch.runner.ledger.records import Desired, RunRow, Waiting
from orch.runner.ledger.run_folder import folders_with_secrets, open_folder
from orch.runner.ledger.run_names import RunName
from orch.runner.ledger.waiting_line import behind
from orch.runner.metrics.sampling import keeping_samples
from orch.runner.placement.node_fit import Seat
from orch.runner.placement.placement import place_task
from orch.runner.placement.rank_groups import rank_groups
from orch.runner.placement.seats import choose_seats
from orch.runner.processes import process_owner
from orch.runner.runs import retry
from orch.runner.runs.attempts import end_waiting, remove_earlier_attempts
from orch.runner.runs.context import RunnerContext
from orch.runner.runs.decide import Verdict
from orch.runner.runs.driver import Driver
from orch.runner.runs.entry import close_entry
from orch.runner.runs.follow import follow
from orch.runner.runs.ranks import collect_ranks
from orch.runner.runs.run_secrets import names_in
from orch.runner.upload.keep import check_sources, keep_files, repository_of
from orch.spec.errors import ExitCode
from orch.spec.state import FleetState

if TYPE_CHECKING:
    from orch.spec.models import Task


def check_task(task: Task, base: Path, caller_env: Mapping[str, str]) -> None:
    """Check a task before there are nodes: unset variables, missing files. Raises BadTask."""
    for group in rank_groups(task):
        set_variables(group.env, caller_env)
    check_sources(base, task)


def submit(
    runner: RunnerContext,
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
    volumes: Volumes = NO_VOLUMES,
    wait: bool = False,
    dev: DevPlan | None = None,
    makes_nodes: bool = False,
    made: frozenset[str] = frozenset(),
) -> RunRow:
    """Write a run into the ledger, and the files to start it from this machine. Changes nothing on the nodes.

    `base` is the folder `files` are relative to; an unnamed run is called `stem` and four random characters.
    `volumes`: those of the project, where the task names some. A task that is tried again on `no-capacity`,
    and whose nodes are not free, waits in line for them; `wait`: any task does. `dev`: what a dev environment
    has beside the task that carries it out. `makes_nodes`: whether later attempts may make nodes; `made`:
    names of those that were made for this one.

    Raises BadRunName, NameTaken, RunConflict (another run uses a volume), NodeCordoned, NodeUnfit,
    NoFit, BadTask, HostfileIncomplete or LedgerUnusable, and what `runner.secrets` raises.
    """
    if wait:
        task = waiting_for_nodes(task)
    requested_name = name if name is not None else task.name
    run_name = RunName.generate(stem) if requested_name is None else RunName.parse(requested_name)
    # A secret that is missing is told before anything is submitted.
    runner.secrets(names_in(task, fleet))
    seats, waiting = _seats(runner, task, fleet)
    compiled: list[CompiledRun] = []
    messages: list[str] = []

    def build(number: int) -> str:
        request = RunRequest(
            task=task,
            name=run_name,
            number=number,
            fleet=fleet,
            seats=seats,
            image=image,
            base=base,
            token=secrets.token_hex(8),
            run_args=tuple(run_args),
            cli_env=cli_env or {},
            caller_env=caller_env or {},
            repo=RepoName(repository.id, repository.label) if repository else None,
            volumes=volumes if waiting is None else dataclasses.replace(volumes, for_waiting=True),
            dev=dev,
            made=made,
        )
        result = compile_run(request)
        plan, told = keep_files(runner.dot, result.plan, repository)
        messages.extend(told)
        folder = open_folder(runner.dot, run_name, number)
        try:
            folder.write_environments(result.environments)
            if task.retry is not None:
                folder.write_launch(LaunchRecord.of(request, makes_nodes=makes_nodes).model_dump_json())
            if task.registry_auth is not None:
                folder.write_registry_auth(task.registry_auth.username, task.registry_auth.password)
        except OSError as error:
            raise LedgerUnusable(
                "the folder of a run cannot be written",
                where=str(folder.path),
                detail=error.strerror or str(error),
            ) from error
        compiled.append(result)
        return plan.model_dump_json()

    with repository_of(runner.dot, base, task) as repository:
        nodes = [seat.node.name for seat in seats]
        row = runner.ledger.create(run_name, fleet.name, nodes, build, waiting, priority=task.priority)
    for warning in compiled[0].warnings:
        runner.processor.handle(Notice(warning, "warning"))
    for line in messages:
        level, _, text = line.partition(": ")
        runner.processor.handle(Notice(text, level))
    return row


def waiting_for_nodes(task: Task) -> Task:
    """The task as one that waits for free nodes; without a `retry` of its own for as long as that takes."""
    from orch.spec.models.retry import Retry

    if task.retry is None:
        retry_policy = Retry.model_validate({"on_events": ["no-capacity"], "duration": "off"})
    else:
        events = ("no-capacity", *(event for event in task.retry.on_events if event != "no-capacity"))
        retry_policy = task.retry.model_copy(update={"on_events": events})
    return task.model_copy(update={"retry": retry_policy})


def _seats(runner: RunnerContext, task: Task, fleet: FleetState) -> tuple[tuple[Seat, ...], Waiting | None]:
    """Seats for a new run; with a reason to wait, those that it would have on a fleet without other runs."""
    waits = task.retry is not None and "no-capacity" in task.retry.on_events
    try:
        if (first := runner.ledger.line(fleet.name).before(None, task.priority)) is not None:
            place_task(task, fleet)  # a task that can never fit is told that instead
            raise behind(first, hint="`--wait` has this run wait in line, `priority` puts it further ahead")
        return choose_seats(runner, task, fleet, answering=waits), None
    except (NodesBusy, NodeCordoned, NodeUnfit, HostUnreachable) as error:
        if not waits:
            raise
        reason = Waiting(
            error_text(error), retry.DELAYS_S[0], None, 1, for_nodes=True, in_use=nodes_in_use(error)
        )
        return place_task(task, fleet), reason


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
    while row.active:
        lease = runner.ledger.take(row.id, owner)
        if lease is None:
            row = follow(runner, row, follow_logs)
            continue
        row = runner.ledger.by_id(row.id)
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
    """Stop a run and wait for its end: within its `stop_duration`, or with `abort` at once."""
    if not row.active:
        return row
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
    # The oldest first, which has the first claim on nodes.
    passes = [advance(runner, row, begin=begin) for row in sorted(active, key=lambda row: row.id)]
    collect_leftovers(runner, rows)
    return tuple(each for each in passes if each is not None)


def advance(runner: RunnerContext, row: RunRow, *, begin: bool) -> Advanced | None:
    """One pass over one run; None where it has a driver, has ended, or cannot be read."""
    if not row.active or row.held or not _has_readable_plan(runner, row):
        return None
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
    """Clean up what ended runs have left: on nodes that were silent then, and of their variables here."""
    selected_ids = None if rows is None else {row.id for row in rows}
    for row in runner.ledger.uncollected():
        if selected_ids is not None and row.id not in selected_ids:
            continue
        if _has_readable_plan(runner, row, warn=False):
            _collect_late(runner, row, process_owner())
    _forget_ended(runner)


def _forget_ended(runner: RunnerContext) -> None:
    """Remove from this machine the variables of runs that somebody elsewhere has ended."""
    folders = folders_with_secrets(runner.dot)
    ended = runner.ledger.ended_of({folder.number for _, folder in folders})
    for name, folder in folders:
        if (name, folder.number) in ended:
            folder.forget_secrets()
            close_entry(folder, name)


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
            for rank, error in collect_ranks(context, plan, uncollected, tell=False, deadline_s=2.0).items():
                if error is None:
                    runner.ledger.change_rank(lease, row.attempt, rank, collected=1)
    except LeaseLost:
        return
    finally:
        runner.ledger.release(lease)


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
