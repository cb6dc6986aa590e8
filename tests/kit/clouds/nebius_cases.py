"""Plans of Nebius fleets. A case may have `stock`: machines by FABRIC, a fabric of the catalogue, or by
FABRIC@TYPE/REGION. Without more, a tenant has no limits and a project in each region."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from kit.clouds.plan_cases import CATALOG, HOME, PlanCase

from orch.components.nebius.account.facts import Allowance, Image, Lookups, NebiusFacts, Subnet
from orch.components.nebius.candidates import NebiusCandidate, by_stock, candidates, room_at, told_fabrics
from orch.components.nebius.planner import needed_lookups
from orch.components.node_count import node_indices

SMALLEST = {"eu-north1": "cpu-e2_2vcpu-8gb", "eu-west1": "cpu-d3_4vcpu-16gb", "me-west1": "cpu-d3_4vcpu-16gb"}


class Case(PlanCase):
    backend = "nebius"
    usual: ClassVar = {"ssh_cidrs": HOME}
    tags: ClassVar = {"team": "research"}
    created = 1_790_000_000
    readers: ClassVar = {"subnets": Subnet, "quota": Allowance, "image": Image}

    def candidates(self) -> tuple[NebiusCandidate, ...]:
        places = candidates(self.fleet, self.settings, CATALOG, previous=self.previous)
        if places[0].kept:
            return places
        projects = {each.region: f"project-{each.region}" for each in places}
        places = told_fabrics(self.fleet, self.settings, places, self.stock)
        return by_stock(places, self.stock, projects, len(node_indices(self.fleet, self.previous)))

    @property
    def stock(self) -> dict[tuple[str, str, str], tuple[int | None, int | None]]:
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

    def lookups(self, chosen: NebiusCandidate) -> Lookups:
        return needed_lookups(self.fleet, self.settings, chosen, self.previous)

    def facts(self, chosen: NebiusCandidate) -> NebiusFacts:
        lookups = self.lookups(chosen)
        image = Image(lookups.image or "computeimage-u00cuda13-2", f"{lookups.family}-v2", 40)
        stock = None if chosen.kept else room_at(self.stock, chosen)
        facts = NebiusFacts(f"project-{chosen.region}", image, stock=stock)
        if lookups.bastion:
            small = Image(lookups.bastion_image or "computeimage-u00driverless-2", "driverless-v2", 10)
            kind = lookups.bastion_type or SMALLEST[chosen.region]
            facts = replace(facts, bastion_type=kind, bastion_image=small)
        return self.with_answers(facts)
