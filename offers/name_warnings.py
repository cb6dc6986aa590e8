"""Warnings of names in a fleet: those that the catalogue does not know, and those that are ambiguous.

None of them stops a search: the catalogue is a copy and may be older than the cloud's offers. A fabric that
is known to be in another region, or of another type, is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from orch.catalog.records import ANY_FABRIC, Catalog, InstanceType, Offer
from orch.offers.match import aws_zone_name, gpu_has_name, names_type, names_zone
from orch.offers.query import MachineQuery
from orch.spec.diagnostics import Severity, property_path
from orch.spec.findings import Finding
from orch.spec.suggest import closest, few, hint_for


@dataclass(frozen=True)
class NameWarning:
    """A warning or note about one property; `path` leads to it in the fleet."""

    code: str
    path: tuple[str | int, ...]
    summary: str
    hint: str | None = None
    detail: str | None = None
    severity: Severity = Severity.WARNING

    @property
    def finding(self) -> Finding:
        """The same for a plan."""
        return Finding(
            self.code, property_path(self.path), self.summary, self.detail, self.hint, self.severity
        )


def name_warnings(query: MachineQuery, catalog: Catalog) -> tuple[NameWarning, ...]:
    """Return all warnings of a query, in the order of the properties.

    If a listed backend has places and types that no catalogue has, such as a cluster, names may be of those.
    """
    searched = tuple(name for name in query.backends if name in catalog.backends)
    types = tuple(each for each in catalog.types.values() if each.backend in searched)
    offers = tuple(offer for name in searched for offer in catalog.lists[name].offers)
    if any(name not in catalog.backends and name != "local" for name in query.backends):
        return (*_gpus(query, catalog, types), *_backends(query, catalog))
    return (
        *_gpus(query, catalog, types),
        *_backends(query, catalog),
        *_regions(query, _once((*(o.region for o in offers), *_more_regions(searched, catalog)))),
        *_zones(query, offers),
        *_types(query, types),
        *_fabric(query, offers),
    )


def _gpus(query: MachineQuery, catalog: Catalog, types: Sequence[InstanceType]) -> Iterator[NameWarning]:
    path = ("resources", "gpu")
    for name in query.resources.gpu.names:
        if any(gpu_has_name(each, name) for each in catalog.types.values()):
            continue
        names = {each.gpu.name for each in types if each.gpu}
        match = closest(name, sorted(names)) or closest(name, sorted(catalog.gpus))
        hint = f"did you mean '{match}'?" if match else f"known are {', '.join(sorted(names))}"
        yield NameWarning("ORCH203", path, f"the catalogue has no GPU '{name}'", hint)


def _backends(query: MachineQuery, catalog: Catalog) -> Iterator[NameWarning]:
    for index, name in enumerate(query.backends):
        if name not in catalog.backends and name != "local":
            summary = f"the catalogue has no offers of {name}"
            hint = f"it has those of {', '.join(catalog.backends)}"
            yield NameWarning("ORCH207", ("backends", index), summary, hint, severity=Severity.NOTE)


def _more_regions(searched: Sequence[str], catalog: Catalog) -> Iterator[str]:
    """Regions that may have offers which no price list has."""
    for name in searched:
        yield from catalog.regions.get(name, ())


def _regions(query: MachineQuery, regions: Sequence[str]) -> Iterator[NameWarning]:
    for index, region in enumerate(query.regions):
        if region.lower() not in {each.lower() for each in regions}:
            hint = hint_for(region, regions)
            yield NameWarning("ORCH205", ("regions", index), f"no offer is in a region '{region}'", hint)


def _zones(query: MachineQuery, offers: Sequence[Offer]) -> Iterator[NameWarning]:
    for index, zone in enumerate(query.zones):
        path = ("availability_zones", index)
        matches = [offer for offer in offers if names_zone(zone, offer)]
        if not matches:
            hint = hint_for(zone, _once(offer.zone for offer in offers))
            yield NameWarning("ORCH205", path, f"no offer is in a zone '{zone}'", hint)
        elif (place := aws_zone_name(zone)) and any(offer.type.backend == "aws" for offer in matches):
            ids = _once(offer.zone for offer in matches if offer.type.backend == "aws")
            where = f"local zones {place[1]} of {place[0]}" if place[1] else f"zones of {place[0]}"
            yield NameWarning(
                "ORCH206",
                path,
                f"'{zone}' is another zone in each AWS account: all {where} are listed",
                hint=f"write an id to name one zone: {', '.join(ids)}",
                severity=Severity.NOTE,
            )


def _types(query: MachineQuery, types: Sequence[InstanceType]) -> Iterator[NameWarning]:
    for index, pattern in enumerate(query.instance_types):
        if not any(names_type(pattern, each) for each in types):
            glob = "*" in pattern or "?" in pattern
            summary = "no type in the catalogue fits" if glob else "the catalogue has no type"
            hint = hint_for(pattern.replace("*", ""), _once(each.name for each in types))
            yield NameWarning("ORCH202", ("instance_types", index), f"{summary} '{pattern}'", hint)


def _fabric(query: MachineQuery, offers: Sequence[Offer]) -> Iterator[NameWarning]:
    name, path = query.fabric, ("network", "fabric")
    if name is None:
        return
    there = [offer for offer in offers if name.lower() in (each.lower() for each in offer.fabrics)]
    if not there:
        known = _once(each for offer in offers for each in offer.fabrics)
        if ANY_FABRIC in known:
            return
        hint = hint_for(name, known) if known else None
        yield NameWarning("ORCH205", path, f"the catalogue has no fabric '{name}'", hint)
        return
    regions = _once(offer.region for offer in there)
    types = _once(offer.type.name for offer in there)
    wanted = {each.lower() for each in query.regions}
    if wanted and not wanted & {each.lower() for each in regions}:
        yield NameWarning(
            "ORCH225",
            path,
            f"the fabric {name} is in {few(regions)}, not in {few(query.regions)}",
            hint=_fabrics_hint(offers, lambda offer: (offer.region or "").lower() in wanted),
            severity=Severity.ERROR,
        )
    patterns = query.instance_types
    if patterns and not any(names_type(each, offer.type) for each in patterns for offer in there):
        yield NameWarning(
            "ORCH223",
            path,
            f"the fabric {name} is of {few(types)}, not of {few(patterns)}",
            hint=_fabrics_hint(offers, lambda offer: any(names_type(each, offer.type) for each in patterns)),
            severity=Severity.ERROR,
        )


def _fabrics_hint(offers: Sequence[Offer], fits: Callable[[Offer], bool]) -> str:
    """Return a hint with the fabrics of the offers that fit."""
    names = _once(name for offer in offers if fits(offer) for name in offer.fabrics)
    return f"those have {few(names)}" if names else "those have no InfiniBand: remove `fabric`"


def _once(words: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({word for word in words if word}))
