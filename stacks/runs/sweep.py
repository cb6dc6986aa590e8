"""Sweeps of recorded fleets: their time is over, nodes ended themselves, or killed calls left something."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass

from orch.components.idleness import resources_of
from orch.components.lifetime import doubt, ends_of, is_over
from orch.runner.ledger.ledger import open_ledger
from orch.runner.node.clock import seconds_of
from orch.runner.runs.pods.admission import remove_leftover_pods
from orch.spec.errors import OrchError
from orch.spec.grammar.hosts import fold
from orch.stacks.errors import Interrupted, StackError
from orch.stacks.events.notation import name_of
from orch.stacks.plans.request import ended_nodes
from orch.stacks.project.project import Project
from orch.stacks.provisioning import operations
from orch.stacks.provisioning.kept_data import is_protected
from orch.stacks.provisioning.nodes_with_runs import kept_words, remove_unused
from orch.stacks.pulumi.operation import EngineCall, engine
from orch.stacks.pulumi.progress import Activity, ExpectedNodes, Left, Listener, Progress
from orch.stacks.pulumi.recovery import recover
from orch.stacks.record.fleets import fleet_of
from orch.stacks.record.node_accounts import accounted
from orch.stacks.stack.locks import locks
from orch.stacks.stack.state import StackState, stacks


@dataclass(frozen=True)
class Swept:
    """Result of a sweep of a fleet, or the error that prevented it."""

    fleet: str
    done: str
    error: OrchError | None = None


def sweep(project: Project, listener: Listener) -> tuple[Swept, ...]:
    """Remove fleets whose time is over, and of others the nodes that ended themselves, which may still cost
    (GCP keeps a stopped instance with its disk), and what killed calls left; those that nobody changes now.

    A fleet that is protected stays, and so does one with file systems of its own: data goes by the user's
    word alone. Where a cloud does not tell which nodes ended, as without credentials, they stay.
    """
    done: list[Swept] = []
    for name in stacks(project):
        if "." in name:
            continue
        stack, present = StackState(project, name), locks(project, name)
        if any(not lock.dead for lock in present):
            continue
        hearing = _hearing(name, done, listener)
        try:
            if is_over(stack.outputs.get("pins") or {}, time.time()) and not is_protected(stack):
                _refuse_by_clock(stack, time.time())
                if stack.file_systems:
                    done.append(Swept(name, f"its time is over; `orch down {name}` removes it with its data"))
                    continue
                recover(stack, hearing)
                operations.down(project, name, hearing)
                done.append(Swept(name, "its time is over: removed"))
                continue
            if present or (stack.recorded or {}).get("pending_operations"):
                recover(stack, hearing)
                done.append(Swept(name, "what a killed call left is cleared"))
            unused = remove_unused(project, name, hearing)
            if unused.removed:
                done.append(Swept(name, f"{fold(unused.removed)} is removed: made for a run that has ended"))
            done += [Swept(name, text) for text in kept_words(name, unused)]
            if (stack.outputs.get("fleet") or {}).get("queue") and (removed := _remove_pods(project, stack)):
                done.append(Swept(name, f"pods of runs that have ended are removed: {fold(removed)}"))
            ended = frozenset() if is_protected(stack) else ended_nodes(stack)
            if ended and (removed := _remove_rest(project, name, ended, hearing)):
                which = fold(sorted(removed))
                done.append(
                    Swept(name, f"what is left of {which} is removed: ended when idle, or taken back")
                )
        except Interrupted:
            raise
        except OrchError as error:
            done.append(Swept(name, "not swept", error))
    return tuple(done)


def _refuse_by_clock(stack: StackState, now: float) -> None:
    """Raise StackError if the clock of this machine is in doubt: a fleet is not removed by it."""
    ends = ends_of(stack.outputs.get("pins") or {})
    changed = seconds_of(((stack.recorded or {}).get("manifest") or {}).get("time") or "")
    reason = "" if ends is None else doubt(now, ends, changed)
    if reason:
        raise StackError(
            f"the fleet {stack.name} is not removed at its end: {reason}",
            detail="the moment was compared with this machine's clock alone",
            hint=f"`date -u` shows the clock; if it is right, `orch down {stack.name}` removes the fleet",
            code="ORCH233",
        )


def _hearing(fleet: str, done: list[Swept], listener: Listener) -> Listener:
    """A listener that keeps what stays of a fleet for the outcome."""

    def hear(event: Progress) -> None:
        if isinstance(event, Left):
            done.append(Swept(fleet, event.text))
        else:
            listener(event)

    return hear


def _remove_pods(project: Project, stack: StackState) -> tuple[str, ...]:
    with closing(open_ledger(project.ledger_url)) as ledger:
        return remove_leftover_pods(ledger, fleet_of(stack))


def _remove_rest(project: Project, name: str, ended: frozenset[str], listener: Listener) -> frozenset[str]:
    """Forget those nodes that are gone, and delete what is there of the others. The names of all of them.

    One that somebody has started again since it was asked for stays.
    """
    project.prepare()
    recover(StackState(project, name), listener)
    listener(ExpectedNodes(ended))
    listener(Activity(f"removing what is left of {fold(sorted(ended))}"))
    for command in ("refresh", "destroy"):
        stack = StackState(project, name)
        if command == "destroy":
            ended -= stack.node_names - ended_nodes(stack)
        urns = [each["urn"] for each in stack.resources if name_of(each["urn"]) in resources_of(ended)]
        if urns:
            targets = [word for urn in urns for word in ("--target", urn)]
            run = EngineCall(listener, planning=False)
            with accounted(stack, listener, verb="reconcile", ended=ended):
                engine(stack, [command, "--yes", "--skip-preview", *targets], run)
    return ended
