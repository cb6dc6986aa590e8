"""The fleets of a project: those that are up, the FleetState of each, and the file that describes one."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from orch.components.request import whole
from orch.spec.access import Access
from orch.spec.document.text import MAX_BYTES
from orch.spec.grammar.values import shown
from orch.spec.models import Fleet, Volume
from orch.spec.state import SCHEMA, FleetState, NodeState
from orch.spec.suggest import few, hint_for
from orch.stacks.errors import NoSuchFleet, StackError
from orch.stacks.project.project import Project, is_stack_name, project_in
from orch.stacks.record.node_records import is_spot_throughout
from orch.stacks.secrets.identity import KeyNote, key_file, read_note, write_key
from orch.stacks.secrets.key_pairs import public_key
from orch.stacks.stack.state import StackState, deployment, outputs, secret_output, stacks

if TYPE_CHECKING:
    from orch.spec.loader.load import Document, Loaded

Named = TypeVar("Named", Fleet, Volume)
_FLEET = re.compile(r"""\btype["']?\s*:\s*["']?fleet\b""")
SKIPPED_FOLDERS = {".git", ".orch", ".venv", "node_modules", "__pycache__"}


def known_fleets(project: Project) -> dict[str, StackState]:
    """The fleets that are up in this project, by name, sorted; reads the state of each."""
    # Stacks with a dot in their name are no fleets: shared networks, secrets.
    states = {name: StackState(project, name) for name in stacks(project) if "." not in name}
    return {name: stack for name, stack in states.items() if "fleet" in stack.outputs}


def is_from_former_version(stack: StackState) -> bool:
    """Return True if a former version of orch recorded the fleet, under an older schema."""
    fleet = stack.outputs.get("fleet") or {}
    return fleet.get("schema_version", SCHEMA) < SCHEMA


def fleet_state(project: Project, name: str) -> FleetState:
    """A fleet as last brought up; writes its private key under `.orch/keys`.

    Raises NoSuchFleet when it is not up, Conflict when a newer orch wrote its state, StackError.
    """
    return fleet_of(StackState(project, name))


def fleet_of(stack: StackState) -> FleetState:
    """The fleet of a stack. Raises as `fleet_state`."""
    project, name, recorded = stack.project, stack.name, require_up(stack)
    try:
        state = FleetState.model_validate(whole(recorded["fleet"]))
    except ValidationError as error:
        raise StackError(
            f"the recorded state of {name} is not one that orch wrote",
            where=str(project.checkpoint(name) or project.state_url),
            detail=few((f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()), 3),
            hint="`orch up` with its file records it anew",
            code="ORCH351",
        ) from error
    existing = {node["name"] for node in stack.nodes}
    nodes = tuple(node for node in state.nodes if node.name in existing)
    if is_spot_throughout(stack.recorded):
        nodes = tuple(node.model_copy(update={"spot": True}) for node in nodes)
    if recorded.get("identity") is not None:
        identity = str(_identity_file(stack, state))
        nodes = tuple(_with_access(node, node.access.with_key(identity)) for node in nodes)
    return project.with_routes(
        state.model_copy(
            update={
                # The state has paths of key files relative to the project's root.
                "nodes": tuple(_with_access(node, node.access.located(project.root)) for node in nodes),
                "health": stack.health,
                "queue": None if state.queue is None else state.queue.located(project.root),
                "spares": stack.spares,
            }
        )
    )


def _with_access(node: NodeState, access: Access) -> NodeState:
    return node.model_copy(update={"access": access})


def require_up(stack: StackState) -> dict[str, Any]:
    """The outputs of a fleet's stack. Raises NoSuchFleet when it is not up."""
    if "fleet" not in stack.outputs:
        raise not_up(stack.project, stack.name)
    return stack.outputs


def not_up(project: Project, name: str, *, removing: bool = False) -> NoSuchFleet:
    """The error for a fleet that is not up; `removing`: for one that `down` should remove."""
    others = list(known_fleets(project))
    printable = name if is_stack_name(name) else shown(name)
    ending = ": there is nothing to remove" if removing else ""
    return NoSuchFleet(
        f"the fleet {printable} is not up in this project{ending}",
        where=str(project.root),
        detail=f"up here: {', '.join(others)}" if others else "no fleet is up here",
        hint=_hint_of_other_mode(project, name) or _hint_of_names(name, others, removing=removing),
        code="ORCH353",
    )


def _hint_of_other_mode(project: Project, name: str) -> str | None:
    """A hint when the fleet is up in the rehearsal instead of the real project, or the other way round."""
    if project.rehearsal:
        other, hint = project_in(project.root), "it is up outside the rehearsal: leave `--rehearse` out"
        if other.local_state is None:
            return None  # no request to a state server for the sake of a hint
    else:
        other = replace(project, state_url=f"file://{project.rehearsal_folder / 'state'}")
        hint = "it is up in the rehearsal: add `--rehearse`"
    return hint if "fleet" in outputs(deployment(other, name)) else None


def _hint_of_names(name: str, others: Sequence[str], *, removing: bool) -> str:
    if close := hint_for(name, others):
        return close
    if removing:
        return "name one that is up" if others else "`orch fleet` lists what is up"
    return f"{'name one that is up, or ' if others else ''}bring it up first: `orch up fleet.yml`"


def _identity_file(stack: StackState, state: FleetState) -> Path:
    """The client's private key file.

    Written from the encrypted state when it is missing, belongs to an earlier fleet of this name, or is an
    earlier key of this one: it may have been rotated from another clone.
    """
    project, name = stack.project, stack.name
    machine = state.nodes[0].access.machine if state.nodes else ""
    note, file = KeyNote(machine, public_key(stack.recorded) or ""), key_file(project, name)
    if file.exists() and read_note(project, name) == note:
        return file
    return write_key(project, name, secret_output(project, name, "identity", "the key"), note)


def find_fleet(root: Path, name: str) -> tuple[Document, Fleet]:
    """The one fleet called `name` in the YAML files under `root`.

    Raises NoSuchFleet when there is none, or several.
    """
    return find_model(root, name, Fleet, "fleet")


def find_model(root: Path, name: str, model: type[Named], noun: str) -> tuple[Document, Named]:
    """The one document of a kind with this name in the YAML files under `root`. Raises as `find_fleet`."""
    matches = [each for each in documents_of(root, model, noun) if each[1].name == name]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise NoSuchFleet(
            f"no valid YAML file here describes the {noun} {name}",
            where=str(root),
            hint=f"the stack's name is the {noun}'s: select another stack, or write `name: {name}`",
        )
    raise NoSuchFleet(
        f"{len(matches)} files describe the {noun} {name}",
        where=", ".join(str(document.file.relative_to(root)) for document, _ in matches),
        hint=f"one stack belongs to one {noun}: rename one of them",
    )


def documents_of(root: Path, model: type[Named], noun: str) -> Iterator[tuple[Document, Named]]:
    """The documents of a kind in the valid YAML files under `root`."""
    for _, loaded in _files_with(root, noun):
        if not loaded.failed:
            yield from loaded.of(model)


def described_fleets(root: Path) -> tuple[frozenset[str], tuple[Path, ...]]:
    """The names of all fleets in the YAML files under `root`, and those files with a fleet that have errors;
    other tools' files are none of them. Nobody knows what a file describes that cannot be read, or a link
    that leads nowhere: it counts as one with errors."""
    names: set[str] = set()
    broken: list[Path] = [path for path in _yaml_files(root) if not _is_readable(path)]
    for path, loaded in _files_with(root, "fleet"):
        names.update(each.name for each in loaded.fleets)
        if loaded.failed and _has_fleet(path):
            broken.append(path)
    return frozenset(names), tuple(broken)


def _has_fleet(path: Path) -> bool:
    """Return True if a file's text says that it has a fleet, or the file is gone by now."""
    try:
        return _FLEET.search(path.read_bytes().replace(b"\0", b"").decode(errors="replace")) is not None
    except OSError:
        return True


def _files_with(root: Path, noun: str) -> Iterator[tuple[Path, Loaded]]:
    """The YAML files under `root` that have the word, each with its documents."""
    from orch.spec.document.defaults import Common
    from orch.spec.loader.load import load_paths

    settings = root / "orch.yml"
    common = Common.in_file(str(settings)) if settings.is_file() else None
    for path in _yaml_files(root):
        if _mentions(noun, path):
            yield path, load_paths([path], common=lambda _: common)


def _yaml_files(root: Path) -> list[Path]:
    """The YAML files under `root`, also in folders that links lead to; each folder once."""
    found: list[Path] = []
    seen: set[str] = set()
    for folder, inside, names in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        inside[:] = [] if real in seen else sorted(each for each in inside if each not in SKIPPED_FOLDERS)
        if real not in seen:
            found += [Path(folder, name) for name in names if name.endswith((".yml", ".yaml"))]
        seen.add(real)
    return sorted(found)


def _is_readable(path: Path) -> bool:
    """Return True if the file that a name leads to can be read; a pipe or a device is no file with a
    fleet."""
    try:
        if stat.S_ISREG(path.stat().st_mode):
            path.open("rb").close()
    except OSError:
        return False
    return True


def _mentions(noun: str, path: Path) -> bool:
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return False
        data = path.read_bytes()
    except OSError:
        return False
    return noun.encode() in data or noun.encode("utf-16-le") in data or noun.encode("utf-16-be") in data
