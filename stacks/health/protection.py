"""When a fleet is protected: none of its nodes is replaced by itself until somebody has seen to it.

A new machine that is not in order, look after look, tells that machines are not what is wrong: an image, a
network, a place. More of them would cost money and help nobody, so the whole fleet is left as it is. What
ends that is what anybody does about a change that did not end well: `orch node replace` goes on with it,
`orch log --abandon` gives it up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from orch.runner.ledger.changes import Change, Changes, Step
from orch.spec.errors import OrchError
from orch.spec.suggest import counted
from orch.stacks.maintenance.drive import CHECK
from orch.stacks.maintenance.plan import MaintenancePlan
from orch.stacks.maintenance.reboot import READY
from orch.stacks.record.change_log import Journal

VERB = "node replace"
REASON = "its health is a failure"
"""How the reason of a replacement begins that nobody asked for."""

MOST_LOOKS = 3
"""How often a new machine may fail its checks before its fleet is protected."""

LOOK = "checks failed"


@dataclass(frozen=True)
class Protection:
    """Reason that a fleet is protected: the change whose new machine failed its checks too often, and why."""

    fleet: str
    node: str
    change: int
    looks: int
    why: str

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        return (
            f"fleet {self.fleet} is protected, and none of its nodes is replaced by itself: the new machine "
            f"of node {self.node} failed its checks {self.looks} times (change {self.change}){why}; what to "
            f"do: mend what is wrong and `orch node replace {self.node}`, which checks it again, or "
            f"`orch log {self.change} --abandon` for another machine"
        )


def protection_of(changes: Changes, project: str, scope: str, fleet: str) -> Protection | None:
    """Return the protection of a fleet, from its unfinished replacements; None if it is not protected. A
    change that is in progress counts, too: it has to succeed first."""
    for change in changes.listed(project, verbs=(VERB,), unfinished=True):
        plan = own_plan(change) if change.scope == scope else None
        if plan is None or fleet not in plan.fleets:
            continue
        steps = changes.steps(change.id)
        looks = failed_looks(steps)
        if len(looks) >= MOST_LOOKS:
            return Protection(fleet, plan.nodes[0].name, change.id, len(looks), looks[-1].message or "")
    return None


def failed_looks(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The times when a new machine was looked at and was not in order, the first one first."""
    return tuple(each for each in steps if each.name.startswith(LOOK))


@contextmanager
def looked_at(journal: Journal, node: str) -> Iterator[None]:
    """Write into the journal of a replacement that its new machine is not in order, where the block ends with
    that; not where there is no machine yet, for want of room or of the engine's lock."""
    before = _failures(journal.steps, node)
    try:
        yield
    except OrchError:
        new = [each for each in _failures(journal.steps, node) if each not in before]
        if new:
            count = len(failed_looks(journal.steps)) + 1
            journal.step(node, f"{LOOK} {counted(count, 'time')}", lambda: new[-1].message or "")
        raise


def _failures(steps: Sequence[Step], node: str) -> tuple[Step, ...]:
    """The steps of a node that failed on its new machine."""
    own = (each for each in steps if each.host == node and each.status == "failed")
    return tuple(each for each in own if each.name in (READY, CHECK))


def own_plan(change: Change) -> MaintenancePlan | None:
    """The plan of a replacement that nobody asked for; None of other changes, and of plans that this version
    cannot read."""
    if change.verb != VERB:
        return None
    try:
        plan = MaintenancePlan.parse(change.plan)
    except (KeyError, TypeError, ValueError):
        return None
    return plan if plan.reason.startswith(REASON) else None
