"""Instance templates. Sources: rehearsal/README.md, "GCP: instances"."""

from __future__ import annotations

import re

from orch.rehearsal.gcp.api.compute import disks, scheduling
from orch.rehearsal.gcp.api.errors import in_use, invalid, not_found, required
from orch.rehearsal.gcp.api.labels import checked_labels, checked_metadata, checked_tags
from orch.rehearsal.gcp.api.methods import API, Request, method
from orch.rehearsal.gcp.api.quotas import need_project
from orch.rehearsal.gcp.data.tables import Type, types
from orch.rehearsal.store import Doc

PREFIX = "resource.properties"


@method("instanceTemplates.insert", "POST", "global/instanceTemplates")
def insert(request: Request) -> Doc:
    path, doc = request.new(
        "instance-template", "instanceTemplates", "instanceTemplate", fields=("description", "properties")
    )
    properties: Doc = dict(doc.get("properties") or {})
    if not properties:
        raise required(PREFIX)
    kind = _machine_type(properties)
    if not properties.get("networkInterfaces"):
        raise invalid(f"{PREFIX}.networkInterfaces", "", "At least one network interface is required.")
    for index, row in enumerate(properties["networkInterfaces"]):
        _check_interface(request, row, kind, f"{PREFIX}.networkInterfaces[{index}]")
    disks.checked(request, properties.get("disks") or [], kind, None, PREFIX)
    properties["scheduling"] = scheduling.checked(properties, kind, PREFIX).doc
    properties["labels"] = checked_labels(properties.get("labels"), f"{PREFIX}.labels")
    properties["tags"] = checked_tags(properties.get("tags"), f"{PREFIX}.tags")
    properties["metadata"] = checked_metadata(properties.get("metadata"), f"{PREFIX}.metadata")
    if len(properties.get("resourcePolicies") or ()) > 1:
        raise invalid(f"{PREFIX}.resourcePolicies", "", "At most one resource policy is allowed.")
    doc["properties"] = properties
    doc["selfLinkWithId"] = f"{API}projects/{request.project}/global/instanceTemplates/{doc['id']}"
    need_project(request, "INSTANCE_TEMPLATES", path, "instance-template")
    return request.add(path, "instance-template", doc)


def _machine_type(properties: Doc) -> Type:
    name = str(properties.get("machineType") or "")
    if not name:
        raise required(f"{PREFIX}.machineType")
    kind = types().get(name)
    if kind is None:
        raise invalid(f"{PREFIX}.machineType", name, f"Machine type with name '{name}' does not exist.")
    return kind


def _check_interface(request: Request, row: Doc, kind: Type, field: str) -> None:
    if row.get("subnetwork"):
        path = request.link(f"{field}.subnetwork", row["subnetwork"])
        request.thing("subnetwork", path)
    elif row.get("network"):
        request.thing("network", request.link(f"{field}.network", row["network"]))
    else:
        raise required(f"{field}.network")
    types = {*kind.nics, "GVNIC", "VIRTIO_NET", "IDPF", "MRDMA", "IRDMA"}
    if row.get("nicType") and row["nicType"] not in types:
        raise invalid(f"{field}.nicType", row["nicType"], "Unknown network interface type.")


def template_named(request: Request, field: str, value: object) -> tuple[str, Doc]:
    """The path and document of the template that a field names, also by a link with its unique id."""
    text, _, unique = str(value).partition("?uniqueId=")
    path = request.link(field, text)
    doc = request.store.get(path, "instance-template")
    if doc is None or (unique and doc["id"] != unique):
        if doc is None and re.fullmatch(r"\d+", path.rpartition("/")[2]):
            for other, each in request.each("instance-template"):
                if each["id"] == path.rpartition("/")[2]:
                    return other, each
        raise not_found(path)
    return path, doc


@method("instanceTemplates.get", "GET", "global/instanceTemplates/{instanceTemplate}")
def get(request: Request) -> Doc:
    name = request.words["instanceTemplate"]
    return template_named(request, "instanceTemplate", request.path("instanceTemplates", name))[1]


@method("instanceTemplates.list", "GET", "global/instanceTemplates")
def list_templates(request: Request) -> Doc:
    return request.page([doc for _, doc in request.each("instance-template")], "instanceTemplate")


@method("instanceTemplates.delete", "DELETE", "global/instanceTemplates/{instanceTemplate}")
def delete(request: Request) -> Doc:
    name = request.words["instanceTemplate"]
    path, doc = template_named(request, "instanceTemplate", request.path("instanceTemplates", name))
    users = request.store.referrers(path)
    if users:
        raise in_use("instance_template", path, users[0][0])
    request.store.remove(path)
    return doc
