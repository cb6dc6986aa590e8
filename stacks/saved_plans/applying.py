"""Applies what was approved of one stack, or refuses: plan again, compare, apply under the guard."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from orch.spec.errors import OrchError
from orch.spec.findings import Finding
from orch.spec.models import Volume
from orch.stacks.errors import Conflict, EngineFailed, ProjectError, StackLocked
from orch.stacks.plans.guard import AGAIN, VOID, Guard, present, refuse_used
from orch.stacks.plans.marks import Marks, read_marks, shown_lineage
from orch.stacks.plans.plan import Plan
from orch.stacks.plans.recorder import Recorder
from orch.stacks.plans.request import FleetRequest
from orch.stacks.plans.saved_plan import StackPlan
from orch.stacks.project.project import Project
from orch.stacks.provisioning import operations
from orch.stacks.provisioning.other_states import other_fleets, other_volumes, refuse_other_fleets
from orch.stacks.pulumi.progress import Listener, Note
from orch.stacks.record.volumes import stack_of
from orch.stacks.saved_plans.compare import differences, inputs_differ, notes, rows
from orch.stacks.saved_plans.fingerprint import (
    Origin,
    file_digests,
    fleet_plan,
    state_of,
    volume_files,
    volume_plan,
)
from orch.stacks.stack.command import init
from orch.stacks.stack.leases import Leased, refuse_leased
from orch.stacks.stack.state import StackState, work_folder
from orch.stacks.stack.tags import read_tags
from orch.stacks.volumes.operations import VolumeOutcome, preview_volume, up_volume

TRIES = 3
"""How often a plan is compared again because it got old, or a killed call was cleared up, before it began."""

Made = TypeVar("Made", Plan, VolumeOutcome)


@dataclass(frozen=True)
class Approved:
    """A stack of an approved plan. `own`: stacks that this call has brought up before."""

    plan: StackPlan
    origin: Origin
    own: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Agreed(Generic[Made]):
    """Plan made just now that equals the approved one. `engine_plan`: the engine's own, None without."""

    made: Made
    engine_plan: Path | None


@contextmanager
def fleet_agreed(
    project: Project, request: FleetRequest, approved: Approved, listener: Listener
) -> Iterator[Agreed[Plan]]:
    """Plan a fleet again and compare. Takes no lock, changes nothing; the engine's own plan is deleted at the
    end of the block.

    Raises Conflict with the rows that differ, or when the plan was begun before, and what planning raises.
    """
    stack = StackState(project, request.name)
    project.prepare()
    _refuse_others(other_fleets(stack, request.fleet, listener))
    _require_own(stack, approved)
    with _engine_plan(project, request.name) as file:
        recorder = Recorder(file)
        with _planning_for(approved, stack, lambda: file_digests(project, request)):
            plan = operations.preview(project, request, listener, recorder=recorder)
        now = fleet_plan(project, request, plan, recorder, approved.origin)
        _require_equal(approved, now, listener)
        steps = plan.prepared is not None and bool(plan.prepared.compiled.before)
        yield Agreed(plan, None if steps or not plan.pending else file)


def apply_fleet(project: Project, request: FleetRequest, approved: Approved, listener: Listener) -> Plan:
    """Apply an approved plan of a fleet, and return what was done. A plan without changes does nothing.

    Raises as `fleet_agreed` and `operations.up`; a plan that failed is void from then on.
    """
    reason: str | None = None
    for _ in range(TRIES):
        with fleet_agreed(project, request, approved, listener) as agreed:
            plan = agreed.made
            if plan.prepared is None or not (plan.pending or plan.unrecorded):
                return plan
            if (reason := operations.outdated(plan, request, listener)) is not None:
                listener(Note(f"the plan is compared again: {reason}"))
                continue
            guard = Guard(
                plan.prepared.stack,
                approved.plan.id,
                plan.prepared.recorded,
                exact=plan.prepared.as_recorded,
                engine_plan=agreed.engine_plan,
            )
            return _guarded(
                guard, lambda p=plan, g=guard: operations.up(project, request, listener, plan=p, guard=g)
            )
    raise _refused(approved, f"it was compared {TRIES} times, and each time {reason}")


@contextmanager
def volume_agreed(
    project: Project, volume: Volume, approved: Approved, listener: Listener
) -> Iterator[Agreed[VolumeOutcome]]:
    """The same of a volume. Raises as `fleet_agreed`."""
    stack = stack_of(project, volume.name)
    project.prepare()
    _refuse_others(other_volumes(stack, volume, listener))
    _require_own(stack, approved)
    scope = approved.plan.decisions.scope
    with _engine_plan(project, stack.name) as file:
        recorder = Recorder(file)
        with _planning_for(approved, stack, lambda: volume_files(project, approved.origin)):
            outcome = preview_volume(project, volume, listener, scope=scope, recorder=recorder)
        now = volume_plan(project, outcome, recorder, approved.origin, scope=scope)
        _require_equal(approved, now, listener)
        yield Agreed(outcome, file)


