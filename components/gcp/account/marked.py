"""What a GCP project holds that bears orch's marks, and deleting what holds data.

Labels spell a mark in their own letters: `acme/train/1a2b3c` is `acme_train_1a2b3c` there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from orch.components.gcp.account.client import Session, moment
from orch.components.gcp.account.client_errors import CloudRefused, translate_errors
from orch.components.gcp.account.guarded import document, endless, is_gone
from orch.components.gcp.account.labels import LONGEST, label
from orch.components.gcp.account.lookups import short
from orch.components.gcp.account.orphans import FILESTORE_API, WAIT_S, path_of, raise_for, until
from orch.components.marks.marked import MarkedResource, Price, Survey, project_of, survey_of, words_of
from orch.spec.cursors import follow

DISK, FILESTORE = "disk", "filestore"
# Kind -> its client, and what a list over all zones or regions calls its rows; None for what is global.
KINDS: Mapping[str, tuple[str, str | None]] = {
    "instance-group": ("InstanceGroupManagersClient", "instance_group_managers"),
    "instance": ("InstancesClient", "instances"),
    "instance-template": ("InstanceTemplatesClient", None),
    "resource-policy": ("ResourcePoliciesClient", "resource_policies"),
    "router": ("RoutersClient", "routers"),
    "firewall": ("FirewallsClient", None),
    "subnetwork": ("SubnetworksClient", "subnetworks"),
    "network": ("NetworksClient", None),
    DISK: ("DisksClient", "disks"),
}


def survey(
    session: Session,
    projects: Collection[str],
    project: str,
    marks: Collection[str],
    price: Price,
    *,
    data: bool = True,
) -> Survey:
    """What GCP projects hold of an orch `project`, whose state knows `marks`. `data`: Filestores too."""
    found = Survey()
    for gcp_project in sorted(projects):
        for look in (_of_compute, _filestores) if data else (_of_compute,):
            try:
                rows = list(look(session, gcp_project, price))
            except CloudRefused as refused:
                found = found.refused(refused, rare=look is _filestores)
                continue
            spelled = Spelled(project, (*marks, *(row.mark for row in rows)))
            found = found.joined(survey_of(project, [spelled.read(row) for row in rows]))
    return found


class Spelled:
    """Marks by their labels.

    Projects `a.b` and `a_b` have one label: what it stands for is sure only where a mark that is `known`, of
    this state or of what has a description, and no other one, is spelled so.
    """

    def __init__(self, project: str, known: Collection[str]) -> None:
        self._known: dict[str, set[str]] = {}
        for each in known:
            if "/" in each:
                self._known.setdefault(label(each), set()).add(each)
        self._project = project
        self._form = re.compile(
            rf"{re.escape(label(project))}_(?:(volume|network)_)?([a-z0-9-]+)_([0-9a-f]{{6}})"
        )

    def read(self, row: MarkedResource) -> MarkedResource:
        """The same with the mark that its label stands for, or may stand for: one of this project first."""
        text = row.mark
        if "/" in text:
            return row
        if known := sorted(self._known.get(text, ()), key=lambda each: project_of(each) != self._project):
            return replace(row, mark=known[0], sure=len(known) == 1)
        match = self._form.fullmatch(text) if len(text) < LONGEST else None
        if match is None:
            return row
        stack = f"{match[1]}.{match[2]}" if match[1] else match[2]
        return replace(row, mark=f"{self._project}/{stack}/{match[3]}", sure=False)


def _of_compute(session: Session, project: str, price: Price) -> Iterator[MarkedResource]:
    with translate_errors(f"look for what bears marks of orch in {project}"):
        for kind, (client, plural) in KINDS.items():
            service = session.client(client)
            for row in _rows(service, project, plural):
                found = words_of(str(getattr(row, "description", "")))
                labels = dict(getattr(row, "labels", {}))
                if found is None and "orch-stack" in labels:
                    found = str(labels["orch-stack"]), str(labels.get("orch-urn", ""))
                if found is not None:
                    yield _resource(project, kind, row, found, price)


def _rows(service: Any, project: str, plural: str | None) -> Iterator[Any]:
    if plural is None:
        yield from service.list(project=project)
        return
    for _, scope in service.aggregated_list(project=project):
        yield from getattr(scope, plural)


def _resource(project: str, kind: str, row: Any, found: tuple[str, str], price: Price) -> MarkedResource:
    mark, urn = found
    zone, region = short(str(getattr(row, "zone", ""))), short(str(getattr(row, "region", "")))
    region = region or zone.rpartition("-")[0]
    hourly = part_of = None
    if kind == "instance":
        spot = str(row.scheduling.provisioning_model) == "SPOT"
        stopped = str(row.status) in ("TERMINATED", "SUSPENDED")
        hourly = 0.0 if stopped else price(short(str(row.machine_type)), region, spot)
        by = next((str(item.value) for item in row.metadata.items if item.key == "created-by"), "")
        if by:
            part_of = f"projects/{project}/zones/{zone}/instanceGroupManagers/{short(by)}"
    return MarkedResource(
        "gcp",
        mark,
        kind,
        path_of(row),
        urn.rpartition("::")[2] or str(row.name),
        f"{project}/{region}",
        moment(str(row.creation_timestamp)),
        hourly,
        kind == DISK,
        part_of,
        machine=str(row.id) if kind == "instance" else "",
    )


def _filestores(session: Session, project: str, price: Price) -> Iterator[MarkedResource]:
    http = session.http()

    def ask(page: str) -> dict[str, Any]:
        query = f"?{urlencode({'pageToken': page})}" if page else ""
        answer = http.get(f"{FILESTORE_API}/projects/{project}/locations/-/instances{query}")
        raise_for(answer)
        return document(answer)

    with translate_errors(f"look for Filestores that bear marks of orch in {project}"):
        for told in follow(ask, lambda page: page.get("nextPageToken"), endless):
            for row in told.get("instances") or ():
                labels = row.get("labels") or {}
                if "orch-stack" in labels and row.get("state") != "DELETING":
                    path = str(row["name"])
                    region = f"{project}/{path.split('/')[3].rpartition('-')[0]}"
                    created = moment(str(row.get("createTime", "")))
                    networks = row.get("networks") or ()
                    addresses = [str(each) for one in networks for each in one.get("ipAddresses") or ()]
                    yield MarkedResource(
                        "gcp",
                        labels["orch-stack"],
                        FILESTORE,
                        path,
                        short(path),
                        region,
                        created,
                        holds_data=True,
                        mounted_as=tuple(addresses),
                    )


def delete_data(session: Session, resources: Sequence[MarkedResource]) -> Iterator[str]:
    """Delete what holds data. Raises CloudRefused."""
    for each in resources:
        delete: Callable[[Session, str], None] = _delete_disk if each.kind == DISK else _delete_filestore
        with translate_errors(f"delete {each.kind} {each.id}"):
            delete(session, each.id)
        yield f"{each.name} ({each.id})"


def _delete_disk(session: Session, path: str) -> None:
    _, project, _, zone, _, disk = path.split("/")
    session.client("DisksClient").delete(project=project, zone=zone, disk=disk).result(timeout=WAIT_S)


def _delete_filestore(session: Session, path: str) -> None:
    http, url = session.http(), f"{FILESTORE_API}/{path}"
    answer = http.delete(url)
    if not is_gone(answer):
        raise_for(answer)
    until(lambda: is_gone(http.get(url)))
