"""Plans of AWS fleets. A case may have `scripts`: the text of files that `init` names."""

from __future__ import annotations

from typing import ClassVar

from kit.clouds.plan_cases import CATALOG, PlanCase

from orch.components.aws.account.facts import (
    Allowance,
    AwsFacts,
    Image,
    Reservation,
    SecurityGroup,
    Subnet,
    Vpc,
    Zone,
)
from orch.components.aws.account.lookups import Lookups, needed_lookups
from orch.components.aws.candidates import CloudCandidate, candidates
from orch.components.aws.plan import AwsPlan

LETTERS = "abcdefgh"


class Case(PlanCase):
    backend = "aws"
    wish: ClassVar = {**PlanCase.wish, "regions": ["us-east-1"]}
    tags: ClassVar = {"team": "research"}
    readers: ClassVar = {
        "vpc": Vpc,
        "subnets": Subnet,
        "groups": SecurityGroup,
        "image": Image,
        "zones": Zone,
        "reservation": Reservation,
        **dict.fromkeys(("vcpus", "addresses", "interfaces"), Allowance),
    }

    @property
    def reservation(self) -> Reservation | None:
        given = self.data.get("facts", {}).get("reservation")
        return Reservation(**given) if given else None

    def candidates(self) -> tuple[CloudCandidate, ...]:
        return candidates(
            self.fleet, self.settings, CATALOG, previous=self.previous, reservation=self.reservation
        )

    def lookups(self, chosen: CloudCandidate) -> Lookups:
        return needed_lookups(self.fleet, self.settings, chosen, self.previous, "scope")

    def facts(self, chosen: CloudCandidate) -> AwsFacts:
        ids = sorted(
            {
                offer.zone
                for offer in CATALOG.lists["aws"].offers
                if offer.region == chosen.region and offer.zone and not offer.local_zone
            }
        )
        facts = AwsFacts(
            account="123456789012",
            region=chosen.region,
            zones=tuple(
                Zone(zone, f"{chosen.region}{letter}") for zone, letter in zip(ids, LETTERS, strict=False)
            ),
            image=Image("ami-0a1b2c3d4e5f60718", "an image of nodes", "/dev/sda1", 65),
            bastion_image=Image("ami-0f9e8d7c6b5a43210", "an image of bastions", "/dev/sda1", 8),
        )
        return self.with_answers(facts)

    def written(self, plan: AwsPlan) -> dict[str, object]:
        interfaces = [f"card {each.card} device {each.device} {each.kind}" for each in plan.interfaces]
        return {**super().written(plan), "interfaces": interfaces}
