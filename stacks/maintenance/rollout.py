"""Brings nodes to what their fleet's file asks for by now, wave by wave: what cannot be changed in place."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace

from orch.spec.errors import OrchError
from orch.spec.suggest import few
from orch.stacks.events.notation import fold, name_of
from orch.stacks.maintenance.context import Failures, Maintenance, raise_if_over
from orch.stacks.maintenance.errors import CannotReplace, MaintenanceError
from orch.stacks.maintenance.look import machines_of
from orch.stacks.maintenance.plan import LIMIT_S
from orch.stacks.maintenance.reboot import READY, wait_ready
from orch.stacks.maintenance.replace import REPLACED, replaced
from orch.stacks.plans.plan import Plan
from orch.stacks.provisioning import operations
from orch.stacks.provisioning.gang import templates
from orch.stacks.runs.nodes_for_runs import other_changes
from orch.stacks.stack.state import StackState

REST = "bring up the rest"


def outdated_nodes(plan: Plan, stack: StackState) -> tuple[str, ...]:
    """The nodes of a fleet that a plan replaces, in their order; none where it replaces none.

    Raises CannotReplace where nodes would go, or the fleet as a whole, and where nodes were made together.
    """
    name = stack.name
    assert plan.prepared is not None
    compiled = plan.prepared.compiled
    if compiled.moves:
        raise CannotReplace(
            f"the file of fleet {name} does not allow the place where it is: it moves as a whole",
            hint="`orch up` moves it at once; where work is to go on meanwhile, make a fleet of another name "
            f"first, and `orch down {name}` after",
            code="ORCH409",
        )
    nodes = {node["name"]: node for node in stack.nodes}
    if gone := sorted(set(nodes) - set(compiled.nodes)):
        raise CannotReplace(
            f"the file of fleet {name} asks for fewer nodes: {fold(gone)} would go",
            hint="`orch up` removes them; what it would replace besides, roll out before with the old number",
            code="ORCH409",
        )
    lost = [each for each in nodes if each in plan.lost_nodes]
    if lost and (stack.outputs.get("fleet") or {}).get("backend") == "ssh":
        raise CannotReplace(
            f"nodes of the fleet {name} are existing hosts: orch makes none anew",
            detail=f"the file changes {fold(lost)}",
            hint="`orch up` registers them as the file says",
            code="ORCH404",
        )
    if grouped := [each for each in lost if nodes[each].get("made_by")]:
        raise CannotReplace(
            f"nodes of the fleet {name} cannot be replaced individually: {fold(grouped)}",
            detail=f"made together by {few({nodes[each]['made_by'] for each in grouped})}",
            hint="`orch up` makes all of them anew at once",
            code="ORCH355",
        )
    return tuple(sorted(lost, key=lambda each: int(nodes[each]["index"])))


def refuse_start_only(plan: Plan, stack: StackState, file: str) -> None:
    """Raises CannotReplace where a plan leaves all nodes as they are, and changes what new ones start with:
    nothing tells the nodes that lack it afterwards."""
    changed = list(dict.fromkeys(each.path for each in plan.findings if each.code == "ORCH232"))
    names = [node["name"] for node in stack.nodes]
    if not plan.pending or not changed or not names:
        return
    every = shlex.quote(fold(names))
    raise CannotReplace(
        f"no machine of the fleet {stack.name} differs from its file",
        detail=f"{few(changed)} is given to new nodes only",
        hint=f"`orch up {shlex.quote(file)}` keeps it for new nodes; then `orch node replace {every}` makes "
        "them anew, in waves",
        code="ORCH409",
    )


def rest_of(plan: Plan, nodes: Collection[str], stack: StackState) -> str:
    """Return what a plan changes besides replacing these nodes and their launch templates, as text."""
    with_nodes = {stack.name, *map(name_of, templates(stack))}
    changes = other_changes(plan, nodes, stack)
    others = [each for each in changes if each.partition(" ")[2] not in with_nodes]
    return f"after the last wave: {few(others, 6)}" if others else "after the last wave: nothing else"


def roll(at: Maintenance, names: Sequence[str], failures: Failures) -> None:
    """Bring nodes to what the file asks for, and nothing else of the fleet."""
    for fleet, here in at.by_fleet(names).items():
        try:
            at.journal.step("", f"roll {fold(here)}", lambda f=fleet, h=here: _roll(at, f, h))
        except OrchError as error:
            raise_if_over(error)
            failures |= dict.fromkeys(here, error)
    at.on_each(names, REPLACED, lambda node: replaced(at, node), failures)
    at.on_each(names, READY, lambda node: wait_ready(at, node, LIMIT_S["rollout"]), failures)


def _roll(at: Maintenance, fleet: str, names: Sequence[str]) -> str:
    assert at.request is not None
    request = replace(at.request, only=tuple(names))

    def work() -> str:
        present = machines_of(StackState(at.project, fleet))
        old = [name for name in names if present.get(name) in (None, at.plan.node(name).machine)]
        operations.up(at.project, replace(request, only=tuple(old or names)), at.listener)
        return f"made {fold(names)} anew"

    return at.when_free(fleet, work)


def bring_up_rest(at: Maintenance) -> None:
    """Apply what the file asks for besides, as long as that replaces no node. Raises MaintenanceError."""
    request = at.request
    assert request is not None

    def work() -> str:
        plan = operations.preview(at.project, request, at.listener)
        if plan.lost_nodes:
            raise MaintenanceError(
                f"the file of fleet {request.name} replaces nodes again: {fold(sorted(plan.lost_nodes))}",
                detail="it was changed meanwhile, or the nodes were",
                hint="`orch rollout` of it once more",
                code="ORCH409",
            )
        if plan.pending:
            operations.up(at.project, request, at.listener, plan=plan)
        return "brought up" if plan.pending else "nothing to do"

    at.journal.step("", REST, lambda: at.when_free(request.name, work))
