"""What a run was submitted with, as text: a later attempt is compiled from it by the same function.

It is private: it has the caller's values of the task's variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from orch.runner.errors import RunFailed
from orch.runner.launch.files import RepoName
from orch.runner.launch.run_request import RunRequest
from orch.runner.launch.volumes import KnownVolume, Volumes
from orch.runner.ledger.records import RunRow
from orch.runner.ledger.run_folder import RunFolder
from orch.runner.placement.node_fit import Seat
from orch.runner.placement.rank_groups import rank_groups
from orch.runner.plan.environment import ArrayPlace
from orch.runner.plan.run_plan import DevPlan
from orch.spec.state import FleetState
from orch.spec.volume_state import VolumeState

if TYPE_CHECKING:
    from orch.spec.models import Task


def place_in(indexes: Sequence[int], number: int, index: int) -> ArrayPlace:
    """The place of an index in an array of these indexes and that number."""
    return ArrayPlace(number, index, len(indexes), min(indexes), max(indexes))


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RecordedVolume(_Frozen):
    """A volume that was up."""

    state: VolumeState
    made: bool = False
    folder: str | None


class LaunchRecord(_Frozen):
    """A `RunRequest` without its seats.

    `plain_task` is canonical plain data (`Section.plain`). `fleet` and `recorded_volumes` are as they were
    when the run was submitted. `repo`: the id of the repository, and its folder or URL. `makes_nodes`:
    whether nodes that an attempt lacks are made, without asking. `made`: of an array, names of nodes that
    were made when it was submitted.
    """

    plain_task: JsonValue
    fleet: FleetState
    image: str
    base: str
    token: str
    run_args: tuple[str, ...]
    cli_env: dict[str, str]
    caller_env: dict[str, str]
    repo: tuple[str, str] | None
    recorded_volumes: dict[str, RecordedVolume]
    dev: DevPlan | None = None
    makes_nodes: bool = False
    made: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: RunRequest, *, makes_nodes: bool = False) -> LaunchRecord:
        """What of a request its later attempts need; of the caller's environment only what the task names."""
        groups = rank_groups(request.task)
        bare = {name for group in groups for name, value in group.env.items() if value is None}
        volumes = {
            name: RecordedVolume(state=each.state, folder=each.folder, made=each.made)
            for name, each in request.volumes.known.items()
        }
        return cls.model_validate(
            {
                "plain_task": request.task.plain(),
                "fleet": request.fleet,
                "image": request.image,
                "base": str(request.base),
                "token": request.token,
                "run_args": request.run_args,
                "cli_env": dict(request.cli_env),
                "caller_env": {name: value for name, value in request.caller_env.items() if name in bare},
                "repo": (request.repo.id, request.repo.label) if request.repo else None,
                "recorded_volumes": volumes,
                "dev": request.dev,
                "makes_nodes": makes_nodes,
                "made": sorted(request.made) if request.array is not None else (),
            }
        )

    @classmethod
    def kept(cls, folder: RunFolder) -> LaunchRecord:
        """That of a run. Raises RunFailed."""
        try:
            return cls.model_validate_json(folder.launch())
        except ValidationError as error:
            raise RunFailed(
                "this run cannot be tried again by this version of orch",
                where=str(folder.path),
                detail="another one submitted it",
                hint="submit it again",
            ) from error

    @property
    def task(self) -> Task:
        from orch.spec.models import Task

        return Task.model_validate(self.plain_task)

    @property
    def volumes(self) -> Volumes:
        """The volumes that were up, used by nobody."""
        known = {
            name: KnownVolume(each.state, each.folder, each.made)
            for name, each in self.recorded_volumes.items()
        }
        return Volumes(known)

    def request(
        self,
        row: RunRow,
        *,
        fleet: FleetState,
        seats: tuple[Seat, ...],
        volumes: Volumes,
        made: frozenset[str] = frozenset(),
    ) -> RunRequest:
        """The request of the next attempt of a run, with a fleet and volumes as they are now."""
        return RunRequest(
            task=self.task,
            name=row.name,
            number=row.id,
            fleet=fleet,
            seats=seats,
            image=self.image,
            base=Path(self.base),
            token=self.token,
            attempt=row.next_attempt,
            run_args=self.run_args,
            cli_env=self.cli_env,
            caller_env=self.caller_env,
            repo=RepoName(*self.repo) if self.repo else None,
            volumes=volumes,
            dev=self.dev,
            made=made.union(self.made),
            array=self._place(row),
        )

    def _place(self, row: RunRow) -> ArrayPlace | None:
        array = self.task.array
        if array is None or row.array_id is None or row.array_index is None:
            return None
        return place_in(array.indexes, row.array_id, row.array_index)
