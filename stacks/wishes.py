"""A fleet as a user asks for it, planned with what its stack decided before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from orch.components.backends import Compiled, compile_fleet
from orch.components.plan import NO_CONSENT, Consent, Order, Previous
from orch.spec.models import Fleet
from orch.stacks.changes import name_of
from orch.stacks.lockfile import read_lock
from orch.stacks.program import scope_of
from orch.stacks.project import Project
from orch.stacks.states import Deployment, deployment, outputs


@dataclass(frozen=True)
class Wish:
    """A fleet as a user asks for it: its model, the folder of its file, and what is agreed to beyond it."""

    fleet: Fleet
    folder: Path
    consent: Consent = NO_CONSENT

    @property
    def name(self) -> str:
        return self.fleet.name


def compile_for(project: Project, wish: Wish) -> Compiled:
    """Plan a fleet with what its stack decided before. Raises PlanError, Conflict (a newer orch's state)."""
    recorded = deployment(project, wish.name)
    previous = replace(
        Previous.of_outputs(outputs(recorded)),
        begun=begun(recorded),
        locked=read_lock(project.lock_file, wish.name),
    )
    return compile_fleet(
        Order(
            wish.fleet,
            project.backends,
            previous,
            scope_of(project.root),
            root=project.root,
            folder=wish.folder,
            consent=wish.consent,
            session=project.session(),
            tags=project.tags,
        )
    )


def begun(recorded: Deployment | None) -> dict[str, str]:
    """What an `up` that did not end had decided, as the fleet's component recorded it when it began."""
    for resource in (recorded or {}).get("resources") or ():
        if resource["type"].startswith("orch:fleet:"):
            pins = (resource.get("outputs") or {}).get("pins") or {}
            return {str(key): str(value) for key, value in pins.items()}
    return {}


def nodes_up(project: Project, name: str) -> tuple[str, ...]:
    """The names of the fleet's nodes that are recorded, in their order; none when it is not up."""
    recorded = deployment(project, name)
    fleet = outputs(recorded).get("fleet") or {}
    there = {name_of(resource["urn"]) for resource in (recorded or {}).get("resources") or ()}
    return tuple(node["name"] for node in fleet.get("nodes") or () if node["name"] in there)
