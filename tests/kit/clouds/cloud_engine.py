"""A fleet in the real engine, on a simulated account, as `orch` brings it up: within this process."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from orch.components.request import Approvals, whole
from orch.spec.models import Fleet
from orch.spec.state import FleetState
from orch.stacks.events.changes import Change, PropertyDrift
from orch.stacks.plans.plan import Plan
from orch.stacks.plans.request import FleetRequest
from orch.stacks.project.project import Project
from orch.stacks.provisioning import operations
from orch.stacks.pulumi.progress import Progress
from orch.stacks.record.fleets import require_up
from orch.stacks.stack.state import StackState


def quiet(event: Progress) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class CloudStack:
    """A rehearsal of one fleet in a folder."""

    folder: Path
    project: Project
    name: str

    def plan(self, fleet: Fleet) -> Plan:
        return operations.preview(self.project, FleetRequest(fleet, self.folder), quiet)

    def preview(self, fleet: Fleet) -> tuple[Change, ...]:
        return self.plan(fleet).changes

    def up(self, fleet: Fleet, *, lose_data: Collection[str] = ()) -> tuple[Change, ...]:
        """Bring it up; what changed in all of its steps. Raises what `orch up` tells."""
        approvals = Approvals(lose_data=frozenset(lose_data))
        return operations.up(self.project, FleetRequest(fleet, self.folder, approvals), quiet).changes

    def drift(self) -> tuple[PropertyDrift, ...]:
        return operations.drift(self.project, self.name, quiet)

    def down(self) -> None:
        operations.down(self.project, self.name, quiet)

    def state(self) -> FleetState:
        """As it is recorded: how nodes are reached in a rehearsal is another thing."""
        return FleetState.model_validate(whole(require_up(StackState(self.project, self.name))["fleet"]))
