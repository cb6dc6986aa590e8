"""The previews of `stacks/events/` as plans, without an engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kit import TESTS

from orch.components.aws import explain as aws
from orch.components.deployment import Deployment
from orch.components.explain import Explained
from orch.components.gcp import explain as gcp
from orch.components.local import backend as local
from orch.components.ssh import backend as ssh
from orch.stacks.events.changes import Change, changes, find_drift
from orch.stacks.plans.headline import FleetRecord, headline
from orch.stacks.plans.plan import Plan

EVENTS = TESTS / "stacks" / "events"
EXPLAINED: dict[str, Explained] = {
    "aws": aws.EXPLAINED,
    "gcp": gcp.EXPLAINED,
    "local": local.EXPLAINED,
    "ssh": ssh.EXPLAINED,
}


@dataclass(frozen=True)
class Preview:
    """One file of that folder."""

    data: dict[str, Any]

    @classmethod
    def of(cls, name: str) -> Preview:
        return cls(json.loads((EVENTS / f"{name}.json").read_text()))

    @property
    def events(self) -> list[dict[str, Any]]:
        return [
            {kind: {"metadata": {**data, "old": self._state(data["old"]), "new": self._state(data["new"])}}}
            for event in self.data["events"]
            for kind, data in ((key, each["metadata"]) for key, each in event.items())
        ]

    def _state(self, place: int) -> Any:
        return self.data["states"][place]

    @property
    def changes(self) -> tuple[Change, ...]:
        return changes(self.events)

    def plan(self, **before: Any) -> Plan:
        """The plan that a user is shown. `before` overrides what the stack had recorded."""
        made = self.data["plan"]
        compiled = Deployment(
            reasons=(),
            pins={},
            images=(),
            hourly=0.0,
            register=_never,
            traits=made["traits"],
            explained=EXPLAINED[self.data["backend"]],
            nodes=tuple(made["nodes"]),
            makers=made["makers"],
            moves=made["moves"],
        )
        recorded = FleetRecord(**{**self.data["before"], **before})
        name = self.data["fleet"]
        return Plan(
            name,
            name,
            self.changes,
            (),
            hourly=0.0,
            delta=0.0,
            drift=find_drift(self.events),
            headline=headline(self.changes, recorded, compiled),
        )


def _never() -> Any:
    raise AssertionError("nothing is registered in a test of what is told")
