"""Placement groups. Sources: rehearsal/README.md, "Capacity"."""

from __future__ import annotations

from orch.rehearsal.aws.api.actions import Request, action, path, public, select
from orch.rehearsal.aws.api.errors import AwsError, missing
from orch.rehearsal.aws.data.tables import Type
from orch.rehearsal.store import Doc


@action("CreatePlacementGroup")
def create_placement_group(request: Request) -> Doc:
    name = request["GroupName"]
    if request.store.find("placement-group", name, request.region):
        raise AwsError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
    if request.store.tally("placement-group", request.region) >= request.cloud.quota("placement-groups"):
        raise AwsError(
            "PlacementGroupLimitExceeded", "The maximum number of placement groups has been reached."
        )
    strategy = request.get("Strategy", "cluster")
    if strategy not in {"cluster", "spread", "partition"}:
        raise AwsError("InvalidParameterValue", f"Value ({strategy}) for parameter strategy is invalid.")
    group = request.cloud.new_id("pg")
    doc: Doc = {
        "GroupId": group,
        "GroupName": name,
        "GroupArn": request.arn(f"placement-group/{name}"),
        "Strategy": strategy,
        "State": "available",
        "Tags": request.tags_for("placement-group"),
    }
    if strategy == "partition":
        doc["PartitionCount"] = request.get("PartitionCount", 2)
    if strategy == "spread":
        doc["SpreadLevel"] = request.get("SpreadLevel", "rack")
    return {"PlacementGroup": public(request.add(group, "placement-group", doc, name))}


def placement_group(request: Request, *, name: str | None = None, group_id: str | None = None) -> Doc:
    resource_id = group_id or request.store.find("placement-group", name or "", request.region)
    if resource_id is None:
        raise missing("placement-group", name or "")
    return request.thing("placement-group", resource_id)


@action("DescribePlacementGroups")
def describe_placement_groups(request: Request) -> Doc:
    fields = {
        "group-name": path("GroupName"),
        "group-arn": path("GroupArn"),
        "strategy": path("Strategy"),
        "state": path("State"),
    }
    ids = list(request.get("GroupIds") or ())
    ids += [placement_group(request, name=name)["GroupId"] for name in request.get("GroupNames") or ()]
    return {"PlacementGroups": [public(d) for d in select(request, "placement-group", fields, ids=ids)]}


@action("DeletePlacementGroup")
def delete_placement_group(request: Request) -> Doc:
    group = placement_group(request, name=request["GroupName"])
    if request.store.referrers(group["GroupId"], "placed"):
        raise AwsError(
            "InvalidPlacementGroup.InUse",
            f"The placement group '{group['GroupName']}' is in use and may not be deleted.",
        )
    request.store.remove(group["GroupId"])
    return {}


def check_placement(request: Request, group: Doc, kind: Type, zone: str) -> None:
    """Check that an instance or a reservation of this type may enter the group. Raises what EC2 answers."""
    if group["Strategy"] != "cluster":
        return
    if not kind.cluster:
        raise AwsError(
            "InvalidParameterCombination",
            f"Placement groups may not be used with instances of type '{kind.name}'.",
        )
    for member, _ in request.store.referrers(group["GroupId"], "placed")[:1]:
        doc = request.store.get(member) or {}
        there = doc.get("AvailabilityZone") or (doc.get("Placement") or {}).get("AvailabilityZone")
        if there != zone:
            raise AwsError(
                "InvalidParameterCombination",
                f"The placement group '{group['GroupName']}' is in Availability Zone {there}; a cluster "
                f"placement "
                f"group cannot span Availability Zones ({zone} was requested).",
            )
