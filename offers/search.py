"""Search of the catalogue for the fleets of some documents, with diagnostics at their places in the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from orch.catalog.load import catalog as load_catalog
from orch.catalog.records import Catalog, PriceList
from orch.catalog.shortages import Shortage
from orch.offers.match import Fit, Judgement, judge
from orch.offers.name_warnings import name_warnings
from orch.offers.near_misses import NearMiss, near_misses, reason_text
from orch.offers.query import MachineQuery, machine_query
from orch.spec.diagnostics import Diagnostic, Severity
from orch.spec.errors import ExitCode, OrchError
from orch.spec.loader.load import Document
from orch.spec.models import Fleet

# The property behind each condition.
PROPERTIES = {
    "backend": "backends",
    "instance type": "instance_types",
    "region": "regions",
    "zone": "availability_zones",
    "local zone": "availability_zones",
    "fabric": "network.fabric",
    "spot": "spot_policy",
    "price": "max_price",
    "cpu": "resources.cpu",
    "cpu architecture": "resources.cpu",
    "memory": "resources.memory",
    "gpu": "resources.gpu",
    "gpu model": "resources.gpu",
    "gpu vendor": "resources.gpu",
    "gpu count": "resources.gpu",
    "gpu memory": "resources.gpu",
    "total gpu memory": "resources.gpu",
    "compute capability": "resources.gpu",
}


class NoFleet(OrchError):
    """There is nothing in the files to search offers for."""

    exit_code: ExitCode = ExitCode.CONFIG


@dataclass(frozen=True)
class Search:
    """The result for one fleet. `skipped` says why its machines are not searched; `shortages`: what had no
    room a short while ago."""

    name: str
    file: str
    query: MachineQuery
    judgement: Judgement
    diagnostics: tuple[Diagnostic, ...]
    lists: tuple[PriceList, ...]
    skipped: str | None = None
    shortages: tuple[Shortage, ...] = ()

    def no_room(self, fit: Fit) -> tuple[Shortage, ...]:
        """The shortages where a fit is: in its zone, in all of its region where the offer names none."""
        offer = fit.offer
        place = (offer.type.backend, offer.type.name, offer.region, fit.spot)
        return tuple(
            each
            for each in self.shortages
            if (each.backend, each.instance_type, each.region, each.spot) == place
            and offer.zone in (None, each.zone)
        )

    @property
    def empty(self) -> bool:
        """Return True if the catalogue was searched and no offer fits."""
        return self.skipped is None and not self.judgement.fits

    @cached_property
    def misses(self) -> tuple[NearMiss, ...]:
        return near_misses(self.judgement)


def search(
    documents: Sequence[Document],
    configured: Sequence[str],
    catalog: Catalog | None = None,
    shortages: Sequence[Shortage] = (),
) -> tuple[Search, ...]:
    """The offers for each fleet, in the order of the documents. `configured` are the project's backends.

    Raises NoFleet when no document is a fleet, BadCatalogFile for a data file that cannot be read.
    """
    data = catalog or load_catalog()
    searches = tuple(
        replace(_search(document, document.model, configured, data), shortages=tuple(shortages))
        for document in documents
        if isinstance(document.model, Fleet)
    )
    if not searches:
        raise NoFleet(
            "there is no fleet to search offers for",
            hint="give the file of a fleet: what a task wants is looked for among fleets",
        )
    return searches


def _search(document: Document, fleet: Fleet, configured: Sequence[str], catalog: Catalog) -> Search:
    query = machine_query(fleet, catalog, configured)
    skipped = _skipped(fleet, query)
    judgement = Judgement(()) if skipped else judge(query, catalog)
    lists = () if skipped else tuple(catalog.lists[name] for name in query.backends if name in catalog.lists)
    diagnostics = [] if skipped else _diagnostics(document, fleet, query, catalog)
    result = Search(fleet.name, str(document.file), query, judgement, tuple(diagnostics), lists, skipped)
    return replace(result, diagnostics=(*diagnostics, _nothing(document, result))) if result.empty else result


def _nothing(document: Document, search: Search) -> Diagnostic:
    """`no offer fits`; at the property that the nearest type fails, where that is the only one."""
    path, detail, hint = "resources", None, None
    if search.misses:
        nearest = search.misses[0]
        why = "; ".join(reason_text(reason) for reason in nearest.reasons)
        detail = f"nearest is {nearest.backend} {nearest.instance_type}: {why}"
        hint = "change a condition that the nearest types fail, or look further with `--explain`"
        path = PROPERTIES.get(nearest.reasons[0].constraint, path) if nearest.failed == 1 else path
    return document.diagnostic(
        "ORCH200", path, f"no offer fits the fleet '{search.name}'", detail=detail, hint=hint
    )


def _diagnostics(document: Document, fleet: Fleet, query: MachineQuery, catalog: Catalog) -> list[Diagnostic]:
    """Warnings of names, at their places in the file; of backends only where the file names them."""
    written = "backends" in fleet.model_fields_set
    return [
        document.diagnostic(
            warning.code,
            warning.path,
            warning.summary,
            severity=warning.severity,
            detail=warning.detail,
            hint=warning.hint,
        )
        for warning in name_warnings(query, catalog)
        if written or warning.path[0] != "backends"
    ]


def unknown_names(document: Document) -> tuple[Diagnostic, ...]:
    """Regions, zones, types, GPUs and fabrics of a fleet that the catalogue does not know, as warnings; a
    fabric that it knows to be elsewhere, as an error.

    Raises BadCatalogFile for a data file that cannot be read.
    """
    fleet = document.model
    if not isinstance(fleet, Fleet) or fleet.ssh_config is not None:
        return ()
    gpu = fleet.resources.gpu
    fabric = fleet.network is not None and fleet.network.fabric
    if not (fleet.regions or fleet.availability_zones or fleet.instance_types or gpu.names or fabric):
        return ()
    data = load_catalog()
    query = machine_query(fleet, data)
    if _skipped(fleet, query):
        return ()
    diagnostics = _diagnostics(document, fleet, query, data)
    return tuple(each for each in diagnostics if each.severity is not Severity.NOTE)


def _skipped(fleet: Fleet, query: MachineQuery) -> str | None:
    if fleet.ssh_config is not None:
        return "its hosts are there already, nothing is rented"
    if set(query.backends) <= {"local", "ssh"}:
        return "its nodes are containers on this machine, nothing is rented"
    return None
