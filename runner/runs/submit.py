"""Submits a run: its nodes, its plan, its row in the ledger. Loads nothing of what drives one."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
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
from orch.runner.launch.compile import CompiledRun, RepoName, RunRequest, compile_run
from orch.runner.launch.launch_record import LaunchRecord
from orch.runner.launch.run_plan import DevPlan
from orch.runner.launch.variables import set_variables
from orch.runner.launch.volumes import NO_VOLUMES, Volumes
from orch.runner.ledger.records import RunRow, Waiting
from orch.runner.ledger.run_folder import RunFolder, open_folder
from orch.runner.ledger.run_names import RunName
from orch.runner.ledger.waiting_line import behind
from orch.runner.placement.node_fit import Seat
from orch.runner.placement.placement import place_task
from orch.runner.placement.rank_groups import rank_groups
from orch.runner.placement.seats import WhySilent, choose_seats, crowded
from orch.runner.runs import retry
from orch.runner.runs.context import RunnerContext
from orch.runner.runs.pods.admission import ASKED
from orch.runner.runs.run_secrets import names_in
from orch.runner.upload.repository import repository_of
from orch.runner.upload.snapshot import check_sources, keep_files
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
    why_silent: WhySilent | None = None,
    examines: bool = False,
) -> RunRow:
    """Write a run into the ledger, and the files to start it from this machine. Changes nothing on the nodes.

    `base` is the folder `files` are relative to; an unnamed run is called `stem` and four random characters.
    `volumes`: those of the project, where the task names some. A task that is tried again on `no-capacity`,
    and whose nodes are not free, waits in line for them; `wait`: any task does. `dev`: what a dev environment
    has beside the task that carries it out. `makes_nodes`: whether later attempts may make nodes; `made`:
    names of those that were made for this one. `why_silent`: with it a run is refused whose nodes do not
    answer, but for those that were just made. `examines`: the run examines its nodes, so that their health
    keeps it from none. Of a task with `array` the first member is returned; all wait, whether nodes are free
    or not.

    Raises BadRunName, NameTaken, HostUnreachable, RunConflict (another run uses a volume), NodeCordoned,
    NodeUnfit, NoFit, BadTask, HostfileIncomplete or LedgerUnusable, and what `runner.secrets` raises.
    """
    if task.array is not None:
        from orch.runner.runs.arrays.submit import submit_array

        return submit_array(
            runner,
            waiting_for_nodes(task),
            fleet,
            image=image,
            base=base,
            name=name,
            stem=stem,
            run_args=run_args,
            cli_env=cli_env or {},
            caller_env=caller_env or {},
            volumes=volumes,
            makes_nodes=makes_nodes,
            made=made,
        )
    if wait or fleet.queue is not None:
        task = waiting_for_nodes(task)
    requested_name = name if name is not None else task.name
    run_name = RunName.generate(stem) if requested_name is None else RunName.parse(requested_name)
    # A secret that is missing is told before anything is submitted.
    runner.secrets(names_in(task, fleet))
    why_silent = why_silent if not made else None
    if examines:  # spares, too
        fleet = fleet.model_copy(update={"spares": None})
    seats, waiting = _seats(runner, task, fleet, why_silent, examines)
    compiled: list[CompiledRun] = []
    messages: list[str] = []
    folders: list[RunFolder] = []

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
            examines=examines,
        )
        result = compile_run(request)
        plan, told = keep_files(runner.dot, result.plan, repository)
        messages[:] = told
        folder = open_folder(runner.dot, run_name, number)
        folders.append(folder)
        try:
            folder.write_environments(result.environments)
            if task.retry is not None:
                record = LaunchRecord.of(request, makes_nodes=makes_nodes)
                if fleet.queue is not None:
                    from orch.runner.runs.pods.requests import check_request

                    check_request(record, fleet, plan, request.volumes)
                folder.write_launch(record.model_dump_json())
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

    def taken(rows: tuple[RunRow, ...]) -> bool:
        return fleet.queue is None and crowded(seats, rows)

    with repository_of(runner.dot, base, task) as repository:
        while True:
            nodes = [seat.node.name for seat in seats]
            try:
                row = runner.ledger.create(
                    run_name, fleet.name, nodes, build, waiting, priority=task.priority, taken=taken
                )
                break
            except SeatsTaken:  # by a run that was submitted since; now the ledger knows it
                folders[-1].forget_secrets()
                seats, waiting = _seats(runner, task, fleet, why_silent, examines)
    for warning in compiled[-1].warnings:
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


def _seats(
    runner: RunnerContext, task: Task, fleet: FleetState, why_silent: WhySilent | None, examines: bool
) -> tuple[tuple[Seat, ...], Waiting | None]:
    """Seats for a new run; with a reason to wait, those that it would have on a fleet without other runs."""
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
            answering=waits,
            early_look=runner.early_look,
            why_silent=None if waits else why_silent,
            examines=examines,
        )
        return seats, None
    except (NodesBusy, NodeCordoned, NodeUnfit, HostUnreachable) as error:
        if not waits:
            raise
        reason = Waiting(
            error_text(error), retry.DELAYS_S[0], None, 1, for_nodes=True, in_use=nodes_in_use(error)
        )
        return place_task(task, fleet), reason
