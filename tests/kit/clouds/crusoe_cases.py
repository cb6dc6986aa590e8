"""Plans of Crusoe fleets. A case may have `stock` (by TYPE@LOCATION), `networks` (free slices of each
InfiniBand network, -1: there is none) and `reservations` (none: the access key may not list them).

Without more, a project has no limits, and two InfiniBand networks of each type in us-east1-a and
eu-iceland1-a.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from kit.clouds.plan_cases import CATALOG, HOME, PlanCase

from orch.components.crusoe.account.facts import (
    CrusoeFacts,
    IbNetwork,
    Image,
    Lookups,
    Quota,
    Reservation,
    Subnet,
)
from orch.components.crusoe.candidates import CrusoeCandidate, candidates, machines, placed
from orch.components.crusoe.planner import needed_lookups
from orch.components.node_count import node_indices

PLENTY = 1024
PLACES = ("us-east1-a", "eu-iceland1-a")


class Case(PlanCase):
    backend = "crusoe"
    usual: ClassVar = {"ssh_cidrs": HOME}
    readers: ClassVar = {"subnets": Subnet, "quota": Quota, "image": Image}

    def candidates(self) -> tuple[CrusoeCandidate, ...]:
        found = candidates(self.fleet, self.settings, CATALOG, previous=self.previous)
        if found[0].kept:
            return found
        nodes = len(node_indices(self.fleet, self.previous))
        place = partial(placed, stock=self.stock, networks=self.networks, reservations=self.reservations)
        return place(self.fleet, self.settings, found, nodes=nodes)

    @property
    def reservations(self) -> tuple[Reservation, ...] | None:
        rows: list[dict[str, Any]] | None = self.data.get("reservations")
        return None if rows is None else tuple(Reservation(**row) for row in rows)

    @property
    def stock(self) -> dict[tuple[str, str], int]:
        if "stock" in self.data:
            rows = {tuple(word.split("@")): count for word, count in self.data["stock"].items()}
            return {(kind, location): count for (kind, location), count in rows.items()}
        return {(kind, place): PLENTY for kind in machines() for place in PLACES}

    @property
    def networks(self) -> tuple[IbNetwork, ...]:
        slices: dict[str, int] = self.data.get("networks", {})
        found: list[IbNetwork] = []
        for kind, each in machines().items():
            for place in PLACES if each.hcas else ():
                for number in (1, 2):
                    name = f"{kind.partition('-')[0]}-{place[:-2]}-{number}"
                    free = slices.get(name, PLENTY)
                    if free >= 0:
                        found.append(IbNetwork(f"ibn-{name}", name, place, {kind: free}))
        return tuple(found)

    def lookups(self, chosen: CrusoeCandidate) -> Lookups:
        return needed_lookups(self.fleet, self.settings, chosen, self.previous)

    def facts(self, chosen: CrusoeCandidate) -> CrusoeFacts:
        lookups = self.lookups(chosen)
        image = Image(lookups.image.replace(":latest", ":20260801"))
        small = Image("ubuntu22.04:20260801") if lookups.bastion_image else None
        facts = CrusoeFacts("p-1", image, small, room=chosen.room, reservations=self.reservations)
        return self.with_answers(facts)
