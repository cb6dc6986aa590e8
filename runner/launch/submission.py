"""What somebody submits: a task for a fleet, and what the machine of the caller adds to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orch.runner.launch.files import RepoName
from orch.runner.launch.run_request import RunRequest
from orch.runner.launch.volumes import NO_VOLUMES, Volumes
from orch.runner.placement.node_fit import Seat
from orch.runner.plan.run_names import RunName
from orch.runner.plan.run_plan import DevPlan
from orch.spec.state import FleetState

if TYPE_CHECKING:
    from orch.spec.models import Task


@dataclass(frozen=True)
class Submission:
    """A task that is about to become a run, or the runs of an array.

    `base`: the folder that `files` are relative to. A task without a name gets `stem` and four random
    characters. `cli_env`, then `caller_env` fill bare names in `env`. `volumes`: those of the project, if the
    task names some. `dev`: what a dev environment has beside the task that carries it out. `makes_nodes`:
    later attempts may create nodes; `made`: names of the nodes that were created for this one. `examines`:
    the run examines its nodes, so their health excludes none of them.
    """

    task: Task
    fleet: FleetState
    image: str
    base: Path
    name: str | None = None
    stem: str = "run"
    run_args: tuple[str, ...] = ()
    cli_env: Mapping[str, str] = field(default_factory=dict[str, str])
    caller_env: Mapping[str, str] = field(default_factory=dict[str, str])
    volumes: Volumes = NO_VOLUMES
    dev: DevPlan | None = None
    makes_nodes: bool = False
    made: frozenset[str] = frozenset()
    examines: bool = False

    def run_name(self) -> RunName:
        """Return the name that was asked for, or a random one. Raises BadRunName."""
        requested = self.name if self.name is not None else self.task.name
        return RunName.generate(self.stem) if requested is None else RunName.parse(requested)

    def request(
        self, name: str, number: int, seats: tuple[Seat, ...], *, token: str, repository: RepoName | None
    ) -> RunRequest:
        """Return the request for the first attempt of a run on these seats."""
        return RunRequest(
            task=self.task,
            name=name,
            number=number,
            fleet=self.fleet,
            seats=seats,
            image=self.image,
            base=self.base,
            token=token,
            run_args=self.run_args,
            cli_env=self.cli_env,
            caller_env=self.caller_env,
            repo=repository,
            volumes=self.volumes,
            dev=self.dev,
            made=self.made,
            examines=self.examines,
        )
