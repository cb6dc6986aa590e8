"""Every case of `golden/`: what a fleet becomes on RunPod, or what is wrong with it.

A case holds `fleet`, and where it matters `settings`, `stock` (GPU@DATA CENTER: level), `money`, `pins`, and
`run`: the nodes that one needs, with `volumes` (VOLUME@DATA CENTER:PATH).
`ORCHCTL_REWRITE_GOLDEN=1 pytest tests/components/runpod` writes the answers anew; read the difference.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from orch.catalog.load import catalog
from orch.components.node_count import with_node_count
from orch.components.request import NodeVolume, PlanRequest, PriorState
from orch.components.runpod.account.client import Money
from orch.components.runpod.account.facts import RunpodFacts
from orch.components.runpod.candidates import RunpodCandidate, candidates, clustered, gpu_of, in_data_centers
from orch.components.runpod.plan import RunpodPlan
from orch.components.runpod.planner import Context, only, plan, recorded_groups
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.runpod import RunpodSettings

GOLDEN = Path(__file__).parent / "golden"
CATALOG = catalog(Path("/nonexistent"))
CASES = sorted(path.stem for path in GOLDEN.glob("*.yml"))
GOOD = [name for name in CASES if not name.startswith("bad-")]
MARK = "0123456789ab"
CENTERS = {
    "NVIDIA A100-SXM4-80GB@US-KS-2": "HIGH",
    "NVIDIA H100 80GB HBM3@US-KS-2": "LOW",
    "NVIDIA H100 80GB HBM3@CA-MTL-1": "MEDIUM",
    "NVIDIA H200@US-TX-3": "HIGH",
    "NVIDIA B200@EU-RO-1": "LOW",
    "NVIDIA L4@EU-RO-1": "HIGH",
    "NVIDIA GeForce RTX 4090@US-TX-3": "MEDIUM",
}
CLUSTER_PRICES = {"NVIDIA A100-SXM4-80GB": 1.99, "NVIDIA H100 80GB HBM3": 3.59}
POD_PRICES = {"NVIDIA H100 80GB HBM3": 3.29, "NVIDIA L4": 0.39}


class Case:
    """One file, read; where it says nothing, an account with a limit of 1,000 dollars an hour."""

    def __init__(self, name: str) -> None:
        self.data: dict[str, Any] = yaml.safe_load((GOLDEN / f"{name}.yml").read_text())
        self.fleet = Fleet.model_validate({"type": "fleet", "backends": ["runpod"], **self.data["fleet"]})
        self.settings = RunpodSettings.model_validate({"type": "runpod", **self.data.get("settings", {})})
        self.pins: dict[str, str] = self.data.get("pins", {})

    @property
    def request(self) -> PlanRequest:
        run = self.data.get("run")
        previous = PriorState(pins=self.pins)
        here = Path("/nonexistent")
        more = {"more": run, "image": "pytorch/pytorch:2.8.0", "made_for": MARK} if run else {}
        more |= {"volumes": self.volumes}
        return with_node_count(
            PlanRequest(self.fleet, (), previous, "abc123", root=here, folder=here, created=1, **more)
        )

    @property
    def volumes(self) -> tuple[NodeVolume, ...]:
        words = [re.split("[@:]", text) for text in self.data.get("volumes", ())]
        return tuple(NodeVolume(*word) for word in words)

    def places(self) -> tuple[RunpodCandidate, ...]:
        types = candidates(self.fleet, self.settings, CATALOG, other_backends=self.fleet.backends)
        stock = {tuple(word.split("@")): level for word, level in self.data.get("stock", CENTERS).items()}
        by_count: dict[int, Any] = {each.type.gpu_count: stock for each in types}
        prices = CLUSTER_PRICES if self.fleet.placement == "cluster" else POD_PRICES
        return in_data_centers(self.fleet, self.settings, types, by_count, prices, volumes=self.volumes)

    def plan(self) -> RunpodPlan:
        request = self.request
        there = frozenset(f"{each.name(self.fleet.name)}-d" for each in recorded_groups(request.previous))
        money = Money(**{"balance": 9000.0, "hourly": 0.0, "limit": 1000.0, **self.data.get("money", {})})
        context = Context(request.scope, request.image, request.made_for, request.volumes)
        facts = RunpodFacts(money, there - frozenset(self.data.get("gone", ())))
        return plan(request.fleet, self.places()[0], facts, request.previous, context)

    def outcome(self) -> dict[str, Any]:
        """The plan, or what is wrong, as it is written down."""
        try:
            made = self.plan()
        except PlanErrors as error:
            return {"exit_code": int(error.exit_code), "findings": [asdict(each) for each in error.findings]}
        answer = json.loads(json.dumps(asdict(made), default=str))
        return {**answer, "tries": [each.words for each in self.places()]}


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


def test_each_gpu_of_clusters_has_a_plan_of_one() -> None:
    planned = {gpu_of(Case(name).plan().instance_type) for name in GOOD if Case(name).data.get("run", 0) > 1}
    assert planned == clustered()


def test_what_one_run_has_stays_as_it_was_made_whatever_the_file_says_by_now() -> None:
    case = Case("h100")
    first = case.plan()
    case.pins = dict(first.pins)
    case.fleet = case.fleet.model_copy(update={"env": {"A": "b"}, "image": "other/image:1"})
    case.data = {**case.data, "run": 1}
    second = case.plan()
    assert second.groups[0] == first.groups[0]
    assert [group.indices for group in second.groups] == [(0, 1), (2,)]
    assert not second.groups[1].cluster
    assert only(second, frozenset({"h100-0", "h100-1"})).pins["pods:0"] == first.pins["pods:0"]
    assert "pods:2" not in only(second, frozenset({"h100-0", "h100-1"})).pins


def test_what_runpod_has_no_more_is_not_made_again() -> None:
    case = Case("h100")
    first = case.plan()
    case.pins = dict(first.pins)
    case.data = {**case.data, "run": None, "gone": [f"{first.groups[0].name('h100')}-d"]}
    second = case.plan()
    assert second.groups == ()
    assert second.pins["indices"] == ""
    assert any(reason.startswith("gone: ") for reason in second.reasons)
