"""Plans of Lambda fleets. A case may have `stock` (by type: the regions with capacity; `none`: no stock) and
`file_systems` (name: region). Without more, an account has capacity for each type in two regions."""

from __future__ import annotations

from typing import ClassVar

from kit.clouds.plan_cases import CATALOG, HOME, PlanCase

from orch.components.lambda_.account.facts import FoundFileSystem, Image, LambdaFacts, Lookups, TypeStock
from orch.components.lambda_.candidates import LambdaCandidate, candidates, placed
from orch.components.lambda_.planner import needed_lookups

TYPES = sorted(name for backend, name in CATALOG.types if backend == "lambda")


class Case(PlanCase):
    backend = "lambda"
    wish: ClassVar = {**PlanCase.wish, "placement": "any"}
    usual: ClassVar = {"ssh_cidrs": HOME}
    readers: ClassVar = {"image": Image}

    def candidates(self) -> tuple[LambdaCandidate, ...]:
        found = candidates(self.fleet, self.settings, CATALOG, previous=self.previous)
        if found[0].kept:
            return found
        regions = tuple(self.file_systems.values())
        return placed(self.fleet, self.settings, found, stock=self.stock, file_systems=regions)

    @property
    def stock(self) -> dict[str, TypeStock]:
        given: dict[str, list[str]] = self.data.get("stock", {})
        if given == {"none": []}:
            return {}
        known = {name: ["us-east-1", "us-west-1"] for name in TYPES} | given
        return {name: TypeStock(100, 2800, frozenset(regions)) for name, regions in known.items()}

    @property
    def file_systems(self) -> dict[str, FoundFileSystem]:
        given: dict[str, str] = self.data.get("file_systems", {})
        return {name: FoundFileSystem(f"id-of-{name}", name, region) for name, region in given.items()}

    def lookups(self, chosen: LambdaCandidate) -> Lookups:
        return needed_lookups(self.fleet, chosen, self.previous)

    def facts(self, chosen: LambdaCandidate) -> LambdaFacts:
        lookups = self.lookups(chosen)
        pinned = lookups.image if lookups.image.startswith("image-") else f"image-{chosen.region}"
        facts = LambdaFacts(
            image=Image(pinned, "lambda-stack-24-04", "24.4.2"),
            storage_gib=chosen.storage_gib or 2800,
            file_systems=self.file_systems,
            ssh_from=(),
            room=chosen.room,
        )
        return self.with_answers(facts)
