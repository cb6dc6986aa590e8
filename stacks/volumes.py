"""Volumes of a project, each with a stack of its own called `volume.NAME`: preview, up, down and drift."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from orch import __version__
from orch.components.request import whole
from orch.components.volumes import STACK, Account, VolumePlan, VolumeRequest, plan_volume, replaced_property
from orch.components.volumes import volumes_of as volumes_of_backend
from orch.spec.errors import OrchError
from orch.spec.findings import Finding, PlanError
from orch.spec.grammar.values import shown
from orch.spec.models import Volume
from orch.spec.state import SCHEMA
from orch.spec.suggest import few, hint_for
from orch.spec.volume_state import VolumeState
from orch.stacks.errors import Conflict, NoSuchFleet, StackError
from orch.stacks.fleets import known_fleets
from orch.stacks.operations import ensure_images
from orch.stacks.program import find_model, scope_of, without_source_positions
from orch.stacks.project import Project, find, is_stack_name
from orch.stacks.pulumi.changes import Change, PropertyDrift, changes, find_drift
from orch.stacks.pulumi.operation import Activity, EngineCall, Listener, engine, plain
from orch.stacks.pulumi.process import Program
from orch.stacks.pulumi.recovery import recover, repair_files
from orch.stacks.records import parse_time
from orch.stacks.state import StackState, refuse_newer, stacks


@dataclass(frozen=True)
class VolumeOutcome:
    """What `up` or `down` of a volume would do, or did. `replaces`: it loses what is on it."""

    name: str
    changes: tuple[Change, ...]
    drift: tuple[PropertyDrift, ...] = ()
    reasons: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    monthly: float | None = 0.0
    replaces: str | None = None

    @property
    def pending(self) -> bool:
        return any(change.op != "same" for change in self.changes)


def stack_of(project: Project, name: str) -> StackState:
    """The stack of a volume, whether it is up or not."""
    return StackState(project, f"{STACK}{name}")


def volume_names(project: Project) -> list[str]:
    """Names of all volumes that have a stack, sorted."""
    return [name.removeprefix(STACK) for name in stacks(project) if name.startswith(STACK)]


def known_volumes(project: Project) -> dict[str, VolumeState]:
    """The volumes that are up in this project, by name, sorted. Raises StackError, Conflict."""
    states = {name: stack_of(project, name) for name in volume_names(project)}
    return {name: volume_of(stack) for name, stack in states.items() if "volume" in stack.outputs}


def volume_of(stack: StackState) -> VolumeState:
    """The volume of a stack. Raises NoSuchFleet when it is not up, Conflict, StackError."""
    name = stack.name.removeprefix(STACK)
    recorded = stack.outputs.get("volume")
    if recorded is None or not exists(stack):
        raise no_such_volume(stack.project, name)
    try:
        return VolumeState.model_validate(whole(recorded))
    except ValidationError as error:
        raise StackError(
            f"the recorded state of volume {name} is not one that orch wrote",
            where=str(stack.project.checkpoint(stack.name) or stack.project.state_url),
            detail=few((f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()), 3),
            hint="`orch up` with its file records it anew",
            code="ORCH351",
        ) from error


def exists(stack: StackState) -> bool:
    """Whether the resource of a volume is recorded."""
    return any(each.get("custom") and each.get("id") for each in _own_resources(stack))


def created_at(stack: StackState) -> datetime | None:
    """When the engine recorded the creation of a volume."""
    times = (parse_time(each.get("created")) for each in _own_resources(stack))
    return next((time for time in times if time is not None), None)


def _own_resources(stack: StackState) -> list[dict[str, object]]:
    return [each for each in stack.resources if not str(each["type"]).startswith("pulumi:")]


def no_such_volume(project: Project, name: str) -> NoSuchFleet:
    """The error for a volume that is not up."""
    others = volume_names(project)
    return NoSuchFleet(
        f"the volume {name if is_stack_name(name) else shown(name)} is not up in this project",
        where=str(project.root),
        detail=f"up here: {', '.join(others)}" if others else "no volume is up here",
        hint=hint_for(name, others) or "bring it up first: `orch up volume.yml`",
        code="ORCH268",
    )


def account_of(project: Project) -> Account:
    """How the backends of a project are asked."""
    return Account(project.backends, project.session)


def preview_volume(project: Project, volume: Volume, listener: Listener) -> VolumeOutcome:
    """What `up` would do, after a refresh. Takes no lock. Raises PlanErrors, Conflict, StackError."""
    project.prepare()
    stack = stack_of(project, volume.name)
    repair_files(project, stack.name)
    plan = _planned(stack, volume)
    run = EngineCall(listener, planning=True)
    listener(Activity(f"the engine compares the volume {volume.name} with its disk"))
    engine(stack, ["preview"], run, volume_program(plan))
    return _outcome(stack, plan, run)


def up_volume(project: Project, volume: Volume, listener: Listener) -> VolumeOutcome:
    """Bring a volume up, and return what was done. Raises PlanErrors, StackError, Conflict, Interrupted."""
    project.prepare()
    stack = stack_of(project, volume.name)
    recover(stack, listener)
    plan = _planned(stack, volume)
    before = volume_of(stack) if exists(stack) else None
    ensure_images(plan.images, listener)
    listener(Activity(f"bringing up the volume {volume.name}"))
    run = EngineCall(listener, planning=False)
    engine(stack, ["up", "--yes", "--skip-preview"], run, volume_program(plan))
    return _outcome(stack, plan, run, before)


def down_volume(project: Project, name: str, listener: Listener) -> VolumeOutcome:
    """Delete a volume with all that is on it, and its stack; one that existed before orch stays.

    Whoever calls has asked: no protection is looked at. Raises NoSuchFleet, Conflict, StackError.
    """
    stack = stack_of(project, name)
    if not stack.exists:
        raise no_such_volume(project, name)
    project.prepare()
    recover(stack, listener, removing=True)
    listener(Activity(f"deleting the volume {name}"))
    if any(each.get("protect") for each in stack.resources):
        plain(stack, ["state", "unprotect", "--all", "--yes"])
    run = EngineCall(listener, planning=False)
    engine(stack, ["destroy", "--yes", "--skip-preview"], run)
    plain(stack, ["stack", "rm", "--yes"])
    shutil.rmtree(project.dot / "work" / stack.name, ignore_errors=True)
    return VolumeOutcome(name, changes(run.events))


def drift_of_volume(
    project: Project, name: str, listener: Listener, *, record: bool = False
) -> tuple[PropertyDrift, ...]:
    """What differs from the record; with `record` it becomes the record. Raises NoSuchFleet, StackError."""
    stack = stack_of(project, name)
    if "volume" not in stack.outputs:
        raise no_such_volume(project, name)
    project.prepare()
    recover(stack, listener) if record else repair_files(project, stack.name)
    run = EngineCall(listener, planning=True)
    words = ["--yes", "--skip-preview"] if record else ["--preview-only"]
    engine(stack, ["refresh", *words], run)
    return find_drift(run.events)


def _planned(stack: StackState, volume: Volume) -> VolumePlan:
    project = stack.project
    previous = volume_of(stack) if exists(stack) and "volume" in stack.outputs else None
    near = zones_of_fleets(project, volume) if volume.availability_zone is None else ()
    return plan_volume(
        VolumeRequest(volume, account_of(project), previous, scope_of(project), dict(project.tags), near)
    )


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
        before = volume_of(stack) if exists(stack) and "volume" in stack.outputs else None
    replaced = before and replaced_property(volumes_of_backend(before.backend), before, plan.state)
    return VolumeOutcome(
        plan.state.name,
        changes(run.events),
        find_drift(run.events),
        plan.reasons,
        monthly=plan.state.monthly,
        replaces=replaced[1] if replaced else None,
    )


def volume_program(plan: VolumePlan) -> Program:
    """The program that the engine runs for a volume."""

    def run() -> None:
        register_volume(plan)

    return run


def register_volume(plan: VolumePlan) -> None:
    """Register the resource of a volume, and export its state."""
    import pulumi

    with without_source_positions():
        volume_id = plan.register()
    pulumi.export("orch", {"version": __version__, "schema": SCHEMA})
    pulumi.export(
        "volume",
        volume_id.apply(lambda known: plan.state.model_copy(update={"volume_id": known}).model_dump()),
    )


def register_by_hand(root: Path, name: str, stack_name: str) -> None:
    """Register a volume for a `pulumi up` by hand: that of the project at `root`. Raises pulumi.RunError."""
    import pulumi

    try:
        document, volume = find_model(root, name, Volume, "volume")
        document.effective()
        answer = pulumi.runtime.invoke("pulumi:pulumi:readStackOutputs", {"name": stack_name}).value or {}
        recorded = refuse_newer(answer.get("outputs") or {}).get("volume")
        previous = VolumeState.model_validate(whole(recorded)) if recorded else None
        project = find(root)
        request = VolumeRequest(volume, account_of(project), previous, scope_of(project), dict(project.tags))
        try:
            plan = plan_volume(request)
        except PlanError as error:
            raise error.placed(document) from error
    except OrchError as error:
        raise pulumi.RunError(error.text()) from error
    register_volume(plan)


def require_unused(name: str, users: list[str]) -> None:
    """Raises Conflict (ORCH386) when runs use a volume."""
    if users:
        raise Conflict(
            f"volume {name} is in use",
            detail=f"active runs: {', '.join(users)}",
            hint="wait for them, or end them with `orch stop RUN`",
            code="ORCH386",
        )
