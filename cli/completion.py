"""Names that a shell completes: fleets, runs and nodes of the project here.

A shell asks at each press of a key, so only files of this machine are read: a state or a ledger elsewhere
completes nothing. Completion never fails and never prints a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orch.stacks.project.project import Project

MANY = 200


def fleets(incomplete: str) -> list[str]:
    """Fleets that are up."""
    return _quietly(incomplete, _fleets)


def files_or_fleets(incomplete: str) -> list[str]:
    """Fleets that are up, and YAML files and folders here."""
    return [*_files(incomplete), *fleets(incomplete)]


def fleets_and_runs(incomplete: str) -> list[str]:
    """Return the names that `orch show` takes."""
    return [*fleets(incomplete), *runs(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Runs, the newest first."""
    return _quietly(incomplete, _runs)


def volumes(incomplete: str) -> list[str]:
    """Volumes that are up."""
    return _quietly(incomplete, _volumes)


def nodes(incomplete: str) -> list[str]:
    """Nodes of all fleets."""
    return _quietly(incomplete, _nodes)


def secrets(incomplete: str) -> list[str]:
    """Secrets of the project."""
    return _quietly(incomplete, _secrets)


def _quietly(incomplete: str, list_names: Callable[[Project], Iterable[str]]) -> list[str]:
    from orch.stacks.project.project import find

    try:
        names = dict.fromkeys(list_names(find()))
    except Exception:  # noqa: BLE001 - no name is better than a message amid a line that is being typed
        return []
    return [name for name in names if name.startswith(incomplete)][:MANY]


def _files(incomplete: str) -> list[str]:
    from pathlib import Path

    head = incomplete.rpartition("/")[0] + "/" if "/" in incomplete else ""
    try:
        folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
        entries = [(head + each.name, each) for each in sorted(folder.expanduser().iterdir())]
        return [
            f"{name}/" if each.is_dir() else name
            for name, each in entries
            if name.startswith(incomplete)
            and (each.suffix in (".yml", ".yaml") or each.is_dir())
            and not each.name.startswith(".")
        ][:MANY]
    except (OSError, RuntimeError, ValueError):  # no such folder, no such user, no name of a file
        return []


def _fleets(project: Project) -> Iterable[str]:
    return _plain(project)


def _nodes(project: Project) -> Iterable[str]:
    from orch.stacks.stack.state import existing_nodes

    return [node["name"] for recorded in _plain(project).values() for node in existing_nodes(recorded)]


def _secrets(project: Project) -> Iterable[str]:
    from orch.stacks.secrets.values import known_names

    return sorted(known_names(project, local_only=True) or ())


def _volumes(project: Project) -> Iterable[str]:
    from orch.stacks.record.volumes import volume_names

    return volume_names(project) if project.local_state is not None else ()


def _plain(project: Project) -> dict[str, Any]:
    """Fleets with their states, where these are plain files here that need no engine to read."""
    from orch.stacks.stack.state import deployment, in_plain_files, outputs, stacks

    if project.local_state is None:
        return {}
    states = {name: deployment(project, name) for name in stacks(project) if in_plain_files(project, name)}
    return {name: recorded for name, recorded in states.items() if "fleet" in outputs(recorded)}


def _runs(project: Project) -> Iterable[str]:
    from orch.runner.ledger.ledger import open_ledger

    if project.local_ledger is None or not project.local_ledger.is_file():
        return ()
    ledger = open_ledger(project.ledger_url)
    try:
        return [row.name for row in ledger.runs(limit=MANY)]
    finally:
        ledger.close()
