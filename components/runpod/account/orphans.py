"""Clearing a RunPod account of what a call that did not end made and nobody recorded.

RunPod has no labels: the name of a pod or a cluster tells its fleet and the stack's scope, and ends in a
digest of both with the project. By that those of a project are told, of stacks too that no state knows any
more; whose the others are cannot be read. So it is with network volumes, which hold data: they are told, and
go by the user's word alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from orch.components.cloud.marked import MarkedResource, Survey, project_of
from orch.components.cloud.orphans import StackSnapshot
from orch.components.runpod.account.client import CLUSTER, POD, VOLUME, Kind, Row, RunpodClient
from orch.components.runpod.plan import is_ours, mark_of, volume_mark_of

KINDS = (CLUSTER, POD)


def delete_orphans(snapshot: StackSnapshot, connect: Callable[[], RunpodClient]) -> Iterator[str]:
    """Remove what is not recorded; what was removed, each as it goes. Raises RunpodRefused."""
    own = snapshot.of("orch-runpod:")
    marks = frozenset(str(each.inputs["mark"]) for each in own if "mark" in each.inputs) | snapshot.marks
    if not marks:
        return
    client, projects = connect(), {project_of(mark) for mark in marks}
    for kind in KINDS:
        snapshot.still_held()
        for row in client.all(kind):
            names = {mark_of(row["name"], project) for project in projects}
            if names & marks and str(row["id"]) not in snapshot.ids:
                client.delete(kind, str(row["id"]))
                yield f"{row['name']} ({row['id']})"


def survey(client: RunpodClient, project: str) -> Survey:
    """The pods, clusters and network volumes of a project, and how many pods and clusters have names of
    orch's that are of others."""
    rows = [(kind, row) for kind in KINDS for row in client.all(kind) if is_ours(row["name"])]
    own = [(kind, row, mark) for kind, row in rows if (mark := mark_of(row["name"], project)) is not None]
    found = tuple(_resource(kind, mark, row, client) for kind, row, mark in own)
    volumes = ((row, volume_mark_of(row["name"], project)) for row in client.all(VOLUME))
    data = tuple(_volume(mark, row) for row, mark in volumes if mark is not None)
    return Survey((*found, *data), foreign=len(rows) - len(found))


def delete_data(client: RunpodClient, resources: Sequence[MarkedResource]) -> Iterator[str]:
    """Delete network volumes; what was deleted, each as it goes. Raises RunpodRefused."""
    for each in resources:
        client.delete(VOLUME, each.id)
        yield f"{each.name} ({each.id})"


def _volume(mark: str, row: Row) -> MarkedResource:
    name, center = str(row["name"]), str(row["dataCenter"])
    return MarkedResource("runpod", mark, VOLUME.words, str(row["id"]), name, center, holds_data=True)


def _resource(kind: Kind, mark: str, row: Row, client: RunpodClient) -> MarkedResource:
    pods = [row] if kind is POD else client.members(str(row["id"])) or []
    created = row.get("createdAt")
    return MarkedResource(
        "runpod",
        mark,
        kind.words,
        str(row["id"]),
        str(row["name"]),
        str(row.get("dataCenterId") or ""),
        datetime.fromisoformat(created.replace("Z", "+00:00")) if created else None,
        round(sum(float(pod["cost"]) for pod in pods), 4),
    )
