"""The variables (`env`) of a fleet and of its hosts in the state: one secret output beside the fleet's.

The output `fleet` has none of their values, so that listing nodes, logins and drift need no key; the output
`env` holds all of them, encrypted, and only a run reads it. Former versions wrote them into `fleet`, in clear
text.
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
from orch.stacks.events.masking import is_secret
from orch.stacks.project.project import Project
from orch.stacks.pulumi.progress import Listener, Note
from orch.stacks.stack.state import StackExport, StackState, known, secret_output

REMOVED = "(removed)"
"""Replaces a value that an old copy of a state had in clear text."""

State = dict[str, Any]

_GZIP, _ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def without_values(state: State) -> State:
    """A fleet's state for the output `fleet`: without variables."""
    nodes = [{key: value for key, value in node.items() if key != "env"} for node in state["nodes"]]
    return {**{key: value for key, value in state.items() if key != "env"}, "nodes": nodes}


def values_of(state: State) -> State:
    """The output `env`: variables of the fleet, and of nodes that have their own; {} for none."""
    nodes = {node["name"]: node["env"] for node in state["nodes"] if node.get("env")}
    fleet = state.get("env") or {}
    return {"fleet": fleet, "nodes": nodes} if fleet or nodes else {}


def with_values(state: FleetState, values: Mapping[str, Any]) -> FleetState:
    """The fleet with its variables, from the output `env`."""
    own: Mapping[str, dict[str, str]] = values.get("nodes") or {}
    nodes = tuple(
        node.model_copy(update={"env": own[node.name]}) if node.name in own else node for node in state.nodes
    )
    return state.model_copy(update={"env": values.get("fleet") or state.env, "nodes": nodes})


def with_variables(stack: StackState, state: FleetState) -> FleetState:
    """A fleet with its variables decrypted, as jobs get them.

    Takes half a second for a fleet that has any; nothing for others. Never writes them to disk. Raises
    StackError.
    """
    if not stack.outputs.get("env"):
        return state
    secret = secret_output(stack.project, stack.name, "env", "the variables", "--json")
    return with_values(state, json.loads(secret))


def clear_text_names(recorded: StackExport | None) -> tuple[str, ...]:
    """Names of the variables whose values a recorded state has in clear text, sorted."""
    return tuple(sorted({name for env in _env_mappings(recorded or {}) for name, _ in _readable(env)}))


def remove_clear_text(project: Project, stack: str) -> tuple[Path, ...]:
    """Remove such values from the engine's older copies of a stack (`.bak`, backups, history).

    Returns the files it changed. The engine keeps copies for ever. Only a state in files can be changed; all
    else in the copies stays.
    """
    copies = _copies(project, stack)
    return tuple(copy for copy in copies if _remove_values(copy, private=not project.shares_files))


def unreadable_copies(project: Project, stack: str) -> tuple[Path, ...]:
    """Copies that are compressed with Zstandard, which this Python cannot read."""
    return tuple(copy for copy in _copies(project, stack) if _begins_with(copy, _ZSTANDARD))


def _copies(project: Project, stack: str) -> list[Path]:
    """The engine's older copies of a stack in files: the previous state, retained ones
    (PULUMI_DIY_BACKEND_RETAIN_CHECKPOINTS), backups and history; each may be compressed."""
    checkpoint, state = project.checkpoint(stack), project.local_state
    if checkpoint is None or state is None:
        return []
    older = re.compile(rf"{re.escape(checkpoint.name)}(\.gz|\.zst)?\.(bak|\d+)")
    files = checkpoint.parent.iterdir() if checkpoint.parent.is_dir() else ()
    copies = sorted(file for file in files if older.fullmatch(file.name))
    for kind in ("backups", "history"):
        folder = state / ".pulumi" / kind / project.name / stack
        copies += sorted(
            file for file in folder.glob("*.json*") if not file.name.endswith((".attrs", ".tmp"))
        )
    return copies


def _begins_with(file: Path, mark: bytes) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(len(mark)) == mark
    except OSError:
        return False  # deleted meanwhile


def _remove_values(copy: Path, *, private: bool) -> bool:
    compressed = _begins_with(copy, _GZIP)
    try:
        mode = 0o600 if private else stat.S_IMODE(copy.stat().st_mode)
        content = copy.read_bytes()
        data = json.loads(gzip.decompress(content) if compressed else content)
        mappings = [env for env in _env_mappings(_latest(data)) if list(_readable(env))]
    except (OSError, EOFError, zlib.error, ValueError, AttributeError):
        return False  # missing, or no state
    if not mappings:
        return False
    for env in mappings:
        env.update({name: REMOVED for name, _ in _readable(env)})
    text = json.dumps(data).encode()
    staged = stage_file(copy, gzip.compress(text) if compressed else text)
    staged.chmod(mode)
    copy.with_name(f"{copy.name}.attrs").unlink(missing_ok=True)  # its digest; the engine works without it
    staged.replace(copy)
    return True


def _latest(data: Any) -> StackExport:
    checkpoint = data.get("checkpoint") or {}
    return checkpoint.get("latest") or {}


def _env_mappings(recorded: StackExport) -> Iterator[dict[str, Any]]:
    """The `env` mappings of a state: in the output `fleet` of its stack, and of the hosts of an SSH fleet."""
    for resource in recorded.get("resources") or ():
        outputs = known(resource.get("outputs") or {})
        if resource["type"] == "pulumi:pulumi:Stack":
            fleet = outputs.get("fleet") or {}
            yield from _env_of(fleet, *(fleet.get("nodes") or ()))
        elif resource["type"] == "orch:ssh:Host":
            yield from _env_of(resource.get("inputs"), outputs)


def _env_of(*holders: Any) -> Iterator[dict[str, Any]]:
    for holder in holders:
        if isinstance(holder, dict):
            env = cast("dict[str, Any]", holder).get("env")
            if isinstance(env, dict):
                yield cast("dict[str, Any]", env)


def _readable(env: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Variables in clear text: an encrypted one is a mapping, or the whole `env` is encrypted."""
    if is_secret(env):
        return
    for name, value in env.items():
        if isinstance(value, str) and value != REMOVED:
            yield name, value


def drop_clear_text(project: Project, name: str, before: StackExport | None, listener: Listener) -> None:
    """Remove variables that a former version recorded in clear text from older copies of the state."""
    names = clear_text_names(before)
    if not names:
        return
    cleaned = remove_clear_text(project, name)
    copies = (
        f"taken out of {len(cleaned)} older copies of it"
        if project.local_state
        else f"its older versions at {project.state_url} still have them"
    )
    if unreadable := unreadable_copies(project, name):
        files = f"{len(unreadable)} that cannot be read here, such as {unreadable[0]}"
        copies += f", but for {files}: delete them"
    listener(
        Note(
            f"warning: a former version wrote {', '.join(names)} in clear into the state; now encrypted, and "
            f"{copies}. Rotate what is secret of it if others could read the state."
        )
    )
