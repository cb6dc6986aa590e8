"""Lambda's prices and where there is capacity now, by its REST API.

Source: Lambda Cloud API 1.10, listInstanceTypes: a type has one price in all regions; it is told which of
them have capacity, not which others could have some. A type is listed where it has capacity, and where it
was listed before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from orch.catalog.errors import RefreshFailed
from orch.catalog.load import catalog
from orch.catalog.records import Fetched, InstanceType, Offer
from orch.catalog.rest import ask, otherwise
from orch.catalog.shortages import Shortage

SOURCE = "Lambda's REST API 1.10"
NOTE = "On demand. Where there is capacity changes by the minute."

KEY = "LAMBDA_API_KEY"
URL = "LAMBDA_API_ENDPOINT"
"""Where the API is if not at its usual place, with its version."""

USUAL_URL = "https://cloud.lambda.ai/api/v1"

Row = Mapping[str, Any]


def fetch(
    types: Sequence[InstanceType], *, regions: Sequence[str], profile: str | None, now: datetime
) -> Fetched:
    """Fetch all offers of the types, or those in `regions`, and the places without capacity.

    Raises NoSdk and RefreshFailed.
    """
    if profile is not None:
        raise RefreshFailed("Lambda has no profiles", hint=f"set {KEY}")
    rows = instance_types()
    before: dict[str, set[str]] = {}
    for offer in catalog().lists["lambda"].offers:
        before.setdefault(offer.type.name, set()).add(str(offer.region))
    offers: list[Offer] = []
    short: list[Shortage] = []
    known: set[str] = set()
    for each in types:
        row = rows.get(each.name)
        if row is None:
            continue
        try:
            price = round(int(row["instance_type"]["price_cents_per_hour"]) / 100, 4)
            there = {str(region["name"]) for region in row["regions_with_capacity_available"]}
        except (KeyError, TypeError, ValueError) as error:
            raise otherwise("Lambda", error) from error
        for region in sorted(there | before.get(each.name, set())):
            known.add(region)
            if regions and region not in regions:
                continue
            offers.append(Offer(each, region, None, price, None))
            if region not in there:
                short.append(Shortage("lambda", each.name, region, region, False, int(now.timestamp())))
    if unknown := [region for region in regions if region not in known]:
        raise RefreshFailed(
            f"Lambda has nothing in {', '.join(unknown)}", hint=f"it is in {', '.join(sorted(known))}"
        )
    return Fetched(tuple(offers), tuple(regions or sorted(known)), tuple(short))


def instance_types() -> Mapping[str, Row]:
    """Fetch the API's row of each type, by type name. Raises NoSdk and RefreshFailed."""
    url = f"{(os.environ.get(URL) or USUAL_URL).rstrip('/')}/instance-types"
    answer = ask("Lambda", "lambda", url, key=KEY)
    try:
        return {str(name): cast("Row", row) for name, row in answer["data"].items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise otherwise("Lambda", error, where=url) from error
