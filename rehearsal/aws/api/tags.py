"""Tags of EC2 resources."""

from __future__ import annotations

from orch.rehearsal.aws.api.actions import Request, action, page, path, select, tag_list, tag_map
from orch.rehearsal.aws.api.errors import AwsError, missing
from orch.rehearsal.store import Doc

KINDS = [
    "vpc",
    "subnet",
    "internet-gateway",
    "natgateway",
    "elastic-ip",
    "route-table",
    "security-group",
    "security-group-rule",
    "placement-group",
    "capacity-reservation",
    "launch-template",
    "instance",
    "key-pair",
    "vpc-endpoint",
    "volume",
]

MOST = 50
"""Tags of one resource (EC2 user guide, "Tag restrictions")."""


def _tagged(request: Request, resource: str) -> tuple[str, Doc]:
    kind = request.store.kind_of(resource)
    doc = request.store.get(resource)
    if kind is None or doc is None or doc.get("_region") != request.region:
        prefix = resource.split("-", maxsplit=1)[0]
        kinds = {
            "i": "instance",
            "sg": "security-group",
            "vpc": "vpc",
            "subnet": "subnet",
            "lt": "launch-template",
        }
        if prefix in kinds:
            raise missing(kinds[prefix], resource)
        raise AwsError("InvalidID", f"The ID '{resource}' is not valid")
    return kind, doc


@action("CreateTags")
def create_tags(request: Request) -> Doc:
    for resource in request["Resources"]:
        kind, doc = _tagged(request, resource)
        tags = tag_map(doc)
        for tag in request["Tags"]:
            if tag["Key"].lower().startswith("aws:"):
                raise AwsError(
                    "InvalidParameterValue",
                    f"Value ( {tag['Key']} ) for parameter key is invalid. Tag keys starting with 'aws:' "
                    f"are reserved "
                    "for internal use",
                )
            tags[tag["Key"]] = tag.get("Value", "")
        if len(tags) > MOST:
            raise AwsError(
                "TagLimitExceeded", f"The maximum number of Tags for a resource has been reached: {MOST}"
            )
        doc["Tags"] = tag_list(tags)
        request.add(resource, kind, doc)
    return {}


@action("DeleteTags")
def delete_tags(request: Request) -> Doc:
    for resource in request["Resources"]:
        kind, doc = _tagged(request, resource)
        tags = tag_map(doc)
        for tag in request.get("Tags") or [{"Key": key} for key in tags]:
            if "Value" not in tag or tags.get(tag["Key"]) == tag["Value"]:
                tags.pop(tag["Key"], None)
        doc["Tags"] = tag_list(tags)
        request.add(resource, kind, doc)
    return {}


@action("DescribeTags")
def describe_tags(request: Request) -> Doc:
    rows: list[Doc] = []
    for kind in KINDS:
        for thing, doc in request.store.each(kind, request.region):
            rows += [
                {"ResourceId": thing, "ResourceType": kind, "Key": key, "Value": value}
                for key, value in tag_map(doc).items()
            ]
    fields = {
        "resource-id": path("ResourceId"),
        "resource-type": path("ResourceType"),
        "key": path("Key"),
        "value": path("Value"),
    }
    return page(
        request, "Tags", select(request, "tag", fields | {"tag": path("Key")}, docs=_by_tag(request, rows))
    )


def _by_tag(request: Request, rows: list[Doc]) -> list[Doc]:
    """Apply `tag:KEY` filters, which match the tag itself here."""
    matches = rows
    plain: list[Doc] = []
    for one in request.get("Filters") or ():
        if one["Name"].startswith("tag:"):
            key = one["Name"][4:]
            matches = [
                row for row in matches if row["Key"] == key and row["Value"] in (one.get("Values") or ())
            ]
        else:
            plain.append(one)
    request.params["Filters"] = plain
    return matches
