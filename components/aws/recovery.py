"""What the instances of a fleet whose state was lost tell of it: where it is, and what it was made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orch.components.aws.account import gather_facts
from orch.components.aws.account.client import RegionClient, Session
from orch.components.aws.account.client_errors import translate_errors
from orch.components.aws.account.existing import instances_of
from orch.components.aws.account.lookups import ImageLookup, bastion_image, image_lookup
from orch.components.cloud.node_groups import SPREADS, may_spread
from orch.components.lifetime import TAG
from orch.components.marks.marked import MarkedResource
from orch.components.node_count import indices_of
from orch.components.request import PlanRequest, PriorState, RecoveredFleet
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models.backends.aws import AwsSettings

if TYPE_CHECKING:
    from orch.components.aws.backend import AwsBackend

INSTANCE = "aws:ec2/instance:Instance"
# An association bears no tags. Source: registry.terraform.io, aws_route_table_association, "Import".
ASSOCIATION = "aws:ec2/routeTableAssociation:RouteTableAssociation"
ROLE_POLICY = "aws:iam/rolePolicy:RolePolicy"
PROFILE = "aws:iam/instanceProfile:InstanceProfile"
MOUNT_TARGET = "aws:efs/mountTarget:MountTarget"


def recover(backend: AwsBackend, request: PlanRequest, found: Sequence[MarkedResource]) -> RecoveredFleet:
    """See `Backend.recover`."""
    fleet, settings = request.fleet.name, backend.settings_of(request)
    nodes = {each.id: each for each in found if each.type == INSTANCE and indices_of(fleet, [each.name])}
    bastions = [each.id for each in found if each.type == INSTANCE and each.name == f"{fleet}-bastion"]
    regions = sorted({each.region for each in found if each.region})
    if len(regions) != 1:
        raise PlanErrors([_several("regions", regions)])
    region, session = regions[0], backend.session(request)
    rows = _instances(session, settings, region, [*nodes, *bastions])
    machines = [rows[each] for each in nodes if each in rows]
    if not machines:
        raise PlanErrors([_no_nodes(fleet, found)])
    zone_ids = {
        zone.name: zone.id
        for zone in gather_facts.zones(session, [region], settings.endpoint_url).get(region, ())
    }
    zones = {zone_ids.get(str(row["Placement"]["AvailabilityZone"]), "") for row in machines}
    types = {str(row["InstanceType"]) for row in machines}
    markets = {row.get("InstanceLifecycle") == "spot" for row in machines}
    for what, values in (("zones", zones), ("instance types", types), ("markets", markets)):
        if len(values) != 1:
            raise PlanErrors([_several(what, sorted(map(str, values)))])
    pins = {
        "backend": backend.name,
        "region": region,
        "zone": zones.pop(),
        "instance_type": types.pop(),
        "spot": "true" if markets.pop() else "false",
    }
    if may_spread(request.fleet):
        pins[SPREADS] = "true"
    images = Counter(str(row["ImageId"]) for row in machines)
    told: list[str] = []
    if len(images) > 1:
        told.append(f"nodes have several images ({', '.join(sorted(images))}): the plan goes by most of them")
    placed = replace(request, previous=PriorState(unfinished=pins))
    candidate = next(iter(backend.candidates(placed)))
    ((image, _),) = images.most_common(1)
    pins |= _image_pins("image", image, image_lookup(request.fleet, settings, candidate))
    if bastion := next((rows[each] for each in bastions if each in rows), None):
        pins |= _image_pins("bastion_image", str(bastion["ImageId"]), bastion_image(candidate))
        told.append(
            f"the host key of the bastion {bastion['InstanceId']} follows from a secret of the lost state: "
            "nobody enters through it before it is replaced; terminate it, then `orch up`"
        )
    for pin in [each for each in pins if each in ("image_of", "bastion_image_of")]:
        pins[pin.replace("_of", "_region")] = region
    return RecoveredFleet(
        pins,
        frozenset(nodes[each].name for each in nodes if each in rows),
        _created(request, machines),
        tuple(told),
    )


def _image_pins(pin: str, image: str, lookup: ImageLookup | None) -> dict[str, str]:
    """The image that runs is what was looked up; one that a file names is taken from there."""
    return {} if lookup is None or lookup.of is None else {pin: image, f"{pin}_of": lookup.of}


def _created(request: PlanRequest, machines: Sequence[Mapping[str, Any]]) -> int:
    """By the moment at which the machines end themselves, where they do; else when the first one began."""
    for row in machines:
        ends = next((str(each["Value"]) for each in row.get("Tags", ()) if each["Key"] == TAG), "")
        if ends.isdigit() and request.fleet.ttl_s is not None:
            return int(ends) - request.fleet.ttl_s
    return int(min(row["LaunchTime"] for row in machines).timestamp())


def _instances(
    session: Session, settings: AwsSettings, region: str, ids: Sequence[str]
) -> dict[str, Mapping[str, Any]]:
    ec2 = RegionClient(session, region, settings.endpoint_url).client("ec2")
    rows: dict[str, Mapping[str, Any]] = {}
    with translate_errors(f"look at the instances in {region}"):
        for start in range(0, len(ids), gather_facts.FILTER_VALUES):
            named = [{"Name": "instance-id", "Values": list(ids[start : start + gather_facts.FILTER_VALUES])}]
            rows |= {str(row["InstanceId"]): row for row in instances_of(ec2, named)}
    return rows


def unmarked_id(
    backend: AwsBackend, request: PlanRequest, kind: str, inputs: Mapping[str, Any]
) -> str | None:
    """See `Backend.unmarked_id`."""
    if kind == ASSOCIATION:
        return f"{inputs.get('subnetId')}/{inputs.get('routeTableId')}"
    if kind == ROLE_POLICY:
        return f"{inputs.get('role')}:{inputs.get('name')}"
    if kind == PROFILE:
        return str(inputs.get("name"))
    if kind == MOUNT_TARGET:
        return _mount_target(backend, request, str(inputs.get("fileSystemId")), str(inputs.get("subnetId")))
    return None


def _mount_target(backend: AwsBackend, request: PlanRequest, file_system: str, subnet: str) -> str | None:
    settings, region = backend.settings_of(request), request.previous.unfinished.get("region", "")
    efs = RegionClient(backend.session(request), region, settings.endpoint_url).client("efs")
    with translate_errors(f"look for mount targets of {file_system}"):
        rows = efs.describe_mount_targets(FileSystemId=file_system)["MountTargets"]
    return next((str(row["MountTargetId"]) for row in rows if row.get("SubnetId") == subnet), None)


def _several(what: str, values: Sequence[str]) -> Finding:
    return Finding(
        "ORCH433",
        "name",
        f"what is there of the fleet is in several {what}: {', '.join(values) or 'none'}",
        hint="orch rebuilds the state of a fleet of one place alone; `orch gc` lists what is there",
    )


def _no_nodes(fleet: str, found: Sequence[MarkedResource]) -> Finding:
    marks = sorted({each.mark for each in found})
    return Finding(
        "ORCH433",
        "name",
        f"no node of the fleet {fleet} is there, only what stood around them",
        hint=f"`orch gc --stack {marks[0]}` deletes that; `orch up` makes the fleet anew",
    )
