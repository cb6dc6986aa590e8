"""New price lists from the clouds' own APIs: the one part of the catalogue that uses a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

from orch.catalog.errors import NotRefreshable, RefreshFailed
from orch.catalog.load import catalog, folder_of, price_file, user_folder, write_prices
from orch.catalog.records import Fetched, PriceList
from orch.catalog.shortages import FILE, add
from orch.spec.suggest import hint_for, listed

OTHER = "; other regions: "


@dataclass(frozen=True)
class Refreshed:
    """A refreshed price list and the path that it was written to."""

    prices: PriceList
    path: Path


@cache
def refreshable() -> tuple[str, ...]:
    """Backends whose prices can be fetched: `catalog/BACKEND/prices.py` says how (`fetch`, SOURCE, NOTE)."""
    catalog_package = import_module("orch.catalog")
    folders = [each.name for each in iter_modules(catalog_package.__path__) if each.ispkg]
    return tuple(name.rstrip("_") for name in folders if find_spec(f"orch.catalog.{name}.prices"))


def refresh(
    backend: str, *, regions: Sequence[str] = (), profile: str | None = None, folder: Path | None = None
) -> Refreshed:
    """Fetches a backend's prices and puts its list into `folder`, by default the user's, all or nothing.

    With `regions`, those of the other regions stay as they were. Types are those the catalogue knows.
    Raises NotRefreshable, NoSdk, and RefreshFailed for a cloud that does not answer or refuses.
    """
    folder = folder or user_folder()
    known = catalog(folder)
    able = refreshable()
    if backend not in able:
        others = [name for name in known.backends if name not in able]
        fixed = backend in others
        raise NotRefreshable(
            f"prices of {backend} cannot be refreshed" if fixed else f"no backend '{backend}' has prices",
            detail=f"refreshed are those of {listed(able)}; those of {listed(others)} come with orch",
            hint=None if fixed else hint_for(backend, able),
        )
    cloud = import_module(f"orch.catalog.{folder_of(backend)}.prices")
    before = known.lists[backend]
    types = tuple(each for each in known.types.values() if each.backend == backend)
    now = datetime.now(timezone.utc)
    fetched: Fetched = cloud.fetch(types, regions=regions, profile=profile, now=now)
    other_regions = tuple(offer for offer in before.offers if regions and offer.region not in regions)
    if not fetched.offers:
        raise RefreshFailed(f"{backend} lists none of the catalogue's types", hint="nothing was changed")
    prices = PriceList(
        backend=backend,
        source=_with(cloud.SOURCE, before.source if other_regions else ""),
        as_of=_with(f"{now:%Y-%m-%d}", before.as_of if other_regions else ""),
        note=cloud.NOTE,
        offers=(*fetched.offers, *other_regions),
        refreshed=True,
        # Regions that the account has not enabled are of no use to it.
        complete=before.complete.union(fetched.regions)
        if regions
        else frozenset((*fetched.regions, *known.regions.get(backend, ()))),
    )
    path = folder / price_file(backend)
    try:
        write_prices(path, prices)
    except OSError as error:
        raise RefreshFailed(
            "the new price list cannot be written", where=str(path), detail=error.strerror or str(error)
        ) from error
    add(folder / FILE, fetched.shortages, now.timestamp())
    return Refreshed(prices, path)


def _with(new: str, before: str) -> str:
    """The source or date of a list: `new`, and the oldest one of regions that were not fetched, if any."""
    oldest = before.rpartition(OTHER)[2]
    return f"{new}{OTHER}{oldest}" if oldest and oldest != new else new
