"""The request for a run: a task, the nodes that were chosen, and what it was submitted with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orch.runner.launch.files import RepoName
from orch.runner.launch.volumes import NO_VOLUMES, Volumes
from orch.runner.placement.node_fit import Seat
from orch.runner.plan.environment import ArrayPlace
from orch.runner.plan.run_plan import DevPlan
from orch.spec.state import FleetState

if TYPE_CHECKING:
    from orch.spec.models import Task


@dataclass(frozen=True)
class RunRequest:
    """The input of `compile_run`.

    `seats` are the nodes in rank order; `cli_env`, then `caller_env` fill bare names in `env`; `token` is
    unique to this run; `made`: names of nodes that were made for it. `examines`: it examines its nodes.
    `array`: its place in the array that it is a member of.
    """

    task: Task
    name: str
    number: int
    fleet: FleetState
    seats: tuple[Seat, ...]
    image: str
    base: Path
    token: str = ""
    attempt: int = 0
    run_args: tuple[str, ...] = ()
    cli_env: Mapping[str, str] = field(default_factory=dict[str, str])
    caller_env: Mapping[str, str] = field(default_factory=dict[str, str])
    repo: RepoName | None = None
    volumes: Volumes = NO_VOLUMES
    dev: DevPlan | None = None
    made: frozenset[str] = frozenset()
    examines: bool = False
    array: ArrayPlace | None = None
