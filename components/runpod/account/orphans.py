"""Clearing a RunPod account of what a call that did not end made and nobody recorded.

RunPod has no labels: the name of a pod or a cluster ends in a digest of its stack's mark. Whose it is can be
told of stacks that are known; a mark cannot be read from its digest. Network volumes hold data, and stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from orch.components.cloud.marked import MarkedResource, Survey, survey_of
from orch.components.cloud.orphans import StackSnapshot
from orch.components.runpod.account.client import CLUSTER, POD, Kind, Row, RunpodClient
from orch.components.runpod.plan import CLOUD_NAME, stack_digest

KINDS = (CLUSTER, POD)


def _marked(client: RunpodClient, kind: Kind, marks: frozenset[str]) -> Iterator[tuple[str, Row]]:
    """All of a kind that bear one of these marks, each with it."""
    by_digest = {stack_digest(mark): mark for mark in marks}
    for row in client.all(kind):
        found = CLOUD_NAME.fullmatch(row["name"])
        if found is not None and found["stack"] in by_digest:
            yield by_digest[found["stack"]], row


def delete_orphans(snapshot: StackSnapshot, connect: Callable[[], RunpodClient]) -> Iterator[str]:
    """Remove what is not recorded; what was removed, each as it goes. Raises RunpodRefused."""
    own = snapshot.of("orch-runpod:")
    marks = frozenset(str(each.inputs["mark"]) for each in own if "mark" in each.inputs) | snapshot.marks
    if not marks:
        return
    client = connect()
    for kind in KINDS:
        snapshot.still_held()
        for _, row in list(_marked(client, kind, marks)):
            if str(row["id"]) not in snapshot.ids:
                client.delete(kind, str(row["id"]))
                yield f"{row['name']} ({row['id']})"


def survey(client: RunpodClient, project: str, marks: frozenset[str]) -> Survey:
    """The pods and clusters of these stacks."""
    found = [
        _resource(kind, mark, row, client) for kind in KINDS for mark, row in _marked(client, kind, marks)
    ]
    return survey_of(project, found)


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
