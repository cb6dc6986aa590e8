"""Preview, up, down and drift of a volume; who uses the volumes of a project, and which nobody has used for
long.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from orch.components.registry.volumes import plan_volume, volumes_of
from orch.components.volumes import STACK, DiskVolumes, VolumePlan, VolumeRequest
from orch.runner.launch.volumes import VolumeUse, volume_uses
from orch.runner.ledger.ledger import open_ledger
from orch.spec.errors import OrchError
from orch.spec.findings import Finding
from orch.spec.models import Volume
from orch.spec.volume_state import VolumeState
from orch.stacks.errors import Conflict, EngineFailed, ProjectError
from orch.stacks.events.changes import Change, PropertyDrift, changes, find_drift
from orch.stacks.plans.guard import Guard
from orch.stacks.plans.marks import make_lineage
from orch.stacks.plans.recorder import Recorder
from orch.stacks.project.project import Project, scope_of
from orch.stacks.provisioning.operations import ensure_images
from orch.stacks.provisioning.other_states import other_volumes, refuse_other_fleets
from orch.stacks.provisioning.policies import of_volume
from orch.stacks.pulumi.accounts import drop_record, leads_elsewhere, require_own, require_planned
from orch.stacks.pulumi.leasing import StackFence
from orch.stacks.pulumi.operation import EngineCall, engine, require_confirmed
from orch.stacks.pulumi.progress import Activity, Listener, Note
from orch.stacks.pulumi.recovery import recover, repair_files
from orch.stacks.record.change_log import logged
from orch.stacks.record.fleets import known_fleets
from orch.stacks.record.volume_attaching import account_of
from orch.stacks.record.volumes import created_at, exists, is_recorded, no_such_volume, stack_of, volume_of
from orch.stacks.stack.command import plain
from orch.stacks.stack.leases import lease_finding, refuse_leased
from orch.stacks.stack.state import StackState
from orch.stacks.volumes.program import volume_program

# Properties that no disk has: the stack's record alone.
_OWN = ("protect", "auto_cleanup_s", "read_only", "sharing")


@dataclass(frozen=True)
class VolumeOutcome:
    """Outcome of `up` or `down` of a volume, planned or done. `loses_data`: a disk of orch's own is replaced.

    `recorded`: properties that are orch's alone and change, such as `protect`. `monthly`: US dollars of it
    afterwards, `was_monthly` before, None where no price is known.
    """

    name: str
    changes: tuple[Change, ...]
    drift: tuple[PropertyDrift, ...] = ()
    reasons: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    monthly: float | None = 0.0
    was_monthly: float | None = 0.0
    loses_data: bool = False
    recorded: tuple[str, ...] = ()

    @property
    def pending(self) -> bool:
        return bool(self.recorded) or any(change.op != "same" for change in self.changes)


def preview_volume(
    project: Project,
    volume: Volume,
    listener: Listener,
    *,
    scope: str | None = None,
    recorder: Recorder | None = None,
) -> VolumeOutcome:
    """Plan the `up` of a volume, after a refresh. Takes no lock. `scope`: that of an approved plan;
    `recorder` sees what the engine plans. Raises PlanErrors, Conflict, StackError."""
    project.prepare()
    stack = stack_of(project, volume.name)
    repair_files(project, stack.name)
    leased = (*lease_finding(stack), *other_volumes(stack, volume, listener))
    require_own(stack)
    plan = _planned(stack, volume, scope)
    run = EngineCall(listener, planning=True, observer=recorder)
    listener(Activity(f"the engine compares the volume {volume.name} with its disk"))
    words = recorder.words if recorder is not None else ()
    engine(stack, ["preview", *words], run, volume_program(plan))
    outcome = _outcome(stack, plan, run)
    return replace(outcome, findings=(*outcome.findings, *_judged(stack, run), *leased))


def up_volume(
    project: Project,
    volume: Volume,
    listener: Listener,
    *,
    scope: str | None = None,
    guard: Guard | None = None,
    another: bool = False,
) -> VolumeOutcome:
    """Bring a volume up, and return what was done. `guard` holds it to an approved plan, `scope` is that
    plan's. `another`: also if its cloud has one of its name, or does not say. Raises PlanErrors, StackError,
    Conflict, Interrupted."""
    project.prepare()
    stack = stack_of(project, volume.name)
    refuse_leased(stack)
    require_own(stack)
    if not another:
        refuse_other_fleets(other_volumes(stack, volume, listener))
    recover(stack, listener)
    plan = _planned(stack, volume, scope)
    before = _recorded(stack)
    if project.policies.refuses_by_engine:
        preview = EngineCall(listener, planning=True)
        engine(stack, ["preview"], preview, volume_program(plan))
        _judged(stack, preview)
    ensure_images(plan.images, listener)
    listener(Activity(f"bringing up the volume {volume.name}"))
    run = EngineCall(listener, planning=False)
    words, code = ["up", "--yes", "--skip-preview"], volume_program(plan)
    if guard is not None:
        words, code = guard.guarded(words, code)
    fence = StackFence(stack)
    try:
        with logged(project, "up", f"volume {volume.name}", listener) as outcome:
            engine(stack, words, run, fence.guarded(code, {volume.backend}, plan.account))
            outcome.made(changes(run.events))
    except EngineFailed as failed:
        if (refusal := fence.refusal(failed)) is not failed:
            raise refusal from failed
        if guard is not None and (refusal := guard.refusal(failed)) is not failed:
            raise refusal from failed
        raise
    make_lineage(stack)
    return _outcome(stack, plan, run, before)


def _judged(stack: StackState, run: EngineCall) -> tuple[Finding, ...]:
    """Return the policies' findings about a plan of the engine. Raises PlanErrors if a policy refuses."""
    before = _recorded(stack)
    name = stack.name.removeprefix(STACK)
    own = before is None or not before.external
    return of_volume(stack.project, name, run.inspection, changes(run.events), own=own)