def apply_volume(project: Project, volume: Volume, approved: Approved, listener: Listener) -> VolumeOutcome:
    """Apply an approved plan of a volume, and return what was done. Raises as `apply_fleet`."""
    with volume_agreed(project, volume, approved, listener) as agreed:
        if not agreed.made.pending:
            return agreed.made
        stack = stack_of(project, volume.name)
        guard = Guard(stack, approved.plan.id, stack.recorded, exact=False, engine_plan=agreed.engine_plan)
        scope = approved.plan.decisions.scope
        return _guarded(
            guard, lambda: up_volume(project, volume, listener, scope=scope, guard=guard, another=True)
        )


def _guarded(guard: Guard, work: Callable[[], Made]) -> Made:
    """The result of an `up` under a guard, and the mark of what became of the plan.

    A call that another one stopped before it changed anything leaves no mark.
    """
    try:
        done = work()
    except (StackLocked, Leased):
        if guard.begun:
            guard.withdraw()
        raise
    except OrchError as error:
        if guard.error is not None:
            guard.withdraw()
        if guard.error is not None or not guard.begun:
            raise
        guard.mark("failed")
        told = f"{VOID}; {present(guard.stack)}"
        error.detail = f"{error.detail}\n{told}" if error.detail else told
        if not isinstance(error, EngineFailed) and error.hint is not None:
            raise
        error.hint = f"`orch preview` shows what is left to do; {AGAIN}"
        raise
    guard.mark("applied")
    return done


def _refuse_others(findings: Sequence[Finding]) -> None:
    """Raises Conflict as `refuse_other_fleets`."""
    try:
        refuse_other_fleets(findings)
    except Conflict as error:
        error.hint = f"{error.hint} to `orch up` without `--plan`"
        raise


def _require_own(stack: StackState, approved: Approved) -> None:
    """Create the stack of a plan, if there is none.

    Raises Conflict when the plan was begun before, or is of a stack that is gone, ProjectError when somebody
    without the key of the stack has written it."""
    tags = read_tags(stack)
    refuse_leased(stack, tags)
    marks = Marks.of(tags)
    plan = approved.plan
    refuse_used(stack, plan.id, marks)
    # A plan without a lineage is of a stack that had none: if it has one now, the comparison refuses it.
    if plan.lineage and shown_lineage(marks.lineage) != plan.lineage:
        raise _refused(approved, f"stack {stack.name}: as planned -> removed since, or another state")
    if not plan.is_sealed(approved.origin.terms, (marks.lineage or "") if plan.lineage else ""):
        raise ProjectError(
            f"the plan of the {plan.title} was edited",
            where=plan.where,
            detail="its seal is another one than the stack's own key makes",
            hint=AGAIN,
            code="ORCH392",
        )
    # The engine's own plan is encrypted with the key of its stack.
    if not stack.exists:
        init(stack)


def _require_equal(approved: Approved, now: StackPlan, listener: Listener) -> None:
    if found := differences(approved.plan, now, approved.own):
        raise _refused(approved, rows(found))
    for note in notes(approved.plan, now):
        listener(Note(f"note: {note}"))


def _refused(approved: Approved, detail: str) -> Conflict:
    return Conflict(
        f"the plan of the {approved.plan.title} is not what `up` would do now; nothing was changed",
        where=approved.plan.where,
        detail=detail,
        hint=AGAIN,
        code="ORCH393",
    )


@contextmanager
def _planning_for(
    approved: Approved, stack: StackState, files: Callable[[], dict[str, str | None]]
) -> Iterator[None]:
    """Explain an error of planning by the inputs that differ from the approved ones. `files`: their digests
    now."""
    try:
        yield
    except OrchError as error:
        now = {
            "files": files(),
            "states": {**approved.plan.states, stack.name: state_of(stack, stack.recorded)},
            "lineage": shown_lineage(read_marks(stack).lineage),
        }
        if found := inputs_differ(approved.plan, approved.plan.model_copy(update=now)):
            raise _refused(approved, f"{rows(found)}\nno plan is made now: {error.summary}") from error
        raise


@contextmanager
def _engine_plan(project: Project, stack: str) -> Iterator[Path]:
    """A file for the engine's own plan, in a folder that is this user's alone."""
    file = work_folder(project, stack) / f"approved-{secrets.token_hex(4)}.json"
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)
