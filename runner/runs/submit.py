"""Submits a run: its nodes, its plan, its row in the ledger. Loads nothing of what drives one."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orch.runner.errors import (
    HostUnreachable,
    LedgerUnusable,
    NodeCordoned,
    NodesBusy,
    NodeUnfit,
    SeatsTaken,
    error_text,
    nodes_in_use,
)
from orch.runner.events import Notice
from orch.runner.launch.compile import compile_run
from orch.runner.launch.launch_record import LaunchRecord
from orch.runner.launch.run_request import RunRequest
from orch.runner.launch.submission import Submission
from orch.runner.launch.variables import set_variables
from orch.runner.ledger.records import RunRow, Waiting
from orch.runner.ledger.run_folder import RunFolder, open_folder
from orch.runner.ledger.waiting_line import behind
from orch.runner.placement.node_fit import Seat
from orch.runner.placement.placement import place_task
from orch.runner.placement.rank_groups import rank_groups
from orch.runner.plan.run_names import RunName
from orch.runner.plan.run_plan import RunPlan
from orch.runner.runs import retry
from orch.runner.runs.context import RunnerContext
from orch.runner.runs.pods.admission import ASKED
from orch.runner.runs.run_secrets import names_in
from orch.runner.runs.seats.choose import SeatSearch, WhySilent, choose_seats, crowded
from orch.runner.upload.repository import Repository, repository_of
from orch.runner.upload.snapshot import check_sources, keep_files

if TYPE_CHECKING:
    from orch.spec.models import Task


def check_task(task: Task, base: Path, caller_env: Mapping[str, str]) -> None:
    """Check a task before there are nodes: unset variables, missing files. Raises BadTask."""
    for group in rank_groups(task):
        set_variables(group.env, caller_env)
    check_sources(base, task)


def submit(
    runner: RunnerContext,
    submission: Submission,
    *,
    wait: bool = False,
    why_silent: WhySilent | None = None,
) -> RunRow:
    """Write a run into the ledger, and the files to start it from this machine. Changes nothing on the nodes.

    A task that is tried again on `no-capacity`, and whose nodes are not free, waits in line for them; `wait`:
    any task does. `why_silent`: with it a run is refused whose nodes do not answer, but for those that were
    just made. A task with `array` goes to `submit_array`.

    Raises BadRunName, NameTaken, HostUnreachable, RunConflict (another run uses a volume), NodeCordoned,
    NodeUnfit, NoFit, BadTask, HostfileIncomplete or LedgerUnusable, and what `runner.secrets` raises.
    """
    task, fleet = submission.task, submission.fleet
    if wait or fleet.queue is not None:
        task = waiting_for_nodes(task)
    if submission.examines:  # spares, too
        fleet = fleet.model_copy(update={"spares": None})
    submission = replace(submission, task=task, fleet=fleet)
    name = submission.run_name()
    # A secret that is missing is told before anything is submitted.
    runner.secrets(names_in(task, fleet))
    why_silent = why_silent if not submission.made else None
    seats, waiting = _seats(runner, submission, why_silent)
    with repository_of(runner.dot, submission.base, task) as repository:
        while True:
            volumes = (
                replace(submission.volumes, for_waiting=True) if waiting is not None else submission.volumes
            )
            draft = _Draft(runner.dot, replace(submission, volumes=volumes), name, seats, repository)
            try:
                row = runner.ledger.create(
                    name,
                    fleet.name,
                    [seat.node.name for seat in seats],
                    draft.write,
                    waiting,
                    priority=task.priority,
                    taken=draft.taken,
                )
                break
            except SeatsTaken:  # by a run that was submitted since; now the ledger knows it
                draft.forget_secrets()
                seats, waiting = _seats(runner, submission, why_silent)
    announce(runner, draft.warnings, draft.messages)
    return row


@dataclass
class _Draft:
    """A run on given seats, until the ledger has taken it. `warnings` and `messages` are for its user."""

    dot: Path
    submission: Submission
    name: RunName
    seats: tuple[Seat, ...]
    repository: Repository | None
    folder: RunFolder | None = None
    warnings: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()

    def write(self, number: int) -> str:
        """Write the folder of the run of this number, and return its plan as JSON."""
        submission, token = self.submission, secrets.token_hex(8)
        request = submission.request(self.name, number, self.seats, token=token, repository=self.repository)
        compiled = compile_run(request)
        plan, self.messages = keep_files(self.dot, compiled.plan, self.repository)
        self.warnings = compiled.warnings
        self.folder = folder = open_folder(self.dot, self.name, number)
        try:
            folder.write_environments(compiled.environments)
            if submission.task.retry is not None:
                folder.write_launch(launch_record(submission, request, plan).model_dump_json())
            write_registry_auth(folder, submission.task)
        except OSError as error:
            raise LedgerUnusable(
                "the folder of a run cannot be written",
                where=str(folder.path),
                detail=error.strerror or str(error),
            ) from error
        return plan.model_dump_json()

    def taken(self, rows: tuple[RunRow, ...]) -> bool:
        """Return True if runs of the ledger have taken the seats."""
        return self.submission.fleet.queue is None and crowded(self.seats, rows)

    def forget_secrets(self) -> None:
        if self.folder is not None:
            self.folder.forget_secrets()


def launch_record(submission: Submission, request: RunRequest, plan: RunPlan) -> LaunchRecord:
    """Return what later attempts of a run need. Raises BadTask for what its pods cannot have."""
    record = LaunchRecord.of(request, makes_nodes=submission.makes_nodes)
    if submission.fleet.queue is not None:
        from orch.runner.runs.pods.requests import check_request

        check_request(record, submission.fleet, plan, request.volumes)
    return record


def write_registry_auth(folder: RunFolder, task: Task) -> None:
    if task.registry_auth is not None:
        folder.write_registry_auth(task.registry_auth.username, task.registry_auth.password)


def announce(runner: RunnerContext, warnings: Iterable[str], messages: Iterable[str]) -> None:
    """Pass on what a submission tells its user. `messages`: `LEVEL: TEXT` lines of `keep_files`."""
    for warning in warnings:
        runner.processor.handle(Notice(warning, "warning"))
    for line in messages:
        level, _, text = line.partition(": ")
        runner.processor.handle(Notice(text, level))


def waiting_for_nodes(task: Task) -> Task:
    """The task as one that waits for free nodes; without a `retry` of its own for as long as that takes."""
    from orch.spec.models.retry import Retry

    if task.retry is None:
        retry_policy = Retry.model_validate({"on_events": ["no-capacity"], "duration": "off"})
    else:
        events = ("no-capacity", *(event for event in task.retry.on_events if event != "no-capacity"))
        retry_policy = task.retry.model_copy(update={"on_events": events})
    return task.model_copy(update={"retry": retry_policy})


def _seats(
    runner: RunnerContext, submission: Submission, why_silent: WhySilent | None
) -> tuple[tuple[Seat, ...], Waiting | None]:
    """Seats for a new run; with a reason to wait, those that it would have on a fleet without other runs."""
    task, fleet = submission.task, submission.fleet
    if fleet.queue is not None:
        return place_task(task, fleet), Waiting(ASKED, 0.0, None, 0)
    waits = task.retry is not None and "no-capacity" in task.retry.on_events
    try:
        if (first := runner.ledger.line(fleet.name).before(None, task.priority)) is not None:
            place_task(task, fleet)  # a task that can never fit is told that instead
            raise behind(first, hint="`--wait` has this run wait in line, `priority` puts it further ahead")
        seats = choose_seats(
            runner,
            task,
            fleet,
            SeatSearch(
                answering=waits,
                early_look=runner.early_look,
                why_silent=None if waits else why_silent,
                examines=submission.examines,
            ),
        )
        return seats, None
    except (NodesBusy, NodeCordoned, NodeUnfit, HostUnreachable) as error:
        if not waits:
            raise
        reason = Waiting(
            error_text(error), retry.DELAYS_S[0], None, 1, for_nodes=True, in_use=nodes_in_use(error)
        )
        return place_task(task, fleet), reason
