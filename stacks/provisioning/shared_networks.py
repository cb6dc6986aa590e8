"""Networks that several fleets of a project share: a stack of their own, created before the first fleet and
removed with the last. It is locked, and recovered after a kill, like a fleet's stack."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import partial

from orch.components.deployment import SHARED, SharedNetworks
from orch.stacks.errors import EngineFailed, Interrupted, StackError, StackLocked
from orch.stacks.events.changes import PropertyDrift, find_drift
from orch.stacks.plans.program import shared_program
from orch.stacks.project.project import Project
from orch.stacks.pulumi.leasing import StackFence
from orch.stacks.pulumi.operation import EngineCall, engine
from orch.stacks.pulumi.progress import Listener
from orch.stacks.pulumi.recovery import recover, when_free
from orch.stacks.stack.command import init, plain
from orch.stacks.stack.state import StackExport, StackState, outputs, stacks, unfinished_pins

# The engine's tag on a fleet's stack that names its shared stack, set before that is created.
SHARED_TAG = "orch:shared"


def shared_by(recorded: StackExport | None) -> frozenset[str]:
    """Shared stacks that a fleet uses, by its record: its pins, and those of an interrupted `up`."""
    pins = (outputs(recorded).get("pins") or {}, unfinished_pins(recorded))
    return frozenset(f"{SHARED}{each['network']}" for each in pins if each.get("network"))


def users(project: Project, shared: str, *, without: str) -> tuple[str, ...]:
    """Fleets of the project that use a shared stack now, or are about to; without the fleet `without`."""
    names = (name for name in stacks(project) if "." not in name and name != without)
    fleets = [StackState(project, name) for name in names]
    return tuple(
        fleet.name
        for fleet in fleets
        if shared in shared_by(fleet.recorded) or (not fleet.resources and _tagged_stack(fleet) == shared)
    )


def preview_shared(fleet: StackState, shared: SharedNetworks, run: EngineCall) -> None:
    """Preview the shared stack; `run` collects the events."""
    engine(fleet.sibling(shared.stack), ["preview"], run, shared_program(shared))


def bring_shared(fleet: StackState, shared: SharedNetworks, run: EngineCall, makes: Collection[str]) -> None:
    """Bring the shared stack up for a fleet. `makes`: the backends of its networks. Raises StackError."""
    stack, is_recorded = fleet.sibling(shared.stack), shared.stack in shared_by(fleet.recorded)
    # The tag stands for a fleet that has no other record yet: its own `down` finds the shared stack by it,
    # and the `down` of other fleets keeps that.
    if not fleet.exists:
        init(fleet)
    if not is_recorded:
        plain(fleet, ["stack", "tag", "set", SHARED_TAG, shared.stack])

    def bring() -> None:
        recover(stack, run.listener)
        words, fence = ["up", "--yes", "--skip-preview"], StackFence(stack)
        try:
            engine(stack, words, run, fence.guarded(shared_program(shared), makes))
        except EngineFailed as failed:
            if stack.exists:
                raise fence.refusal(failed) from failed
            # The last fleet that used it has just removed it.
            engine(stack, words, run, StackFence(stack).guarded(shared_program(shared), makes))

    when_free(stack, run.listener, bring)


def release(fleet: StackState, names: frozenset[str], run: EngineCall) -> None:
    """Remove those of these shared stacks that no other fleet uses. Raises StackError."""
    if names and fleet.exists and _tagged_stack(fleet) in names:
        plain(fleet, ["stack", "tag", "rm", SHARED_TAG])
    for name in sorted(names):
        stack = fleet.sibling(name)
        when_free(stack, run.listener, partial(_remove, stack, run, fleet.name))


def _remove(stack: StackState, run: EngineCall, without: str) -> None:
    """Remove a shared stack unless a fleet other than `without` uses it. Its work folder stays: a fleet that
    comes at this moment works in it."""

    def others() -> tuple[str, ...]:
        return users(stack.project, stack.name, without=without)

    def empty_program() -> None:
        """Registers nothing, which removes all; under the lock it sees a fleet that came meanwhile."""
        import pulumi

        if others():
            raise pulumi.RunError("another fleet stands on it")

    if others() or not stack.exists:
        return
    recover(stack, run.listener, removing=True)
    try:
        engine(stack, ["up", "--yes", "--skip-preview"], run, empty_program)
        plain(stack, ["stack", "rm", "--yes"])
    except (StackLocked, Interrupted):
        raise
    except StackError:
        if others() or not stack.exists:
            return  # other fleets use it now, or removed it themselves
        raise


def all_shared(project: Project) -> frozenset[str]:
    """Return all shared stacks of a project, for a fleet whose record names none."""
    return frozenset(name for name in stacks(project) if name.startswith(SHARED))


def drift_shared(fleet: StackState, words: list[str], listener: Listener) -> tuple[PropertyDrift, ...]:
    """The drift that a refresh finds in the shared stacks of a fleet."""
    drifts: list[PropertyDrift] = []
    for name in sorted(shared_by(fleet.recorded)):
        stack = fleet.sibling(name)
        if stack.exists:
            run = EngineCall(listener, planning=True)
            engine(stack, words, run)
            drifts += find_drift(run.events)
    return tuple(drifts)


def _tagged_stack(fleet: StackState) -> str | None:
    """The shared stack that the tag of a fleet names; None for none."""
    try:
        output = plain(fleet, ["stack", "tag", "ls", "--json"]).stdout
    except StackError:
        fleet.invalidate()
        if not fleet.exists:
            return None  # removed meanwhile
        raise
    return json.loads(output or "{}").get(SHARED_TAG)
