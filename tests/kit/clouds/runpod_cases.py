"""Plans of RunPod fleets. A case may have `stock` (GPU@DATA CENTER: level), `money`, `volumes`
(VOLUME@DATA CENTER:PATH), `run` (the nodes that one needs) and `gone` (groups that RunPod deleted).
Without more, an account may spend 1,000 dollars an hour."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from kit.clouds.plan_cases import CATALOG, PlanCase

from orch.components.node_count import with_node_count
from orch.components.request import NodeVolume, PlanRequest
from orch.components.runpod.account.client import Money, open_login
from orch.components.runpod.account.facts import RunpodFacts
from orch.components.runpod.candidates import RunpodCandidate, candidates, in_data_centers
from orch.components.runpod.plan import RunpodPlan
from orch.components.runpod.planner import Context, plan, recorded_groups
from orch.spec.errors import OrchError
from orch.spec.models.backends.runpod import RunpodSettings

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


class Case(PlanCase):
    backend = "runpod"

    @staticmethod
    def log_in(settings: RunpodSettings, folder: Path) -> None:
        with suppress(OrchError):
            open_login(settings)

    @property
    def request(self) -> PlanRequest:
        run = self.data.get("run")
        here = Path("/nonexistent")
        more = {"more": run, "image": "pytorch/pytorch:2.8.0", "made_for": MARK} if run else {}
        more |= {"volumes": self.volumes}
        return with_node_count(
            PlanRequest(self.fleet, (), self.previous, "abc123", root=here, folder=here, created=1, **more)
        )

    @property
    def volumes(self) -> tuple[NodeVolume, ...]:
        words = [re.split("[@:]", text) for text in self.data.get("volumes", ())]
        return tuple(NodeVolume(*word) for word in words)

    def candidates(self) -> tuple[RunpodCandidate, ...]:
        types = candidates(self.fleet, self.settings, CATALOG, other_backends=self.fleet.backends)
        stock = {tuple(word.split("@")): level for word, level in self.data.get("stock", CENTERS).items()}
        by_count: dict[int, Any] = {each.type.gpu_count: stock for each in types}
        prices = CLUSTER_PRICES if self.fleet.placement == "cluster" else POD_PRICES
        return in_data_centers(self.fleet, self.settings, types, by_count, prices, volumes=self.volumes)

    def facts(self, chosen: RunpodCandidate) -> RunpodFacts:
        groups = recorded_groups(self.request.previous)
        there = frozenset(f"{each.name(self.fleet.name)}-d" for each in groups)
        money = Money(**{"balance": 9000.0, "hourly": 0.0, "limit": 1000.0, **self.data.get("money", {})})
        return RunpodFacts(money, there - frozenset(self.data.get("gone", ())))

    def plan(self, chosen: RunpodCandidate | None = None) -> RunpodPlan:
        request, chosen = self.request, chosen or self.candidates()[0]
        context = Context(request.scope, request.image, request.made_for, request.volumes)
        return plan(request.fleet, chosen, self.facts(chosen), request.previous, context)

    def written(self, plan: RunpodPlan) -> dict[str, Any]:
        return {**super().written(plan), "tries": [each.words for each in self.candidates()]}
