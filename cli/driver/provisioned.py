"""Answers what a driver asks of a project: its fleets and volumes now, nodes for a run, and their end."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orch.cli.errors import tell

if TYPE_CHECKING:
    from orch.runner.launch.volumes import Volumes
    from orch.runner.ledger.ledger import Ledger
    from orch.runner.ledger.records import RunRow
    from orch.runner.runs.context import RunContext
    from orch.spec.models import Task
    from orch.spec.state import FleetState
    from orch.stacks.project.project import Project
    from orch.stacks.pulumi.operation import Listener
    from orch.stacks.stack.state import StackState


# A controller advances runs in threads, and the engine's SDK keeps what it is registering in its modules.
_MAKING = threading.Lock()


@dataclass(frozen=True)
class ProjectNow:
    """State of a project at the time of each call; see `Provisioned` of the runner. `marks`: of the nodes
    that this process made for the latest attempt of runs, by the numbers of the runs."""

    project: Project
    ledger: Ledger
    marks: dict[int, str] = field(default_factory=dict[int, str])

    def fleet(self, stack: str, run: int) -> FleetState | None:
        """A fleet with its variables, None for one that is not up. Raises OrchError."""
        from orch.spec.state import own_nodes
        from orch.stacks.errors import NoSuchFleet
        from orch.stacks.record.fleets import fleet_of
        from orch.stacks.record.variables import with_variables
        from orch.stacks.stack.state import StackState

        state = StackState(self.project, stack)
        try:
            return with_variables(state, own_nodes(fleet_of(state), self.marks.get(run)))
        except NoSuchFleet:
            return None

    def volumes(self) -> Volumes:
        """The volumes that are up, and the active runs that use them. Raises OrchError."""
        from orch.stacks.record.volume_attaching import volumes_for

        return volumes_for(self.project, self.ledger)

    def make_nodes(self, runner: RunContext, task: Task, fleet: FleetState, lost: Collection[str]) -> bool:
        """Make the nodes that a fleet lacks for a later attempt of a run whose submission agreed to that.

        Where somebody holds the fleet's stack none is made: the run asks again. Ctrl-C ends the making, and
        is passed on."""
        from orch.cli.driver.new_nodes import NewNodes, growth_of, make
        from orch.components.node_count import may_grow
        from orch.stacks.errors import Interrupted
        from orch.stacks.stack.state import StackState

        if not may_grow(StackState(self.project, fleet.stack).outputs.get("pins") or {}):
            return False
        number = runner.folder.number
        if any(node.made_for for node in fleet.nodes):
            return True  # by an earlier look of this process, after which something else failed
        growth = growth_of(self.project, runner, task, (fleet,), lost)
        try:
            # stdout has the logs of the run.
            how = NewNodes(
                allowed=True,
                yes=True,
                command="",
                as_json=True,
                waits=False,
                asked=False,
                wanted=lambda: runner.ledger.by_id(number).desired == "run",
            )
            with _MAKING:
                done = growth is not None and make(self.project, growth, how)
        except Interrupted:
            raise KeyboardInterrupt from None
        if done and growth is not None and growth.request.made_for is not None:
            self.marks[number] = growth.request.made_for
        return done

    def attempt_ended(self, row: RunRow) -> None:
        """Remove the nodes that were made for a run alone. Ctrl-C ends that, and is passed on."""
        from orch.runner.ledger.plans import plan_of

        mark = self.marks.pop(row.id, None)
        if mark is None and not any(rank.node.made_for for rank in plan_of(row).ranks):
            return
        from orch.stacks.errors import Interrupted
        from orch.stacks.provisioning.nodes_with_runs import give_up, remove_unused

        if mark is not None:
            give_up(mark)
        try:
            with _MAKING, listening() as listener:
                removed = remove_unused(self.project, row.fleet, listener).removed
        except Interrupted:
            raise KeyboardInterrupt from None
        if removed:
            tell(f"fleet {row.fleet}: removed {', '.join(removed)}, made for run {row.name}")


def listening() -> AbstractContextManager[Listener]:
    """Return a context with a listener of the engine that leaves stdout to the logs of the run."""
    from orch.cli.output.progress import watching

    return watching(as_json=True)


def why_silent(
    project: Project, stack: StackState, fleet: FleetState, names: Sequence[str]
) -> Mapping[str, str]:
    """Return the reasons, by name, that the backend of a fleet knows for nodes that do not answer."""
    from orch.components.registry.backends import backend
    from orch.stacks.project.project import scope_of

    scope = (stack.outputs.get("pins") or {}).get("scope") or scope_of(project)
    mark = f"{project.name}/{fleet.stack}/{scope}"
    return backend(fleet.backend).silent_nodes(mark, names)
