"""Every case of `golden/`: what a fleet becomes on Nebius, or what is wrong with it.

A case holds `fleet`, and where it matters `settings`, `facts` (what the tenant answers), `stock` (machines by
fabric), `pins`. `ORCHCTL_REWRITE_GOLDEN=1 pytest tests/components/nebius` writes the answers anew; read the
difference.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from orch.catalog.load import catalog
from orch.components.cloud.planner import PlanContext
from orch.components.nebius.account.facts import Allowance, Image, NebiusFacts, Subnet
from orch.components.nebius.candidates import NebiusCandidate, by_stock, candidates, room_at, told_fabrics
from orch.components.nebius.plan import NebiusPlan
from orch.components.nebius.planner import NebiusPlanner, needed_lookups
from orch.components.node_count import node_indices
from orch.components.request import PriorState
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.nebius import NebiusSettings

GOLDEN = Path(__file__).parent / "golden"
CATALOG = catalog(Path("/nonexistent"))
CASES = sorted(path.stem for path in GOLDEN.glob("*.yml"))
GOOD = [name for name in CASES if not name.startswith("bad-")]
CREATED = 1_790_000_000
HOME = ["198.51.100.0/24"]
SMALLEST = {"eu-north1": "cpu-e2_2vcpu-8gb", "eu-west1": "cpu-d3_4vcpu-16gb", "me-west1": "cpu-d3_4vcpu-16gb"}


class Case:
    """One file, read; where it says nothing, a tenant without limits, with a project in each region."""

    def __init__(self, name: str) -> None:
        self.data: dict[str, Any] = yaml.safe_load((GOLDEN / f"{name}.yml").read_text())
        self.fleet = Fleet.model_validate({"type": "fleet", "backends": ["nebius"], **self.data["fleet"]})
        settings = {"type": "nebius", "ssh_cidrs": HOME, **self.data.get("settings", {})}
        self.settings = NebiusSettings.model_validate(settings)
        self.previous = PriorState(pins=self.data.get("pins", {}))

    def place(self) -> NebiusCandidate:
        """The first place, in the order of the stock."""
        places = candidates(self.fleet, self.settings, CATALOG, previous=self.previous)
        if places[0].kept:
            return places[0]
        projects = {each.region: f"project-{each.region}" for each in places}
        places = told_fabrics(self.fleet, self.settings, places, self.stock)
        return by_stock(places, self.stock, projects, len(node_indices(self.fleet, self.previous)))[0]

    @property
    def stock(self) -> dict[tuple[str, str, str], tuple[int | None, int | None]]:
        """As written: a fabric of the catalogue's type and region, or FABRIC@TYPE/REGION."""
        known = {
            fabric: (offer.type.name, offer.region or "")
            for offer in CATALOG.lists["nebius"].offers
            for fabric in offer.fabrics
        }
        rows: dict[str, int] = self.data.get("stock", {})
        found: dict[tuple[str, str, str], tuple[int | None, int | None]] = {}
        for word, count in rows.items():
            fabric, _, place = word.partition("@")
            kind, region = place.split("/") if place else known[fabric]
            found[kind, region, fabric] = (count, count)
        return found

    def facts(self, place: NebiusCandidate) -> NebiusFacts:
        lookups = needed_lookups(self.fleet, self.settings, place, self.previous)
        image = Image(lookups.image or "computeimage-u00cuda13-2", f"{lookups.family}-v2", 40)
        stock = None if place.kept else room_at(self.stock, place)
        facts = NebiusFacts(f"project-{place.region}", image, stock=stock)
        if lookups.bastion:
            small = Image(lookups.bastion_image or "computeimage-u00driverless-2", "driverless-v2", 10)
            kind = lookups.bastion_type or SMALLEST[place.region]
            facts = replace(facts, bastion_type=kind, bastion_image=small)
        told: dict[str, Any] = self.data.get("facts", {})
        made: dict[str, Any] = {
            "bastion_type": lambda name: name,
            "subnets": lambda rows: tuple(Subnet(**row) for row in rows),
            "quota": lambda row: Allowance(**row),
            "image": lambda row: Image(**row) if row else None,
        }
        return replace(facts, **{key: made.get(key, tuple)(value) for key, value in told.items()})

    def plan(self) -> NebiusPlan:
        place = self.place()
        context = PlanContext(self.settings, CATALOG, "abc123", {"team": "research"}, created=CREATED)
        return NebiusPlanner(self.fleet, place, self.facts(place), self.previous, context).plan()

    def outcome(self) -> dict[str, Any]:
        """The plan, or what is wrong, as it is written down."""
        try:
            made = self.plan()
        except PlanErrors as error:
            return {"exit_code": int(error.exit_code), "findings": [asdict(each) for each in error.findings]}
        answer = json.loads(json.dumps(asdict(made), default=str))
        # Scripts have a test of their own; here their length would bury the rest.
        answer["cloud_init"] = f"{len(made.cloud_init.splitlines())} lines"
        answer["bastion_init"] = f"{len(made.bastion_init.splitlines())} lines"
        for name in ("file_systems", "scratch", "others"):
            assert not answer.pop(name)
        return answer


@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_as_written_down(name: str) -> None:
    answer = Case(name).outcome()
    file = GOLDEN / f"{name}.json"
    if os.environ.get("ORCHCTL_REWRITE_GOLDEN"):
        file.write_text(json.dumps(answer, indent=1) + "\n")
    assert answer == json.loads(file.read_text())


def test_every_answer_belongs_to_a_case() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == CASES


@pytest.mark.parametrize("name", GOOD)
def test_the_same_input_gives_the_same_plan(name: str) -> None:
    assert Case(name).plan() == Case(name).plan()


def test_each_type_with_infiniband_has_a_plan() -> None:
    planned = {Case(name).plan().instance_type for name in GOOD}
    fast = {each.type.name for each in CATALOG.lists["nebius"].offers if each.fabrics}
    assert fast <= planned


def test_a_running_fleet_stays_on_its_fabric_whatever_its_price_and_the_stock() -> None:
    case = Case("h100")
    first = case.plan()
    case.previous = PriorState(pins=dict(first.pins))
    case.data["stock"] = {"fabric-2": 0, "fabric-3": 99, "fabric-4": 99, "fabric-6": 99}
    second = case.plan()
    assert (second.zone, second.price, second.image) == (first.zone, first.price, first.image)
    assert second.layout_unchanged
    assert "a cluster never moves" in " ".join(second.reasons)


def test_user_data_has_the_marks_of_one_node_and_fits() -> None:
    text = Case("h100").plan().cloud_init
    assert "hostname: @@NAME@@" in text
    assert "@@HOST_KEY@@" in text
    assert "notices.sh" not in text.replace("[ ! -e /var/lib/orch/notices.sh ]", "")
    assert "8 InfiniBand devices" in text
    assert "InfiniBand devices" not in Case("l40s").plan().cloud_init