def down_volume(project: Project, name: str, listener: Listener) -> VolumeOutcome:
    """Delete a volume with all that is on it, and its stack; one that existed before orch stays.

    Whoever calls has asked: no protection is looked at. With `--forget` a volume that has an account of
    its own leaves the record if the credentials lead to another one. Raises NoSuchFleet, Conflict,
    StackError.
    """
    stack = stack_of(project, name)
    if not stack.exists:
        raise no_such_volume(project, name)
    project.prepare()
    refuse_leased(stack)
    if project.forget and leads_elsewhere(stack):
        with logged(project, "volume delete", f"volume {name}", listener):
            drop_record(stack, listener)
        return VolumeOutcome(name, ())
    require_own(stack)
    recover(stack, listener, removing=True)
    require_confirmed(stack, listener)
    listener(Activity(f"deleting the volume {name}"))
    run, volume = EngineCall(listener, planning=False), _recorded(stack)
    with logged(project, "volume delete", f"volume {name}", listener) as outcome:
        if any(each.get("protect") for each in stack.resources):
            plain(stack, ["state", "unprotect", "--all", "--yes"])
        engine(stack, ["destroy", "--yes", "--skip-preview"], run)
        outcome.made(changes(run.events))
    if volume is not None and not volume.external:
        _clear(stack, volume, listener)
    plain(stack, ["stack", "rm", "--yes"])
    shutil.rmtree(project.dot / "work" / stack.name, ignore_errors=True)
    return VolumeOutcome(name, changes(run.events))


def _clear(stack: StackState, volume: VolumeState, listener: Listener) -> None:
    """Remove what was made with a volume that is deleted; that it cannot go is told, and keeps nothing."""
    project = stack.project
    account = account_of(project, volume.backend)
    try:
        for each in volumes_of(volume.backend).clear(account, volume, f"{project.name}/{stack.name}"):
            listener(Note(f"deleted with it: {each}"))
    except OrchError as error:
        words = (
            f"what was made with the volume {volume.name} may be left: {error.summary}; `orch gc` finds it"
        )
        listener(Note(words))


def drift_of_volume(
    project: Project, name: str, listener: Listener, *, record: bool = False
) -> tuple[PropertyDrift, ...]:
    """Return what differs from the record; with `record` it becomes the record. Raises NoSuchFleet,
    StackError."""
    stack = stack_of(project, name)
    if not is_recorded(stack):
        raise no_such_volume(project, name)
    project.prepare()
    require_own(stack)
    if record:
        refuse_leased(stack)
        recover(stack, listener)
    else:
        repair_files(project, stack.name)
    run = EngineCall(listener, planning=True)
    words = ["--yes", "--skip-preview"] if record else ["--preview-only"]
    engine(stack, ["refresh", *words], run)
    return find_drift(run.events)


def _recorded(stack: StackState) -> VolumeState | None:
    """The volume as it was brought up; None where an `up` that was cut short has recorded its disk alone."""
    return volume_of(stack) if exists(stack) and is_recorded(stack) else None


def _planned(stack: StackState, volume: Volume, scope: str | None = None) -> VolumePlan:
    project = stack.project
    previous = _recorded(stack)
    near = zones_of_fleets(project, volume) if volume.availability_zone is None else ()
    plan = plan_volume(
        VolumeRequest(
            volume,
            account_of(project, volume.backend),
            previous,
            scope or scope_of(project),
            dict(project.tags),
            near,
        )
    )
    require_planned(stack, volume.backend, plan.account)
    return plan


