"""AWS's on-demand and spot prices, and the zones of each type, by boto3.

Sources: Price List Query API `GetProducts`; EC2 API `DescribeRegions`, `DescribeAvailabilityZones`,
`DescribeInstanceTypeOfferings`, `DescribeSpotPriceHistory`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orch.catalog.errors import RefreshFailed
from orch.catalog.records import Fetched, InstanceType, Offer
from orch.catalog.sdks import require_sdk
from orch.spec.cursors import Cursors

SOURCE = "AWS Price List and EC2 APIs"
NOTE = "On-demand Linux, shared tenancy; spot prices of that moment."

# The Price List API answers in few regions; any of them knows the prices of all.
HOME = "us-east-1"
LINUX = "Linux/UNIX"
ON_DEMAND = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}

_REFUSALS = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "OptInRequired",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnauthorizedOperation",
        "UnrecognizedClientException",
    }
)


@dataclass(frozen=True)
class Zone:
    """A zone as this account sees it. `border` is its region, or the local zone group that has own prices."""

    id: str
    name: str
    border: str


def fetch(
    types: Sequence[InstanceType], *, regions: Sequence[str], profile: str | None, now: datetime
) -> Fetched:
    """Fetch all offers of the types in the account's enabled regions, or in `regions`; and these regions.

    Endpoints and credentials are found as boto3 finds them. Raises NoSdk and RefreshFailed.
    """
    boto3, config = _boto3()
    by_name = {each.name: each for each in types}
    with _as_refresh_errors():
        session = boto3.Session(profile_name=profile)
        ec2 = session.client("ec2", region_name=HOME, config=config)
        enabled = tuple(str(each["RegionName"]) for each in ec2.describe_regions()["Regions"])
        if unknown := [region for region in regions if region not in enabled]:
            raise RefreshFailed(
                f"this AWS account has no region {', '.join(unknown)}", hint=f"it has {', '.join(enabled)}"
            )
        pricing = session.client("pricing", region_name=HOME, config=config)
        offers: list[Offer] = []
        for region in regions or enabled:
            client = session.client("ec2", region_name=region, config=config)
            offers += _in_region(client, pricing, region, by_name, now)
    return Fetched(tuple(offers), tuple(regions or enabled))


def _in_region(
    client: Any, pricing: Any, region: str, types: Mapping[str, InstanceType], now: datetime
) -> Iterator[Offer]:
    """Everything is asked for all types at once and chosen from here: filters take 200 names at most."""
    zones = {
        zone.id: zone
        for zone in (
            Zone(str(each["ZoneId"]), str(each["ZoneName"]), str(each["NetworkBorderGroup"]))
            for each in client.describe_availability_zones(AllAvailabilityZones=True)["AvailabilityZones"]
        )
    }
    spot = _spot(client, now)
    pages = client.get_paginator("describe_instance_type_offerings").paginate(
        LocationType="availability-zone-id"
    )
    rows = [
        (str(each["InstanceType"]), zones[str(each["Location"])])
        for each in _items(pages, "InstanceTypeOfferings")
        if str(each["Location"]) in zones and str(each["InstanceType"]) in types
    ]
    prices = {
        border: dict(_on_demand(pricing, border)) for border in sorted({zone.border for _, zone in rows})
    }
    for name, zone in rows:
        yield Offer(types[name], region, zone.id, prices[zone.border].get(name), spot.get((name, zone.name)))


def _spot(client: Any, now: datetime) -> dict[tuple[str, str], float]:
    """Spot price by type and zone name. With `now` as the start, EC2 gives the prices in force."""
    pages = client.get_paginator("describe_spot_price_history").paginate(
        ProductDescriptions=[LINUX], StartTime=now
    )
    prices: dict[tuple[str, str], tuple[datetime, float]] = {}
    for each in _items(pages, "SpotPriceHistory"):
        key = (str(each["InstanceType"]), str(each["AvailabilityZone"]))
        entry = (each["Timestamp"], float(each["SpotPrice"]))
        prices[key] = max(prices.get(key, entry), entry)
    return {key: price for key, (_, price) in prices.items() if price > 0}


def _on_demand(client: Any, border: str) -> Iterator[tuple[str, float]]:
    """Price by type in a region, or a local zone group."""
    wanted = {**ON_DEMAND, "regionCode": border}
    filters = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in wanted.items()]
    pages = client.get_paginator("get_products").paginate(
        ServiceCode="AmazonEC2", FormatVersion="aws_v1", Filters=filters
    )
    for text in _items(pages, "PriceList"):
        product: Any = json.loads(text)
        attributes = product["product"]["attributes"]
        if (price := _hourly(product)) is not None and "instanceType" in attributes:
            yield str(attributes["instanceType"]), price


def _hourly(product: Any) -> float | None:
    """The price of an hour on demand; rows at 0 belong to capacity that was paid for already."""
    for term in product["terms"].get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            price = float(dimension["pricePerUnit"].get("USD", 0))
            if dimension["unit"] == "Hrs" and price > 0:
                return price
    return None


def _items(pages: Any, key: str) -> Iterator[Any]:
    cursors = Cursors(_endless)
    for page in pages:
        yield from page.get(key, ())
        cursors.next(page.get("NextToken"))


def _endless(why: str) -> RefreshFailed:
    return RefreshFailed("AWS answers with a list that does not end", detail=why)


def _boto3() -> tuple[Any, Any]:
    """boto3, and the settings of its clients. Raises NoSdk."""
    boto3, config = require_sdk("boto3", "AWS"), require_sdk("botocore.config", "AWS")
    retries = {"max_attempts": 3, "mode": "standard"}
    return boto3, config.Config(connect_timeout=5, read_timeout=30, retries=retries)


@contextmanager
def _as_refresh_errors() -> Generator[None, None, None]:
    """Raises boto3's errors as RefreshFailed: no credentials, refused ones, no network, anything else."""
    errors: Any = importlib.import_module("botocore.exceptions")
    try:
        yield
    except (errors.NoCredentialsError, errors.PartialCredentialsError, errors.ProfileNotFound) as error:
        raise RefreshFailed(
            "there are no AWS credentials to ask for prices with",
            detail=str(error),
            hint="`aws configure`, the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --profile",
        ) from error
    except errors.ClientError as error:
        details: Mapping[str, str] = error.response.get("Error", {})
        refused = details.get("Code") in _REFUSALS
        raise RefreshFailed(
            "AWS refused the credentials" if refused else "AWS refused a request for prices",
            detail=f"{error.operation_name}: {details.get('Code')}: {details.get('Message')}",
            hint="reading prices needs pricing:GetProducts and ec2:Describe*" if refused else None,
        ) from error
    except importlib.import_module("botocore.parsers").ResponseParserError as error:
        raise RefreshFailed(
            "AWS cannot be reached: something else answers at its address", detail=str(error)
        ) from error
    except (errors.ConnectionError, errors.HTTPClientError) as error:
        raise RefreshFailed(
            "AWS cannot be reached",
            detail=str(error),
            hint="prices are refreshed over the network; without one, those at hand stay in use",
        ) from error
    except errors.BotoCoreError as error:
        raise RefreshFailed("boto3 could not ask for prices", detail=str(error)) from error
