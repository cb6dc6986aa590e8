"""What several fleets of a project stand on: a stack of its own, made before the first of them and removed
with the last. It is locked, and cleared after a kill, as a fleet's stack is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

from orch.components.deployment import SHARED, SharedNetworks
from orch.stacks.errors import EngineFailed, Interrupted, StackError, StackLocked
from orch.stacks.program import shared_program
from orch.stacks.project import Project
from orch.stacks.pulumi.changes import Drifted, drifted
from orch.stacks.pulumi.operation import EngineCall, Listener, Note, engine, init, plain
from orch.stacks.pulumi.recovery import recover
from orch.stacks.state import StackExport, StackState, begun, outputs, stacks

# Others hold it while networks are made, for a minute or two.
PATIENCE_S = 300.0
PAUSE_S = 1.0

# The engine's tag on a fleet's stack: what it stands on, from before that is made.
WANTED = "orch:shared"


def shared_by(recorded: StackExport | None) -> frozenset[str]:
    """Stacks that a fleet stands on, by its record: as it is, and as an `up` that did not end wanted it."""
    pins = (outputs(recorded).get("pins") or {}, begun(recorded))
    return frozenset(f"{SHARED}{each['network']}" for each in pins if each.get("network"))


def users(project: Project, shared: str, *, without: str) -> tuple[str, ...]:
    """Fleets of the project but `without` that stand on it, or are about to: as it is now."""
    names = (name for name in stacks(project) if not name.startswith(SHARED) and name != without)
    fleets = [StackState(project, name) for name in names]
    return tuple(
        fleet.name
        for fleet in fleets
        if shared in shared_by(fleet.recorded) or (not fleet.resources and _wanted(fleet) == shared)
    )


def preview_shared(fleet: StackState, shared: SharedNetworks, run: EngineCall) -> None:
    """What bringing it up would do, as events of `run`."""
    engine(fleet.beside(shared.stack), ["preview"], run, shared_program(shared))


def bring_shared(fleet: StackState, shared: SharedNetworks, run: EngineCall) -> None:
    """Bring it up for a fleet. Raises StackError."""
    stack, is_recorded = fleet.beside(shared.stack), shared.stack in shared_by(fleet.recorded)
    # A fleet of which nothing else is recorded yet: its `down` finds what was made for it, and the `down` of
    # others leaves that.
    if not fleet.exists:
        init(fleet)
    if not is_recorded:
        plain(fleet, ["stack", "tag", "set", WANTED, shared.stack])

    def bring() -> None:
        recover(stack, run.listener)
        words = ["up", "--yes", "--skip-preview"]
        try:
            engine(stack, words, run, shared_program(shared))
        except EngineFailed:
            if stack.exists:
                raise
            # Its last fleet has just removed it.
            engine(stack, words, run, shared_program(shared))

    _in_turn(stack, run.listener, bring)


def release(fleet: StackState, names: frozenset[str], run: EngineCall) -> None:
    """Remove those of these stacks that no other fleet stands on. Raises StackError."""
    if names and fleet.exists and _wanted(fleet) in names:
        plain(fleet, ["stack", "tag", "rm", WANTED])
    for name in sorted(names):
        stack = fleet.beside(name)
        _in_turn(stack, run.listener, partial(_remove, stack, run, fleet.name))


def _remove(stack: StackState, run: EngineCall, without: str) -> None:
    """Remove it unless a fleet but `without` stands on it. Its work folder stays: a fleet that comes at this
    moment is at work there."""

    def others() -> tuple[str, ...]:
        return users(stack.project, stack.name, without=without)

    def nothing() -> None:
        """What the engine runs while it holds the stack: a fleet that has come meanwhile is seen here."""
        import pulumi

        if others():
            raise pulumi.RunError("another fleet stands on it")

    if others() or not stack.exists:
        return
    recover(stack, run.listener, removing=True)
    try:
        engine(stack, ["up", "--yes", "--skip-preview"], run, nothing)
        plain(stack, ["stack", "rm", "--yes"])
    except (StackLocked, Interrupted):
        raise
    except StackError:
        if others() or not stack.exists:
            return  # others have come, or have removed it themselves
        raise


def unused(project: Project) -> frozenset[str]:
    """All stacks for sharing, for a fleet that is not known to stand on one."""
    return frozenset(name for name in stacks(project) if name.startswith(SHARED))


def drift_shared(fleet: StackState, words: list[str], listener: Listener) -> tuple[Drifted, ...]:
    """What a refresh finds of the stacks that a fleet stands on."""
    found: list[Drifted] = []
    for name in sorted(shared_by(fleet.recorded)):
        stack = fleet.beside(name)
        if stack.exists:
            run = EngineCall(listener, planning=True)
            engine(stack, words, run)
            found += drifted(run.events)
    return tuple(found)


def _wanted(fleet: StackState) -> str | None:
    """The stack that was made for a fleet which may have no record of it yet."""
    try:
        told = plain(fleet, ["stack", "tag", "ls", "--json"]).stdout
    except StackError:
        fleet.changed()
        if not fleet.exists:
            return None  # gone meanwhile
        raise
    return json.loads(told or "{}").get(WANTED)


def _in_turn(stack: StackState, listener: Listener, change: Callable[[], None]) -> None:
    """Change a stack; another fleet's `up` or `down` that is at work on it is waited for."""
    ends, told = time.monotonic() + PATIENCE_S, False
    while True:
        try:
            return change()
        except StackLocked as held:
            stack.changed()
            if time.monotonic() > ends:
                raise
            if not told:
                listener(Note(f"waiting for {stack.name}: {held.where}", lasts=True))
                told = True
            time.sleep(PAUSE_S)
