"""Repairs the record of a stack: what kills, full disks and hands have done to its files.

A state in files keeps a copy of each of its versions beside itself (`.bak`, `backups/`, `history/`). A state
elsewhere has the versions of its bucket; there only what the engine itself repairs is repaired.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from orch.runner.private import stage_file
from orch.spec.suggest import counted
from orch.stacks.errors import StackError
from orch.stacks.events.notation import name_of
from orch.stacks.project.passphrase import key_file
from orch.stacks.project.project import Project, is_stack_name
from orch.stacks.pulumi.progress import Listener
from orch.stacks.pulumi.recovery import recover
from orch.stacks.record.change_log import NO_CHANGES, logged
from orch.stacks.record.fleets import not_up
from orch.stacks.stack.command import plain
from orch.stacks.stack.leases import refuse_held
from orch.stacks.stack.locks import locks, stack_locked, subject
from orch.stacks.stack.state import StackState, in_plain_files, salt_of, settings_file


@dataclass(frozen=True)
class Copy:
    """An earlier version of a stack's state. `of`: when it was written; `resources`: how many it has."""

    file: Path
    of: datetime
    resources: int

    @property
    def words(self) -> str:
        moment = self.of.strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"{self.file.name} of {moment}, {counted(self.resources, 'resource')}"


@dataclass(frozen=True)
class Damage:
    """Damage of the record of a stack. `copy`: the replacement of a record that cannot be read."""

    stack: str
    found: tuple[str, ...]
    copy: Copy | None = None


def damage_of(stack: StackState) -> Damage:
    """Look at the record of a stack. Changes nothing.

    Raises StackLocked where somebody is at work on it, NoSuchFleet where neither it nor a copy is there,
    StackError where it cannot be read and no copy of it can.
    """
    project, name = stack.project, stack.name
    if not is_stack_name(name):
        raise not_up(project, name)
    held = locks(project, name)
    if alive := [lock for lock in held if not lock.dead]:
        raise stack_locked(name, str(alive[0]))
    found = [f"the lock of {lock}, which is gone" for lock in held]
    checkpoint = project.checkpoint(name)
    broken = None
    if checkpoint is not None and in_plain_files(project, name):
        broken = _broken(checkpoint)
        if broken is not None:
            copies = list(_copies(stack, checkpoint))
            if not copies and not checkpoint.exists():
                raise not_up(project, name)
            if not copies:
                raise StackError(
                    f"the state of {name} cannot be read, and no copy of it is there",
                    where=str(checkpoint),
                    detail=broken,
                    hint="put a backup of your own in its place; without one, move that file away, and "
                    "`orch state import` rebuilds it from what the cloud has",
                    code="ORCH351",
                )
            found.append(f"the state file cannot be read: {broken}")
            return Damage(name, tuple(found), max(copies, key=lambda each: each[0])[1])
    recorded = stack.recorded
    if recorded is None:
        raise not_up(project, name)
    pending = [name_of(each["resource"]["urn"]) for each in recorded.get("pending_operations") or ()]
    if pending:
        found.append(f"operations that were begun and not recorded: {', '.join(sorted(set(pending)))}")
    return Damage(name, tuple(found))


def repair(stack: StackState, damage: Damage, listener: Listener) -> tuple[str, ...]:
    """Repair what a look has found, and what the engine finds wrong in the order of resources; what was done.

    Raises Leased while a move or a rotation holds the state, StackLocked, StackError.
    """
    done: list[str] = []
    refuse_held(stack)
    with logged(stack.project, "state repair", subject(stack.name), listener) as outcome:
        checkpoint = stack.project.checkpoint(stack.name)
        if damage.copy is not None and checkpoint is not None:
            done.append(_restore(checkpoint, damage.copy))
            stack.invalidate()
        before = json.dumps(stack.recorded, sort_keys=True)
        recover(stack, listener)
        plain(stack, ["state", "repair", "--yes"])
        stack.invalidate()
        if json.dumps(stack.recorded, sort_keys=True) != before:
            done.append("what was begun is cleared, and resources are in order")
        elif damage.found and damage.copy is None:
            done.append("locks of processes that are gone are broken")
        outcome.result = "; ".join(done) or NO_CHANGES
    return tuple(done)


def _broken(checkpoint: Path) -> str | None:
    """Return the reason that a state file cannot be read; None if it can."""
    try:
        _resources(checkpoint)
    except FileNotFoundError:
        return "it is not there"
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
    except (KeyError, TypeError, AttributeError):
        return "it is JSON, and no state of the engine"
    return None


def _resources(file: Path) -> list[Any]:
    """Raises OSError, ValueError, KeyError, TypeError, AttributeError."""
    latest = json.loads(file.read_text("utf-8"))["checkpoint"].get("latest") or {}
    resources = latest.get("resources") or []
    if not isinstance(resources, list) or not all(isinstance(each["urn"], str) for each in resources):
        raise TypeError
    return resources


def _copies(stack: StackState, checkpoint: Path) -> Iterator[tuple[tuple[bool, float], Copy]]:
    """Versions that can be read, each with how well it fits: its key is the present one, how late it is."""
    root, project = checkpoint.parents[2], checkpoint.parent.name
    name = re.escape(stack.name)
    places = (
        (checkpoint.parent, rf"{name}\.json\.bak"),
        (root / "backups" / project / stack.name, rf"{name}\.[0-9]+\.json"),
        (root / "history" / project / stack.name, rf"{name}-[0-9]+\.checkpoint\.json"),
    )
    own = _salt_here(stack)
    for folder, pattern in places:
        for file in folder.iterdir() if folder.is_dir() else ():
            if not re.fullmatch(pattern, file.name) or _broken(file) is not None:
                continue
            salt = salt_of(json.loads(file.read_text("utf-8"))["checkpoint"].get("latest"))
            at = file.stat().st_mtime
            copy = Copy(file, datetime.fromtimestamp(at, timezone.utc), len(_resources(file)))
            yield (_fits(stack.project, salt, own), at), copy


def _salt_here(stack: StackState) -> str | None:
    """The salt that this folder last saw the stack have; None when a secrets provider has its key."""
    settings = settings_file(stack.project, stack.name)
    found = yaml.safe_load(settings.read_text("utf-8")) if settings.exists() else None
    return found.get("encryptionsalt") if isinstance(found, dict) else None


def _fits(project: Project, salt: str | None, own: str | None) -> bool:
    """Return True if the key of a copy is at hand. One without a salt is not encrypted by a passphrase."""
    if salt is None:
        return project.secrets_provider is not None
    return salt == own or key_file(project, salt) is not None


def _restore(checkpoint: Path, copy: Copy) -> str:
    """Put a copy in the place of a state file; the broken one stays beside it."""
    mode = checkpoint.stat().st_mode & 0o777 if checkpoint.exists() else 0o600
    if checkpoint.exists():
        checkpoint.replace(checkpoint.with_name(f"{checkpoint.name}.broken"))
    staged = stage_file(checkpoint, copy.file.read_text("utf-8"))
    staged.chmod(mode)
    staged.replace(checkpoint)
    return f"the state file is {copy.words}"
