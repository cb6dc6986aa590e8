"""A backend that only has what each backend must have is followed to its next place as a cloud is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from kit.clouds.cloud_engine import quiet
from kit.clouds.planning import request_of

from orch.components.base import Backend
from orch.components.deployment import Deployment, Place
from orch.components.request import CloudAnswer, PlanRequest
from orch.spec.models import Fleet
from orch.spec.models.backends.base import BackendSettings
from orch.stacks.errors import EngineFailed, NoCapacity
from orch.stacks.plans.request import FleetRequest
from orch.stacks.project.project import find
from orch.stacks.provisioning.bring_up import bring_up
from orch.stacks.stack.command import plain
from orch.stacks.stack.state import StackState

pytestmark = pytest.mark.usefixtures("engine")


@dataclass(frozen=True)
class Room:
    words: str
    backend: str = "house"
    price: float | None = 1.0
    kept: bool = False


@dataclass(frozen=True)
class RoomPlan:
    room: str
    nodes: tuple[Any, ...] = ()
    reasons: tuple[str, ...] = ()
    hourly: float = 0.0

    @property
    def pins(self) -> dict[str, str]:
        return {"room": self.room}


class House(Backend[Room, None, RoomPlan]):
    name: ClassVar[str] = "house"
    settings: ClassVar[type[BackendSettings]] = BackendSettings

    def candidates(self, request: PlanRequest) -> Sequence[Room]:
        return (Room("attic"), Room("cellar"))

    def facts(self, request: PlanRequest, candidate: Room) -> None:
        return None

    def plan(self, request: PlanRequest, candidate: Room, facts: None) -> RoomPlan:
        return RoomPlan(candidate.words)

    def register(self, request: PlanRequest, plan: RoomPlan) -> Any:
        import pulumi

        if plan.room != "cellar":
            raise pulumi.RunError(f"the {plan.room} is full")
        state = {"name": request.fleet.name, "nodes": []}
        return pulumi.Output.from_input(state), None

    def classify_error(self, text: str) -> CloudAnswer | None:
        return CloudAnswer(True, "full", "ORCH325") if "is full" in text else None


def places(request: PlanRequest, *rooms: str) -> Deployment:
    house = House()
    first, *others = (house.deployment(request, Room(room)) for room in rooms)
    elsewhere = tuple(Place(each.place or "", lambda each=each: each) for each in others)
    return replace(first, elsewhere=elsewhere)


@pytest.fixture
def stack(tmp_path: Path) -> StackState:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    project = find(tmp_path)
    project.prepare()
    return StackState(project, "lab")


def test_a_full_place_leads_to_the_next(stack: StackState) -> None:
    fleet = Fleet.model_validate({"type": "fleet", "name": "lab", "nodes": "1"})
    wish, request = FleetRequest(fleet, stack.project.root), request_of(fleet)
    made, _ = bring_up(stack, wish, places(request, "attic", "cellar"), quiet)
    assert (made.place, stack.outputs["pins"]) == ("cellar", {"room": "cellar"})
    plain(stack, ["stack", "rm", "--yes", "--force"])
    with pytest.raises(EngineFailed):  # there is no other place to follow it to
        bring_up(stack, wish, places(request, "attic"), quiet)


def test_where_all_are_full_each_is_told(stack: StackState) -> None:
    fleet = Fleet.model_validate({"type": "fleet", "name": "lab", "nodes": "1"})
    wish, request = FleetRequest(fleet, stack.project.root), request_of(fleet)
    with pytest.raises(NoCapacity) as caught:
        bring_up(stack, wish, places(request, "attic", "loft"), quiet)
    assert (caught.value.detail or "").splitlines() == ["attic: full", "loft: full"]
