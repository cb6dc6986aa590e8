"""What several fleets of a project stand on: a stack of its own, made before the first of them and removed
with the last. It is locked, and cleared after a kill, as a fleet's stack is."""

from __future__ import annotations

import shutil
import time

from orch.components.compiled import SHARED, Shared
from orch.stacks.calls import Call, Listener, Note, engine, plain
from orch.stacks.changes import Drifted, drifted
from orch.stacks.errors import Conflict
from orch.stacks.program import shared_program
from orch.stacks.project import Project
from orch.stacks.recovery import take
from orch.stacks.states import Deployment, begun, deployment, outputs, stacks

# Others hold it while networks are made, for a minute or two.
PATIENCE_S = 300.0
PAUSE_S = 1.0


def shared_by(recorded: Deployment | None) -> frozenset[str]:
    """Stacks that a fleet stands on, by its record: as it is, and as an `up` that did not end wanted it."""
    pins = (outputs(recorded).get("pins") or {}, begun(recorded))
    return frozenset(f"{SHARED}{each['network']}" for each in pins if each.get("network"))


def users(project: Project, stack: str) -> tuple[str, ...]:
    """Fleets of the project that stand on it."""
    fleets = (name for name in stacks(project) if not name.startswith(SHARED))
    return tuple(name for name in fleets if stack in shared_by(deployment(project, name)))


def preview_shared(project: Project, shared: Shared, run: Call) -> None:
    """What bringing it up would do, as events of `run`."""
    engine(project, shared.stack, ["preview"], run, shared_program(shared))


def bring_shared(project: Project, fleet: str, shared: Shared, run: Call) -> None:
    """Bring it up for a fleet. Raises StackError."""
    # A fleet of which nothing else is recorded yet: its `down` finds what was made for it.
    if deployment(project, fleet) is None:
        provider = ["--secrets-provider", project.secrets_provider] if project.secrets_provider else []
        plain(project, fleet, ["stack", "init", *provider])
    _take(project, shared.stack, run.listener)
    engine(project, shared.stack, ["up", "--yes", "--skip-preview"], run, shared_program(shared))


def release(project: Project, names: frozenset[str], run: Call, *, without: str) -> None:
    """Remove those of these stacks that no fleet but `without` stands on. Raises StackError."""
    for stack in sorted(names):
        if set(users(project, stack)) - {without} or deployment(project, stack) is None:
            continue
        _take(project, stack, run.listener, removing=True)
        engine(project, stack, ["destroy", "--yes", "--skip-preview"], run)
        plain(project, stack, ["stack", "rm", "--yes"])
        shutil.rmtree(project.dot / "work" / stack, ignore_errors=True)


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


def _take(project: Project, stack: str, listener: Listener, *, removing: bool = False) -> None:
    """As for a fleet; another fleet's `up` or `down` that is at work on it is waited for."""
    ends, told = time.monotonic() + PATIENCE_S, False
    while True:
        try:
            take(project, stack, listener, removing=removing)
            return
        except Conflict as held:
            if time.monotonic() > ends:
                raise
            if not told:
                listener(Note(f"waiting for {stack}: {held.where}"))
                told = True
            time.sleep(PAUSE_S)
