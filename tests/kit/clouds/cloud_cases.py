"""Fleets planned with the settings of Crusoe, Lambda, Nebius and RunPod: in accounts that have room for all,
without a network. Each of `PLANS` logs in as far as that asks nobody, and plans step by step."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from orch.catalog.load import catalog
from orch.components.cloud.planner import PlanContext
from orch.components.crusoe import candidates as crusoe
from orch.components.crusoe import planner as crusoe_planner
from orch.components.crusoe.account import login as crusoe_login
from orch.components.crusoe.account.facts import CrusoeFacts
from orch.components.crusoe.account.facts import Image as CrusoeImage
from orch.components.lambda_ import candidates as lambda_
from orch.components.lambda_ import planner as lambda_planner
from orch.components.lambda_.account import login as lambda_login
from orch.components.lambda_.account.facts import Image as LambdaImage
from orch.components.lambda_.account.facts import LambdaFacts, TypeStock
from orch.components.nebius import candidates as nebius
from orch.components.nebius import planner as nebius_planner
from orch.components.nebius.account import session as nebius_session
from orch.components.nebius.account.facts import Image as NebiusImage
from orch.components.nebius.account.facts import NebiusFacts
from orch.components.request import PriorState
from orch.components.runpod import candidates as runpod
from orch.components.runpod.account import client as runpod_client
from orch.spec.errors import OrchError
from orch.spec.models import Fleet
from orch.spec.models.backends.crusoe import CrusoeSettings
from orch.spec.models.backends.lambda_ import LambdaSettings
from orch.spec.models.backends.nebius import NebiusSettings
from orch.spec.models.backends.runpod import RunpodSettings

CATALOG = catalog(Path("/nonexistent"))
NEW = PriorState()
PLENTY = 1024
CENTERS = ("US-KS-2", "EU-RO-1")

Steps = Generator[None, None, None]


def fleet_on(backend: str, **more: Any) -> Fleet:
    """Two nodes with eight H100 each, as near as can be."""
    given = {"type": "fleet", "name": "lab", "backends": [backend], "nodes": "2", "placement": "cluster"}
    return Fleet.model_validate({**given, "resources": {"gpu": "H100:8"}, **more})


def logged_in(log_in: Callable[[], object]) -> None:
    """A login whose key is none is refused, as settings of tests are."""
    with suppress(OrchError):
        log_in()


def plan_on_crusoe(settings: CrusoeSettings) -> Steps:
    with patch.dict(os.environ, {crusoe_login.KEY: "nobody", crusoe_login.SECRET: "nothing"}):
        logged_in(partial(crusoe_login.open_login, settings))
    yield
    fleet = fleet_on("crusoe", placement="any", resources={"gpu": "1.."})
    stock = {(kind, place): PLENTY for kind in crusoe.machines() for place in ("us-east1-a", "eu-iceland1-a")}
    found = crusoe.candidates(fleet, settings, CATALOG)
    yield
    room = {"stock": stock, "networks": (), "nodes": 2, "reservations": None}
    (place, *_) = crusoe.placed(fleet, settings, found, **room)
    lookups = crusoe_planner.needed_lookups(fleet, settings, place, NEW)
    small = CrusoeImage("ubuntu22.04:20260801") if lookups.bastion_image else None
    image = CrusoeImage(lookups.image.replace(":latest", ":20260801"))
    facts = CrusoeFacts("p-1", image, small, room=place.room, reservations=None)
    crusoe_planner.CrusoePlanner(fleet, place, facts, NEW, PlanContext(settings, CATALOG, "abc123")).plan()


def plan_on_lambda(settings: LambdaSettings) -> Steps:
    logged_in(partial(lambda_login.open_login, settings))
    yield
    fleet = fleet_on("lambda", placement="any")
    found = lambda_.candidates(fleet, settings, CATALOG)
    yield
    stock = {each.type.name: TypeStock(100, 2800, frozenset({"us-east-1", "us-west-1"})) for each in found}
    (place, *_) = lambda_.placed(fleet, settings, found, stock=stock, file_systems=())
    image = LambdaImage(f"image-{place.region}", "lambda-stack-24-04", "24.4.2")
    facts = LambdaFacts(image=image, storage_gib=2800, file_systems={}, ssh_from=(), room=place.room)
    lambda_planner.LambdaPlanner(fleet, place, facts, NEW, PlanContext(settings, CATALOG, "abc123")).plan()


def plan_on_nebius(settings: NebiusSettings) -> Steps:
    logged_in(partial(nebius_session.open_session, settings))
    yield
    fleet = fleet_on("nebius")
    found = nebius.candidates(fleet, settings, CATALOG)
    yield
    (place, *_) = nebius.told_fabrics(fleet, settings, found, {})
    lookups = nebius_planner.needed_lookups(fleet, settings, place, NEW)
    facts = NebiusFacts(
        f"project-{place.region}",
        NebiusImage("computeimage-1", f"{lookups.family}-v2", 40),
        bastion_type="cpu-e2_2vcpu-8gb",
        bastion_image=NebiusImage("computeimage-2", "driverless-v2", 10),
    )
    context = PlanContext(settings, CATALOG, "abc123", {}, created=1_790_000_000)
    nebius_planner.NebiusPlanner(fleet, place, facts, NEW, context).plan()


def plan_on_runpod(settings: RunpodSettings) -> Steps:
    logged_in(partial(runpod_client.open_login, settings))
    yield
    fleet = fleet_on("runpod", nodes="0..2")
    types = runpod.candidates(fleet, settings, CATALOG, other_backends=fleet.backends)
    yield
    stock = {(each.gpu, center): "HIGH" for each in types for center in CENTERS}
    runpod.in_data_centers(fleet, settings, types, {each.type.gpu_count: stock for each in types}, {})


PLANS: dict[type[Any], Callable[[Any], Steps]] = {
    CrusoeSettings: plan_on_crusoe,
    LambdaSettings: plan_on_lambda,
    NebiusSettings: plan_on_nebius,
    RunpodSettings: plan_on_runpod,
}
