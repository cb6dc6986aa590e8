"""Plans a maintenance and carries it out, wave by wave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from orch.runner import processes
from orch.runner.node_api.cordon import mark_for
from orch.runner.runs.context import RunnerContext
from orch.spec.errors import OrchError
from orch.spec.grammar.hosts import fold
from orch.spec.state import NodeState
from orch.spec.suggest import counted
from orch.stacks.maintenance.context import Failures, Maintenance
from orch.stacks.maintenance.drain import (
    CORDON,
    DRAIN,
    NODE_S,
    NOT_IN_ORDER,
    UNCORDON,
    cordon,
    drain,
    uncordon,
)
from orch.stacks.maintenance.errors import MaintenanceError, NodesFailed, NotHelped
from orch.stacks.maintenance.evacuate import move, record
from orch.stacks.maintenance.gpu_reset import EVIDENCE, RESET, VERIFY, evidence, judge, reset
from orch.stacks.maintenance.look import look_at, runs_on, usual_s
from orch.stacks.maintenance.plan import MaintenancePlan, NodeLook, Options, Verb, plan_of, title_of
from orch.stacks.maintenance.reboot import READY, REBOOT, reboot
from orch.stacks.maintenance.replace import REPLACED, refuse_irreplaceable, replace
from orch.stacks.maintenance.rollout import bring_up_rest, roll
from orch.stacks.maintenance.spares import make_spares, remove_spares
from orch.stacks.project.project import Project
from orch.stacks.pulumi.accounts import require_own_if_told
from orch.stacks.pulumi.operation import require_confirmed
from orch.stacks.pulumi.progress import Listener
from orch.stacks.stack.state import StackState

CHECK = "check"

Phase = Callable[[Maintenance, Sequence[str], Failures], None]

STEPS: Mapping[Verb, tuple[str, ...]] = {
    "drain": (CORDON, DRAIN),
    "reboot": (REBOOT, READY, CHECK),
    "replace": (REPLACED, READY, CHECK),
    "reset-gpu": (EVIDENCE, RESET, VERIFY, CHECK),
    "rollout": (REPLACED, READY, CHECK),
    "evacuate": (REPLACED, READY, CHECK),
}
"""Steps of a node that take the time of a verb."""


def phases(verb: Verb) -> tuple[Phase, ...]:
    """Return the phases that a verb runs on the nodes of a wave, in order."""
    acts: Mapping[Verb, tuple[Phase, ...]] = {
        "drain": (cordon, drain),
        "reboot": (cordon, drain, reboot, check, uncordon),
        "replace": (evidence, cordon, drain, replace, check, uncordon),
        "rollout": (cordon, drain, roll, check, uncordon),
        "evacuate": (cordon, drain, move, check, uncordon),
        # Evidence before runs are stopped: where no reset helps, none is.
        "reset-gpu": (evidence, judge, cordon, drain, reset, check, uncordon),
    }
    return acts[verb]


def planned_for(
    runner: RunnerContext,
    project: Project,
    verb: Verb,
    chosen: Mapping[str, Sequence[str]],
    *,
    options: Options,
    listener: Listener,
) -> MaintenancePlan:
    """The plan for nodes, by the fleet they are of. Raises as `refuse_irreplaceable`."""
    looks: dict[str, NodeLook] = {}
    for name, names in chosen.items():
        stack = StackState(project, name)
        if verb == "replace":
            require_confirmed(stack, listener)
        elif verb != "drain":
            # A machine is reached by its recorded address: a reboot needs no credentials.
            require_own_if_told(stack)
        looks |= {each.name: each for each in look_at(stack, names, runner.connector)}
    in_order = [looks[node] for names in chosen.values() for node in names]
    if verb == "replace":
        refuse_irreplaceable(project, in_order, listener)
    runs = runs_on(project, chosen, listener)
    usual = usual_s(runner.ledger.changes, project, title_of(verb), STEPS[verb])
    return plan_of(verb, in_order, runs, options, me=processes.here(), usual_s=usual)


def carry_out(at: Maintenance) -> None:
    """Carry out the plan of a maintenance; what is done already is left as it is.

    Raises NodesFailed when more nodes failed than the plan allows, and at the end when any did; LeaseLost.
    """
    last = UNCORDON if at.plan.verb != "drain" else DRAIN
    failed: Failures = {}
    if at.plan.verb == "evacuate":
        record(at)
    if at.plan.spares:
        make_spares(at)
    for number, wave in enumerate(at.plan.waves, 1):
        todo = [name for name in wave if not at.journal.is_done(name, last)]
        if not todo:
            continue
        at.tell(f"wave {number} of {len(at.plan.waves)}: {fold(todo)}")
        failures: Failures = {}
        for phase in phases(at.plan.verb):
            phase(at, [name for name in todo if name not in failures], failures)
        for name, error in failures.items():
            at.tell(f"{name} failed: {error.summary}")
        failed |= failures
        rest = at.plan.waves[number:]
        if len(failed) > at.plan.max_fail and rest:
            left = fold([name for each in rest for name in each])
            raise _failed(at, failed, f"the next wave does not begin: {left}")
    if failed:
        others = [node.name for node in at.plan.nodes if node.name not in failed]
        raise _failed(
            at, failed, f"{fold(others)} {'is' if len(others) == 1 else 'are'} done" if others else ""
        )
    if at.plan.verb == "rollout":
        if at.plan.spares:
            remove_spares(at)
        bring_up_rest(at)
    at.journal.result = f"{counted(len(at.plan.nodes), 'node')} done"


def check(at: Maintenance, names: Sequence[str], failures: Failures) -> None:
    """Check nodes as `orch check` does; one that is not in order stays cordoned, with the reason."""
    found: dict[str, str] = {}
    for fleet, here in at.by_fleet(name for name in names if not at.journal.is_done(name, CHECK)).items():
        try:
            found |= at.health(fleet, here)
        except OrchError as error:
            found |= dict.fromkeys(here, error.summary)

    def judge(node: NodeState, reasons: Mapping[str, str]) -> str:
        if node.name not in reasons:
            return "in order"
        reason = f"{NOT_IN_ORDER} after {at.title}: {reasons[node.name]}"
        mark_for([node], at.connector, reason, at.mark, deadline_s=NODE_S)
        raise MaintenanceError(
            f"node {node.name} is not in order, and stays cordoned",
            detail=reasons[node.name],
            hint=f"`orch check {at.plan.node(node.name).fleet}` says how to mend what fails",
            code="ORCH403",
        )

    at.on_each(names, CHECK, partial(judge, reasons=found), failures)


def _failed(at: Maintenance, failed: Mapping[str, OrchError], what: str) -> NodesFailed:
    at.journal.final = all(isinstance(error, NotHelped) for error in failed.values())
    hints = list(dict.fromkeys(error.hint for error in failed.values() if error.hint))
    if not at.journal.final:
        hints.append(f"the same command goes on; `orch log {at.journal.change.id} --abandon` gives it up")
    return NodesFailed(
        f"{at.title} failed on {fold(list(failed))}{f': {what}' if what else ''}",
        detail="\n".join(f"{name}: {_words(error)}" for name, error in failed.items()),
        hint="\n".join(hints),
        code="ORCH399",
    )


def _words(error: OrchError) -> str:
    code = f" ({error.code})" if error.code else ""
    return f"{error.summary}{code}{f': {error.detail}' if error.detail else ''}"
