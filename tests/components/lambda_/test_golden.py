"""Every case of `golden/`: what a fleet becomes on Lambda, or what is wrong with it.

A case holds `fleet`, and where it matters `settings`, `facts` (what the account answers), `stock` (by type:
the regions with capacity), `file_systems` (name: region), `pins`. The stock `none` is that of nothing.
`ORCHCTL_REWRITE_GOLDEN=1 pytest tests/components/lambda_` writes the answers anew; read the difference.
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
from orch.components.lambda_.account.facts import FoundFileSystem, Image, LambdaFacts, TypeStock
from orch.components.lambda_.candidates import MOST_SHORT, LambdaCandidate, candidates, placed
from orch.components.lambda_.plan import LambdaPlan
from orch.components.lambda_.planner import LambdaPlanner, needed_lookups
from orch.components.request import PriorState
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.lambda_ import LambdaSettings

GOLDEN = Path(__file__).parent / "golden"
CATALOG = catalog(Path("/nonexistent"))
CASES = sorted(path.stem for path in GOLDEN.glob("*.yml"))
GOOD = [name for name in CASES if not name.startswith("bad-")]
HOME = ["198.51.100.0/24"]
TYPES = sorted(name for backend, name in CATALOG.types if backend == "lambda")


class Case:
    """One file, read; where it says nothing, an account with capacity for each type in two regions."""

    def __init__(self, name: str) -> None:
        self.data: dict[str, Any] = yaml.safe_load((GOLDEN / f"{name}.yml").read_text())
        self.fleet = Fleet.model_validate({"type": "fleet", "backends": ["lambda"], **self.data["fleet"]})
        settings = {"type": "lambda", "ssh_cidrs": HOME, **self.data.get("settings", {})}
        self.settings = LambdaSettings.model_validate(settings)
        self.previous = PriorState(pins=self.data.get("pins", {}))

    def place(self) -> LambdaCandidate:
        """The first place, in the order to try."""
        found = candidates(self.fleet, self.settings, CATALOG, previous=self.previous)
        if found[0].kept:
            return found[0]
        places = placed(
            self.fleet, self.settings, found, stock=self.stock, file_systems=tuple(self.file_systems.values())
        )
        return places[0]

    @property
    def stock(self) -> dict[str, TypeStock]:
        told: dict[str, list[str]] = self.data.get("stock", {})
        usual = ["us-east-1", "us-west-1"]
        if told == {"none": []}:
            return {}
        known = dict.fromkeys(TYPES, usual) | told
        return {name: TypeStock(100, 2800, frozenset(regions)) for name, regions in known.items()}

    @property
    def file_systems(self) -> dict[str, FoundFileSystem]:
        told: dict[str, str] = self.data.get("file_systems", {})
        return {name: FoundFileSystem(f"id-of-{name}", name, region) for name, region in told.items()}

    def facts(self, place: LambdaCandidate) -> LambdaFacts:
        lookups = needed_lookups(self.fleet, place, self.previous)
        pinned = lookups.image if lookups.image.startswith("image-") else f"image-{place.region}"
        facts = LambdaFacts(
            image=Image(pinned, "lambda-stack-24-04", "24.4.2"),
            storage_gib=place.storage_gib or 2800,
            file_systems=self.file_systems,
            ssh_from=(),
            room=place.room,
        )
        told: dict[str, Any] = self.data.get("facts", {})
        made: dict[str, Any] = {"image": lambda row: Image(**row) if row else None, "storage_gib": int}
        return replace(facts, **{key: made.get(key, tuple)(value) for key, value in told.items()})

    def plan(self) -> LambdaPlan:
        place = self.place()
        context = PlanContext(self.settings, CATALOG, "abc123")
        return LambdaPlanner(self.fleet, place, self.facts(place), self.previous, context).plan()

    def outcome(self) -> dict[str, Any]:
        """The plan, or what is wrong, as it is written down."""
        try:
            made = self.plan()
        except PlanErrors as error:
            return {"exit_code": int(error.exit_code), "findings": [asdict(each) for each in error.findings]}
        answer = json.loads(json.dumps(asdict(made), default=str))
        # Scripts have a test of their own; here their length would bury the rest.
        answer["cloud_init"] = f"{len(made.cloud_init.splitlines())} lines"
        for name in ("bastion", "bastion_init", "scratch", "others", "idle", "lifetime"):
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


def test_each_type_has_a_plan() -> None:
    assert {Case(name).plan().instance_type for name in GOOD} == set(TYPES)


def test_a_running_fleet_stays_in_its_region_whatever_the_capacity() -> None:
    case = Case("gpu_8x_h100_sxm5")
    first = case.plan()
    case.previous = PriorState(pins=dict(first.pins))
    case.data["stock"] = {first.instance_type: ["us-west-1"]}
    second = case.plan()
    assert (second.region, second.image) == (first.region, first.image)
    assert second.layout_unchanged


def test_an_image_of_orch_lock_is_pinned_in_its_region_alone() -> None:
    case = Case("gpu_8x_h100_sxm5")
    place = case.place()
    lock = {"image": "image-locked", "image_of": "lambda-stack", "image_region": place.region}
    case.previous = PriorState(pins=lock)
    assert case.plan().image == "image-locked"
    case.previous = PriorState(pins={**lock, "image_region": "us-west-9"})
    assert case.plan().image == f"image-{place.region}"
    case.data["facts"] = {"image": None}
    with pytest.raises(PlanErrors) as wrong:
        case.plan()
    assert [each.detail for each in wrong.value.findings if each.code == "ORCH213"] == [None]


def test_where_no_region_has_capacity_those_of_the_account_are_tried() -> None:
    case = Case("gpu_8x_h100_sxm5")
    types = candidates(case.fleet, case.settings, CATALOG)
    stock = {case.plan().instance_type: TypeStock(100, 2800, frozenset())}
    asked = {"us-west-1", "us-east-1"}
    assert [each.region for each in placed(case.fleet, case.settings, types, stock=stock, regions=asked)] == [
        "us-east-1",
        "us-west-1",
    ]
    assert len(placed(case.fleet, case.settings, types, stock=stock, regions=())) == MOST_SHORT


def test_the_user_data_of_a_node_has_what_its_type_needs() -> None:
    text = Case("gpu_8x_h100_sxm5").plan().cloud_init
    assert "command -v nvidia-ctk >/dev/null || packages nvidia-container-toolkit || fail" in text
    assert "InfiniBand devices" not in text
    assert "ed25519_private" in text
