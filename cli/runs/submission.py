"""Submits a task: the fleet it goes to, its image, and a refusal as a diagnostic at its place in the file."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orch.cli.driver.provisioned import listening, why_silent
from orch.cli.errors import tell
from orch.spec.errors import OrchError

if TYPE_CHECKING:
    from orch.cli.driver.new_nodes import NewNodes
    from orch.runner.errors import NoFit
    from orch.runner.launch.volumes import Volumes
    from orch.runner.ledger.records import RunRow
    from orch.runner.plan.run_plan import DevPlan
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.spec.loader.load import Document
    from orch.spec.models import Task
    from orch.spec.state import FleetState
    from orch.stacks.project.project import Project
    from orch.stacks.stack.state import StackState


@dataclass(frozen=True)
class Room:
    """The fleets that are up, by name, and the names of the nodes that were made for the run; `made_for`: the
    mark of those that no other run may have, `made_on`: their fleet."""

    stacks: Mapping[str, StackState]
    made: frozenset[str] = frozenset()
    made_for: str | None = None
    made_on: str = ""


@dataclass(frozen=True)
class RunRequest:
    """Request of a command line for a run. `makes_nodes`: later attempts create the nodes that they lack, if
    the task permits it."""

    arguments: Sequence[str] = ()
    fleet: str | None = None
    name: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    wait: bool = False
    makes_nodes: bool = False


def submit_task(
    project: Project, runner: RunnerContext, document: Document, request: RunRequest, room: Room
) -> RunRow:
    """Submit a task to the best of the fleets that are up: those of `room`."""
    from orch.runner.errors import NoFit
    from orch.runner.launch.submission import Submission
    from orch.runner.launch.volumes import VolumeMisfit
    from orch.runner.placement.rank_groups import on_fleet
    from orch.runner.runs.arrays.submit import submit_array
    from orch.runner.runs.seats.choose import choose_fleet
    from orch.runner.runs.submit import submit
    from orch.spec.state import own_nodes
    from orch.stacks.record.variables import with_variables

    stacks = room.stacks
    task, dev = task_of_document(document)
    try:
        if request.fleet is not None:
            task = on_fleet(task, request.fleet)
        found = _candidates(project, stacks, task, request.fleet)
        candidates = {name: own_nodes(each, room.made_for) for name, each in found.items()}
        others = [node["name"] for name in stacks if name not in candidates for node in stacks[name].nodes]
        fleet = choose_fleet(runner, task, candidates, request.fleet, elsewhere=others)
    except NoFit as error:
        raise _as_diagnostic(error, project, document) from error
    _tell_of_end(task, stacks[fleet.stack])
    task, image = _with_image(project, document, task, fleet)
    try:
        with at_its_property(document):
            submission = Submission(
                task,
                with_variables(stacks[fleet.stack], fleet),
                image=image,
                base=document.directory,
                name=request.name,
                stem=_stem(document.file),
                run_args=tuple(request.arguments),
                cli_env=dict(request.variables),
                caller_env=dict(os.environ),
                volumes=_volumes(project, runner, task),
                dev=dev,
                makes_nodes=request.makes_nodes and task.creation_policy != "reuse",
                made=room.made,
            )
            if task.array is not None:
                return submit_array(runner, submission)
            silent = partial(why_silent, project, stacks[fleet.stack])
            return submit(runner, submission, wait=request.wait, why_silent=silent)
    except VolumeMisfit as error:
        raise _as_diagnostic(error, project, document) from error


def _with_image(project: Project, document: Document, task: Task, fleet: FleetState) -> tuple[Task, str]:
    """Return the task as it runs on a fleet, and its image there. Raises BadTask, ImageError."""
    from orch import images
    from orch.images import job_image
    from orch.runner.node.registry import registry_of

    image = job_image(task, fleet, project.default_image, project.images)
    if image.instead_of is not None:
        tell(f"image {image.instead_of}: {image.reference} is used in its place (`images` of orch.yml)")
        if registry_of(image.reference) != registry_of(image.instead_of):
            # The log-in is for another registry than this image's.
            task = task.model_copy(update={"registry_auth": None})
    if fleet.queue is not None:
        from orch.stacks.runs.nodes_for_runs import require_in_registry

        with at_its_property(document):
            require_in_registry(task, fleet, image.reference)
    try:
        return task, images.resolve(image.reference)
    except images.ImageError as error:
        if image.reference == task.image:
            error.where = str(document.span(("image",)))
        raise


def fleets_with_room(
    project: Project, runner: RunnerContext, document: Document, fleet_name: str | None, new_nodes: NewNodes
) -> Room:
    """The fleets that are up, after nodes were made where the task finds too few and a fleet may have more.

    Raises NoFit as a diagnostic, and what making them raises."""
    from orch.runner.errors import NoFit
    from orch.runner.placement.rank_groups import on_fleet
    from orch.stacks.record.fleets import known_fleets

    task, _ = task_of_document(document)
    stacks = lasting(known_fleets(project), fleet_name)
    if not new_nodes.allowed or task.creation_policy == "reuse":
        return Room(stacks)
    try:
        if fleet_name is not None:
            task = on_fleet(task, fleet_name)
        if not _may_any_grow(stacks):
            return Room(stacks)
        return _grown(project, runner, document, task, new_nodes, fleet_name=fleet_name, stacks=stacks)
    except NoFit as error:
        raise _as_diagnostic(error, project, document) from error


def _may_any_grow(stacks: Mapping[str, StackState]) -> bool:
    from orch.components.node_count import may_grow

    return any(may_grow(stack.outputs.get("pins") or {}) for stack in stacks.values())


def _grown(
    project: Project,
    runner: RunnerContext,
    document: Document,
    task: Task,
    new_nodes: NewNodes,
    *,
    fleet_name: str | None,
    stacks: Mapping[str, StackState],
) -> Room:
    """The fleets of `stacks`, of which some may grow, after nodes were made where the task finds too few.

    Raises as `fleets_with_room`."""
    from orch.cli.driver.new_nodes import growth_of, make
    from orch.runner.errors import NoFit
    from orch.spec.findings import PlanError
    from orch.spec.state import new_nodes as nodes_made_since
    from orch.spec.state import own_nodes
    from orch.stacks.provisioning.nodes_with_runs import given_back, make_way
    from orch.stacks.record.fleets import fleet_of, known_fleets

    made, unfit = frozenset[str](), dict[str, NoFit]()
    while _may_any_grow(stacks):
        candidates = _candidates(project, stacks, task, fleet_name)
        if make_way(project, candidates.values(), listening):
            stacks = lasting(known_fleets(project), fleet_name)
            continue
        with at_its_property(document):
            growth = growth_of(project, runner, task, candidates.values(), refused=unfit)
        if growth is None:
            break
        name, mark = growth.state.name, growth.request.made_for
        with given_back(project, name, mark, listening):
            try:
                done = make(project, growth, new_nodes)
            except NoFit as error:
                unfit[name] = error
                if len(candidates) > len(unfit):
                    tell(f"fleet {name}: its new nodes would not fit the run")
                continue
            except PlanError as error:
                raise error.placed(growth.document) from error
            stacks = lasting(known_fleets(project), fleet_name)
            if done and name in stacks:
                now = own_nodes(fleet_of(stacks[name]), mark)
                made = nodes_made_since(own_nodes(candidates[name], mark), now)
                if mark is None:
                    _tell_of_idle_duration(task, stacks[name], made)
        if done:
            return Room(stacks, made, mark, name)
    return Room(stacks, made)


@contextmanager
def kept_if_submitted(project: Project, room: Room) -> Iterator[None]:
    """The block submits the run that nodes were made for, if any; where it fails, they are removed."""
    if room.made_for is None:
        yield
        return
    from orch.stacks.provisioning.nodes_with_runs import until_submitted

    with until_submitted(project, room.made_on, room.made_for, listening):
        yield


def _volumes(project: Project, runner: RunnerContext, task: Task) -> Volumes:
    """The volumes that are up, for a task that mounts some."""
    from orch.runner.launch.volumes import NO_VOLUMES, needs_volumes

    if not needs_volumes(task):
        return NO_VOLUMES
    from orch.stacks.record.volume_attaching import volumes_for

    return volumes_for(project, runner.ledger)


def _tell_of_idle_duration(task: Task, stack: StackState, made: Collection[str]) -> None:
    """Say so where the nodes that were made for a run do not end themselves when it wants."""
    from orch.components.idleness import may_end

    if made and task.idle_duration_s is not None and not may_end(stack.outputs.get("pins") or {}):
        tell(
            f"note: nodes of the fleet {stack.name} do not end themselves: `idle_duration` of this run is "
            f"without effect; `orch down {stack.name} -i INDEX` removes one"
        )


def lasting(stacks: dict[str, StackState], fleet_name: str | None) -> dict[str, StackState]:
    """The fleets whose time is not over. Raises NoSuchFleet where that of the named one is, or of all."""
    from orch.components.lifetime import is_over
    from orch.stacks.errors import NoSuchFleet

    now = time.time()
    over = [name for name, stack in stacks.items() if is_over(stack.outputs.get("pins") or {}, now)]
    if fleet_name in over or (over and len(over) == len(stacks)):
        name = fleet_name if fleet_name in over else over[0]
        raise NoSuchFleet(
            f"the time of the fleet {name} is over: its machines ended themselves",
            hint=f"`orch down {name}` removes what is left of it; a longer `ttl` and `orch up` bring it back",
            code="ORCH233",
        )
    return {name: stack for name, stack in stacks.items() if name not in over}


def _tell_of_end(task: Task, stack: StackState) -> None:
    """Warn of a run that may last longer than its fleet."""
    from orch.components.lifetime import ends_of, words

    ends = ends_of(stack.outputs.get("pins") or {})
    limit = task.max_duration_s
    if ends is not None and limit is None:
        tell(f"note: the fleet {stack.name} ends at {words(ends)}, and a run that lasts as long with it")
    elif ends is not None and time.time() + (limit or 0) > ends:
        tell(f"warning: the fleet {stack.name} ends at {words(ends)}, before `max_duration` of this run")


def check_name(runner: RunnerContext, document: Document, name: str | None) -> None:
    """Refuse the name of a run that is active before nodes are made. `name`: of the command line.

    Raises NameTaken."""
    with at_its_property(document):
        wanted = name if name is not None else task_of_document(document)[0].name
        if wanted is not None:
            runner.ledger.check_name(wanted)


def is_run(document: Document) -> bool:
    """Return True for a document that `orch run` starts."""
    from orch.spec.models import DevEnvironment, Task

    return isinstance(document.model, Task | DevEnvironment)


def of_array(document: Document) -> bool:
    """Return True for a task with `array`."""
    return task_of_document(document)[0].array is not None


def task_of_document(document: Document) -> tuple[Task, DevPlan | None]:
    """The task of a document, or the one that carries its dev environment out; see `task_of`."""
    from orch.runner.launch.dev_environment import task_of
    from orch.spec.models import DevEnvironment, Task

    if not isinstance(document.model, Task | DevEnvironment):
        raise TypeError(f"no task: {type(document.model).__name__}")
    return task_of(document.model)


@contextmanager
def at_its_property(document: Document) -> Iterator[None]:
    """A BadTask of the block about a property of the document's task says where that is; so does a NameTaken,
    where the document says the name."""
    from orch.runner.errors import BadTask, NameTaken
    from orch.runner.placement.placement import parts_of
    from orch.spec.document.draft import env_path
    from orch.spec.loader.load import InvalidConfiguration

    try:
        yield
    except NameTaken as error:
        if task_of_document(document)[0].name == error.name:
            error.where = str(document.span(("name",)))
        raise
    except BadTask as error:
        if not error.path:
            raise
        path = parts_of(error.path)
        if path[-2:-1] == ("env",):
            path = env_path(document.draft, str(path[-1]), path[:-1])
        if error.code is None:
            error.where = error.where or str(document.span(path))
            raise
        diagnostic = document.draft.diagnostic(
            error.code, path, error.summary, detail=error.detail, hint=error.hint
        )
        raise InvalidConfiguration((diagnostic,)) from error


def _as_diagnostic(error: NoFit, project: Project, document: Document) -> OrchError:
    """A NoFit error that is about a property, as a diagnostic at its place, related to its fleets."""
    if error.code is None and not error.fleets:
        return error
    from orch.runner.placement.placement import parts_of
    from orch.spec.diagnostics import Related
    from orch.spec.loader.load import InvalidConfiguration
    from orch.stacks.errors import NoSuchFleet
    from orch.stacks.record.fleets import find_fleet

    related: list[Related] = []
    for name in error.fleets:
        try:
            fleet_document, _ = find_fleet(project.root, name)
        except NoSuchFleet:  # no file of this project describes it
            continue
        related.append(Related(fleet_document.span(), f"fleet '{name}'"))
    diagnostic = document.draft.diagnostic(
        error.code or "ORCH245",
        parts_of(error.path),
        error.summary,
        detail=error.detail,
        hint=error.hint,
        related=tuple(related),
    )
    return InvalidConfiguration((diagnostic,))


def _candidates(
    project: Project, stacks: Mapping[str, StackState], task: Task, fleet_name: str | None
) -> dict[str, FleetState]:
    """The candidate fleets of a task by name, from the `stacks` of the fleets that are up.

    All of them when none of the requested fleets is up: the error message then names them."""
    from orch.runner.placement.rank_groups import requested_fleets
    from orch.runner.placement.slots import with_slots
    from orch.stacks.record.fleets import fleet_of, not_up

    if fleet_name is not None and fleet_name not in stacks:
        raise not_up(project, fleet_name)
    requested = (fleet_name,) if fleet_name is not None else requested_fleets(task)
    names = [name for name in stacks if name in requested] or list(stacks)
    return {name: with_slots(fleet_of(stacks[name])) for name in names}


def _stem(file: Path) -> str:
    """The first part of the name of an unnamed run."""
    import re

    name = file.name.removesuffix(".yml").removesuffix(".yaml").removesuffix(".dstack") or file.parent.name
    word = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return word if re.match(r"[a-z]", word) else "run"
