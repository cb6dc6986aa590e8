"""New price lists from the clouds' own APIs: the one part of the catalogue that uses a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from orch.catalog.aws import prices as aws
from orch.catalog.errors import NotRefreshable, RefreshFailed
from orch.catalog.load import catalog, price_file, user_folder, write_prices
from orch.catalog.records import PriceList
from orch.spec.suggest import hint_for, listed

REFRESHABLE = ("aws",)
SOURCE = "AWS Price List and EC2 APIs"
OTHER = "; other regions: "


@dataclass(frozen=True)
class Refreshed:
    """The list that was written, and where."""

    prices: PriceList
    path: Path


def refresh(
    backend: str, *, regions: Sequence[str] = (), profile: str | None = None, folder: Path | None = None
) -> Refreshed:
    """Fetches a backend's prices and puts its list into `folder`, by default the user's, all or nothing.

    With `regions`, those of the other regions stay as they were. Types are those the catalogue knows.
    Raises NotRefreshable, NoSdk, and RefreshFailed for a cloud that does not answer or refuses.
    """
    folder = folder or user_folder()
    known = catalog(folder)
    if backend not in REFRESHABLE:
        others = [name for name in known.backends if name not in REFRESHABLE]
        fixed = backend in others
        raise NotRefreshable(
            f"prices of {backend} cannot be refreshed" if fixed else f"no backend '{backend}' has prices",
            detail=f"refreshed are those of {listed(REFRESHABLE)}; those of {listed(others)} come with orch",
            hint=None if fixed else hint_for(backend, REFRESHABLE),
        )
    before = known.lists[backend]
    types = tuple(each for each in known.types.values() if each.backend == backend)
    now = datetime.now(timezone.utc)
    offers, fetched = aws.fetch(types, regions=regions, profile=profile, now=now)
    kept = tuple(offer for offer in before.offers if regions and offer.region not in regions)
    if not offers:
        raise RefreshFailed("AWS lists none of the catalogue's types", hint="nothing was changed")
    prices = PriceList(
        backend=backend,
        source=_with(SOURCE, before.source if kept else ""),
        as_of=_with(f"{now:%Y-%m-%d}", before.as_of if kept else ""),
        note="On-demand Linux, shared tenancy; spot prices of that moment.",
        offers=(*offers, *kept),
        refreshed=True,
        # Regions that the account has not enabled are of no use to it.
        complete=before.complete.union(fetched)
        if regions
        else frozenset((*fetched, *known.regions[backend])),
    )
    path = folder / price_file(backend)
    try:
        write_prices(path, prices)
    except OSError as error:
        raise RefreshFailed(
            "the new price list cannot be written", where=str(path), detail=error.strerror or str(error)
        ) from error
    return Refreshed(prices, path)


def _with(new: str, before: str) -> str:
    """`new`, and what the regions that were not fetched are still from: the oldest of it, if any."""
    oldest = before.rpartition(OTHER)[2]
    return f"{new}{OTHER}{oldest}" if oldest and oldest != new else new