def zones_of_fleets(project: Project, volume: Volume) -> tuple[str, ...]:
    """Zones of the region of a volume where nodes of the project are, on its backend."""
    fleets = [each.outputs["fleet"] for each in known_fleets(project).values()]
    nodes = [node for fleet in fleets if fleet["backend"] == volume.backend for node in fleet["nodes"]]
    zones = (node["zone"] for node in nodes if node.get("zone") and node.get("region") == volume.region)
    return tuple(dict.fromkeys(zones))


def _outcome(
    stack: StackState, plan: VolumePlan, run: EngineCall, before: VolumeState | None = None
) -> VolumeOutcome:
    if run.planning:
        before = _recorded(stack)
    found = changes(run.events)
    own = before is None or not before.external
    return VolumeOutcome(
        plan.state.name,
        found,
        find_drift(run.events),
        plan.reasons,
        monthly=plan.state.monthly,
        was_monthly=before.monthly if before is not None else 0.0,
        loses_data=own and any(change.op == "replace" for change in found),
        recorded=tuple(
            name for name in _OWN if before is not None and getattr(before, name) != getattr(plan.state, name)
        ),
    )


@dataclass(frozen=True)
class VolumeUsage:
    """A volume that is up, and the runs of the ledger that use it or did.

    `created`: when the engine recorded its creation. `now`: seconds since the epoch. `complete`: whether the
    ledger has the runs of everybody who may use the volume.
    """

    state: VolumeState
    created: datetime | None
    uses: Sequence[VolumeUse]
    now: float
    complete: bool = True

    @property
    def active(self) -> tuple[VolumeUse, ...]:
        """Runs that use it now."""
        return tuple(each for each in self.uses if each.ended is None)

    @property
    def idle_s(self) -> float | None:
        """Seconds since a run used it, or since it was created; None while one does."""
        if self.active:
            return None
        moments = [each.ended for each in self.uses if each.ended is not None]
        moments += [self.created.timestamp()] if self.created else []
        return max(0.0, self.now - max(moments)) if moments else None

    @property
    def is_due(self) -> bool:
        """Return True if its `auto_cleanup_duration` is over. A volume that existed before orch is never due,
        nor is one whose users are not all known."""
        limit = self.state.auto_cleanup_s
        return (
            limit is not None
            and self.complete
            and not self.state.external
            and (self.idle_s or 0.0) >= limit
            and not self.active
        )


def usages(project: Project, stacks: Mapping[str, StackState]) -> list[VolumeUsage]:
    """Return the usage of the volumes of `stacks` that are up. Raises StackError, Conflict,
    LedgerUnusable."""
    uses, now, complete = _uses(project, active_only=False), time.time(), project.knows_all_runs
    return [
        VolumeUsage(volume_of(stack), created_at(stack), uses.get(name, ()), now, complete)
        for name, stack in stacks.items()
        if is_recorded(stack)
    ]


def require_all_runs_known(project: Project) -> None:
    """Raises ProjectError when others may use volumes whose runs this machine's ledger does not have."""
    if project.knows_all_runs:
        return
    raise ProjectError(
        "which volumes nobody has used for long is not known here",
        where=str(project.root),
        detail=f"the state is shared ({project.state_url}), and the ledger of runs is of this machine alone: "
        "others may use what no run here has used",
        hint="give the project a ledger that all share, `ledger: postgresql://…` in orch.yml, or delete a "
        "volume by its name: `orch volume delete NAME`",
    )


def require_unused(project: Project, name: str) -> None:
    """Raises Conflict (ORCH386) when a run of the ledger uses a volume, or a machine has its disk."""
    users = [f"{each.run} on {each.node}" for each in _uses(project).get(name, ())]
    if users:
        raise Conflict(
            f"volume {name} is in use",
            detail=f"active runs: {', '.join(users)}",
            hint="wait for them, or end them with `orch stop RUN`",
            code="ORCH386",
        )
    stack = stack_of(project, name)
    if not is_recorded(stack) or not exists(stack):
        return
    state = volume_of(stack)
    volumes = volumes_of(state.backend)
    if state.external or not isinstance(volumes, DiskVolumes):
        return
    require_own(stack)
    # Runs of other ledgers, and disks that a killed call has left attached.
    if machines := volumes.users(account_of(project, state.backend), state):
        raise Conflict(
            f"volume {name} is attached to {', '.join(machines)}",
            detail="no run of this project's ledger uses it; one of another ledger may",
            hint="`orch ps` gives back what ended runs have left attached; else detach it: "
            f"`{volumes.detach_hint(state, machines[0])}`",
            code="ORCH386",
        )


def _uses(project: Project, *, active_only: bool = True) -> Mapping[str, Sequence[VolumeUse]]:
    """Runs of the ledger by the volume that they use."""
    project.prepare()
    ledger = open_ledger(project.ledger_url)
    try:
        return volume_uses(ledger, active_only=active_only)
    finally:
        ledger.close()
