"""Where the pods of a run may go: each type in each data center that has it. Pure.

The catalogue knows types and prices; the account tells data centers, by their stock.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import ne

from orch.catalog.load import SHIPPED, read_rows
from orch.catalog.records import Catalog
from orch.catalog.runpod.prices import country, gpu_ids
from orch.components.cloud.candidates import (
    CloudCandidate,
    candidate_of,
    fits_of,
    query_on,
)
from orch.components.cloud.restrictions import NO, SPOT, YES, Restriction, rejected
from orch.components.request import NodeVolume
from orch.components.runpod.account.facts import Stock
from orch.components.runpod.plan import MOST_PODS
from orch.images.build import is_ours
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.runpod import RunpodSettings
from orch.spec.suggest import few, hint_for

LEVELS = ("HIGH", "MEDIUM", "LOW", "")
"""What RunPod tells of its stock, the most first; the last: nothing."""

_TYPE = re.compile(r"\d+x_(.+)_SECURE")
_CENTER = re.compile(r"[a-z]{2,3}-[a-z]{2,3}-[0-9]+", re.IGNORECASE)
_NO_NETWORKS = "RunPod has no networks of yours"
RESTRICTIONS = (
    Restriction(
        "blocks", "a pod is the container of one job: it is not cut into blocks", when=partial(ne, 1)
    ),
    Restriction(
        "spot_policy",
        "RunPod sells neither clusters nor pods at a spot price by its REST API",
        "write `spot_policy: on-demand`, or remove it",
        SPOT,
    ),
)
NETWORK_RESTRICTIONS = (
    Restriction("network.vpc", _NO_NETWORKS),
    Restriction("network.subnets", _NO_NETWORKS),
    Restriction("network.security_groups", _NO_NETWORKS),
    Restriction("network.ssh_cidrs", RunpodSettings.lacks["ssh_cidrs"]),
    Restriction("network.proxy_jump", "RunPod gives each pod a port of a public address"),
    Restriction("network.bastion", "orch makes no bastion on RunPod", when=YES),
    Restriction("network.public_ips", "nobody could log in to the pods without", when=NO),
)


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
    if wrong := list(_refusals(fleet, other_backends, countries)):
        raise PlanErrors(wrong)
    # The catalogue tells countries, of some types none at all: the account tells where they are.
    query = replace(query_on(settings, fleet, catalog, spot=False), regions=(), zones=())
    cheapest: dict[str, RunpodCandidate] = {}
    for fit in fits_of(fleet, query, catalog, (), usable=lambda offer: gpu_of(offer.type.name)):
        each = RunpodCandidate.at(candidate_of(fit), region="", zone="", listed=False)
        cheapest.setdefault(each.type.name, each)
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


def unknown_centers(fleet: Fleet, known: Collection[str]) -> Iterator[Finding]:
    """Data centers that the file names and RunPod does not have. `known`: those that it has."""
    for name, index, place in _named_centers(fleet):
        if place.upper() not in known:
            near = [each for each in sorted(known) if country(each) == country(place.upper())]
            yield Finding(
                "ORCH205",
                f"{name}[{index}]",
                f"RunPod has no data center '{place}'",
                detail=f"it has {', '.join(sorted(known))}",
                hint=hint_for(place, sorted(known)) or (f"name one of {few(near)}" if near else None),
            )


def _named_centers(fleet: Fleet) -> Iterator[tuple[str, int, str]]:
    """The data centers in a file: the property, the index in it, and the name."""
    for name, written in (("regions", fleet.regions), ("availability_zones", fleet.availability_zones)):
        yield from ((name, index, place) for index, place in enumerate(written) if is_center(place))


def names_centers(fleet: Fleet) -> bool:
    return any(True for _ in _named_centers(fleet))


def in_data_centers(
    fleet: Fleet,
    settings: RunpodSettings,
    types: Sequence[RunpodCandidate],
    stock: Mapping[int, Stock],
    prices: Mapping[str, float],
    *,
    volumes: Sequence[NodeVolume] = (),
) -> tuple[RunpodCandidate, ...]:
    """The data centers of each type in the order to try: those with the most stock first.

    `stock`: by the number of GPUs of a machine. `prices`: of one GPU, by its id, as the account tells them;
    those of the catalogue count where it tells none. `volumes`: pods with one of these are made where that
    is. Raises PlanErrors where the file's places have none of RunPod's data centers (ORCH205), or none of
    these volumes (ORCH261).
    """
    only = list(dict.fromkeys(each.place for each in volumes))
    found = [each for kind in types for each in _of_type(fleet, settings, kind, stock, prices, only=only)]
    if found:
        return tuple(found)
    path = "availability_zones" if fleet.availability_zones else "regions"
    if only:
        where = "its volumes are" if len(only) > 1 else "its volume is"
        raise PlanErrors(
            [
                Finding(
                    "ORCH261",
                    path,
                    f"a run's pods are made where {where}: in {few(only)}, where this fleet may not go",
                    hint=f"write `availability_zones: [{only[0]}]`, or make a volume where the fleet goes",
                )
            ]
        )
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
    *,
    only: Sequence[str],
) -> Iterator[RunpodCandidate]:
    count = kind.type.gpu_count
    known = stock.get(count, {})
    levels = {center: level for (gpu, center), level in known.items() if gpu == kind.gpu}
    # Where it tells no stock of this GPU there may be some a moment later: those are tried last.
    named = [place.upper() for _, _, place in _named_centers(fleet)]
    others = {center for _, center in known} if fleet.regions or settings.regions else set[str]()
    places = {center: levels.get(center, "") for center in only or {*levels, *named, *others}}
    wanted = [center for center in places if within(center, fleet, settings.regions)]
    if not only and not wanted and not (fleet.regions or fleet.availability_zones or settings.regions):
        wanted, places = [""], {"": ""}
    price = round(prices[kind.gpu] * count, 4) if kind.gpu in prices else kind.price
    for center in sorted(wanted, key=lambda each: (LEVELS.index(places[each]), each)):
        yield replace(kind, region=center, zone=center, price=price, level=places[center], listed=True)


def _refusals(fleet: Fleet, backends: Collection[str], countries: Collection[str]) -> Iterator[Finding]:
    """What the file may not say: its nodes are containers of RunPod's. `countries`: those that the catalogue
    has an offer in."""
    if others := [name for name in backends if name != "runpod"]:
        yield _cannot(
            "backends",
            f"nodes on RunPod are made with a run, not on {few(others)} too",
            "give RunPod a fleet of its own: `backends: [runpod]`",
        )
    yield from _counts(fleet)
    if fleet.gang == "best-effort" and "gang" in fleet.model_fields_set:
        yield _cannot("gang", "a run begins with all of its pods, or with none", "remove it")
    yield from rejected(fleet, RESTRICTIONS, "ORCH236")
    if fleet.image is not None and is_ours(fleet.image):
        yield _cannot(
            "image",
            f"RunPod pulls the image of a pod from a registry: {fleet.image} is only on this machine",
            "name an image of a registry, such as pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime",
        )
    yield from _places(fleet, countries)
    yield from rejected(fleet, NETWORK_RESTRICTIONS, "ORCH236")
    plain = fleet.network is not None and fleet.network.interconnect == "ethernet"
    if plain and fleet.placement == "cluster":
        yield _cannot(
            "network.interconnect",
            "the pods of an Instant Cluster have a fast interconnect, and single pods none at all",
            "remove it",
        )


def _cannot(path: str, summary: str, hint: str) -> Finding:
    return Finding("ORCH236", path, summary, hint=hint)


def _counts(fleet: Fleet) -> Iterator[Finding]:
    most = fleet.nodes.max if fleet.nodes is not None else None
    if fleet.placement == "cluster" and (most is None or most > MOST_PODS):
        yield Finding(
            "ORCH218",
            "nodes",
            f"an Instant Cluster has 2 to {MOST_PODS} pods, {most or 'any number'} may be asked for here",
            hint=f"write `nodes: 0..{MOST_PODS}`; RunPod's sales give larger ones",
        )


def _places(fleet: Fleet, countries: Collection[str]) -> Iterator[Finding]:
    for name, written in (("regions", fleet.regions), ("availability_zones", fleet.availability_zones)):
        for index, place in enumerate(written):
            if is_center(place) if name == "availability_zones" else place.upper() in countries:
                continue
            if is_center(place) and country(place.upper()) in countries:
                continue
            known, what = sorted(countries), "region" if name == "regions" else "data center"
            yield Finding(
                "ORCH205",
                f"{name}[{index}]",
                f"RunPod has no {what} '{place}' in the catalogue",
                detail=f"regions are countries: {', '.join(known)}; US-KS-2 is a data center",
                hint=hint_for(place, known) if name == "regions" else None,
            )


def is_center(place: str) -> bool:
    """Whether it is named like a data center: US-KS-2, EU-RO-1."""
    return _CENTER.fullmatch(place) is not None


def within(center: str, fleet: Fleet, also: Collection[str] = ()) -> bool:
    """Whether a data center is where the fleet may go. `also`: regions of orch.yml, where it names none."""
    written = [each.upper() for each in fleet.regions or also]
    zones = [each.upper() for each in fleet.availability_zones]
    return (not written or center in written or country(center) in written) and (not zones or center in zones)
