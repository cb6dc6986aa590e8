"""A fleet as a user asks for it, planned with what its stack decided before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from orch.components.deployment import Deployment
from orch.components.registry import compile_fleet
from orch.components.request import NO_CONSENT, Approvals, PlanRequest, PriorState
from orch.spec.models import Fleet
from orch.stacks.lockfile import read_lock
from orch.stacks.program import scope_of
from orch.stacks.project import Project
from orch.stacks.state import begun, deployment, nodes_there, outputs


@dataclass(frozen=True)
class FleetRequest:
    """A fleet as a user asks for it: its model, the folder of its file, and what is agreed to beyond it."""

    fleet: Fleet
    folder: Path
    consent: Approvals = NO_CONSENT

    @property
    def name(self) -> str:
        return self.fleet.name


def compile_for(project: Project, wish: FleetRequest) -> Deployment:
    """Plan a fleet with what its stack decided before. Raises PlanError, Conflict (a newer orch's state)."""
    recorded = deployment(project, wish.name)
    previous = replace(
        PriorState.of_outputs(outputs(recorded)),
        begun=begun(recorded),
        locked=read_lock(project.lock_file, wish.name),
    )
    return compile_fleet(
        PlanRequest(
            wish.fleet,
            project.backends,
            previous,
            scope_of(project),
            root=project.root,
            folder=wish.folder,
            consent=wish.consent,
            session=project.session,
            stack=lambda name: decided(project, name),
            tags=project.tags,
        )
    )


def decided(project: Project, stack: str) -> PriorState:
    """What another stack of the project has decided; nothing when there is none."""
    return PriorState.of_outputs(outputs(deployment(project, stack)))


def nodes_up(project: Project, name: str) -> dict[str, str]:
    """The fleet's nodes that are recorded, each with the resource that made it; none when it is not up."""
    return {
        node["name"]: node.get("made_by") or node["name"] for node in nodes_there(deployment(project, name))
    }
