"""Clearing an AWS account of what a call that did not end made and nobody recorded.

Every resource carries the tags `orch:stack` and `orch:urn`. What has those of a stack and is not in its state
is removed, what depends on others first; `up` makes it anew. The few kinds that have no tags are found by
what they were asked for with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from orch.components.aws.account import gather_facts
from orch.components.aws.account.client import RegionClient
from orch.components.aws.account.client_errors import client_error, translate_errors
from orch.components.aws.storage.orphans import delete_file_systems
from orch.components.marks.orphans import RecordedResource, StackSnapshot, retry_until_gone
from orch.spec.models.backends import entry_of
from orch.spec.models.backends.aws import AwsSettings

# How long what ends is waited for: a large instance takes minutes.
WAIT = {"Delay": 5, "MaxAttempts": 240}

VOLUME = "aws:ebs/volume:Volume"
# These go with their instance, but for volumes of a stack of their own.
WITH_OTHERS = ("volume", "network-interface")
ENDED = ("cancelled", "expired", "failed", "deleted", "deleting", "terminated", "shutting-down")


def delete_orphans(snapshot: StackSnapshot) -> Iterator[str]:
    """Remove what is not recorded; what was removed, each with its id, as it goes.

    Raises CloudRefused.
    """
    settings = entry_of(snapshot.settings, AwsSettings)
    regions = sorted(
        {str(each.inputs["region"]) for each in snapshot.recorded if each.type == "pulumi:providers:aws"}
        | (snapshot.regions("aws") - {""})
    )
    stack_tags = sorted(snapshot.marks.union(filter(None, map(_stack_tag, snapshot.of("aws:")))))
    if not (regions or snapshot.regions("aws")) or not stack_tags:
        return
    session = snapshot.session("aws") or gather_facts.open_session(settings)
    begun = {f"{VOLUME}::{each.name}" for each in snapshot.unfinished if each.type == VOLUME}
    for name in regions:
        snapshot.still_held()
        region = RegionClient(session, name, settings.endpoint_url)
        ec2 = region.client("ec2")
        orphans: dict[str, dict[str, str]] = {}
        for stack_tag in stack_tags:
            for each, kind, urn in gather_facts.tagged(session, name, stack_tag, settings.endpoint_url):
                if each not in snapshot.ids and (kind not in WITH_OTHERS or urn in begun):
                    orphans.setdefault(kind, {})[each] = urn.rpartition("::")[2]
        yield from _untagged(ec2, region.client("iam"), snapshot.unfinished, stack_tags)
        yield from delete_file_systems(region, snapshot, stack_tags)
        yield from _empty_volumes(ec2, orphans.get("volume", {}), snapshot.still_held)
        for kind, remove in ORDER:
            existing = _still_existing(ec2, kind, orphans.get(kind, {}), snapshot.ids)
            if existing:
                snapshot.still_held()
                with translate_errors(f"remove what a call that did not end left: {', '.join(existing)}"):
                    remove(ec2, list(existing))
                yield from (f"{label} ({each})" for each, label in existing.items())
    if "" in snapshot.regions("aws"):
        iam = RegionClient(session, gather_facts.home(session), settings.endpoint_url).client("iam")
        yield from _roles(iam, snapshot)


def _empty_volumes(ec2: Any, labels: Mapping[str, str], still_held: Callable[[], None]) -> Iterator[str]:
    """Remove volumes whose creation is not recorded to have ended, so that nothing was ever written to them.

    One that an instance has stays. So does one that may be another, of a state that was lost or put back:
    where several have the name, and where it is a day old. `orch gc` shows those as data.
    """
    if not labels:
        return
    with translate_errors("look at volumes that a call that did not end had begun"):
        rows = ec2.describe_volumes(Filters=[{"Name": "volume-id", "Values": sorted(labels)}])["Volumes"]
    for row in rows:
        each = str(row["VolumeId"])
        alone = list(labels.values()).count(labels[each]) == 1
        recent = datetime.now(timezone.utc) - row["CreateTime"] < timedelta(days=1)
        if row["State"] not in ("creating", "available", "error") or not (alone and recent):
            continue
        with translate_errors(f"remove {each}, which a call that did not end had begun"), _unless_gone():
            if row["State"] == "creating":
                ec2.get_waiter("volume_available").wait(VolumeIds=[each], WaiterConfig=WAIT)
            still_held()
            ec2.delete_volume(VolumeId=each)
            yield f"{labels[each]} ({each})"


def _roles(iam: Any, snapshot: StackSnapshot) -> Iterator[str]:
    """Remove the role for SSM of each of the marks, and its profile, both of one name."""
    for mark in sorted(snapshot.marks):
        _, stack, scope = mark.rsplit("/", 2)
        name = f"orch-{stack}-{scope}-ssm"
        if name in snapshot.ids:
            continue
        removed = False
        with translate_errors(f"remove the role {name}, which nobody recorded"):
            inputs = {"name": name, "role": name}
            with _unless_gone():
                removed |= _profile(None, iam, inputs, [mark])
            with _unless_gone():
                if _is_of_stack(iam.get_role(RoleName=name)["Role"], [mark]):
                    for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
                        iam.delete_role_policy(RoleName=name, PolicyName=policy)
                    removed |= _role(None, iam, inputs, [mark])
        if removed:
            yield name


def _stack_tag(each: RecordedResource) -> str | None:
    tags = each.inputs.get("tags")
    return str(tags["orch:stack"]) if isinstance(tags, Mapping) and "orch:stack" in tags else None


# What has no tags, or is not of EC2


def _untagged(
    ec2: Any, iam: Any, unfinished: Sequence[RecordedResource], stack_tags: Collection[str]
) -> Iterator[str]:
    for each in unfinished:
        remove = BY_INPUTS.get(each.type)
        if remove is None:
            continue
        with translate_errors(f"remove {each.name}, which a call that did not end had begun"), _unless_gone():
            if remove(ec2, iam, each.inputs, stack_tags):
                yield each.name


def _association(ec2: Any, iam: Any, inputs: Mapping[str, Any], stack_tags: Collection[str]) -> bool:
    tables = ec2.describe_route_tables(RouteTableIds=[inputs["routeTableId"]])["RouteTables"]
    ids = [
        each["RouteTableAssociationId"]
        for table in tables
        for each in table.get("Associations", ())
        if each.get("SubnetId") == inputs["subnetId"]
    ]
    for each in ids:
        ec2.disassociate_route_table(AssociationId=each)
    return bool(ids)


def _attachment(ec2: Any, iam: Any, inputs: Mapping[str, Any], stack_tags: Collection[str]) -> bool:
    iam.detach_role_policy(RoleName=inputs["role"], PolicyArn=inputs["policyArn"])
    return True


def _policy(ec2: Any, iam: Any, inputs: Mapping[str, Any], stack_tags: Collection[str]) -> bool:
    iam.delete_role_policy(RoleName=inputs["role"], PolicyName=inputs["name"])
    return True


def _profile(ec2: Any, iam: Any, inputs: Mapping[str, Any], stack_tags: Collection[str]) -> bool:
    profile = iam.get_instance_profile(InstanceProfileName=inputs["name"])["InstanceProfile"]
    if not _is_of_stack(profile, stack_tags):
        return False
    for role in profile.get("Roles", ()):
        iam.remove_role_from_instance_profile(InstanceProfileName=inputs["name"], RoleName=role["RoleName"])
    iam.delete_instance_profile(InstanceProfileName=inputs["name"])
    return True


def _role(ec2: Any, iam: Any, inputs: Mapping[str, Any], stack_tags: Collection[str]) -> bool:
    if not _is_of_stack(iam.get_role(RoleName=inputs["name"])["Role"], stack_tags):
        return False
    iam.delete_role(RoleName=inputs["name"])
    return True


BY_INPUTS: Mapping[str, Callable[[Any, Any, Mapping[str, Any], Collection[str]], bool]] = {
    "aws:ec2/routeTableAssociation:RouteTableAssociation": _association,
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": _attachment,
    "aws:iam/rolePolicy:RolePolicy": _policy,
    "aws:iam/instanceProfile:InstanceProfile": _profile,
    "aws:iam/role:Role": _role,
}


def _is_of_stack(row: Mapping[str, Any], stack_tags: Collection[str]) -> bool:
    """Whether something with a name of its own carries the stack's tag."""
    return any(tag["Key"] == "orch:stack" and tag["Value"] in stack_tags for tag in row.get("Tags", ()))


