"""Accounts whose instances have local nodes, which follow what becomes of the instances."""

from __future__ import annotations

from orch.rehearsal.account import SimulatedAccount
from orch.rehearsal.scenario import NodeScenario
from orch.rehearsal.store import Doc


class AccountWithNodes(SimulatedAccount):
    """An account whose local nodes power off with their instances, and the other way round."""

    def update_local_nodes(self, scenario: NodeScenario, action: str, result: Doc) -> None:
        from orch.rehearsal.nodes import containers

        containers.follow(self, scenario, self.shut_down)

    def see_local_nodes(self) -> None:
        from orch.rehearsal.nodes import containers

        containers.tell_powered_off(self)

    def follow_behind_the_back(self) -> None:
        """Start and stop local nodes after a change that no call made."""
        scenario = self.knobs.nodes
        if scenario is not None:
            self.update_local_nodes(scenario, "", {})
