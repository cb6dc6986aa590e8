"""Preview, up, down, refresh and drift of one fleet's stack."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace

from orch.components.cloud.indices import unfolded
from orch.stacks.errors import NoSuchNode, StackError
from orch.stacks.fleets import forget_identity, not_up, require_up
from orch.stacks.lockfile import write_lock
from orch.stacks.plan import Plan, Prepared, money, planned
from orch.stacks.plan import before as recorded_before
from orch.stacks.program import program
from orch.stacks.project import Project
from orch.stacks.provisioning.bring_up import bring_up
from orch.stacks.provisioning.busy_nodes import refuse_occupied, refuse_replaced
from orch.stacks.provisioning.gang import parallel
from orch.stacks.provisioning.shared_networks import drift_shared, preview_shared, release, shared_by, unused
from orch.stacks.pulumi.changes import Drifted, changes, drifted, found_as_recorded, name_of
from orch.stacks.pulumi.lock_holders import delete_stale_marks
from orch.stacks.pulumi.locks import locks
from orch.stacks.pulumi.operation import Doing, EngineCall, Expected, Listener, Note, engine, plain
from orch.stacks.pulumi.recovery import recover, repair_files
from orch.stacks.request import FleetRequest, compile_for
from orch.stacks.state import StackExport, StackState
from orch.stacks.variables import forget_clear_text, in_clear, unread_copies


def preview(project: Project, request: FleetRequest, listener: Listener) -> Plan:
    """What `up` would do, after looking at what is there.

    Takes no lock; changes nothing but an empty stack's record.
    """
    project = _forced(project, request.approvals.force)
    project.prepare()
    files = request.files(project)
    repair_files(project, request.name)
    stack = StackState(project, request.name)
    listener(Doing(f"planning the fleet {request.name}"))
    compiled = compile_for(stack, request)
    before = recorded_before(stack)
    run = EngineCall(listener, planning=True)
    listener(Doing(f"the engine compares the fleet {request.name} with what is there"))
    if compiled.shared is not None:
        preview_shared(stack, compiled.shared, run)
    recorded = stack.recorded
    engine(stack, ["preview", *parallel(compiled)], run, program(compiled))
    plan = planned(request.name, before, compiled, run)
    return replace(plan, prepared=Prepared(stack, recorded, compiled, files, found_as_recorded(run.events)))


def outdated(plan: Plan, request: FleetRequest, listener: Listener) -> str | None:
    """Why a plan that was shown cannot be carried out as it is; None when `up` may.

    What a killed call left is cleared for that. Raises Conflict when somebody is at work on the fleet.
    """
    if plan.prepared is None:
        raise TypeError("a plan that `preview` did not make")
    stack = plan.prepared.stack
    stack.changed()
    recover(stack, listener)
    return plan.prepared.outdated(request.files(stack.project))


def up(project: Project, request: FleetRequest, listener: Listener, *, shown: Plan | None = None) -> Plan:
    """Apply the fleet and return what was done. Where nodes stand apart, those that failed are among its
    `problems`.

    `shown`: a plan that is not `outdated`, which is carried out: neither the cloud nor the hosts are asked
    for another. Raises StackError naming each resource that failed, NoCapacity, Conflict (somebody is at work
    on it, or runs are on nodes that would go), Interrupted.
    """
    project = _forced(project, request.approvals.force)
    project.prepare()
    if shown is not None and shown.prepared is not None:
        stack, compiled = shown.prepared.stack, shown.prepared.compiled
        looked = shown.prepared.as_recorded
    else:
        stack, looked = StackState(project, request.name), False
        # Before the plan: what a killed call left counts against quotas and capacity.
        recover(stack, listener)
        listener(Doing(f"planning the fleet {request.name}"))
        compiled = compile_for(stack, request)
    before = recorded_before(stack)
    there = frozenset(before.fleet.nodes.values())
    listener(Expected(frozenset(compiled.makers.get(node, node) for node in compiled.nodes) - there))
    if not request.approvals.force and shown is not None:
        refuse_occupied(stack, shown.going, listener)
    elif not request.approvals.force:
        refuse_replaced(stack, compiled, before.fleet, listener)
    recorded = stack.recorded
    stood_on = shared_by(recorded)
    _ensure_images(compiled.images, listener)
    listener(Doing(f"bringing up the fleet {request.name}"))
    done, call = bring_up(stack, request, compiled, listener, looked=looked)
    _forget_clear_text(project, request.name, recorded, listener)
    if stood_on:
        release(stack, stood_on - shared_by(stack.recorded), call)
    images = {key: value for key, value in done.pins.items() if key in done.locked}
    if done.locked:
        write_lock(project.lock_file, request.name, images)
    return planned(request.name, before, done, call)


def down(project: Project, name: str, listener: Listener, *, force: bool = False) -> Plan:
    """Remove everything of a fleet and its stack, with `force` also under runs.

    A fleet that is not there is an error; leftovers of a killed `up` are not.
    """
    project = _forced(project, force)
    stack = StackState(project, name)
    if not stack.exists:
        raise not_up(project, name, removing=True)
    project.prepare()
    before = stack.hourly
    _refuse_protected(stack)
    recover(stack, listener, removing=True)
    there = stack.makers
    if not force:
        refuse_occupied(stack, list(there), listener)
    listener(Expected(frozenset(there.values())))
    listener(Doing(f"removing the fleet {name}"))
    run = EngineCall(listener, planning=False)
    recorded = stack.recorded
    # A `down` that was killed after the fleet has left no word of what it stood on.
    stood_on = shared_by(recorded) if stack.resources else unused(project)
    engine(stack, ["destroy", "--yes", "--skip-preview"], run)
    release(stack, stood_on, run)
    plain(stack, ["stack", "rm", "--yes"])
    _forget_clear_text(project, name, recorded, listener)
    forget_identity(project, name)
    shutil.rmtree(project.dot / "work" / name, ignore_errors=True)
    return Plan(name, name, changes(run.events), (), hourly=0.0, delta=money(-before))


def remove_nodes(
    project: Project, name: str, indices: Iterable[int], listener: Listener, *, force: bool = False
) -> Plan:
    """Remove single nodes of a fleet; the next `up` makes those anew that its file still asks for.

    Raises NoSuchFleet, NoSuchNode, Conflict when runs are on them and there is no `force` (nothing is removed
    then), StackError.
    """
    project = _forced(project, force)
    stack = StackState(project, name)
    found = require_up(stack)
    nodes = {int(node["index"]): node["name"] for node in found["fleet"]["nodes"]}
    groups = {int(n["index"]): n["made_by"] for n in found["fleet"]["nodes"] if n.get("made_by")}
    if grouped := sorted(set(groups) & set(indices)):
        raise NoSuchNode(
            f"node {', '.join(map(str, grouped))} of the fleet {name} cannot be removed individually",
            detail=f"made together with others by {', '.join(sorted({groups[index] for index in grouped}))}",
            hint=f"`orch down {name}` removes all of them",
            code="ORCH355",
        )
    recorded = {name_of(each["urn"]): each["urn"] for each in stack.resources}
    # One that never came up is no node yet, and there.
    planned = unfolded(str(found.get("pins", {}).get("indices", "")))
    nodes |= {index: f"{name}-{index}" for index in planned if index not in nodes}
    there = {index: recorded[node] for index, node in nodes.items() if node in recorded}
    missing = sorted(set(indices) - set(there))
    if missing:
        raise NoSuchNode(
            f"the fleet {name} has no node {', '.join(map(str, missing))}",
            detail=f"its nodes are {', '.join(f'{i} ({nodes[i]})' for i in sorted(there)) or 'none'}",
            hint=f"`orch fleet show {name}` lists them",
            code="ORCH355",
        )
    project.prepare()
    before = stack.hourly
    _refuse_protected(stack)
    recover(stack, listener)
    if not force:
        refuse_occupied(stack, [nodes[index] for index in set(indices)], listener)
    listener(Expected(frozenset(nodes[index] for index in set(indices))))
    listener(Doing(f"removing nodes of the fleet {name}"))
    run = EngineCall(listener, planning=False)
    targets = [word for index in sorted(set(indices)) for word in ("--target", there[index])]
    engine(stack, ["destroy", "--yes", "--skip-preview", *targets], run)
    after = stack.hourly
    return Plan(name, name, changes(run.events), (), hourly=after, delta=money(after - before))


def drift(project: Project, name: str, listener: Listener) -> tuple[Drifted, ...]:
    """What is not as registered. Changes nothing, takes no lock."""
    stack = StackState(project, name)
    require_up(stack)
    project.prepare()
    repair_files(project, name)
    run = EngineCall(listener, planning=True)
    words = ["refresh", "--preview-only"]
    listener(Doing(f"the engine looks at what is there of the fleet {name}"))
    shared = drift_shared(stack, words, listener)
    engine(stack, words, run)
    return (*shared, *drifted(run.events))


def refresh(project: Project, name: str, listener: Listener) -> tuple[Drifted, ...]:
    """Record what is there; what differed. The next `up` mends it."""
    stack = StackState(project, name)
    require_up(stack)
    project.prepare()
    recover(stack, listener)
    run = EngineCall(listener, planning=True)
    words = ["refresh", "--yes", "--skip-preview"]
    listener(Doing(f"the engine looks at what is there of the fleet {name}"))
    shared = drift_shared(stack, words, listener)
    engine(stack, words, run)
    return (*shared, *drifted(run.events))


def _forced(project: Project, force: bool) -> Project:
    return replace(project, forced=True) if force else project


def unlock(project: Project, name: str) -> None:
    """Break every lock on a stack, whoever holds it."""
    if project.local_state is not None:
        for lock in locks(project, name):
            lock.file.unlink(missing_ok=True)
        delete_stale_marks(project, name)
        return
    plain(StackState(project, name), ["cancel", "--yes"])


def _refuse_protected(stack: StackState) -> None:
    if any(resource.get("protect") for resource in stack.resources):
        raise StackError(
            f"the fleet {stack.name} is protected",
            hint="set `protect: false` in its file and `orch up` it, then remove it",
            code="ORCH348",
        )


def _forget_clear_text(project: Project, name: str, before: StackExport | None, listener: Listener) -> None:
    """Variables that a former version recorded in clear: taken out of older copies of the state, and told."""
    names = in_clear(before)
    cleaned = forget_clear_text(project, name) if names else ()
    if not names:
        return
    copies = (
        f"taken out of {len(cleaned)} older copies of it"
        if project.local_state
        else f"its older versions at {project.state_url} still have them"
    )
    if unread := unread_copies(project, name):
        files = f"{len(unread)} that cannot be read here, such as {unread[0]}"
        copies += f", but for {files}: delete them"
    listener(
        Note(
            f"warning: a former version wrote {', '.join(names)} in clear into the state; now encrypted, and "
            f"{copies}. Rotate what is secret of it if others could read the state."
        )
    )


def _ensure_images(references: Iterable[str], listener: Listener) -> None:
    """Build those of this version that are missing; one pinned by another version is there or the node says
    so."""
    from orch.images.build import PREFIX, ensure, is_ours, resolve

    for reference in references:
        name = reference.removeprefix(PREFIX).partition(":")[0]
        if is_ours(reference) and resolve(f"{PREFIX}{name}") == reference:
            listener(Doing(f"making sure of the image {reference}"))
            ensure(name, progress=lambda text: listener(Note(text)))
