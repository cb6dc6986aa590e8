"""Clearing a Nebius tenant of what a call that did not end made and nobody recorded.

All that orch makes bears the label of its stack. What has it and is not in the state is removed, what stands
on others first; `up` makes it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from orch.components.marks.marked import MarkedResource, Price, Survey, survey_of
from orch.components.marks.orphans import StackSnapshot
from orch.components.nebius.account.client import NebiusClient
from orch.components.nebius.account.methods import (
    GPU_CLUSTER,
    INSTANCE,
    NETWORK,
    SECURITY_GROUP,
    SECURITY_RULE,
    SUBNET,
    Kind,
    Row,
)

MARK = "orch-stack"
"""The label that tells whose a resource is: `PROJECT/STACK/SCOPE`."""

# What is used by others comes after them. Disks of machines go with these.
ORDER = (INSTANCE, GPU_CLUSTER, SECURITY_RULE, SECURITY_GROUP, SUBNET, NETWORK)

WAIT_S = 1200.0
PAUSE_S = 2.0


def mark_of(row: Row) -> str:
    return str((row["metadata"].get("labels") or {}).get(MARK) or "")


def _marked(client: NebiusClient, kind: Kind, project: str) -> Iterator[Row]:
    """All of a kind in a project that bear some mark."""
    parents = [project]
    if kind == SECURITY_RULE:
        parents = [row["metadata"]["id"] for row in _marked(client, SECURITY_GROUP, project)]
    for parent in parents:
        yield from (row for row in client.list(kind, parent) if mark_of(row))


def delete_orphans(snapshot: StackSnapshot, connect: Callable[[], NebiusClient]) -> Iterator[str]:
    """Remove what is not recorded; what was removed, each as it goes. Raises NebiusRefused."""
    own = list(snapshot.of("orch-nebius:"))
    labels = [each.inputs.get("labels") or {} for each in own]
    marks = {str(each[MARK]) for each in labels if MARK in each} | snapshot.marks
    places = {str(each.inputs["project"]) for each in own if "project" in each.inputs}
    projects = {each for each in places if each.startswith("project-")} | snapshot.regions("nebius")
    if not marks or not projects:
        return
    client = connect()
    for kind in ORDER:
        for project in sorted(projects):
            snapshot.still_held()
            for row in list(_marked(client, kind, project)):
                resource = row["metadata"]["id"]
                if mark_of(row) not in marks or resource in snapshot.ids:
                    continue
                client.remove(kind, resource, for_s=WAIT_S, pause_s=PAUSE_S)
                yield f"{row['metadata']['name']} ({resource})"


def survey(client: NebiusClient, project: str, price: Price) -> Survey:
    """What bears the marks of an orch project, in all projects of the tenant that are used."""
    found: list[MarkedResource] = []
    for region, place in sorted(client.projects().items()):
        for kind in ORDER:
            for row in _marked(client, kind, place):
                found.append(_resource(kind, row, region, place, price))
    return survey_of(project, found)


def _resource(kind: Kind, row: Row, region: str, place: str, price: Price) -> MarkedResource:
    metadata, spec = row["metadata"], row.get("spec") or {}
    hourly: float | None = 0.0
    if kind == INSTANCE:
        resources = spec["resources"]
        name = f"{resources['platform']}_{resources['preset']}"
        hourly = price(name, region, "preemptible" in spec)
    created = metadata.get("created_at")
    return MarkedResource(
        "nebius",
        mark_of(row),
        kind.words,
        metadata["id"],
        metadata.get("name", ""),
        place,
        datetime.fromisoformat(created) if created else None,
        hourly,
        machine=metadata["id"] if kind == INSTANCE else "",
    )
