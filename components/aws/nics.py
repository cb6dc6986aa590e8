"""The network interfaces of a node: which card carries what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orch.catalog.aws.machines import Nics


@dataclass(frozen=True)
class Interface:
    """One interface. Only `interface` (ENA) and `efa` (both in one) take an address of the subnet."""

    card: int
    device: int
    kind: Literal["interface", "efa-only", "efa"]

    @property
    def addressed(self) -> bool:
        return self.kind != "efa-only"


def interfaces(nics: Nics, *, efa: bool) -> tuple[Interface, ...]:
    """All interfaces of one node, in order of cards.

    Card 0 carries a plain interface for IP traffic, and an EFA-only one beside it where the card has EFA and
    room; each further card one EFA-only interface. A card 0 with room for one carries both in one. Where
    there are fewer EFA interfaces than cards, card 0 is the one without. Without `efa` there is the plain one
    alone, and where the cards are not known.

    Sources: EC2 user guide, "Maximize network bandwidth on instances with multiple network cards";
    aws-parallelcluster, `add_network_interfaces`.
    """
    if not efa or not nics.fast:
        return (Interface(0, 0, "interface"),)
    further = tuple(
        Interface(card, nics.efa_device if nics.per_card != 1 else 0, "efa-only")
        for card in range(1, nics.cards)
    )
    if nics.efa < nics.cards:
        return (Interface(0, 0, "interface"), *further[: nics.efa])
    if nics.per_card == 1:
        return (Interface(0, 0, "efa"), *further)
    return (Interface(0, 0, "interface"), Interface(0, 1, "efa-only"), *further)


def words(nics: Nics, layout: tuple[Interface, ...]) -> tuple[str, ...]:
    """What a plan says about the interfaces of each node."""
    fast = sum(each.kind != "interface" for each in layout)
    if not fast:
        return ("one network interface per node, for IP traffic",)
    addresses = sum(each.addressed for each in layout)
    cards = f"{nics.cards} network card{'s' * (nics.cards != 1)}"
    count = f"{fast} EFA interface{'s' * (fast != 1)}"
    if addresses == 1 and layout[0].kind == "interface":
        address_use = "no addresses of the subnet used by them"
    else:
        address_use = f"{addresses} address of the subnet used by them"
    lines = [f"each node: {cards}, {count}, {nics.gbps} Gbps; {address_use}"]
    if fast < nics.cards:
        lines.append("card 0 has no EFA: it carries IP traffic alone")
    elif layout[0].kind == "interface":
        lines.append("card 0 carries IP traffic on an interface of its own, the one with an address")
    return tuple(lines)
