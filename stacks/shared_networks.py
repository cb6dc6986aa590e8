"""What several fleets of a project stand on: a stack of its own, made before the first of them and removed
with the last. It is locked, and cleared after a kill, as a fleet's stack is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

from orch.components.deployment import SHARED, Shared
from orch.stacks.errors import EngineFailed, Held, Interrupted, StackError
from orch.stacks.program import shared_program
from orch.stacks.project import Project
from orch.stacks.pulumi.changes import Drifted, drifted
from orch.stacks.pulumi.operation import Call, Listener, Note, engine, plain
from orch.stacks.pulumi.recovery import take
from orch.stacks.state import StackExport, begun, deployment, outputs, stacks

# Others hold it while networks are made, for a minute or two.
PATIENCE_S = 300.0
PAUSE_S = 1.0

# The engine's tag on a fleet's stack: what it stands on, from before that is made.
WANTED = "orch:shared"


def shared_by(recorded: StackExport | None) -> frozenset[str]:
    """Stacks that a fleet stands on, by its record: as it is, and as an `up` that did not end wanted it."""
    pins = (outputs(recorded).get("pins") or {}, begun(recorded))
    return frozenset(f"{SHARED}{each['network']}" for each in pins if each.get("network"))


def users(project: Project, stack: str) -> tuple[str, ...]:
    """Fleets of the project that stand on it, or are about to."""
    fleets = {name: deployment(project, name) for name in stacks(project) if not name.startswith(SHARED)}
    return tuple(
        name
        for name, recorded in fleets.items()
        if stack in shared_by(recorded)
        or (not (recorded or {}).get("resources") and _wanted(project, name) == stack)
    )


def preview_shared(project: Project, shared: Shared, run: Call) -> None:
    """What bringing it up would do, as events of `run`."""
    engine(project, shared.stack, ["preview"], run, shared_program(shared))


def bring_shared(project: Project, fleet: str, shared: Shared, run: Call) -> None:
    """Bring it up for a fleet. Raises StackError."""
    recorded = deployment(project, fleet)
    # A fleet of which nothing else is recorded yet: its `down` finds what was made for it, and the `down` of
    # others leaves that.
    if recorded is None:
        provider = ["--secrets-provider", project.secrets_provider] if project.secrets_provider else []
        plain(project, fleet, ["stack", "init", *provider])
    if shared.stack not in shared_by(recorded):
        plain(project, fleet, ["stack", "tag", "set", WANTED, shared.stack])

    def bring() -> None:
        take(project, shared.stack, run.listener)
        words = ["up", "--yes", "--skip-preview"]
        try:
            engine(project, shared.stack, words, run, shared_program(shared))
        except EngineFailed:
            if deployment(project, shared.stack) is not None:
                raise
            # Its last fleet has just removed it.
            engine(project, shared.stack, words, run, shared_program(shared))

    _in_turn(shared.stack, run.listener, bring)


def release(project: Project, names: frozenset[str], run: Call, *, without: str) -> None:
    """Remove those of these stacks that no fleet but `without` stands on. Raises StackError."""
    if names and deployment(project, without) is not None and _wanted(project, without) in names:
        plain(project, without, ["stack", "tag", "rm", WANTED])
    for stack in sorted(names):
        _in_turn(stack, run.listener, partial(_remove, project, stack, run, without))


def _remove(project: Project, stack: str, run: Call, without: str) -> None:
    """Remove it unless a fleet but `without` stands on it. Its work folder stays: a fleet that comes at this
    moment is at work there."""

    def others() -> set[str]:
        return set(users(project, stack)) - {without}

    def nothing() -> None:
        """What the engine runs while it holds the stack: a fleet that has come meanwhile is seen here."""
        import pulumi

        if others():
            raise pulumi.RunError("another fleet stands on it")

    if others() or deployment(project, stack) is None:
        return
    take(project, stack, run.listener, removing=True)
    try:
        engine(project, stack, ["up", "--yes", "--skip-preview"], run, nothing)
        plain(project, stack, ["stack", "rm", "--yes"])
    except (Held, Interrupted):
        raise
    except StackError:
        if others() or deployment(project, stack) is None:
            return  # others have come, or have removed it themselves
        raise


def unused(project: Project) -> frozenset[str]:
    """All stacks for sharing, for a fleet that is not known to stand on one."""
    return frozenset(name for name in stacks(project) if name.startswith(SHARED))


def drift_shared(project: Project, fleet: str, words: list[str], listener: Listener) -> tuple[Drifted, ...]:
    """What a refresh finds of the stacks that a fleet stands on."""
    found: list[Drifted] = []
    for stack in sorted(shared_by(deployment(project, fleet))):
        if deployment(project, stack) is not None:
            run = Call(listener, planning=True)
            engine(project, stack, words, run)
            found += drifted(run.events)
    return tuple(found)


def _wanted(project: Project, fleet: str) -> str | None:
    """The stack that was made for a fleet which may have no record of it yet."""
    try:
        told = plain(project, fleet, ["stack", "tag", "ls", "--json"]).stdout
    except StackError:
        if deployment(project, fleet) is None:
            return None  # gone meanwhile
        raise
    return json.loads(told or "{}").get(WANTED)


def _in_turn(stack: str, listener: Listener, change: Callable[[], None]) -> None:
    """Change a stack; another fleet's `up` or `down` that is at work on it is waited for."""
    ends, told = time.monotonic() + PATIENCE_S, False
    while True:
        try:
            return change()
        except Held as held:
            if time.monotonic() > ends:
                raise
            if not told:
                listener(Note(f"waiting for {stack}: {held.where}", lasts=True))
                told = True
            time.sleep(PAUSE_S)
