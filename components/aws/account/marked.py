"""What an AWS account holds that bears orch's marks, and deleting what holds data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from orch.components.aws.account.client import RegionClient, Session
from orch.components.aws.account.client_errors import CloudRefused, pages, translate_errors
from orch.components.aws.account.existing import instances_of
from orch.components.aws.account.gather_facts import ENDED, FILTER_VALUES, home
from orch.components.aws.account.orphans import ENDED as NO_MORE
from orch.components.aws.account.orphans import ORDER
from orch.components.aws.storage.orphans import delete_elastic, delete_lustre
from orch.components.marks.marked import MarkedResource, Price, Survey, survey_of

REGIONS_AT_ONCE = 8
VOLUME = "aws:ebs/volume:Volume"
ELASTIC, LUSTRE = "efs", "fsx"
_ROLE = re.compile(r"orch-.+-[0-9a-f]{6}-ssm")
_KINDS = {kind for kind, _ in ORDER} | {"volume"}
Tagged = Mapping[str, Mapping[str, str]]
"""Tags by the id of what bears them."""


def survey(
    session: Session, regions: Sequence[str], endpoint: str | None, project: str, price: Price
) -> Survey:
    """What regions hold; one that does not answer is told as unseen."""
    whole = _of_regions(session, regions, endpoint, project, price, parts=(_of_ec2, _file_systems))
    try:
        iam = RegionClient(session, home(session), endpoint).client("iam")
        return whole.joined(survey_of(project, list(_roles(iam))))
    except CloudRefused as refused:
        return whole.refused(refused, rare=True)


def machines(
    session: Session, regions: Sequence[str], endpoint: str | None, project: str, price: Price
) -> Survey:
    """What regions hold in EC2: all that machines stand on."""
    return _of_regions(session, regions, endpoint, project, price, parts=(_of_ec2,))


def _of_regions(
    session: Session,
    regions: Sequence[str],
    endpoint: str | None,
    project: str,
    price: Price,
    *,
    parts: Sequence[Callable[[RegionClient, Price], list[MarkedResource]]],
) -> Survey:
    clients = [RegionClient(session, each, endpoint) for each in regions]
    for each in clients:
        for service in ("ec2", ELASTIC, LUSTRE):
            each.client(service)  # made here: a session makes clients for one thread at a time

    def look(client: RegionClient) -> Survey:
        found = Survey()
        for part in parts:
            try:
                found = found.joined(survey_of(project, part(client, price)))
            except CloudRefused as refused:
                found = found.refused(refused, rare=part is _file_systems)
        return found

    whole = Survey()
    with ThreadPoolExecutor(REGIONS_AT_ONCE) as threads:
        for found in threads.map(look, clients):
            whole = whole.joined(found)
    return whole


def _of_ec2(region: RegionClient, price: Price) -> list[MarkedResource]:
    ec2 = region.client("ec2")
    with translate_errors(f"look for what bears marks of orch in {region.region}"):
        kinds, tags = dict[str, str](), dict[str, dict[str, str]]()
        keys = [{"Name": "key", "Values": ["orch:stack", "orch:urn"]}]
        for row in pages(ec2, "describe_tags", "Tags", Filters=keys):
            kinds[str(row["ResourceId"])] = str(row["ResourceType"])
            tags.setdefault(str(row["ResourceId"]), {})[str(row["Key"])] = str(row["Value"])
        # Disks and interfaces of instances have no `orch:urn`: they go with these.
        tags = {
            each: found
            for each, found in tags.items()
            if "orch:stack" in found and "orch:urn" in found and kinds[each] in _KINDS
        }
        by_kind = {kind: {each: tags[each] for each in tags if kinds[each] == kind} for kind in _KINDS}
        found: list[MarkedResource] = []
        for kind, _ in ORDER:
            detail = DETAILS.get(kind)
            found += (
                detail(ec2, region.region, by_kind[kind], price)
                if detail
                else _plain(by_kind[kind], kind, region)
            )
        return [*found, *_volumes(ec2, region.region, by_kind["volume"])]


def _plain(tagged: Tagged, kind: str, region: RegionClient) -> Iterator[MarkedResource]:
    for each, tags in sorted(tagged.items()):
        yield _resource(each, kind, region.region, tags)


def _resource(
    identifier: str, kind: str, region: str, tags: Mapping[str, str], **more: Any
) -> MarkedResource:
    token, _, name = tags.get("orch:urn", "").rpartition("::")
    name = name or tags.get("Name", "")
    return MarkedResource("aws", tags["orch:stack"], kind, identifier, name, region, type=token, **more)


def _chunks(ids: Iterable[str]) -> Iterator[list[str]]:
    listed = sorted(ids)
    for start in range(0, len(listed), FILTER_VALUES):
        yield listed[start : start + FILTER_VALUES]


def _instances(ec2: Any, region: str, tagged: Tagged, price: Price) -> Iterator[MarkedResource]:
    for ids in _chunks(tagged):
        named = [{"Name": "instance-id", "Values": ids}]
        for row in instances_of(ec2, named):
            if row["State"]["Name"] in ENDED:
                continue
            running = row["State"]["Name"] in ("pending", "running")
            yield _resource(
                str(row["InstanceId"]),
                "instance",
                region,
                tagged[str(row["InstanceId"])],
                created=row.get("LaunchTime"),
                hourly=price(str(row["InstanceType"]), region, row.get("InstanceLifecycle") == "spot")
                if running
                else 0.0,
                machine=str(row["InstanceId"]),
            )


def _gateways(ec2: Any, region: str, tagged: Tagged, price: Price) -> Iterator[MarkedResource]:
    if tagged:
        for row in ec2.describe_nat_gateways(NatGatewayIds=sorted(tagged))["NatGateways"]:
            if row["State"] not in NO_MORE:
                each = str(row["NatGatewayId"])
                yield _resource(each, "natgateway", region, tagged[each], created=row.get("CreateTime"))


def _reservations(ec2: Any, region: str, tagged: Tagged, price: Price) -> Iterator[MarkedResource]:
    """A reservation costs what its free places would."""
    if not tagged:
        return
    rows = ec2.describe_capacity_reservations(CapacityReservationIds=sorted(tagged))["CapacityReservations"]
    for row in rows:
        if row["State"] in NO_MORE:
            continue
        each, free = str(row["CapacityReservationId"]), int(row.get("AvailableInstanceCount", 0))
        one = price(str(row["InstanceType"]), region, False)
        hourly = None if one is None else one * free
        created = row.get("CreateDate")
        yield _resource(each, "capacity-reservation", region, tagged[each], created=created, hourly=hourly)


def _placement_groups(ec2: Any, region: str, tagged: Tagged, price: Price) -> Iterator[MarkedResource]:
    """The engine knows them by name."""
    if tagged:
        for row in ec2.describe_placement_groups(GroupIds=sorted(tagged))["PlacementGroups"]:
            yield _resource(str(row["GroupName"]), "placement-group", region, tagged[str(row["GroupId"])])


DETAILS = {
    "instance": _instances,
    "natgateway": _gateways,
    "capacity-reservation": _reservations,
    "placement-group": _placement_groups,
}


def _volumes(ec2: Any, region: str, tagged: Tagged) -> Iterator[MarkedResource]:
    for ids in _chunks(each for each, tags in tagged.items() if tags["orch:urn"].startswith(VOLUME)):
        for row in pages(ec2, "describe_volumes", "Volumes", Filters=[{"Name": "volume-id", "Values": ids}]):
            each = str(row["VolumeId"])
            created = row.get("CreateTime")
            yield _resource(each, "volume", region, tagged[each], created=created, holds_data=True)


def _file_systems(region: RegionClient, price: Price) -> list[MarkedResource]:
    found: list[MarkedResource] = []
    with translate_errors(f"look for file systems that bear marks of orch in {region.region}"):
        for kind, state in ((ELASTIC, "LifeCycleState"), (LUSTRE, "Lifecycle")):
            for row in pages(region.client(kind), "describe_file_systems", "FileSystems"):
                tags = {str(tag["Key"]): str(tag["Value"]) for tag in row.get("Tags", ())}
                if "orch:stack" in tags and str(row[state]).lower() != "deleting":
                    each, created = str(row["FileSystemId"]), row.get("CreationTime")
                    more = {"created": created, "holds_data": True, "mounted_as": (each,)}
                    found.append(_resource(each, kind, region.region, tags, **more))
    return found


def _roles(iam: Any) -> Iterator[MarkedResource]:
    """Roles of fleets that are reached through SSM, by their form of name; each has a profile of its name."""
    with translate_errors("look for roles that bear marks of orch"):
        names = [str(row["RoleName"]) for row in pages(iam, "list_roles", "Roles")]
        for name in filter(_ROLE.fullmatch, names):
            row = iam.get_role(RoleName=name)["Role"]
            tags = {str(tag["Key"]): str(tag["Value"]) for tag in row.get("Tags", ())}
            if "orch:stack" in tags:
                yield _resource(name, "role", "", tags, created=row.get("CreateDate"))


def delete_data(session: Session, endpoint: str | None, resources: Sequence[MarkedResource]) -> Iterator[str]:
    """Delete what holds data. Raises CloudRefused."""
    for each in resources:
        region = RegionClient(session, each.region, endpoint)
        with translate_errors(f"delete {each.kind} {each.id}"):
            if each.kind == "volume":
                region.client("ec2").delete_volume(VolumeId=each.id)
            elif each.kind == ELASTIC:
                delete_elastic(region.client(ELASTIC), each.id)
            else:
                delete_lustre(region.client(LUSTRE), each.id)
        yield f"{each.name} ({each.id})"
