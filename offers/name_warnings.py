"""Names in a fleet that the catalogue does not know, and names that mean less than they seem to.

None of them stops a search: the catalogue is a copy, and may be behind the cloud.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orch.catalog.records import Catalog, InstanceType, Offer
from orch.offers.match import answers_to, aws_zone_name, names_type, names_zone
from orch.offers.query import MachineQuery
from orch.spec.diagnostics import Severity, property_path
from orch.spec.findings import Finding
from orch.spec.suggest import closest, hint_for


@dataclass(frozen=True)
class NameWarning:
    """What is doubtful about one property; `path` leads to it in the fleet."""

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


def doubts(wanted: MachineQuery, catalog: Catalog) -> tuple[NameWarning, ...]:
    """All of them, in the order of the properties."""
    searched = tuple(name for name in wanted.backends if name in catalog.backends)
    types = tuple(each for each in catalog.types.values() if each.backend in searched)
    offers = tuple(offer for name in searched for offer in catalog.lists[name].offers)
    return (
        *_gpus(wanted, catalog, types),
        *_backends(wanted, catalog),
        *_regions(wanted, _once((*(o.region for o in offers), *_possible(searched, catalog)))),
        *_zones(wanted, offers),
        *_types(wanted, types),
    )


def _gpus(wanted: MachineQuery, catalog: Catalog, types: Sequence[InstanceType]) -> Iterator[NameWarning]:
    path = ("resources", "gpu")
    for name in wanted.resources.gpu.names:
        if any(answers_to(each, name) for each in catalog.types.values()):
            continue
        offered = {each.gpu.name for each in types if each.gpu}
        match = closest(name, sorted(offered)) or closest(name, sorted(catalog.gpus))
        hint = f"did you mean '{match}'?" if match else f"known are {', '.join(sorted(offered))}"
        yield NameWarning("ORCH203", path, f"the catalogue has no GPU '{name}'", hint)


def _backends(wanted: MachineQuery, catalog: Catalog) -> Iterator[NameWarning]:
    for index, name in enumerate(wanted.backends):
        if name not in catalog.backends and name != "local":
            summary = f"the catalogue has no offers of {name}"
            hint = f"it has those of {', '.join(catalog.backends)}"
            yield NameWarning("ORCH207", ("backends", index), summary, hint, severity=Severity.NOTE)


def _possible(searched: Sequence[str], catalog: Catalog) -> Iterator[str]:
    """Regions that may have more than the lists tell."""
    for name in searched:
        yield from catalog.regions.get(name, ())


def _regions(wanted: MachineQuery, known: Sequence[str]) -> Iterator[NameWarning]:
    for index, region in enumerate(wanted.regions):
        if region.lower() not in {each.lower() for each in known}:
            hint = hint_for(region, known)
            yield NameWarning("ORCH205", ("regions", index), f"no offer is in a region '{region}'", hint)


def _zones(wanted: MachineQuery, offers: Sequence[Offer]) -> Iterator[NameWarning]:
    for index, zone in enumerate(wanted.zones):
        path = ("availability_zones", index)
        named = [offer for offer in offers if names_zone(zone, offer)]
        if not named:
            hint = hint_for(zone, _once(offer.zone for offer in offers))
            yield NameWarning("ORCH205", path, f"no offer is in a zone '{zone}'", hint)
        elif (place := aws_zone_name(zone)) and any(offer.type.backend == "aws" for offer in named):
            ids = _once(offer.zone for offer in named if offer.type.backend == "aws")
            where = f"local zones {place[1]} of {place[0]}" if place[1] else f"zones of {place[0]}"
            yield NameWarning(
                "ORCH206",
                path,
                f"'{zone}' is another zone in each AWS account: all {where} are listed",
                hint=f"write an id to name one zone: {', '.join(ids)}",
                severity=Severity.NOTE,
            )


def _types(wanted: MachineQuery, types: Sequence[InstanceType]) -> Iterator[NameWarning]:
    for index, pattern in enumerate(wanted.instance_types):
        if not any(names_type(pattern, each) for each in types):
            glob = "*" in pattern or "?" in pattern
            summary = "no type in the catalogue fits" if glob else "the catalogue has no type"
            hint = hint_for(pattern.replace("*", ""), _once(each.name for each in types))
            yield NameWarning("ORCH202", ("instance_types", index), f"{summary} '{pattern}'", hint)


def _once(words: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({word for word in words if word}))
