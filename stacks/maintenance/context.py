"""What the steps of a maintenance share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from orch.runner.node_api.connector import Connector, fan_out
from orch.runner.runs.context import RunnerContext
from orch.spec.errors import OrchError
from orch.spec.state import NodeState
from orch.stacks.maintenance.errors import MaintenanceError
from orch.stacks.maintenance.plan import MaintenancePlan
from orch.stacks.plans.request import FleetRequest
from orch.stacks.project.project import Project
from orch.stacks.pulumi.progress import Listener, Note
from orch.stacks.pulumi.recovery import when_free
from orch.stacks.record.change_log import Journal, is_over
from orch.stacks.record.fleets import fleet_state
from orch.stacks.stack.state import StackState

T = TypeVar("T")

Failures = dict[str, OrchError]
"""Why nodes failed, by name."""

Health = Callable[[str, Collection[str]], Mapping[str, str]]
"""What `orch check` finds wrong with nodes of a fleet: the reasons by node, none of those in order."""

LOCKED_S = 600.0
"""How long another operation of the engine on the same stack is waited for."""


@dataclass(frozen=True)
class Maintenance:
    """One maintenance that is under way. `request`: of a rollout, what the fleet's file asks for now."""

    project: Project
    runner: RunnerContext
    plan: MaintenancePlan
    journal: Journal
    health: Health
    listener: Listener
    request: FleetRequest | None = None

    @property
    def connector(self) -> Connector:
        return self.runner.connector

    @property
    def mark(self) -> str:
        """Return the name of this change in cordons."""
        return mark_of(self.journal.change.id, self.project.name)

    @property
    def title(self) -> str:
        return f"orch {self.plan.title}"

    def when_free(self, fleet: str, change: Callable[[], T]) -> T:
        """Change a fleet, after waiting for another operation of the engine on it. Raises StackLocked."""
        stack = StackState(self.project, fleet)
        return when_free(stack, self.listener, change, patience_s=LOCKED_S)

    def tell(self, text: str) -> None:
        self.listener(Note(text))

    def nodes(self, names: Iterable[str]) -> tuple[NodeState, ...]:
        """The present records of nodes, as their stacks have them now."""
        chosen = set(names)
        found: list[NodeState] = []
        for fleet, here in self.by_fleet(chosen).items():
            machines = self.project.machines(fleet_state(self.project, fleet))
            found += [node for node in machines if node.name in here]
        return tuple(found)

    def by_fleet(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Names of nodes by their fleet, in the order of the plan."""
        chosen, found = set(names), dict[str, list[str]]()
        for each in self.plan.nodes:
            if each.name in chosen:
                found.setdefault(each.fleet, []).append(each.name)
        return found

    def on_each(
        self, names: Sequence[str], step: str, do: Callable[[NodeState], object], failures: Failures
    ) -> None:
        """Do a step on each node that has not failed, at the same time; what fails is added to `failures`. A
        node that is being replaced is gone for a while: it is not looked for where the step is done.

        Raises LeaseLost, and the error of an interrupt."""
        left = [name for name in names if name not in failures and not self.journal.is_done(name, step)]
        present = self.nodes(left)
        for name in set(left) - {node.name for node in present}:
            failures[name] = MaintenanceError(
                f"node {name} is not there", hint="`orch fleet` lists the nodes that are", code="ORCH405"
            )

        def one(node: NodeState) -> None:
            self.journal.step(node.name, step, lambda: do(node))

        for result in fan_out(present, one):
            if result.error is not None:
                raise_if_over(result.error)
                failures[result.node.name] = result.error


def mark_of(change: int, project: str) -> str:
    """Return the name of a change in the reason of a cordon."""
    return f"change {change} of {project}"


def raise_if_over(error: OrchError) -> None:
    """Raises errors after which nothing goes on."""
    if is_over(error):
        raise error
