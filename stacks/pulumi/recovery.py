"""Recovery after a killed process: its lock, its half-written files, and the creations it had begun."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from orch.components.marks.orphans import StackSnapshot
from orch.components.registry.orphans import may_have_orphans
from orch.spec.deletable import Call
from orch.stacks.errors import StackLocked
from orch.stacks.events.notation import name_of
from orch.stacks.project.project import Project
from orch.stacks.project.roots import COMPRESSED
from orch.stacks.pulumi.accounts import require_own
from orch.stacks.pulumi.operation import require_confirmed, while_held
from orch.stacks.pulumi.orphans import delete_orphans, killed_call, snapshot_of
from orch.stacks.pulumi.progress import Listener, Note
from orch.stacks.stack.command import plain
from orch.stacks.stack.locks import break_dead_locks, locks, stack_locked
from orch.stacks.stack.state import StackExport, StackState

# Others hold a stack that fleets share while they create networks, for a minute or two.
T = TypeVar("T")

PATIENCE_S = 300.0
PAUSE_S = 1.0

# How often a stack is read again because somebody changed it meanwhile.
TRIES = 5

# The key that marks a secret in the engine's state.
SECRET = "4dabf18193072939515e22adb298388d"

_PACKED = "|".join(map(re.escape, COMPRESSED))


def recover(stack: StackState, listener: Listener, *, removing: bool = False) -> None:
    """Clear what a killed process left: its lock, and the creations it had begun.

    Our own provider repeats a creation without making a second resource, so `up` only drops the pending
    operation. `removing`: pending creations are recorded as made (our ids are the requested names), so that
    the removal covers them. A cloud would create a resource twice: what the killed call created there and did
    not record is deleted. What an older copy of the state does not record stays.

    A call at work looks the same as a killed one. So the state is read again, and resources deleted, while
    the engine holds the stack: nobody else can be at work on it then, wherever its state is. Raises
    StackLocked when somebody is.
    """
    broken = break_dead_locks(stack.project, stack.name)
    repair_files(stack.project, stack.name)
    if broken:
        stack.invalidate()
    for lock in broken:
        listener(Note(f"broke the lock that {lock} had left: that process is gone"))
    for _ in range(TRIES):
        recorded = stack.recorded
        pending = (recorded or {}).get("pending_operations") or []
        if recorded is None or not (pending or (broken and recorded.get("resources"))):
            return
        # What another account lists tells nothing of what the killed call had begun.
        require_confirmed(stack, listener)
        whole = _delete_while_held(stack, None, partial(killed_call, stack, broken=broken), listener)
        if not whole["deployment"].get("pending_operations"):
            return
        # Nobody has changed it since it was held. A change from here on would have to begin and end before
        # the engine takes the lock again to record this.
        if same_state(export(stack)["deployment"], whole["deployment"]):
            names = ", ".join(_settle_pending(whole["deployment"], removing=removing))
            plain(stack, ["stack", "import"], stdin=json.dumps(whole))
            listener(Note(f"an earlier call was killed while changing {names}: continuing it"))
            return
    raise stack_locked(stack.name, "another process that changes it again and again")


def delete_unrecorded(
    stack: StackState, began: float, listener: Listener, before: StackSnapshot | None = None
) -> None:
    """Delete cloud resources of a stack that this call created and did not record, while the engine holds the
    stack. `began`: when the call began, in seconds since the epoch.

    `before`: the record before a removal, which tells what to look for after it. Raises StackLocked, and what
    a request to the cloud raises."""
    snapshot = snapshot_of(stack.recorded, stack.project)
    if may_have_orphans(before.before(snapshot) if before else snapshot):
        call = Call(datetime.fromtimestamp(began, timezone.utc))
        _delete_while_held(stack, before, lambda _: call, listener)


def _delete_while_held(
    stack: StackState,
    before: StackSnapshot | None,
    call_of: Callable[[StackExport], Call | None],
    listener: Listener,
) -> dict[str, Any]:
    """Delete what a call left of a stack while it is held; returns its exported state of that moment."""
    require_own(stack)

    def clean(still_held: Callable[[], None]) -> tuple[dict[str, Any], tuple[str, ...]]:
        whole = export(stack)
        now = snapshot_of(whole["deployment"], stack.project)
        snapshot = before.before(now) if before else now
        snapshot = replace(
            snapshot, still_held=still_held, tell=lambda text: listener(Note(text, lasts=True))
        )
        call = call_of(whole["deployment"])
        return whole, tuple(delete_orphans(stack, snapshot, call, listener))

    whole, deleted = while_held(stack, clean, listener)
    if deleted:
        listener(Note(f"removed what an earlier call had made and not recorded: {', '.join(deleted)}"))
    return whole


def same_state(one: StackExport, other: StackExport) -> bool:
    """Return True if two exports of a stack hold the same resources and pending operations.

    The manifest's time, and secrets that were encrypted again, make no difference."""
    return all(
        _without_ciphertext(one.get(part)) == _without_ciphertext(other.get(part))
        for part in ("resources", "pending_operations")
    )


