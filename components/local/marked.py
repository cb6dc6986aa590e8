"""What this machine's Docker holds that bears orch's marks: containers of nodes, and their networks."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any

from orch.components.cloud.marked import MarkedResource
from orch.images.client import connect
from orch.spec.errors import ExitCode, OrchError


class DockerRefused(OrchError):
    """Docker does not remove something."""

    exit_code = ExitCode.PROVISION


MARK = "orch.stack"
"""The label with the mark; what stands for instances of a rehearsal has another kind of value."""


def marked() -> Iterator[MarkedResource]:
    """Raises DockerUnavailable."""
    api = connect().api
    rows = [
        ("container", row, str(row["Names"][0]).lstrip("/"))
        for row in api.containers(all=True, filters={"label": MARK})
    ]
    rows += [("network", row, str(row["Name"])) for row in api.networks(filters={"label": MARK})]
    for kind, row, name in rows:
        mark = str(row["Labels"][MARK])
        if mark.count("/") >= 2:
            yield MarkedResource("local", mark, kind, name, name, "", _time(row.get("Created")), 0.0)


def _time(created: Any) -> datetime | None:
    """Containers tell seconds since the epoch, networks a text."""
    if isinstance(created, int):
        return datetime.fromtimestamp(created).astimezone()
    return None


def remove_marked(marks: Collection[str], recorded: Collection[str]) -> Iterator[str]:
    """Remove what has one of these marks and is not recorded, containers first; what went, as it goes.

    Raises DockerUnavailable, DockerRefused."""
    from docker.errors import APIError, NotFound

    client = connect()
    for each in marked():
        if each.mark not in marks or each.id in recorded:
            continue
        try:
            if each.kind == "container":
                client.containers.get(each.id).remove(force=True, v=True)
            else:
                client.networks.get(each.id).remove()
        except NotFound:  # gone meanwhile
            continue
        except APIError as error:
            raise DockerRefused(
                f"the {each.kind} {each.id} cannot be removed", detail=str(error.explanation or error)
            ) from error
        yield f"{each.kind} {each.id}"
