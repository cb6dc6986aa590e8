"""What the file of a fleet on RunPod may not say: its nodes are containers of RunPod's. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from orch.catalog.runpod.prices import country
from orch.components.runpod.plan import MOST_PODS
from orch.images.build import is_ours
from orch.spec.findings import Finding
from orch.spec.models import Fleet
from orch.spec.suggest import few, hint_for

_CENTER = re.compile(r"[a-z]{2,3}-[a-z]{2,3}-[0-9]+", re.IGNORECASE)
_NETWORK = {
    "vpc": "RunPod has no networks of yours",
    "subnets": "RunPod has no networks of yours",
    "security_groups": "RunPod has no networks of yours",
    "ssh_cidrs": "RunPod lets everybody reach a port that is open; SSH takes the fleet's key alone",
    "proxy_jump": "RunPod gives each pod a port of a public address",
}


def refusals(fleet: Fleet, backends: Collection[str], countries: Collection[str]) -> Iterator[Finding]:
    """All that is wrong. `countries`: those that the catalogue has an offer in."""
    if others := [name for name in backends if name != "runpod"]:
        yield _cannot(
            "backends",
            f"nodes on RunPod are made with a run, not on {few(others)} too",
            "give RunPod a fleet of its own: `backends: [runpod]`",
        )
    yield from _counts(fleet)
    if fleet.blocks != 1:
        yield _cannot("blocks", "a pod is the container of one job: it is not cut into blocks", "remove it")
    if fleet.spot_policy == "spot":
        yield _cannot(
            "spot_policy",
            "RunPod sells neither clusters nor pods at a spot price by its REST API",
            "write `spot_policy: on-demand`, or remove it",
        )
    if fleet.image is not None and is_ours(fleet.image):
        yield _cannot(
            "image",
            f"RunPod pulls the image of a pod from a registry: {fleet.image} is only on this machine",
            "name an image of a registry, such as pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime",
        )
    yield from _places(fleet, countries)
    block = fleet.network
    if block is None:
        return
    for name, why in _NETWORK.items():
        if getattr(block, name):
            yield _cannot(f"network.{name}", why, "remove it")
    if block.bastion is True:
        yield _cannot("network.bastion", "orch makes no bastion on RunPod", "remove it")
    if block.public_ips is False:
        yield _cannot("network.public_ips", "nobody could log in to the pods without", "remove it")
    if block.interconnect == "ethernet" and fleet.placement == "cluster":
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
