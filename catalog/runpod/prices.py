"""RunPod's prices of secure pods, and the data centers that have them, by its REST API v2.

Source: runpod/docs api-reference-v2/openapi.json, GET /v2/catalog/gpus: the price is of one GPU, whatever a
pod has; data centers are those whose machines have so many of it, sold out or not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, cast

from orch.catalog.errors import RefreshFailed
from orch.catalog.load import SHIPPED, read_rows
from orch.catalog.records import Fetched, InstanceType, Offer
from orch.catalog.rest import ask, otherwise

SOURCE = "RunPod's REST API v2"
NOTE = "Secure pods on demand. A GPU of an Instant Cluster may cost more."

KEY = "RUNPOD_API_KEY"
URL = "RUNPOD_REST_V2_URL"
"""Variables of RunPod's own command line: the API key, and where the API is if not at its usual place."""

USUAL_URL = "https://api.runpod.io/v2"
_TYPE = re.compile(r"\d+x_(.+)_SECURE")
_CONTINENTS = frozenset({"EU", "EUR", "AP", "OC", "SEA"})

Row = Mapping[str, Any]


@cache
def gpu_ids() -> Mapping[str, str]:
    """Return the ids of GPUs by their names in type names. Raises BadCatalogFile."""
    return {row["name"]: row["id"] for row in read_rows(SHIPPED / "runpod" / "gpus.csv")}


def country(data_center: str) -> str:
    """The region of a data center: US of US-KS-2, RO of EU-RO-1."""
    first, second, *_ = [*data_center.split("-"), ""]
    return second if first in _CONTINENTS else first


def fetch(
    types: Sequence[InstanceType], *, regions: Sequence[str], profile: str | None, now: datetime
) -> Fetched:
    """Fetch all offers of the types, or those in `regions` (countries); and the regions that were found.

    Raises NoSdk and RefreshFailed.
    """
    if profile is not None:
        raise RefreshFailed("RunPod has no profiles", hint=f"set {KEY}")
    ids = {each: gpu_ids().get(found[1]) for each in types if (found := _TYPE.fullmatch(each.name))}
    offers: list[Offer] = []
    for count in sorted({each.gpu_count for each in ids}):
        listed = {str(row["id"]): row for row in gpus_of_pods(count)}
        for each, gpu in ids.items():
            if each.gpu_count == count and gpu in listed:
                offers += _offers(each, listed[gpu])
    known = tuple(sorted({offer.region for offer in offers if offer.region}))
    if unknown := [region for region in regions if region not in known]:
        raise RefreshFailed(
            f"RunPod has nothing in {', '.join(unknown)}", hint=f"it is in {', '.join(known)}"
        )
    chosen = tuple(each for each in offers if not regions or each.region in regions)
    return Fetched(chosen, tuple(regions or known))


def _offers(each: InstanceType, row: Row) -> Iterator[Offer]:
    """One for each data center; one without a place where none is told."""
    if not row["secure"] or each.gpu_count > int(row["maxCount"]["secure"]):
        return
    price = float(row["price"]["secure"])
    hourly = round(price * each.gpu_count, 4) if price > 0 else None
    places = [str(center["id"]) for center in row.get("dataCenters", ())]
    for center in places:
        yield Offer(each, country(center), center, hourly, None)
    if not places:
        yield Offer(each, None, None, hourly, None)


def gpus_of_pods(count: int) -> Sequence[Row]:
    """The GPUs of pods that have `count` of one. Raises NoSdk and RefreshFailed."""
    query = {"include": "AVAILABILITY", "product": "POD", "count": str(count), "cloud": "SECURE"}
    url = f"{os.environ.get(URL, USUAL_URL).rstrip('/')}/catalog/gpus"
    answer = ask("RunPod", "runpod", url, key=KEY, query=query)
    try:
        return cast("Sequence[Row]", answer["gpus"])
    except (KeyError, TypeError) as error:
        raise otherwise("RunPod", error) from error
