from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orch.components.base import Backend
from orch.components.local.facts import LocalFacts, ask
from orch.components.local.plan import LocalPlan, plan
from orch.components.request import PlanRequest
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models.backends.base import BackendSettings
from orch_rack.settings import RackSettings

if TYPE_CHECKING:
    import pulumi


@dataclass(frozen=True)
class Shelf:
    room: str
    price: float | None
    kept: bool = False
    backend: str = "rack"

    @property
    def words(self) -> str:
        return f"a shelf in the {self.room}, ${self.price} an hour each"


@dataclass(frozen=True)
class RackPlan:
    made: LocalPlan
    shelf: Shelf

    @property
    def nodes(self) -> tuple[Any, ...]:
        return self.made.nodes

    @property
    def pins(self) -> dict[str, str]:
        return {**self.made.pins, "room": self.shelf.room}

    @property
    def reasons(self) -> tuple[str, ...]:
        return (f"it goes to {self.shelf.words}",)

    @property
    def hourly(self) -> float:
        return (self.shelf.price or 0.0) * len(self.made.nodes)


class RackBackend(Backend[Shelf, LocalFacts, RackPlan]):
    name: ClassVar[str] = "rack"
    settings: ClassVar[type[BackendSettings]] = RackSettings
    catalog: ClassVar[Path | None] = Path(__file__).parent

    def candidates(self, request: PlanRequest) -> Sequence[Shelf]:
        rooms = {self.settings_of(request).room: 0.5, "attic": 0.75}
        at = request.previous.pins.get("room")
        if at in rooms:
            return (Shelf(at, rooms[at], kept=True),)
        wanted = request.fleet.regions
        found = tuple(Shelf(room, price) for room, price in rooms.items() if not wanted or room in wanted)
        if not found:
            raise PlanErrors([Finding("ORCH200", "regions", f"no rack stands in {', '.join(wanted)}")])
        return found

    def facts(self, request: PlanRequest, candidate: Shelf) -> LocalFacts:
        return ask(None)

    def plan(self, request: PlanRequest, candidate: Shelf, facts: LocalFacts) -> RackPlan:
        return RackPlan(plan(request.fleet, facts, request.previous, request.scope), candidate)

    def register(
        self, request: PlanRequest, plan: RackPlan
    ) -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]:
        from orch.components.local.resources import LocalFleet

        component = LocalFleet(plan.made)
        return component.state.apply(lambda state: {**state, "backend": "rack"}), component.identity

    def deploy(self, request: PlanRequest, candidate: Shelf, plan: RackPlan) -> Any:
        return replace(super().deploy(request, candidate, plan), images=(plan.made.image,))
