"""Clearing up after a process that was killed: its lock, and what it had begun to create."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from orch.components.backends import clear
from orch.components.crash import Crash, Recorded
from orch.stacks.calls import Listener, Note, plain
from orch.stacks.changes import name_of
from orch.stacks.locks import claim, locks
from orch.stacks.project import Project
from orch.stacks.states import deployment


def take(project: Project, stack: str, listener: Listener, *, removing: bool = False) -> None:
    """Clear what a killed process left: its lock, and creations it had begun.

    Creations of ours repeat without making a second one, so `up` only forgets that they were begun. Before a
    removal they are recorded as made (our ids are the names they were asked for by), so that they are removed
    too. Those of a cloud would be made twice: what is there of them and not recorded is removed.
    """
    broken = claim(project, stack)
    mend(project, stack)
    for lock in broken:
        listener(Note(f"broke the lock that {lock} had left: that process is gone"))
    recorded = deployment(project, stack)
    pending = (recorded or {}).get("pending_operations") or []
    if broken or pending:
        clear_clouds(left_by(project, stack), listener)
    if not pending:
        return
    names = ", ".join(sorted({name_of(operation["resource"]["urn"]) for operation in pending}))
    exported = json.loads(plain(project, stack, ["stack", "export"]).stdout)
    whole = exported["deployment"]
    begun = [o["resource"] for o in whole.pop("pending_operations") if o["type"] == "creating"]
    if removing:
        known = {resource["urn"] for resource in whole["resources"]}
        whole["resources"] += [
            {**resource, "id": resource["inputs"]["name"], "outputs": resource["inputs"]}
            for resource in begun
            if resource["urn"] not in known and resource["type"].startswith(("orch:local:", "orch:ssh:"))
        ]
    plain(project, stack, ["stack", "import"], stdin=json.dumps(exported))
    listener(Note(f"an earlier call was killed while changing {names}: taking it up again"))


def mend(project: Project, stack: str) -> None:
    """Make the files of a stack readable again, unless somebody is at work on them.

    The engine writes a state and its attributes as two files; a kill between leaves the second one empty, and
    then it refuses to read the first (measured). It does without attributes.
    """
    checkpoint = project.checkpoint(stack)
    if checkpoint is None or any(not lock.dead for lock in locks(project, stack)):
        return
    for file in checkpoint.parent.glob(f"{checkpoint.name}*.attrs"):
        if not file.stat().st_size:
            file.unlink(missing_ok=True)
    for file in checkpoint.parent.glob(f"{checkpoint.name}.*.tmp"):
        file.unlink(missing_ok=True)


def left_by(project: Project, stack: str) -> Crash:
    """What a call that did not end may have left: what the stack records, and what was being created."""
    recorded = deployment(project, stack) or {}
    known = [_recorded(each) for each in recorded.get("resources") or ()]
    begun = [
        replace(_recorded(operation["resource"]), id=None)
        for operation in recorded.get("pending_operations") or ()
        if operation["type"] == "creating"
    ]
    return Crash(tuple(known), tuple(begun), project.backends, project.session)


def clear_clouds(crash: Crash, listener: Listener) -> None:
    """Remove what is in the clouds and not recorded; it is told. Raises what asking the cloud raises."""
    gone = clear(crash)
    if gone:
        listener(Note(f"removed what an earlier call had made and not recorded: {', '.join(gone)}"))


def _recorded(resource: dict[str, Any]) -> Recorded:
    return Recorded(
        resource["type"], name_of(resource["urn"]), resource.get("id") or None, resource.get("inputs") or {}
    )
