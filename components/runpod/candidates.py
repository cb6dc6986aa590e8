"""Where the pods of a run may go: each type in each data center that has it. Pure.

The catalogue knows types and prices; the account tells data centers, by their stock.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

from orch.catalog.load import SHIPPED, read_rows
from orch.catalog.records import Catalog
from orch.catalog.runpod.prices import gpu_ids
from orch.components.cloud.candidates import (
    CloudCandidate,
    candidate_of,
    known_types,
    no_offer,
)
from orch.components.runpod.account.facts import Stock
from orch.components.runpod.refusals import is_center, refusals, within
from orch.offers.match import judge
from orch.offers.query import machine_query
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.runpod import RunpodSettings
from orch.spec.suggest import few

LEVELS = ("HIGH", "MEDIUM", "LOW", "")
"""What RunPod tells of its stock, the most first; the last: nothing."""

_TYPE = re.compile(r"\d+x_(.+)_SECURE")


@dataclass(frozen=True)
class RunpodCandidate(CloudCandidate):
    """`region` and `zone`: the data center, both empty where RunPod chooses one. `level`: its stock there."""

    level: str = ""

    @property
    def place(self) -> str:
        return self.zone or "any data center"

    @property
    def gpu(self) -> str:
        """The id of its GPU."""
        return gpu_of(self.type.name) or ""


def gpu_of(instance_type: str) -> str | None:
    found = _TYPE.fullmatch(instance_type)
    return gpu_ids().get(found[1]) if found else None


@cache
def clustered() -> frozenset[str]:
    """Ids of the GPUs that Instant Clusters are made of."""
    rows = read_rows(SHIPPED / "runpod" / "gpus.csv")
    return frozenset(row["id"] for row in rows if row["cluster"] == "yes")


def candidates(
    fleet: Fleet, settings: RunpodSettings, catalog: Catalog, *, other_backends: Collection[str] = ()
) -> tuple[RunpodCandidate, ...]:
    """The types that fit, the cheapest first, each without a place yet.

    `other_backends`: all backends where the fleet may go. Raises PlanErrors: ORCH200, 202, 205, 218, 223,
    236.
    """
    offers = catalog.lists["runpod"].offers
    countries = {each.region for each in offers if each.region}
    if wrong := list(refusals(fleet, other_backends, countries)):
        raise PlanErrors(wrong)
    # The catalogue tells countries, of some types none at all: the account tells where they are.
    query = replace(
        machine_query(fleet, catalog), backends=("runpod",), regions=(), zones=(), spot_policy="on-demand"
    )
    known_types(query, catalog)
    judgement = judge(query, catalog)
    cheapest: dict[str, RunpodCandidate] = {}
    for fit in judgement.fits:
        if gpu_of(fit.offer.type.name):
            own = {field.name: getattr(candidate_of(fit), field.name) for field in fields(CloudCandidate)}
            each = RunpodCandidate(**{**own, "region": "", "zone": "", "listed": False})
            cheapest.setdefault(each.type.name, each)
    if not cheapest:
        raise no_offer(fleet, query, catalog, judgement)
    return _interconnected(fleet, tuple(cheapest.values()))


def _interconnected(fleet: Fleet, types: tuple[RunpodCandidate, ...]) -> tuple[RunpodCandidate, ...]:
    """Those that become a cluster, where the fleet is one. Raises PlanErrors: ORCH223."""
    block = fleet.network
    required = block is not None and block.interconnect == "required"
    if fleet.placement != "cluster":
        if required:
            summary = "a fast interconnect is required, and single pods have none"
            hint = "write `placement: cluster`"
            raise PlanErrors([Finding("ORCH223", "network.interconnect", summary, hint=hint)])
        return types
    fast = tuple(each for each in types if each.gpu in clustered())
    if not fast:
        names = few([each.type.name for each in types])
        path = "instance_types" if fleet.instance_types else "resources"
        raise PlanErrors(
            [
                Finding(
                    "ORCH223",
                    "network.interconnect" if required else path,
                    f"RunPod makes no Instant Cluster of {names}: its pods have no network of their own",
                    hint="clusters are made of A100-80GB-SXM, H100-SXM, H200-SXM and B200; or remove "
                    "`placement: cluster`",
                )
            ]
        )
    return fast


def in_data_centers(
    fleet: Fleet,
    settings: RunpodSettings,
    types: Sequence[RunpodCandidate],
    stock: Mapping[int, Stock],
    prices: Mapping[str, float],
) -> tuple[RunpodCandidate, ...]:
    """The data centers of each type in the order to try: those with the most stock first.

    `stock`: by the number of GPUs of a machine. `prices`: of one GPU, by its id, as the account tells them;
    those of the catalogue count where it tells none. Raises PlanErrors (ORCH205) where the file's places have
    none of RunPod's data centers.
    """
    found = [each for kind in types for each in _of_type(fleet, settings, kind, stock, prices)]
    if found:
        return tuple(found)
    path = "availability_zones" if fleet.availability_zones else "regions"
    there = sorted({center for known in stock.values() for _, center in known})
    written = fleet.availability_zones or fleet.regions or settings.regions
    raise PlanErrors(
        [
            Finding(
                "ORCH205",
                path,
                f"RunPod has nothing now in {few(written)}",
                hint=f"it has some in {few(there)}" if there else "try later",
            )
        ]
    )


def _of_type(
    fleet: Fleet,
    settings: RunpodSettings,
    kind: RunpodCandidate,
    stock: Mapping[int, Stock],
    prices: Mapping[str, float],
) -> Iterator[RunpodCandidate]:
    count = kind.type.gpu_count
    known = stock.get(count, {})
    levels = {center: level for (gpu, center), level in known.items() if gpu == kind.gpu}
    # Where it tells no stock of this GPU there may be some a moment later: those are tried last.
    named = [each.upper() for each in (*fleet.regions, *fleet.availability_zones) if is_center(each)]
    others = {center for _, center in known} if fleet.regions or settings.regions else set[str]()
    places = {center: levels.get(center, "") for center in {*levels, *named, *others}}
    wanted = [center for center in places if within(center, fleet, settings.regions)]
    if not wanted and not (fleet.regions or fleet.availability_zones or settings.regions):
        wanted, places = [""], {"": ""}
    price = round(prices[kind.gpu] * count, 4) if kind.gpu in prices else kind.price
    for center in sorted(wanted, key=lambda each: (LEVELS.index(places[each]), each)):
        yield replace(kind, region=center, zone=center, price=price, level=places[center], listed=True)
