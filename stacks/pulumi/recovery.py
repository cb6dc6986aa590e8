"""Clearing up after a process that was killed: its lock, and what it had begun to create."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from orch.components.cloud.orphans import RecordedResource, StackSnapshot
from orch.components.registry import delete_orphans, may_have_orphans
from orch.stacks.project import COMPRESSED, Project
from orch.stacks.pulumi.changes import name_of
from orch.stacks.pulumi.locks import claim, held_by, locks
from orch.stacks.pulumi.operation import Listener, Note, plain, while_held
from orch.stacks.state import StackExport, StackState

# How often a stack is read anew because somebody has changed it meanwhile.
TRIES = 5

# What the engine calls a secret by.
SECRET = "4dabf18193072939515e22adb298388d"

_PACKED = "|".join(map(re.escape, COMPRESSED))


def take(stack: StackState, listener: Listener, *, removing: bool = False) -> None:
    """Clear what a killed process left: its lock, and creations it had begun.

    Creations of ours repeat without making a second one, so `up` only forgets that they were begun. Before a
    removal they are recorded as made (our ids are the names they were asked for by), so that they are removed
    too. Those of a cloud would be made twice: what is there of them and not recorded is removed.

    What is under way looks the same as what was killed. So it is looked at once more, and removed, while the
    engine holds the stack: nobody can be at work on it then, wherever its state is kept. Raises Held when
    somebody is.
    """
    broken = claim(stack.project, stack.name)
    mend(stack.project, stack.name)
    if broken:
        stack.changed()
    for lock in broken:
        listener(Note(f"broke the lock that {lock} had left: that process is gone"))
    for _ in range(TRIES):
        recorded = stack.recorded
        pending = (recorded or {}).get("pending_operations") or []
        if recorded is None or not (pending or (broken and recorded.get("resources"))):
            return
        whole = _cleared(stack, None, listener)
        if not whole["deployment"].get("pending_operations"):
            return
        # Nobody has changed it since it was held. Who did so from here on would have to begin and to end
        # before the engine takes the lock again to record this.
        if same(_exported(stack)["deployment"], whole["deployment"]):
            names = ", ".join(_taken_up(whole["deployment"], removing=removing))
            plain(stack, ["stack", "import"], stdin=json.dumps(whole))
            listener(Note(f"an earlier call was killed while changing {names}: taking it up again"))
            return
    raise held_by(stack.name, "somebody who changes it again and again")


def clear_left(stack: StackState, listener: Listener, before: StackSnapshot | None = None) -> None:
    """Remove what is in the clouds of a stack and not recorded, while the engine holds it.

    `before`: what was recorded before a removal, which tells what to look for after it. Raises Held, and what
    asking the cloud raises."""
    crash = left_by(stack.recorded, stack.project)
    if may_have_orphans(before.before(crash) if before else crash):
        _cleared(stack, before, listener)


def _cleared(stack: StackState, before: StackSnapshot | None, listener: Listener) -> dict[str, Any]:
    """Remove what is not recorded of a stack, while it is held; its state as it was then."""

    def clean(still_held: Callable[[], None]) -> tuple[dict[str, Any], tuple[str, ...]]:
        whole = _exported(stack)
        found = left_by(whole["deployment"], stack.project)
        crash = replace(before.before(found) if before else found, still_held=still_held)
        return whole, delete_orphans(crash)

    whole, gone = while_held(stack, clean, listener)
    if gone:
        listener(Note(f"removed what an earlier call had made and not recorded: {', '.join(gone)}"))
    return whole


def same(one: StackExport, other: StackExport) -> bool:
    """Whether two readings of a stack's state say the same.

    Who holds a stack writes when it was held, and may encrypt anew what is secret."""
    return all(_open(one.get(part)) == _open(other.get(part)) for part in ("resources", "pending_operations"))


def _open(value: Any) -> Any:
    if isinstance(value, dict):
        found: dict[str, Any] = value
        if SECRET in found:
            return SECRET
        return {key: _open(each) for key, each in found.items()}
    return [_open(each) for each in value] if isinstance(value, list) else value or None


def _exported(stack: StackState) -> dict[str, Any]:
    return json.loads(plain(stack, ["stack", "export"]).stdout)


def _taken_up(whole: dict[str, Any], *, removing: bool) -> list[str]:
    """Forget in a state what was begun, or before a removal take that as made; the names of it."""
    begun = whole.pop("pending_operations")
    if removing:
        known = {resource["urn"] for resource in whole["resources"]}
        whole["resources"] += [
            {**resource, "id": resource["inputs"]["name"], "outputs": resource["inputs"]}
            for resource in (o["resource"] for o in begun if o["type"] == "creating")
            if resource["urn"] not in known and resource["type"].startswith(("orch:local:", "orch:ssh:"))
        ]
    return sorted({name_of(operation["resource"]["urn"]) for operation in begun})


def mend(project: Project, stack: str) -> None:
    """Make the files of a stack readable again, unless somebody is at work on them.

    The engine writes a state and its attributes as two files; a kill between leaves the second one empty, and
    then it refuses to read the first (measured). It does without attributes.
    """
    left = _half_written(project, stack)
    # In this order: whose file is seen half written holds the stack until it is whole, and its name is drawn
    # for each writing. An engine that begins only now makes no file that is on the list but attributes.
    if not left or any(not lock.dead for lock in locks(project, stack)):
        return
    for file in left:
        file.unlink(missing_ok=True)


def _half_written(project: Project, stack: str) -> list[Path]:
    """What an engine that writes the state of a stack has not ended, dead or at work."""
    checkpoint = project.checkpoint(stack)
    if checkpoint is None or not checkpoint.parent.is_dir():
        return []
    ours = re.compile(rf"{re.escape(stack)}\.json({_PACKED})?((\.bak)?(?P<empty>\.attrs)|\.[0-9a-f]+\.tmp)")
    found: list[Path] = []
    for file in checkpoint.parent.iterdir():
        if match := ours.fullmatch(file.name):
            with suppress(FileNotFoundError):  # whole, or gone, just now
                if not match["empty"] or not file.stat().st_size:
                    found.append(file)
    return found


def left_by(recorded: StackExport | None, project: Project) -> StackSnapshot:
    """What a call that did not end may have left: what a stack records, and what was being created."""
    recorded = recorded or {}
    known = [_recorded(each) for each in recorded.get("resources") or ()]
    begun = [
        replace(_recorded(operation["resource"]), id=None)
        for operation in recorded.get("pending_operations") or ()
        if operation["type"] == "creating"
    ]
    return StackSnapshot(tuple(known), tuple(begun), project.backends, project.session)


def _recorded(resource: dict[str, Any]) -> RecordedResource:
    return RecordedResource(
        resource["type"], name_of(resource["urn"]), resource.get("id") or None, resource.get("inputs") or {}
    )
