"""Clearing a Crusoe project of what a call that did not end made and nobody recorded.

Crusoe has no labels: names of what orch makes end in a digest of their stack's mark, and in one of what was
asked for. Whose something is can be told of stacks that are known; a mark cannot be read from its digest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime

from orch.components.cloud.marked import MarkedResource, Price, Survey, stack_digest, survey_of
from orch.components.cloud.orphans import StackSnapshot
from orch.components.cloud.rest.client import Row
from orch.components.crusoe.account.client import (
    DISK,
    INSTANCE,
    NETWORK,
    PARTITION,
    RULE,
    SUBNET,
    CrusoeClient,
    Kind,
)

# What is used by others comes after them.
ORDER = (INSTANCE, DISK, PARTITION, RULE, SUBNET, NETWORK)
_NAME = re.compile(r"orch-.+-(?P<stack>[0-9a-f]{8})-[0-9a-f]{6}")

WAIT_S = 1200.0


def _marked(client: CrusoeClient, kind: Kind, marks: frozenset[str]) -> Iterator[tuple[str, Row]]:
    """All of a kind that bear one of these marks, each with it."""
    by_digest = {stack_digest(mark): mark for mark in marks}
    for row in client.all(kind):
        found = _NAME.fullmatch(str(row["name"]))
        if found is not None and found["stack"] in by_digest:
            yield by_digest[found["stack"]], row


def delete_orphans(snapshot: StackSnapshot, connect: Callable[[], CrusoeClient]) -> Iterator[str]:
    """Remove what is not recorded; what was removed, each as it goes. Raises CrusoeRefused."""
    own = snapshot.of("orch-crusoe:")
    marks = frozenset(str(each.inputs["mark"]) for each in own if "mark" in each.inputs) | snapshot.marks
    if not marks:
        return
    client = connect()
    for kind in ORDER:
        snapshot.still_held()
        for _, row in list(_marked(client, kind, marks)):
            resource = str(row["id"])
            if resource not in snapshot.ids:
                client.remove(kind, resource, for_s=WAIT_S)
                yield f"{row['name']} ({resource})"


def survey(client: CrusoeClient, project: str, marks: frozenset[str], price: Price) -> Survey:
    """What these stacks have in the project that the login is of."""
    found = [
        _resource(kind, mark, row, client.project, price)
        for kind in ORDER
        for mark, row in _marked(client, kind, marks)
    ]
    return survey_of(project, found)


def _resource(kind: Kind, mark: str, row: Row, project: str, price: Price) -> MarkedResource:
    created = row.get("created_at")
    location = str(row.get("location") or "")
    return MarkedResource(
        "crusoe",
        mark,
        kind.words,
        str(row["id"]),
        str(row["name"]),
        location or project,
        datetime.fromisoformat(str(created).replace("Z", "+00:00")) if created else None,
        price(str(row["type"]), location, False) if kind is INSTANCE else None if kind is DISK else 0.0,
    )
