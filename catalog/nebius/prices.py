"""Nebius's prices and its stock, by its SDK.

Sources: nebius/api billing/v1/calculator_service.proto (EstimateBatch: what a machine would cost an hour),
compute/v1/platform.proto (which presets a region has), capacity/v1/resource_advice.proto (what there is now).
The same login as for fleets whose entry in orch.yml names no `creds`.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from orch.catalog.errors import RefreshFailed
from orch.catalog.records import Fetched, InstanceType, Offer
from orch.catalog.sdks import require_sdk
from orch.catalog.shortages import Shortage
from orch.spec.cursors import follow

SOURCE = "Nebius's Calculator and Platform APIs"
NOTE = "On demand and preemptible, with vCPUs and memory, without disks and addresses."

TOKEN = "NEBIUS_IAM_TOKEN"
CONFIG = Path("~/.nebius/config.yaml")
CALL_S = 60.0
PAGE = 100
SPECS_AT_ONCE = 100
SPOT, ON_DEMAND = "preemptible", "on-demand"

Row = dict[str, Any]


def fetch(
    types: Sequence[InstanceType], *, regions: Sequence[str], profile: str | None, now: datetime
) -> Fetched:
    """Fetch all offers of the types in the regions where these credentials have a project, or in `regions`.

    Raises NoSdk and RefreshFailed.
    """
    sdk = _sdk(profile)
    try:
        return prices_of(sdk, types, regions=regions, now=now)
    finally:
        sdk.sync_close()


def prices_of(sdk: Any, types: Sequence[InstanceType], *, regions: Sequence[str], now: datetime) -> Fetched:
    """The same with a login. Raises RefreshFailed."""
    with _as_refresh_errors():
        api = _Api(sdk)
        tenants = [str(row["metadata"]["id"]) for row in api.items("iam.v2", "TenantService", {})]
        projects: dict[str, str] = {}
        for tenant in tenants:
            for row in api.items("iam.v2", "ProjectService", {"parent_id": tenant}):
                projects.setdefault(str(row["spec"]["region"]), str(row["metadata"]["id"]))
        if unknown := [region for region in regions if region not in projects]:
            raise RefreshFailed(
                f"these credentials see no project of Nebius in {', '.join(unknown)}",
                hint=f"they see one in {', '.join(sorted(projects))}" if projects else None,
            )
        asked = tuple(regions or sorted(projects))
        offers = [offer for region in asked for offer in _offers(api, region, projects[region], types)]
        sold_out = [
            each for tenant in tenants for each in _sold_out(api, tenant, types, int(now.timestamp()))
        ]
    return Fetched(tuple(offers), asked, tuple(each for each in sold_out if each.region in asked))


class _Api:
    """Calls of the SDK with messages as JSON, with the names of the proto."""

    def __init__(self, sdk: Any) -> None:
        self._sdk = sdk

    def call(self, package: str, service: str, method: str, body: Mapping[str, Any]) -> Row:
        from nebius.base.protos.json_format import message_to_dict, parse_dict

        client = getattr(import_module(f"nebius.api.nebius.{package}"), f"{service}Client")(self._sdk)
        name = "".join(word.capitalize() for word in method.split("_"))
        descriptor = client.get_descriptor().methods_by_name[name]
        message = parse_dict(body, client.__registry__.message_class(descriptor.input_type.full_name)())
        answer = getattr(client, method)(message, timeout=CALL_S, auth_timeout=CALL_S).wait()
        return message_to_dict(answer, preserving_proto_field_name=True)

    def items(self, package: str, service: str, body: Mapping[str, Any]) -> Iterator[Row]:
        def ask(token: str) -> Row:
            query = {**body, "page_size": PAGE, **({"page_token": token} if token else {})}
            return self.call(package, service, "list", query)

        def endless(why: str) -> RefreshFailed:
            return RefreshFailed(f"Nebius answers {service} with a list that does not end", detail=why)

        for page in follow(ask, lambda page: page.get("next_page_token"), endless):
            yield from page.get("items", ())


def _offers(api: _Api, region: str, project: str, types: Sequence[InstanceType]) -> Iterator[Offer]:
    """Yield offers of the presets that the region has. A preset not sold preemptible has no such price."""
    there: dict[str, bool] = {}
    for row in api.items("compute.v1", "PlatformService", {"parent_id": project}):
        status: Row = row.get("status") or {}
        spot = bool(status.get("allowed_for_preemptibles"))
        for preset in row["spec"].get("presets", ()):
            there[f"{row['metadata']['name']}_{preset['name']}"] = spot
    sold = [each for each in types if each.name in there]
    markets = [(each, market) for each in sold for market in _markets(spot=there[each.name])]
    costs: dict[str, float] = {}
    for start in range(0, len(markets), SPECS_AT_ONCE):
        specs = [_spec(project, each.name, market) for each, market in markets[start : start + SPECS_AT_ONCE]]
        costs |= _costs(api, specs)
    for each in sold:
        price, spot_price = (costs.get(f"{each.name}/{market}") for market in (ON_DEMAND, SPOT))
        yield Offer(each, region, None, price, spot_price)


def _markets(*, spot: bool) -> tuple[str, ...]:
    return (ON_DEMAND, SPOT) if spot else (ON_DEMAND,)


def _spec(project: str, name: str, market: str) -> Row:
    """Return the calculator's input: the request that would create the machine, whose name the answer
    bears."""
    platform, _, preset = name.rpartition("_")
    spec: Row = {"resources": {"platform": platform, "preset": preset}}
    if market == SPOT:
        spec |= {
            "preemptible": {"on_preemption": "STOP"},
            "recovery_policy": "FAIL",
            "follows_spot_price": {},
        }
    return {
        "spec": {
            "@type": "type.googleapis.com/nebius.compute.v1.CreateInstanceRequest",
            "metadata": {"parent_id": project, "name": f"{name}/{market}"},
            "spec": spec,
        }
    }


def _costs(api: _Api, specs: Sequence[Row]) -> dict[str, float]:
    """US dollars an hour, by the names of the requests."""
    body = {
        "resource_specs": specs,
        "offer_types": ["OFFER_TYPE_CONTRACT_PRICE"],
        "currency": "USD",
        "filter_aggregation_unit": {"filter_aggregation_unit_values": ["FILTER_AGGREGATION_UNIT_HOUR"]},
    }
    answer = api.call("billing.v1", "CalculatorService", "estimate_batch", body)
    return {
        str(row["metadata"]["name"]): float(row["general"]["total"]["cost"])
        for row in answer.get("resource_costs", ())
        if "general" in row
    }


def _sold_out(api: _Api, tenant: str, types: Sequence[InstanceType], at: int) -> Iterator[Shortage]:
    """Places of which Nebius tells, and that this is of now, that they have none."""
    names = {each.name for each in types}
    for row in api.items("capacity.v1", "ResourceAdviceService", {"parent_id": tenant}):
        spec: Row = row["spec"]
        status: Row = row["status"]
        machine = spec["compute_instance"]
        name = f"{machine['platform']}_{machine['preset']['name']}"
        region = str(spec.get("region", ""))
        for market, spot in (("on_demand", False), ("preemptible", True)):
            told: Row = status.get(market) or {}
            fresh = told.get("data_state") == "DATA_STATE_FRESH"
            if name in names and fresh and not int(told.get("available", 0)):
                yield Shortage("nebius", name, region, str(spec.get("fabric") or region), spot, at)


def _sdk(profile: str | None) -> Any:
    if profile is not None and os.environ.get(TOKEN):
        raise RefreshFailed(
            f"{TOKEN} is set, which no profile overrules", hint=f"unset {TOKEN}, or --profile"
        )
    require_sdk("nebius.sdk", "Nebius")
    from nebius.aio.cli_config import Config
    from nebius.sdk import SDK

    if os.environ.get(TOKEN):
        return SDK(user_agent_prefix="orch")
    if not CONFIG.expanduser().is_file():
        raise RefreshFailed(
            "there are no credentials of Nebius to ask for prices with",
            detail=f"{TOKEN} is not set, and there is no {CONFIG}",
            hint=f"set {TOKEN}, or log in with Nebius's command line",
        )
    return SDK(config_reader=Config(profile=profile), user_agent_prefix="orch")


@contextmanager
def _as_refresh_errors() -> Generator[None, None, None]:
    from nebius.base.error import SDKError

    try:
        yield
    except SDKError as error:
        raise RefreshFailed(
            "Nebius does not tell its prices",
            detail=str(error),
            hint="prices are refreshed over the network; without one, those at hand stay in use",
        ) from error
