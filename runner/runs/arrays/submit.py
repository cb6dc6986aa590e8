"""Submits an array: what its task takes along once, a plan and a folder for each member, one transaction."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orch.runner.errors import BadTask, LedgerUnusable
from orch.runner.launch.compile import compile_run
from orch.runner.launch.launch_record import place_in
from orch.runner.launch.run_request import RunRequest
from orch.runner.launch.submission import Submission
from orch.runner.ledger.records import ARRAY_LIMIT, ARRAY_TURN, RunRow, Waiting
from orch.runner.ledger.run_folder import RunFolder, open_folder
from orch.runner.placement.placement import place_task
from orch.runner.plan.run_names import RunName
from orch.runner.plan.run_plan import StagedFile
from orch.runner.runs.run_secrets import names_in
from orch.runner.runs.submit import announce, launch_record, waiting_for_nodes, write_registry_auth
from orch.runner.upload.repository import Repository, repository_of
from orch.runner.upload.snapshot import keep_files

if TYPE_CHECKING:
    from orch.runner.runs.context import RunnerContext


def submit_array(runner: RunnerContext, submission: Submission) -> RunRow:
    """Write the members of an array into the ledger, all or none; its first member. They wait: who drives
    them begins them one after the other. Errors are those of `submit`; also BadTask (ORCH118) for a fleet
    whose pods are not counted before they begin."""
    submission = replace(submission, task=waiting_for_nodes(submission.task))
    task, fleet = submission.task, submission.fleet
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
    name, limit = submission.run_name(), task.array.at_once
    runner.secrets(names_in(task, fleet))

    def waiting(place: int) -> Waiting:
        first = limit is None or place < limit
        return Waiting(ARRAY_TURN if first else ARRAY_LIMIT, 0.0, None, 0)

    draft = _ArrayDraft(runner.dot, submission, name, task.array.indexes)
    try:
        with repository_of(runner.dot, submission.base, task) as draft.repository:
            array = runner.ledger.arrays.create(
                name,
                fleet.name,
                task.array.indexes,
                draft.write,
                waiting,
                limit=limit,
                priority=task.priority,
            )
    except BaseException:
        draft.forget_secrets()
        raise
    announce(runner, draft.warnings, draft.messages)
    return runner.ledger.by_id(array.id)


class _ArrayDraft:
    """The members of an array, until the ledger has taken all of them."""

    def __init__(self, dot: Path, submission: Submission, name: RunName, indexes: Sequence[int]) -> None:
        self._submission = replace(submission, volumes=replace(submission.volumes, for_waiting=True))
        self._dot, self._name, self._indexes = dot, name, indexes
        self._seats = place_task(submission.task, submission.fleet)
        self._token = secrets.token_hex(8)
        self._folder: RunFolder | None = None
        self.repository: Repository | None = None
        self.warnings: dict[str, None] = {}
        self.messages: tuple[str, ...] = ()

    def write(self, numbers: Mapping[int, int]) -> tuple[Mapping[int, str], Sequence[str]]:
        """Write the folders of all members, and return the plan of each index as JSON and the names of the
        nodes. `numbers`: the number of the run by its index."""
        try:
            self._folder = open_folder(self._dot, self._name, numbers[self._indexes[0]])
            plans = self._plans(self._folder, numbers)
        except OSError as error:
            raise LedgerUnusable(
                "the folder of an array cannot be written",
                where=str(self._dot / "runs" / self._name),
                detail=error.strerror or str(error),
            ) from error
        return plans, [seat.node.name for seat in self._seats]

    def _plans(self, folder: RunFolder, numbers: Mapping[int, int]) -> dict[int, str]:
        files: tuple[StagedFile, ...] | None = None
        plans: dict[int, str] = {}
        for index, number in numbers.items():
            request = self._request(index, number, numbers[self._indexes[0]])
            compiled = compile_run(request)
            self.warnings.update(dict.fromkeys(compiled.warnings))
            if files is None:  # what all members take along, once
                kept, self.messages = keep_files(self._dot, compiled.plan, self.repository)
                files = kept.files
                folder.write_array(launch_record(self._submission, request, kept).model_dump_json())
                write_registry_auth(folder, self._submission.task)
            plans[index] = compiled.plan.model_copy(update={"files": files}).model_dump_json()
            open_folder(self._dot, self._name.member(index), number)
        return plans

    def _request(self, index: int, number: int, first: int) -> RunRequest:
        member = self._name.member(index)
        request = self._submission.request(
            member, number, self._seats, token=self._token, repository=self.repository
        )
        return replace(request, array=place_in(self._indexes, first, index))

    def forget_secrets(self) -> None:
        if self._folder is not None:
            self._folder.forget_secrets()
