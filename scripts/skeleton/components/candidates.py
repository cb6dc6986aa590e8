"""The places where a Newcloud fleet may go, and what its file may not ask for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from orch.catalog.records import Catalog
from orch.components.cloud.candidates import (
    CloudCandidate,
    candidate_of,
    current_candidate,
    divisible,
    fits_of,
    query_on,
)
from orch.components.cloud.machines.ssh_access import private_by_settings
from orch.components.cloud.restrictions import NO, SPOT, YES, Restriction, rejected
from orch.components.newcloud.account.facts import Stock
from orch.components.request import PriorState
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.newcloud import NewcloudSettings
from orch.spec.suggest import few

MOST_SHORT = 3
"""How many places without capacity are tried if no place has any."""

_PUBLIC = "Newcloud gives each machine a public address"
_NO_NETWORKS = "Newcloud has no networks of yours"
RESTRICTIONS = (
    Restriction("spot_policy", "Newcloud has no spot machines", "write `spot_policy: on-demand`", SPOT),
    Restriction("network.public_ips", _PUBLIC, when=NO),
    Restriction("network.bastion", _PUBLIC, when=YES),
    Restriction("network.vpc", _NO_NETWORKS),
    Restriction("network.subnets[0]", _NO_NETWORKS),
    Restriction("network.security_groups[0]", _NO_NETWORKS),
)


@dataclass(frozen=True)
class NewcloudCandidate(CloudCandidate):
    """`zone`: the region. `listed`: the account was asked. `room`: whether it has capacity there now."""

    room: bool | None = None

    @property
    def place(self) -> str:
        return self.region


def candidates(
    fleet: Fleet,
    settings: NewcloudSettings,
    catalog: Catalog,
    *,
    previous: PriorState = PriorState(),  # noqa: B008 - frozen
    other_backends: Collection[str] = (),
) -> tuple[NewcloudCandidate, ...]:
    """Return each type in each region of the catalogue, the cheapest first; only the place that the stack is
    in if the file allows it. `other_backends`: backends whose types are no mistakes.

    Raises PlanErrors: ORCH200, 202, 237.
    """
    private = private_by_settings(fleet.network, settings, _PUBLIC)
    if wrong := [*rejected(fleet, RESTRICTIONS), *private]:
        raise PlanErrors(wrong)
    query = query_on(settings, fleet, catalog, spot=False)
    kept = current_candidate(query, catalog, previous)
    if kept is not None:
        return tuple(map(NewcloudCandidate.at, divisible(fleet, (kept,))))
    found = [candidate_of(fit) for fit in fits_of(fleet, query, catalog, other_backends)]
    return tuple(
        NewcloudCandidate.at(each, zone=each.region, listed=False) for each in divisible(fleet, found)
    )


def placed(fleet: Fleet, places: Sequence[NewcloudCandidate], stock: Stock) -> tuple[NewcloudCandidate, ...]:
    """Return the places with capacity now; the first few if none has any. Raises PlanErrors (ORCH205)."""
    sold = [
        replace(each, listed=True, room=each.region in stock[each.type.name].regions)
        for each in places
        if each.type.name in stock
    ]
    if not sold:
        path = "instance_types" if fleet.instance_types else "resources"
        names = few(dict.fromkeys(each.type.name for each in places))
        raise PlanErrors([Finding("ORCH205", path, f"Newcloud sells no {names} to this account now")])
    return tuple([each for each in sold if each.room] or sold[:MOST_SHORT])