@contextmanager
def _unless_gone() -> Iterator[None]:
    try:
        yield
    except client_error() as error:
        if not _is_gone(error.response["Error"]["Code"]):
            raise


def _is_gone(code: str) -> bool:
    return code.endswith("NotFound") or code in ("NoSuchEntity", "InvalidPlacementGroup.Unknown")


# What EC2 has tags of


def _still_existing(
    ec2: Any, kind: str, labels: Mapping[str, str], recorded_ids: Collection[str]
) -> dict[str, str]:
    """Those that are there still: some kinds are listed for an hour after their end."""
    if not labels:
        return {}
    with translate_errors("look at what a call that did not end left"):
        if kind == "placement-group":
            # The engine knows them by name.
            rows = ec2.describe_placement_groups(GroupIds=list(labels))["PlacementGroups"]
            return {
                row["GroupName"]: labels[row["GroupId"]]
                for row in rows
                if row["GroupName"] not in recorded_ids
            }
        if kind == "capacity-reservation":
            rows = ec2.describe_capacity_reservations(CapacityReservationIds=list(labels))
            states = {row["CapacityReservationId"]: row["State"] for row in rows["CapacityReservations"]}
        elif kind == "natgateway":
            rows = ec2.describe_nat_gateways(NatGatewayIds=list(labels))["NatGateways"]
            states = {row["NatGatewayId"]: row["State"] for row in rows}
        else:
            return dict(labels)
    return {each: label for each, label in labels.items() if states.get(each, "deleted") not in ENDED}


