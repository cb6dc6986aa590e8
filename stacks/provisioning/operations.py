"""Preview, up, down, refresh and drift of one fleet's stack."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace

from orch.components.idleness import resources_of
from orch.components.lifetime import over
from orch.components.node_count import unfolded
from orch.spec.suggest import counted
from orch.stacks.errors import NoSuchNode, StackError
from orch.stacks.events.changes import PropertyDrift, changes, find_drift, matches_record
from orch.stacks.events.notation import name_of
from orch.stacks.plans.guard import Guard
from orch.stacks.plans.marks import make_lineage
from orch.stacks.plans.plan import Plan, PreparedPlan, money, plan_of, prior_fleet
from orch.stacks.plans.recorder import Recorder
from orch.stacks.plans.request import FleetRequest, compile_for, ended_nodes_if_told, over_since
from orch.stacks.project.lockfile import write_lock
from orch.stacks.project.project import Project
from orch.stacks.provisioning.bring_up import bring_up
from orch.stacks.provisioning.busy_nodes import refuse_occupied, refuse_replaced
from orch.stacks.provisioning.gang import parallel
from orch.stacks.provisioning.kept_data import compare, is_protected, unprotect, unprotect_agreed
from orch.stacks.provisioning.nodes_with_runs import remove_marked
from orch.stacks.provisioning.other_states import other_fleets, refuse_other_fleets
from orch.stacks.provisioning.policies import compared, refuse_violations, with_policies
from orch.stacks.provisioning.shared_networks import all_shared, drift_shared, release, shared_by
from orch.stacks.pulumi import keyless
from orch.stacks.pulumi.accounts import drop_record, leads_elsewhere, require_own
from orch.stacks.pulumi.operation import EngineCall, engine
from orch.stacks.pulumi.progress import Activity, ExpectedNodes, Listener, Note
from orch.stacks.pulumi.recovery import recover, repair_files
from orch.stacks.record.change_log import NO_CHANGES, logged
from orch.stacks.record.fleets import not_up, require_up
from orch.stacks.record.node_accounts import accounted, bastion_of, fleet_tags
from orch.stacks.record.node_records import bastion_machine
from orch.stacks.record.variables import (
    drop_clear_text,
)
from orch.stacks.secrets.identity import delete_key
from orch.stacks.stack.command import plain
from orch.stacks.stack.leases import lease_finding, refuse_leased
from orch.stacks.stack.lock_holders import delete_stale_marks
from orch.stacks.stack.locks import locks, subject
from orch.stacks.stack.state import StackState


def preview(
    project: Project, request: FleetRequest, listener: Listener, *, recorder: Recorder | None = None
) -> Plan:
    """Plan a fleet after a refresh, and return what `up` would do. `recorder` sees what the engine plans.

    Takes no lock; changes nothing but the protection of file systems that `approvals.lose_data` names. Raises
    PlanError, Conflict (the state of a newer orch), StackError, Interrupted.
    """
    project = _with_force(project, request.approvals.force)
    project.prepare()
    files = request.files(project)
    repair_files(project, request.name)
    stack = StackState(project, request.name)
    if (ended := over_since(stack, request.fleet)) is not None:
        return _over(request.name, ended)
    leased = (*lease_finding(stack), *other_fleets(stack, request.fleet, listener))
    listener(Activity(f"planning the fleet {request.name}"))
    compiled = compile_for(stack, request)
    unprotect_agreed(stack, request.approvals.lose_data)
    before = prior_fleet(stack)
    run = EngineCall(listener, planning=True, observer=recorder)
    listener(Activity(f"the engine compares the fleet {request.name} with its resources"))
    recorded = stack.recorded
    violations = compared(stack, request, compiled, run, words=recorder.words if recorder is not None else ())
    plan = with_policies(plan_of(request.name, before, compiled, run), violations)
    found = keyless.findings_of(request.fleet, plan.findings) if project.keyless else plan.findings
    plan = replace(plan, findings=(*found, *leased))
    return replace(plan, prepared=PreparedPlan(stack, recorded, compiled, files, matches_record(run.events)))


def outdated(plan: Plan, request: FleetRequest, listener: Listener) -> str | None:
    """Return the reason that `up` cannot apply a plan that a user saw; None if it can.

    Clears what a killed call left. Raises Conflict if somebody else is changing the fleet.
    """
    if plan.prepared is None:
        raise TypeError("a plan that `preview` did not make")
    stack = plan.prepared.stack
    stack.invalidate()
    recover(stack, listener)
    return plan.prepared.outdated(request.files(stack.project))


def up(
    project: Project,
    request: FleetRequest,
    listener: Listener,
    *,
    plan: Plan | None = None,
    guard: Guard | None = None,
) -> Plan:
    """Apply the fleet and return the resulting plan. Where nodes are independent of each other, its
    `problems` have those that failed.

    `plan`: a plan of `preview` that is not `outdated`. It is applied without new requests to the cloud or the
    hosts. `guard` holds it to an approved plan, which goes to no other place than that. Raises StackError
    naming each resource that failed, NoCapacity, Conflict (somebody else is at work on the fleet, or runs are
    on nodes that it removes), PlanErrors (a policy refuses it), Interrupted.
    """
    project = _with_force(project, request.approvals.force)
    project.prepare()
    if plan is not None and plan.prepared is not None:
        stack, compiled = plan.prepared.stack, plan.prepared.compiled
        skip_refresh = plan.prepared.as_recorded
        refuse_leased(stack)
        require_own(stack)
    else:
        stack, skip_refresh = StackState(project, request.name), False
        if (ended := over_since(stack, request.fleet)) is not None:
            return _over(request.name, ended)
        refuse_leased(stack)
        if not request.approvals.another:
            refuse_other_fleets(other_fleets(stack, request.fleet, listener))
        # Before planning: what a killed call left counts against quotas and capacity.
        recover(stack, listener)
        listener(Activity(f"planning the fleet {request.name}"))
        compiled = compile_for(stack, request)
    before = prior_fleet(stack)
    judgement = refuse_violations(stack, request, compiled, listener, plan=plan)
    existing = frozenset(before.fleet.nodes.values())
    listener(ExpectedNodes(frozenset(compiled.makers.get(node, node) for node in compiled.nodes) - existing))
    if not request.approvals.force and request.only:
        refuse_occupied(stack, request.only, listener)
    elif not request.approvals.force and plan is not None:
        refuse_occupied(stack, plan.lost_nodes, listener)
    elif not request.approvals.force:
        refuse_replaced(stack, compiled, before.fleet, listener)
    if plan is None and stack.file_systems:
        unprotect_agreed(stack, request.approvals.lose_data)
        listener(Activity(f"the engine compares the fleet {request.name} with its resources"))
        run = EngineCall(listener, planning=True)
        compare(stack, compiled, parallel(compiled), request.approvals.lose_data, run)
    recorded = stack.recorded
    shared_before = shared_by(recorded)
    ensure_images(compiled.images, listener)
    listener(Activity(f"bringing up the fleet {request.name}"))
    tags = fleet_tags(project, request.fleet)
    with accounted(stack, listener, tags, verb="up", ended=compiled.ended) as account:
        applied, call = bring_up(stack, request, compiled, listener, skip_refresh=skip_refresh, guard=guard)
        account.call = call
    make_lineage(stack)
    drop_clear_text(project, request.name, recorded, listener)
    if shared_before:
        release(stack, shared_before - shared_by(stack.recorded), call)
    images = {key: value for key, value in applied.pins.items() if key in applied.locked}
    if applied.locked:
        write_lock(project.lock_file, request.name, images)
    result = plan_of(request.name, before, applied, call)
    return with_policies(result, judgement.after(call.inspection))


def _over(name: str, ended: int) -> Plan:
    """The plan of a fleet whose time is over: nothing, however many nodes its file has."""
    return Plan(name, name, (), (), hourly=0.0, delta=0.0, findings=(over(name, ended),))


def down(project: Project, name: str, listener: Listener, *, force: bool = False) -> Plan:
    """Remove all resources of a fleet and its stack; with `force` also while runs are on its nodes.

    Removes the leftovers of a killed `up` too. With `force` a fleet that has an account of its own leaves
    the record if the credentials lead to another one. Raises NoSuchFleet, Conflict, StackError, Interrupted.
    """
    project = _with_force(project, force)
    stack = StackState(project, name)
    # Stacks with a dot in their name are no fleets: secrets, volumes, shared networks.
    if "." in name or not stack.exists:
        raise not_up(project, name, removing=True)
    project.prepare()
    refuse_leased(stack)
    before = stack.hourly
    if force and leads_elsewhere(stack):
        refuse_protected(stack)
        with logged(project, "down", f"fleet {name}", listener):
            drop_record(stack, listener)
        return Plan(name, name, (), (), hourly=0.0, delta=money(-before))
    require_own(stack)
    refuse_protected(stack)
    recover(stack, listener, removing=True)
    makers = stack.makers
    if not force:
        refuse_occupied(stack, list(makers), listener, whole=True)
    listener(ExpectedNodes(frozenset(makers.values())))
    listener(Activity(f"removing the fleet {name}"))
    run = EngineCall(listener, planning=False)
    recorded = stack.recorded
    # After a `down` that was killed, an empty record no longer names the shared networks of the fleet.
    shared = shared_by(recorded) if stack.resources else all_shared(project)
    unprotect(stack, [each.urn for each in stack.file_systems])
    with accounted(stack, listener, verb="down") as account:
        engine(stack, ["destroy", "--yes", "--skip-preview"], run)
        account.call, account.emptied = run, True
    release(stack, shared, run)
    plain(stack, ["stack", "rm", "--yes"])
    drop_clear_text(project, name, recorded, listener)
    delete_key(project, name)
    shutil.rmtree(project.dot / "work" / name, ignore_errors=True)
    return Plan(name, name, changes(run.events), (), hourly=0.0, delta=money(-before))


def remove_nodes(
    project: Project, name: str, indices: Iterable[int], listener: Listener, *, force: bool = False
) -> Plan:
    """Remove single nodes of a fleet; the next `up` creates those again that its file still requests.

    Raises NoSuchFleet, NoSuchNode, StackError, and Conflict when runs are on the nodes without `force`; then
    nothing is removed.
    """
    project = _with_force(project, force)
    stack = StackState(project, name)
    outputs = require_up(stack)
    recorded, chosen = outputs["fleet"]["nodes"], frozenset(indices)
    nodes = {int(node["index"]): node["name"] for node in recorded}
    # What a run has goes by its mark, as a whole.
    marks = {int(node["index"]): str(node["made_for"]) for node in recorded if node.get("made_for")}
    groups = {int(node["index"]): node["made_by"] for node in recorded if node.get("made_by")}
    if grouped := sorted(chosen & groups.keys() - marks.keys()):
        raise NoSuchNode(
            f"node {', '.join(map(str, grouped))} of the fleet {name} cannot be removed individually",
            detail=f"made together with others by {', '.join(sorted({groups[index] for index in grouped}))}",
            hint=f"`orch down {name}` removes all of them",
            code="ORCH355",
        )
    urns = {name_of(each["urn"]): each["urn"] for each in stack.resources}
    # A node that never came up has a resource, but is not in the output yet.
    pinned = unfolded(str(outputs.get("pins", {}).get("indices", "")))
    nodes |= {index: f"{name}-{index}" for index in pinned if index not in nodes}
    makers = {index: groups.get(index, node) for index, node in nodes.items()}
    existing = {index: urns[maker] for index, maker in makers.items() if maker in urns}
    if missing := sorted(chosen - set(existing)):
        raise NoSuchNode(
            f"the fleet {name} has no node {', '.join(map(str, missing))}",
            detail=f"its nodes are {', '.join(f'{i} ({nodes[i]})' for i in sorted(existing)) or 'none'}",
            hint=f"`orch fleet show {name}` lists them",
            code="ORCH355",
        )
    project.prepare()
    refuse_leased(stack)
    require_own(stack)
    before = stack.hourly
    refuse_protected(stack)
    recover(stack, listener)
    if not force:
        refuse_occupied(stack, [nodes[index] for index in chosen], listener)
    leaving = {marks[index] for index in chosen & marks.keys()}
    others = [index for index, mark in marks.items() if mark in leaving and index in existing]
    if more := sorted(set(others) - chosen):
        ways = " ".join(f"-i {index}" for index in sorted(others))
        raise NoSuchNode(
            f"node {', '.join(map(str, sorted(chosen)))} of the fleet {name} cannot be removed individually",
            detail=f"made for one run together with node {', '.join(map(str, more))}",
            hint=f"`orch down {name} {ways}` removes all of them",
            code="ORCH355",
        )
    listener(ExpectedNodes(frozenset(makers[index] for index in chosen)))
    listener(Activity(f"removing nodes of the fleet {name}"))
    if leaving:
        run = remove_marked(stack, leaving, listener)
    else:
        run = EngineCall(listener, planning=False)
        targets = [word for index in sorted(chosen) for word in ("--target", existing[index])]
        only = [nodes[index] for index in sorted(chosen)]
        with accounted(stack, listener, verb="down", only=only) as account:
            # A refresh would forget a node that is gone already, as after a kill, and miss it as a target.
            engine(stack, ["destroy", "--yes", "--skip-preview", "--refresh=false", *targets], run)
            account.call = run
    after = stack.hourly
    return Plan(name, name, changes(run.events), (), hourly=after, delta=money(after - before))


def remove_bastion(project: Project, name: str, listener: Listener) -> None:
    """Remove the bastion that a fleet has of its own, if any: the next `up` makes it anew, with the keys that
    the fleet has then.

    Raises NoSuchFleet, Conflict, StackError.
    """
    stack = StackState(project, name)
    require_up(stack)
    project.prepare()
    refuse_leased(stack)
    refuse_protected(stack)
    recover(stack, listener)
    urns = bastion_machine(stack.recorded, bastion_of(name))
    if not urns:
        return
    listener(Activity(f"removing the bastion of the fleet {name}"))
    run = EngineCall(listener, planning=False)
    targets = [word for urn in urns for word in ("--target", urn)]
    with accounted(stack, listener, verb="down") as account:
        engine(stack, ["destroy", "--yes", "--skip-preview", *targets], run)
        account.call = run


def _with_force(project: Project, force: bool) -> Project:
    return replace(project, force=True) if force else project


def unlock(project: Project, name: str, listener: Listener) -> None:
    """Break every lock on a stack, whoever holds it."""
    with logged(project, "unlock", subject(name), listener) as outcome:
        if project.local_state is not None:
            holders = locks(project, name)
            for lock in holders:
                lock.file.unlink(missing_ok=True)
            delete_stale_marks(project, name)
            outcome.result = f"broken: {', '.join(map(str, holders))}" if holders else NO_CHANGES
        else:
            plain(StackState(project, name), ["cancel", "--yes"])


def refuse_protected(stack: StackState) -> None:
    """Raises StackError for a fleet whose resources are not to be removed."""
    if is_protected(stack):
        raise StackError(
            f"the fleet {stack.name} is protected",
            hint="set `protect: false` in its file and `orch up` it, then remove it",
            code="ORCH348",
        )


def ensure_images(references: Iterable[str], listener: Listener) -> None:
    """Build this version's images that are missing. An image that another version pinned is not built: if it
    is missing, the node reports that."""
    from orch.images.build import PREFIX, ensure, is_ours, resolve

    for reference in references:
        name = reference.removeprefix(PREFIX).partition(":")[0]
        if is_ours(reference) and resolve(f"{PREFIX}{name}") == reference:
            listener(Activity(f"building the image {reference} if it is missing"))
            ensure(name, progress=lambda text: listener(Note(text)))


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
    """Return the drift that a refresh found. A node that terminated itself is no drift."""
    gone = resources_of(ended)
    return (*shared, *(each for each in find_drift(run.events) if each.name not in gone))
