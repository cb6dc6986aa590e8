"""The volumes of a project that are up, and the VolumeState of each."""

from __future__ import annotations

from datetime import datetime

from pydantic import ValidationError

from orch.components.request import whole
from orch.components.volumes import STACK
from orch.spec.errors import OrchError
from orch.spec.grammar.values import shown
from orch.spec.models import Volume
from orch.spec.suggest import few, hint_for
from orch.spec.volume_state import VolumeState
from orch.stacks.errors import NoSuchFleet, StackError
from orch.stacks.events.notation import parse_time
from orch.stacks.project.project import Project, is_stack_name
from orch.stacks.record.fleets import find_model
from orch.stacks.stack.state import StackState, stacks


def stack_of(project: Project, name: str) -> StackState:
    """The stack of a volume, whether it is up or not."""
    return StackState(project, f"{STACK}{name}")


def volume_names(project: Project) -> list[str]:
    """Names of all volumes that have a stack, sorted."""
    return [name.removeprefix(STACK) for name in stacks(project) if name.startswith(STACK)]


def volume_stacks(project: Project) -> dict[str, StackState]:
    """The stacks of the project's volumes by the volumes' names, sorted; also of those that are not up."""
    return {name: stack_of(project, name) for name in volume_names(project)}


def known_volumes(project: Project) -> dict[str, VolumeState]:
    """The volumes that are up in this project, by name, sorted. Raises StackError, Conflict."""
    stacks = volume_stacks(project)
    return {name: volume_of(stack) for name, stack in stacks.items() if is_recorded(stack)}


def is_recorded(stack: StackState) -> bool:
    """Return True if an `up` of a volume has finished; one that was cut short may have left only the disk."""
    return "volume" in stack.outputs


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
    """Return True if the resource of a volume is recorded, not only what it is created in or its deletion
    leaves."""
    own = (each for each in _own_resources(stack) if not each.get("retainOnDelete"))
    return any(each.get("custom") and each.get("id") for each in own)


def is_protected(stack: StackState) -> bool:
    """Return True if a volume is only deleted by its name; one that existed before orch is not deleted at
    all."""
    if not is_recorded(stack):
        return any(bool(each.get("protect")) for each in _own_resources(stack))
    state = volume_of(stack) if exists(stack) else None
    return state is not None and state.protect and not state.external


def created_at(stack: StackState) -> datetime | None:
    """Return the time at which the engine recorded the creation of a volume."""
    times = (parse_time(each.get("created")) for each in _own_resources(stack))
    return next((time for time in times if time is not None), None)


def _own_resources(stack: StackState) -> list[dict[str, object]]:
    return [each for each in stack.resources if not str(each["type"]).startswith("pulumi:")]


def no_such_volume(project: Project, name: str) -> NoSuchFleet:
    """The error for a volume that is not up. Where its `up` was cut short, it tells what continues it."""
    printable = name if is_stack_name(name) else shown(name)
    stack = stack_of(project, name) if is_stack_name(name) else None
    if stack is not None and stack.exists and not is_recorded(stack):
        return NoSuchFleet(
            f"the volume {printable} is not up: its `up` was cut short",
            where=str(project.root),
            hint=hint_to_continue(name, _file_of(project, name)),
            code="ORCH268",
        )
    others = volume_names(project)
    return NoSuchFleet(
        f"the volume {printable} is not up in this project",
        where=str(project.root),
        detail=f"up here: {', '.join(others)}" if others else "no volume is up here",
        hint=hint_for(name, others) or f"bring it up first: `orch up {_file_of(project, name)}`",
        code="ORCH268",
    )


def hint_to_continue(name: str, file: str) -> str:
    """Return a hint for a volume whose `up` was cut short."""
    return f"`orch up {file}` continues; `orch volume delete {name}` removes what there is"


def _file_of(project: Project, name: str) -> str:
    """The project's file that describes a volume, as one would type it there."""
    try:
        document, _ = find_model(project.root, name, Volume, "volume")
    except OrchError:
        return "volume.yml"
    return str(document.file.relative_to(project.root))