def _instances(ec2: Any, ids: Sequence[str]) -> None:
    ec2.terminate_instances(InstanceIds=ids)
    ec2.get_waiter("instance_terminated").wait(InstanceIds=ids, WaiterConfig=WAIT)


def _gateways(ec2: Any, ids: Sequence[str]) -> None:
    for each in ids:
        ec2.delete_nat_gateway(NatGatewayId=each)
    ec2.get_waiter("nat_gateway_deleted").wait(NatGatewayIds=ids, WaiterConfig=WAIT)


def _addresses(ec2: Any, ids: Sequence[str]) -> None:
    for row in ec2.describe_addresses(AllocationIds=ids)["Addresses"]:
        if "AssociationId" in row:
            ec2.disassociate_address(AssociationId=row["AssociationId"])
        _remove_when_unused(lambda each=row["AllocationId"]: ec2.release_address(AllocationId=each))


def _route_tables(ec2: Any, ids: Sequence[str]) -> None:
    for row in ec2.describe_route_tables(RouteTableIds=ids)["RouteTables"]:
        for each in row.get("Associations", ()):
            if not each.get("Main"):
                ec2.disassociate_route_table(AssociationId=each["RouteTableAssociationId"])
        _remove_when_unused(lambda each=row["RouteTableId"]: ec2.delete_route_table(RouteTableId=each))


def _internet_gateways(ec2: Any, ids: Sequence[str]) -> None:
    for row in ec2.describe_internet_gateways(InternetGatewayIds=ids)["InternetGateways"]:
        each = row["InternetGatewayId"]
        for attachment in row.get("Attachments", ()):
            arguments = {"InternetGatewayId": each, "VpcId": attachment["VpcId"]}
            _remove_when_unused(lambda arguments=arguments: ec2.detach_internet_gateway(**arguments))
        ec2.delete_internet_gateway(InternetGatewayId=each)


def _each(call: str, key: str) -> Callable[[Any, Sequence[str]], None]:
    def remove(ec2: Any, ids: Sequence[str]) -> None:
        # Of several that name each other (security groups), some go only after the others.
        remaining = list(ids)
        for _ in range(len(remaining)):
            remaining = [
                each
                for each in remaining
                if not _try_remove(lambda each=each: getattr(ec2, call)(**{key: each}))
            ]
        for each in remaining:
            _remove_when_unused(lambda each=each: getattr(ec2, call)(**{key: each}))

    return remove


ORDER: tuple[tuple[str, Callable[[Any, Sequence[str]], None]], ...] = (
    ("instance", _instances),
    ("natgateway", _gateways),
    ("elastic-ip", _addresses),
    ("capacity-reservation", _each("cancel_capacity_reservation", "CapacityReservationId")),
    ("launch-template", _each("delete_launch_template", "LaunchTemplateId")),
    ("placement-group", _each("delete_placement_group", "GroupName")),
    ("route-table", _route_tables),
    ("subnet", _each("delete_subnet", "SubnetId")),
    ("security-group", _each("delete_security_group", "GroupId")),
    ("internet-gateway", _internet_gateways),
    ("vpc", _each("delete_vpc", "VpcId")),
)

IN_USE = ("DependencyViolation", "InvalidPlacementGroup.InUse", "InvalidIPAddress.InUse", "ResourceInUse")


def _try_remove(remove: Callable[[], object]) -> bool:
    """Whether it is removed now; False when something still uses it."""
    try:
        with _unless_gone():
            remove()
    except client_error() as error:
        if error.response["Error"]["Code"] not in IN_USE:
            raise
        return False
    return True


def _remove_when_unused(remove: Callable[[], object]) -> None:
    """Remove it as soon as nothing uses it any more. What stays in use is refused by the last try."""
    if not retry_until_gone(lambda: _try_remove(remove)):
        with _unless_gone():
            remove()
