"""Every case of `golden/`: what a fleet becomes on Crusoe, or what is wrong with it.

A case holds `fleet`, and where it matters `settings`, `facts` (what the project answers), `stock` (by
TYPE@LOCATION), `networks` (free slices of each InfiniBand network, -1: there is none), `reservations` (none:
the access key may not list them), `pins`.
`ORCHCTL_REWRITE_GOLDEN=1 pytest tests/components/crusoe` writes the answers anew; read the difference.
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
from orch.components.crusoe.account.facts import CrusoeFacts, IbNetwork, Image, Quota, Reservation, Subnet
from orch.components.crusoe.candidates import CrusoeCandidate, candidates, machines, placed
from orch.components.crusoe.plan import CrusoePlan
from orch.components.crusoe.planner import CrusoePlanner, needed_lookups
from orch.components.crusoe.startup import MOST, startup_script
from orch.components.node_count import node_indices
from orch.components.request import PriorState
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.crusoe import CrusoeSettings

GOLDEN = Path(__file__).parent / "golden"
CATALOG = catalog(Path("/nonexistent"))
CASES = sorted(path.stem for path in GOLDEN.glob("*.yml"))
GOOD = [name for name in CASES if not name.startswith("bad-")]
HOME = ["198.51.100.0/24"]
PLENTY = 1024


class Case:
    """One file, read; where it says nothing, a project without limits, with two InfiniBand networks of each
    type in us-east1-a and eu-iceland1-a."""

    def __init__(self, name: str) -> None:
        self.data: dict[str, Any] = yaml.safe_load((GOLDEN / f"{name}.yml").read_text())
        self.fleet = Fleet.model_validate({"type": "fleet", "backends": ["crusoe"], **self.data["fleet"]})
        settings = {"type": "crusoe", "ssh_cidrs": HOME, **self.data.get("settings", {})}
        self.settings = CrusoeSettings.model_validate(settings)
        self.previous = PriorState(pins=self.data.get("pins", {}))

    def place(self) -> CrusoeCandidate:
        """The first place, in the order to try."""
        found = candidates(self.fleet, self.settings, CATALOG, previous=self.previous)
        if found[0].kept:
            return found[0]
        nodes = len(node_indices(self.fleet, self.previous))
        places = placed(
            self.fleet,
            self.settings,
            found,
            stock=self.stock,
            networks=self.networks,
            nodes=nodes,
            reservations=self.reservations,
        )
        return places[0]

    @property
    def reservations(self) -> tuple[Reservation, ...] | None:
        rows: list[dict[str, Any]] | None = self.data.get("reservations")
        return None if rows is None else tuple(Reservation(**row) for row in rows)

    @property
    def stock(self) -> dict[tuple[str, str], int]:
        if "stock" in self.data:
            rows = {tuple(word.split("@")): count for word, count in self.data["stock"].items()}
            return {(kind, location): count for (kind, location), count in rows.items()}
        return {(kind, place): PLENTY for kind in machines() for place in ("us-east1-a", "eu-iceland1-a")}

    @property
    def networks(self) -> tuple[IbNetwork, ...]:
        slices: dict[str, int] = self.data.get("networks", {})
        found: list[IbNetwork] = []
        for kind, each in machines().items():
            for place in ("us-east1-a", "eu-iceland1-a") if each.hcas else ():
                for number in (1, 2):
                    name = f"{kind.partition('-')[0]}-{place[:-2]}-{number}"
                    free = slices.get(name, PLENTY)
                    if free >= 0:
                        found.append(IbNetwork(f"ibn-{name}", name, place, {kind: free}))
        return tuple(found)

    def facts(self, place: CrusoeCandidate) -> CrusoeFacts:
        lookups = needed_lookups(self.fleet, self.settings, place, self.previous)
        pinned = ":latest" not in lookups.image
        image = Image(lookups.image if pinned else lookups.image.replace(":latest", ":20260801"))
        small = Image("ubuntu22.04:20260801") if lookups.bastion_image else None
        facts = CrusoeFacts("p-1", image, small, room=place.room, reservations=self.reservations)
        told: dict[str, Any] = self.data.get("facts", {})
        made: dict[str, Any] = {
            "subnets": lambda rows: tuple(Subnet(**row) for row in rows),
            "quota": lambda row: Quota(**row),
            "image": lambda row: Image(**row) if row else None,
        }
        return replace(facts, **{key: made.get(key, tuple)(value) for key, value in told.items()})

    def plan(self) -> CrusoePlan:
        place = self.place()
        context = PlanContext(self.settings, CATALOG, "abc123")
        return CrusoePlanner(self.fleet, place, self.facts(place), self.previous, context).plan()

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
        for name in ("idle", "lifetime"):
            answer |= {name: found} if (found := answer.pop(name)) else {}
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
    assert {Case(name).plan().instance_type for name in GOOD} == set(machines()) - {
        "c1a.176x",
        "c1a.4x",
        "c1a.8x",
    }


def test_a_running_fleet_stays_in_its_network_whatever_its_price_and_the_stock() -> None:
    case = Case("h200")
    first = case.plan()
    case.previous = PriorState(pins=dict(first.pins))
    case.data["networks"] = {first.zone: 0}
    second = case.plan()
    assert (second.zone, second.ib_network, second.image) == (first.zone, first.ib_network, first.image)
    assert second.layout_unchanged
    assert "a partition never moves" in " ".join(second.reasons)


def test_each_type_with_infiniband_has_its_cards_and_its_topology() -> None:
    known = {kind: Case(kind.partition("-")[0] if "a100" not in kind else "a100-sxm").plan() for kind in FAST}
    for kind, made in known.items():
        assert made.fabric is not None
        env = made.fabric.env
        newer = kind.startswith(("b200", "b300"))
        assert env["NCCL_IB_HCA"].count("mlx5_") == (8 if newer else 1)
        assert env["NCCL_IB_HCA"].startswith("mlx5_5:1" if newer else "^mlx5_0:1")
        family = kind.rpartition(".")[0]
        assert env["NCCL_TOPO_FILE"] == f"/etc/crusoe/nccl_topo/{family}-cloud-hypervisor.xml"


FAST = [kind for kind, each in machines().items() if each.hcas and not kind.startswith("mi")]


def test_the_script_of_a_node_fits_and_has_what_its_type_needs() -> None:
    local, attached = Case("h200").plan().cloud_init, Case("l40s").plan().cloud_init
    for text in (local, attached):
        assert len(startup_script(text.replace("@@", ""))) < MOST
    assert "8 InfiniBand devices" in local
    assert "mdadm" in local
    assert "InfiniBand devices" not in attached
    assert "orch-data" in attached
