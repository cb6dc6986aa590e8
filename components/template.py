"""A fleet that has had no node yet: a record of what it is, without a place and without resources."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from orch.components.deployment import Deployment
from orch.components.file_systems import created
from orch.components.node_count import own_pins
from orch.components.request import TEMPLATE, PlanRequest
from orch.runner.preparation.mounts import fleet_mounts
from orch.spec.state import SCHEMA

if TYPE_CHECKING:
    import pulumi


def is_template(request: PlanRequest) -> bool:
    """Whether the fleet is to have no node and is nowhere yet. File systems that are created with a fleet
    have a place before its nodes."""
    nodes = request.fleet.nodes
    return (
        nodes is not None
        and not nodes.target
        and not request.previous.pins
        and not request.previous.file_systems
        and not created(request.fleet)
    )


def as_template(request: PlanRequest, backend: str, planned: Deployment) -> Deployment:
    """The record of a fleet without nodes. `planned`: the fleet where its first nodes would go, which shows
    that they can be made."""
    return Deployment(
        reasons=planned.reasons[:1],  # the others tell what would stand around its nodes
        pins={**own_pins(request, 0), TEMPLATE: "true"},
        hourly=0.0,
        register=partial(_register, request, backend),
        findings=planned.findings,
        explained=planned.explained,
    )


def _register(request: PlanRequest, backend: str) -> tuple[pulumi.Output[dict[str, Any]], None]:
    """The fleet alone, under the name and type that it keeps when it gets nodes at this backend."""
    import pulumi

    fleet = request.fleet
    component = pulumi.ComponentResource(
        f"orch:fleet:{backend.capitalize()}",
        fleet.name,
        None,
        pulumi.ResourceOptions(protect=fleet.protect),
    )
    component.register_outputs({})
    state: dict[str, Any] = {
        "schema_version": SCHEMA,
        "name": fleet.name,
        "stack": pulumi.get_stack(),
        "backend": backend,
        "placement": fleet.placement,
        "image": fleet.image,
        "env": {key: value for key, value in fleet.env.items() if value is not None},
        "mounts": [mount.model_dump() for mount in fleet_mounts(fleet.mounts)],
        "nodes": [],
    }
    return pulumi.Output.from_input(state), None
