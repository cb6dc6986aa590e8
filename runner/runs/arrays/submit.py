"""Submits an array: what its task takes along once, a plan and a folder for each member, one transaction."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orch.runner.errors import BadTask, LedgerUnusable
from orch.runner.events import Notice
from orch.runner.launch.compile import RepoName, RunRequest, compile_run
from orch.runner.launch.launch_record import LaunchRecord, place_in
from orch.runner.launch.run_plan import StagedFile
from orch.runner.launch.volumes import Volumes
from orch.runner.ledger.records import ARRAY_LIMIT, ARRAY_TURN, RunRow, Waiting
from orch.runner.ledger.run_folder import RunFolder, open_folder
from orch.runner.ledger.run_names import RunName
from orch.runner.placement.placement import place_task
from orch.runner.runs.run_secrets import names_in
from orch.runner.upload.repository import repository_of
from orch.runner.upload.snapshot import keep_files
from orch.spec.state import FleetState

if TYPE_CHECKING:
    from orch.runner.runs.context import RunnerContext
    from orch.spec.models import Task


def submit_array(
    runner: RunnerContext,
    task: Task,
    fleet: FleetState,
    *,
    image: str,
    base: Path,
    name: str | None,
    stem: str,
    run_args: Sequence[str],
    cli_env: Mapping[str, str],
    caller_env: Mapping[str, str],
    volumes: Volumes,
    makes_nodes: bool,
    made: frozenset[str],
) -> RunRow:
    """Write the members of an array into the ledger, all or none; its first member. They wait: who drives
    them begins them one after the other. Arguments and errors are those of `submit`; also BadTask (ORCH118)
    for a fleet whose pods are not counted before they begin."""
    if task.array is None:
        raise TypeError("a task without an array")
    if fleet.queue is not None and task.array.at_once is not None:
        raise BadTask(
            f"`%{task.array.at_once}` of an array on Kubernetes is not supported by this version",
            detail="pods are asked for before the cluster starts them, and would not be counted",
            hint="write the indexes alone; the quota of the cluster's queue says how many run at once",
            path="array",
            code="ORCH118",
        )
    requested = name if name is not None else task.name
    array_name = RunName.generate(stem) if requested is None else RunName.parse(requested)
    runner.secrets(names_in(task, fleet))
    indexes, limit = task.array.indexes, task.array.at_once
    seats = place_task(task, fleet)
    token, messages, warnings = secrets.token_hex(8), list[str](), dict[str, None]()
    folder: RunFolder | None = None

    def waiting(place: int) -> Waiting:
        first = limit is None or place < limit
        return Waiting(ARRAY_TURN if first else ARRAY_LIMIT, 0.0, None, 0)

    def build(numbers: Mapping[int, int]) -> tuple[Mapping[int, str], Sequence[str]]:
        nonlocal folder
        files: tuple[StagedFile, ...] | None = None
        plans: dict[int, str] = {}
        number = numbers[indexes[0]]
        try:
            folder = open_folder(runner.dot, array_name, number)
            for index, own in numbers.items():
                member = array_name.member(index)
                request = RunRequest(
                    task=task,
                    name=member,
                    number=own,
                    fleet=fleet,
                    seats=seats,
                    image=image,
                    base=base,
                    token=token,
                    run_args=tuple(run_args),
                    cli_env=cli_env,
                    caller_env=caller_env,
                    repo=RepoName(repository.id, repository.label) if repository else None,
                    volumes=dataclasses.replace(volumes, for_waiting=True),
                    made=made,
                    array=place_in(indexes, number, index),
                )
                compiled = compile_run(request)
                warnings.update(dict.fromkeys(compiled.warnings))
                if files is None:
                    kept, told = keep_files(runner.dot, compiled.plan, repository)
                    files, messages[:] = kept.files, told
                    record = LaunchRecord.of(request, makes_nodes=makes_nodes)
                    if fleet.queue is not None:
                        from orch.runner.runs.pods.requests import check_request

                        check_request(record, fleet, kept, request.volumes)
                    folder.write_array(record.model_dump_json())
                    if task.registry_auth is not None:
                        folder.write_registry_auth(task.registry_auth.username, task.registry_auth.password)
                plans[index] = compiled.plan.model_copy(update={"files": files}).model_dump_json()
                open_folder(runner.dot, member, own)
        except OSError as error:
            raise LedgerUnusable(
                "the folder of an array cannot be written",
                where=str(runner.dot / "runs" / array_name),
                detail=error.strerror or str(error),
            ) from error
        return plans, [seat.node.name for seat in seats]

    try:
        with repository_of(runner.dot, base, task) as repository:
            array = runner.ledger.arrays.create(
                array_name, fleet.name, indexes, build, waiting, limit=limit, priority=task.priority
            )
    except BaseException:
        if folder is not None:
            folder.forget_secrets()
        raise
    for warning in warnings:
        runner.processor.handle(Notice(warning, "warning"))
    for line in messages:
        level, _, text = line.partition(": ")
        runner.processor.handle(Notice(text, level))
    return runner.ledger.by_id(array.id)
