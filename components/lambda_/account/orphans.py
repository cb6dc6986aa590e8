"""Clearing a Lambda account of what a call that did not end made and nobody recorded.

Instances bear their stack's mark as a tag; names of SSH keys and file systems, and descriptions of firewall
rules, spell its scope. So those of stacks that no state knows any more are told too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime

from orch.components.cloud.marked import MarkedResource, Price, Survey, survey_of
from orch.components.cloud.orphans import StackSnapshot
from orch.components.cloud.rest.client import Row
from orch.components.lambda_.account.client import FILE_SYSTEM, INSTANCE, SSH_KEY, Kind, LambdaClient
from orch.components.lambda_.account.names import TAG, is_ours, mark_of

KINDS = (INSTANCE, SSH_KEY, FILE_SYSTEM)
"""What is used by others comes after them."""

WAIT_S = 1200.0
_ELSEWHERE = "another project/-/-"
"""The mark of what is of a project that cannot be told."""


def _mark(kind: Kind, row: Row, project: str, marks: Collection[str]) -> str | None:
    """Whose it is; None where it is not of orch."""
    tags = row.get("tags") or () if kind is INSTANCE else ()
    tagged = next((str(each["value"]) for each in tags if each["key"] == TAG), None)
    name = str(row.get("name") or "")
    if tagged is not None or not is_ours(name):
        return tagged
    return mark_of(name, project, marks) or _ELSEWHERE


def delete_orphans(snapshot: StackSnapshot, connect: Callable[[], LambdaClient]) -> Iterator[str]:
    """Remove what is not recorded, but file systems; what was removed, each as it goes. Raises
    LambdaRefused."""
    own = snapshot.of("orch-lambda:")
    marks = frozenset(str(each.inputs["mark"]) for each in own if "mark" in each.inputs) | snapshot.marks
    if not marks:
        return
    client = connect()
    for kind in (INSTANCE, SSH_KEY):
        snapshot.still_held()
        for row in client.all(kind):
            resource = str(row["id"])
            if _mark(kind, row, "", marks) in marks and resource not in snapshot.ids:
                client.remove(kind, resource, for_s=WAIT_S)
                yield f"{row['name']} ({resource})"
    snapshot.still_held()
    left = {
        name
        for row in client.rules()
        if (name := str(row["description"])) not in snapshot.ids and mark_of(name, "", marks) in marks
    }
    if left:
        client.change_rules(
            lambda rules: [row for row in rules if row["description"] not in left], for_s=WAIT_S
        )
        yield from sorted(left)


def survey(client: LambdaClient, project: str, marks: frozenset[str], price: Price) -> Survey:
    """What the stacks of a project have in the account, and how much is of others."""
    found = [
        _resource(kind, mark, row, price)
        for kind in KINDS
        for row in client.all(kind)
        if (mark := _mark(kind, row, project, marks)) is not None
    ]
    rules = {str(row["description"]) for row in client.rules() if is_ours(str(row["description"]))}
    found += [
        MarkedResource(
            "lambda", mark_of(each, project, marks) or _ELSEWHERE, "firewall rules", each, each, hourly=0.0
        )
        for each in sorted(rules)
    ]
    return survey_of(project, found)


def delete_data(resources: Sequence[MarkedResource], client: LambdaClient) -> Iterator[str]:
    """Delete file systems of a survey. Raises LambdaRefused."""
    for each in resources:
        client.remove(FILE_SYSTEM, each.id, for_s=WAIT_S)
        yield each.name


def _resource(kind: Kind, mark: str, row: Row, price: Price) -> MarkedResource:
    created, region = row.get("created"), str((row.get("region") or {}).get("name") or "")
    return MarkedResource(
        "lambda",
        mark,
        kind.words,
        str(row["id"]),
        str(row["name"]),
        region,
        datetime.fromisoformat(str(created).replace("Z", "+00:00")) if created else None,
        price(str(row["instance_type"]["name"]), region, False)
        if kind is INSTANCE
        else 0.0
        if kind is SSH_KEY
        else None,
        holds_data=kind is FILE_SYSTEM,
        mounted_as=(str(row["name"]),) if kind is FILE_SYSTEM else (),
    )
