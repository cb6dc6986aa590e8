"""The variables (`env`) of a fleet and of its hosts in the state: one secret output beside the fleet's.

The output `fleet` says no value of them, so that who lists nodes, logs in or looks for drift needs no key;
the output `env` holds all of them, encrypted, and only a run asks for it. Former versions wrote them into
`fleet`, in clear.
"""

from __future__ import annotations

import gzip
import json
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from orch.runner.private import stage_file
from orch.spec.state import FleetState
from orch.stacks.project import Project
from orch.stacks.pulumi.masking import is_secret
from orch.stacks.state import StackExport, StackState, secret_output

REMOVED = "(removed)"
"""What stands in old copies of a state where a value stood in clear."""

State = dict[str, Any]

_GZIP, _ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def without_values(state: State) -> State:
    """A fleet's state as the output `fleet` tells it."""
    nodes = [{key: value for key, value in node.items() if key != "env"} for node in state["nodes"]]
    return {**{key: value for key, value in state.items() if key != "env"}, "nodes": nodes}


def values_of(state: State) -> State:
    """What the output `env` holds: variables of the fleet, and of nodes that have their own; {} for none."""
    nodes = {node["name"]: node["env"] for node in state["nodes"] if node.get("env")}
    fleet = state.get("env") or {}
    return {"fleet": fleet, "nodes": nodes} if fleet or nodes else {}


def with_values(state: FleetState, values: Mapping[str, Any]) -> FleetState:
    """The fleet with its variables again."""
    own: Mapping[str, dict[str, str]] = values.get("nodes") or {}
    nodes = tuple(
        node.model_copy(update={"env": own[node.name]}) if node.name in own else node for node in state.nodes
    )
    return state.model_copy(update={"env": values.get("fleet") or state.env, "nodes": nodes})


def revealed(stack: StackState, state: FleetState) -> FleetState:
    """A fleet with its variables decrypted, as jobs are given them.

    Half a second for a fleet that has any; nothing for others. They are not kept on disk. Raises StackError.
    """
    if not stack.outputs.get("env"):
        return state
    secret = secret_output(stack.project, stack.name, "env", "the variables", "--json")
    return with_values(state, json.loads(secret))


def in_clear(recorded: StackExport | None) -> tuple[str, ...]:
    """Names of the variables whose values stand in clear in a recorded state, sorted."""
    return tuple(sorted({name for place in _places(recorded or {}) for name, _ in _readable(place)}))


def forget_clear_text(project: Project, stack: str) -> tuple[Path, ...]:
    """Take such values out of the engine's older copies of a stack (`.bak`, backups, history); those changed.

    The engine keeps them for ever. Only a state in files is ours to change; all else in the copies stays.
    """
    copies = _copies(project, stack)
    return tuple(copy for copy in copies if _forget(copy, private=not project.shares_files))


def unread_copies(project: Project, stack: str) -> tuple[Path, ...]:
    """Copies of which nobody here can say what they hold: compressed in a way that Python does not know."""
    return tuple(copy for copy in _copies(project, stack) if _begins_with(copy, _ZSTANDARD))


def _copies(project: Project, stack: str) -> list[Path]:
    """What the engine keeps of a stack in files beside its state: the one before, what it was told to retain
    (PULUMI_DIY_BACKEND_RETAIN_CHECKPOINTS), backups and history; each may be compressed."""
    checkpoint, state = project.checkpoint(stack), project.local_state
    if checkpoint is None or state is None:
        return []
    older = re.compile(rf"{re.escape(checkpoint.name)}(\.gz|\.zst)?\.(bak|\d+)")
    beside = checkpoint.parent.iterdir() if checkpoint.parent.is_dir() else ()
    copies = sorted(file for file in beside if older.fullmatch(file.name))
    for kept in ("backups", "history"):
        folder = state / ".pulumi" / kept / project.name / stack
        copies += sorted(
            file for file in folder.glob("*.json*") if not file.name.endswith((".attrs", ".tmp"))
        )
    return copies


def _begins_with(file: Path, mark: bytes) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(len(mark)) == mark
    except OSError:
        return False  # gone meanwhile


def _forget(copy: Path, *, private: bool) -> bool:
    packed = _begins_with(copy, _GZIP)
    try:
        mode = 0o600 if private else stat.S_IMODE(copy.stat().st_mode)
        read = copy.read_bytes()
        data = json.loads(gzip.decompress(read) if packed else read)
        places = [place for place in _places(_latest(data)) if list(_readable(place))]
    except (OSError, EOFError, zlib.error, ValueError, AttributeError):
        return False  # not there, or no state
    if not places:
        return False
    for place in places:
        place.update({name: REMOVED for name, _ in _readable(place)})
    text = json.dumps(data).encode()
    staged = stage_file(copy, gzip.compress(text) if packed else text)
    staged.chmod(mode)
    copy.with_name(f"{copy.name}.attrs").unlink(missing_ok=True)  # its digest; the engine does without
    staged.replace(copy)
    return True


def _latest(data: Any) -> StackExport:
    found = data.get("checkpoint") or {}
    return found.get("latest") or {}


def _places(recorded: StackExport) -> Iterator[dict[str, Any]]:
    """Where a state may hold variables: the output `fleet` of its stack, and the hosts of an SSH fleet."""
    for resource in recorded.get("resources") or ():
        found = resource.get("outputs") or {}
        if resource["type"] == "pulumi:pulumi:Stack":
            fleet = found.get("fleet") or {}
            yield from _maps(fleet, *(fleet.get("nodes") or ()))
        elif resource["type"] == "orch:ssh:Host":
            yield from _maps(resource.get("inputs"), found)


def _maps(*holders: Any) -> Iterator[dict[str, Any]]:
    for holder in holders:
        if isinstance(holder, dict):
            found = cast("dict[str, Any]", holder).get("env")
            if isinstance(found, dict):
                yield cast("dict[str, Any]", found)


def _readable(place: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Variables of a place that anybody can read: an encrypted one is a mapping, or the whole place is."""
    if is_secret(place):
        return
    for name, value in place.items():
        if isinstance(value, str) and value != REMOVED:
            yield name, value
