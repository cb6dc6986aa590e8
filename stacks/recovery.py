"""Clearing up after a process that was killed: its lock, and what it had begun to create."""

from __future__ import annotations

import json

from orch.stacks.calls import Listener, Note, plain
from orch.stacks.changes import name_of
from orch.stacks.locks import claim
from orch.stacks.project import Project
from orch.stacks.states import deployment


def take(project: Project, stack: str, listener: Listener, *, removing: bool = False) -> None:
    """Clear what a killed process left: its lock, and creations it had begun.

    Creations of ours repeat without making a second one, so `up` only forgets that they were begun. Before a
    removal they are recorded as made (our ids are the names they were asked for by), so that they are removed
    too.
    """
    for lock in claim(project, stack):
        listener(Note(f"broke the lock that {lock} had left: that process is gone"))
    recorded = deployment(project, stack)
    pending = (recorded or {}).get("pending_operations") or []
    if not pending:
        return
    names = ", ".join(sorted(name_of(operation["resource"]["urn"]) for operation in pending))
    exported = json.loads(plain(project, stack, ["stack", "export"]).stdout)
    whole = exported["deployment"]
    begun = [o["resource"] for o in whole.pop("pending_operations") if o["type"] == "creating"]
    if removing:
        known = {resource["urn"] for resource in whole["resources"]}
        whole["resources"] += [
            {**resource, "id": resource["inputs"]["name"], "outputs": resource["inputs"]}
            for resource in begun
            if resource["urn"] not in known
            and resource["type"].startswith("orch:")
            and resource.get("custom")
        ]
    plain(project, stack, ["stack", "import"], stdin=json.dumps(exported))
    listener(Note(f"an earlier call was killed while changing {names}: taking it up again"))
