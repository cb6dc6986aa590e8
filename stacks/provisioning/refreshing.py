"""Drift of a fleet's stack: found, or recorded."""

from __future__ import annotations

from orch.components.idleness import resources_of
from orch.spec.suggest import counted
from orch.stacks.events.changes import PropertyDrift, find_drift
from orch.stacks.plans.request import ended_nodes_if_told
from orch.stacks.project.project import Project
from orch.stacks.provisioning.shared_networks import drift_shared
from orch.stacks.pulumi.accounts import require_own
from orch.stacks.pulumi.operation import EngineCall, engine
from orch.stacks.pulumi.progress import Activity, Listener
from orch.stacks.pulumi.recovery import recover, repair_files
from orch.stacks.record.change_log import NO_CHANGES, logged
from orch.stacks.record.fleets import require_up
from orch.stacks.stack.leases import refuse_leased
from orch.stacks.stack.state import StackState


def drift(project: Project, name: str, listener: Listener) -> tuple[PropertyDrift, ...]:
    """Find what differs from the record, but for nodes that ended themselves.

    Changes nothing, takes no lock. Raises NoSuchFleet, StackError.
    """
    stack = StackState(project, name)
    require_up(stack)
    project.prepare()
    repair_files(project, name)
    ended = ended_nodes_if_told(stack)
    run = EngineCall(listener, planning=True)
    words = ["refresh", "--preview-only"]
    listener(Activity(f"the engine refreshes the fleet {name}"))
    shared = drift_shared(stack, words, listener)
    engine(stack, words, run)
    return _found(run, shared, ended)


def refresh(project: Project, name: str, listener: Listener) -> tuple[PropertyDrift, ...]:
    """Record the real values and return what differed; the next `up` repairs it.

    Raises NoSuchFleet, Conflict, StackError.
    """
    stack = StackState(project, name)
    require_up(stack)
    project.prepare()
    refuse_leased(stack)
    require_own(stack)
    recover(stack, listener)
    ended = ended_nodes_if_told(stack)
    run = EngineCall(listener, planning=True)
    words = ["refresh", "--yes", "--skip-preview"]
    listener(Activity(f"the engine refreshes the fleet {name}"))
    with logged(project, "refresh", f"fleet {name}", listener) as outcome:
        shared = drift_shared(stack, words, listener)
        engine(stack, words, run)
        found = _found(run, shared, ended)
        outcome.result = f"{counted(len(found), 'difference')} recorded" if found else NO_CHANGES
    return found


def _found(
    run: EngineCall, shared: tuple[PropertyDrift, ...], ended: frozenset[str]
) -> tuple[PropertyDrift, ...]:
    """What a refresh found. That a node ended itself is no drift."""
    gone = resources_of(ended)
    return (*shared, *(each for each in find_drift(run.events) if each.name not in gone))
