"""The verbs that remove fleets and volumes, and see to them: down, drift, refresh, unlock."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from orch.cli.context import project_at
from orch.cli.errors import end, print_json, say, tell
from orch.cli.fleets import volumes
from orch.cli.options import FileOrName, Force, Forget, Indices, Json, Owner, Rehearse, Yes
from orch.cli.targets.fleet_files import FleetFile, fleets_at, fleets_of, is_file, stacks_of
from orch.spec.errors import ExitCode, OrchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from orch.stacks.project.project import Project

SCHEMA = 1


def down(
    target: FileOrName,
    *,
    indices: Indices = None,
    yes: Yes = False,
    force: Force = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
    owner: Owner = None,
    forget: Forget = False,
) -> None:
    """Remove a fleet: its nodes, its networks, its state. Existing hosts are left as they were found.

    Nodes that runs are on stay, and the runs are named, unless --force is given. Fleets go before those that
    they depend on. Volumes of the file go last; those that are protected stay.
    """
    source = FleetFile(target, rehearse=rehearse, owner=owner, forget=forget) if is_file(target) else None
    if source is None:
        fleets = [(project_at(rehearse=rehearse, owner=owner, forget=forget), target)]
    else:
        from orch.stacks.plans.waves import in_waves

        stacks = in_waves(*source.read())
        stacks.sort(key=lambda each: -each.wave)
        fleets = [(each.project, each.model.name) for each in stacks if each.fleet is not None]
    remove(target, fleets, indices or (), yes=yes, force=force, as_json=as_json)
    if source and not indices:
        volumes.remove_those_of(source.volumes(), yes=yes, as_json=as_json)


def remove(
    target: str,
    fleets: Iterable[tuple[Project, str]],
    indices: Sequence[int],
    *,
    yes: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Remove fleets, or with `indices` nodes of them. `target`: the file or name that the user typed."""
    from orch.cli.output.plan import counts, plan_json
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal
    from orch.components.file_systems import words_of
    from orch.stacks.provisioning import operations
    from orch.stacks.record.fleets import not_up
    from orch.stacks.stack.state import StackState

    for project, name in fleets:
        if not StackState(project, name).exists:
            if target == name:
                raise not_up(project, name, removing=True)
            # A pipeline may run `down FILE` twice; a mistyped name is an error.
            (tell if as_json else say)(f"fleet {name}: not up, nothing to remove")
            continue
        what = f"node {', '.join(map(str, indices))} of the fleet {name}" if indices else f"the fleet {name}"
        data = () if indices else StackState(project, name).file_systems
        for each in data:
            tell(f"fleet {name}: {words_of(each)} is deleted, and all data on it")
        if not yes:
            need_terminal(f"orch down {target} --yes", project)
            confirm(f"Remove {what} and all that runs on it?")
        with watching(as_json=as_json) as listener:
            if indices:
                result = operations.remove_nodes(project, name, indices, listener, force=force)
            else:
                result = operations.down(project, name, listener, force=force)
        if as_json:
            print_json(plan_json(result))
        else:
            say(f"fleet {name}: {counts(result.changes, done=True)}")


def drift(target: FileOrName, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """List what has changed since the last `up`. Changes nothing.

    Of a folder: one that is not up is left out, and one that cannot be looked at keeps no other from it.
    """
    from orch.stacks.provisioning import operations

    _show_drift(target, operations.drift, as_json=as_json, code=ExitCode.CHANGES, rehearse=rehearse)


def refresh(
    target: FileOrName, as_json: Json = False, rehearse: Rehearse = False, forget: Forget = False
) -> None:
    """Update the state with what is really there. `up` does this by itself."""
    from orch.stacks.provisioning import operations

    _show_drift(
        target, operations.refresh, as_json=as_json, code=ExitCode.OK, rehearse=rehearse, forget=forget
    )


def _show_drift(
    target: str,
    operation: Any,
    *,
    as_json: bool,
    code: ExitCode,
    rehearse: bool = False,
    forget: bool = False,
) -> None:
    source = FleetFile(target, rehearse=rehearse, forget=forget) if is_file(target) else None
    looks: list[tuple[str, Callable[[], bool]]] = []
    record = code == ExitCode.OK
    for each in source.volumes() if source else ():
        look = partial(volumes.drift, [each], as_json=as_json, record=record)
        looks.append((f"volume {each[2].name}", look))
    for project, name in fleets_of(source) if source else fleets_at(target, rehearse=rehearse, forget=forget):
        look = partial(_drift_of, project, name, operation, as_json=as_json)
        looks.append((f"fleet {name}", look))
    found = [_looked(title, look, go_on=os.path.isdir(target)) for title, look in looks]
    failed = next((each for each in found if isinstance(each, OrchError)), None)
    end(failed.exit_code if failed is not None else code if any(found) else ExitCode.OK)


def _looked(title: str, look: Callable[[], bool], *, go_on: bool) -> bool | OrchError:
    """Run a look at drift; return True if it found some. With `go_on`, a stack that is not up has none, and
    an error is told and returned."""
    from orch.stacks.errors import Interrupted, NoSuchFleet

    try:
        return look()
    except NoSuchFleet:
        if not go_on:
            raise
        tell(f"note: {title} is not up")
        return False
    except Interrupted:
        raise
    except OrchError as error:
        if not go_on:
            raise
        tell(error.text())
        return error


def _drift_of(project: Project, name: str, operation: Any, *, as_json: bool) -> bool:
    """Show the drift of a fleet; whether there is any."""
    from orch.cli.output.progress import watching
    from orch.review.tree import drift_lines

    with watching(as_json=as_json) as listener:
        drifts = operation(project, name, listener)
    if as_json:
        print_json({"schema": SCHEMA, "fleet": name, "drift": [item.as_json() for item in drifts]})
        return bool(drifts)
    say(f"fleet {name}: {'drifted' if drifts else 'as registered'}")
    for line in drift_lines(drifts):
        say(line)
    if drifts:
        say("`orch up` mends what it can; `orch up --accept-drift` takes existing hosts as they are")
    return bool(drifts)


def unlock(target: FileOrName, yes: Yes = False, rehearse: Rehearse = False) -> None:
    """Break the lock on a fleet's or volume's state, after showing who holds it and since when."""
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks.provisioning import operations
    from orch.stacks.record.fleets import not_up
    from orch.stacks.record.volumes import STACK, no_such_volume
    from orch.stacks.stack.locks import locks, subject
    from orch.stacks.stack.state import StackState

    for project, name in stacks_of(target, rehearse=rehearse):
        held_locks = locks(project, name)
        if project.local_state is not None and not held_locks:
            if not StackState(project, name).exists:
                volume = name.partition(STACK)[2]
                raise no_such_volume(project, volume) if volume else not_up(project, name)
            say(f"{subject(name)}: nobody holds it")
            continue
        for lock in held_locks:
            tell(f"{subject(name)} is held by {lock}{' (that process is gone)' if lock.dead else ''}")
        if not yes:
            need_terminal(f"orch unlock {target} --yes", project)
            confirm("Break the lock? If its holder is still at work, the state will be damaged.")
        with watching() as listener:
            operations.unlock(project, name, listener)
        say(f"{subject(name)}: unlocked")