def _without_ciphertext(value: Any) -> Any:
    if isinstance(value, dict):
        mapping: dict[str, Any] = value
        if SECRET in mapping:
            return SECRET
        return {key: _without_ciphertext(each) for key, each in mapping.items()}
    return [_without_ciphertext(each) for each in value] if isinstance(value, list) else value or None


def export(stack: StackState) -> dict[str, Any]:
    """A stack as the engine has it at this moment."""
    return json.loads(plain(stack, ["stack", "export"]).stdout)


def _settle_pending(whole: dict[str, Any], *, removing: bool) -> list[str]:
    """Drop a state's pending operations, or record them as made before a removal; returns their names."""
    pending = whole.pop("pending_operations")
    if removing:
        known = {resource["urn"] for resource in whole["resources"]}
        whole["resources"] += [
            {**resource, "id": resource["inputs"]["name"], "outputs": resource["inputs"]}
            for resource in (o["resource"] for o in pending if o["type"] == "creating")
            if resource["urn"] not in known and resource["type"].startswith(("orch:local:", "orch:ssh:"))
        ]
    return sorted({name_of(operation["resource"]["urn"]) for operation in pending})


def repair_files(project: Project, stack: str) -> None:
    """Make the files of a stack readable again, unless somebody is at work on them.

    The engine writes a state and its attributes as two files; a kill between the two leaves the second one
    empty, and then the engine refuses to read the first (measured). It works without attributes.
    """
    files = _half_written_files(project, stack)
    # In this order: an engine whose file is listed as half written holds the stack until the file is whole,
    # and draws a new name for each write. An engine that begins only now makes no listed file but attributes.
    if not files or any(not lock.dead for lock in locks(project, stack)):
        return
    for file in files:
        file.unlink(missing_ok=True)


def _half_written_files(project: Project, stack: str) -> list[Path]:
    """State files that an engine, dead or at work, has not finished writing."""
    checkpoint = project.checkpoint(stack)
    if checkpoint is None or not checkpoint.parent.is_dir():
        return []
    pattern = re.compile(
        rf"{re.escape(stack)}\.json({_PACKED})?((\.bak)?(?P<empty>\.attrs)|\.[0-9a-f]+\.tmp)"
    )
    files: list[Path] = []
    for file in checkpoint.parent.iterdir():
        if match := pattern.fullmatch(file.name):
            with suppress(FileNotFoundError):  # finished, or deleted, just now
                if not match["empty"] or not file.stat().st_size:
                    files.append(file)
    return files


def when_free(
    stack: StackState, listener: Listener, change: Callable[[], T], *, patience_s: float | None = None
) -> T:
    """Change a stack, after waiting for another call that holds it. Raises StackLocked."""
    ends, noted = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s), False
    while True:
        try:
            return change()
        except StackLocked as locked:
            stack.invalidate()
            if time.monotonic() > ends:
                raise
            if not noted:
                listener(Note(f"waiting for {stack.name}: {locked.where}", lasts=True))
                noted = True
            time.sleep(PAUSE_S)
