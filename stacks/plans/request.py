"""A user's request for a fleet, and its plan with the decisions that its stack recorded."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orch.components.deployment import Deployment
from orch.components.file_systems import check
from orch.components.lifetime import CREATED, ends_of, is_over, lifetime, runs_on
from orch.components.node_count import is_range
from orch.components.registry import planning
from orch.components.request import NO_CONSENT, Approvals, NodeVolume, PlanRequest, PriorState, RecoveredFleet
from orch.spec.errors import OrchError
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.spec.suggest import few
from orch.stacks.errors import Conflict
from orch.stacks.events.notation import parse_time
from orch.stacks.plans.saved_plan import Decisions
from orch.stacks.project.lockfile import read_lock
from orch.stacks.project.project import Project, scope_of
from orch.stacks.pulumi.accounts import require_own
from orch.stacks.record.evacuated import evacuated_zones
from orch.stacks.record.fleets import find_fleet
from orch.stacks.record.node_accounts import spent_by
from orch.stacks.secrets.values import backends_with_secrets, with_secrets
from orch.stacks.stack.state import StackState, unfinished_pins


@dataclass(frozen=True)
class FleetRequest:
    """A user's request for a fleet: its model, its file, and what the user approved beyond it.

    `folder` is the file's; `file` is None when it came from standard input. `count`: how many nodes the fleet
    shall have, None: as its file and its stack say, but `at_least` so many where the file allows them.
    `more`: so many beside those that are there, containers of `image` for the run of the mark `made_for`,
    with one of `volumes`, if any. `reservation`: what a run wants the first nodes made from, where the file
    names none. `decided`: what an approved plan decided. `only`: nodes of
    a fleet that is up; nothing else of it is changed for now. `recovered`: what its cloud tells of one whose
    state was lost. `avoids`: a zone that counts as evacuated already; `leaving`: indices of nodes that leave
    such a zone, `moves`: all of the fleet does.
    """

    fleet: Fleet
    folder: Path
    approvals: Approvals = NO_CONSENT
    file: Path | None = None
    count: int | None = None
    at_least: int = 0
    more: int = 0
    image: str | None = None
    made_for: str | None = None
    volumes: tuple[NodeVolume, ...] = ()
    reservation: str | None = None
    decided: Decisions | None = None
    only: tuple[str, ...] = ()
    avoids: str | None = None
    leaving: frozenset[int] = frozenset()
    moves: bool = False
    recovered: RecoveredFleet | None = None

    @property
    def name(self) -> str:
        return self.fleet.name

    def files(self, project: Project) -> dict[str, tuple[int, int] | None]:
        """The files that a plan depends on: modification time (ns) and size (bytes), None if missing."""
        scripts = [self.folder / Path(step.file).expanduser() for step in self.fleet.init if step.file]
        files = (project.root / "orch.yml", project.lock_file, self.file, *scripts)
        return {str(file): _stamp(file) for file in files if file is not None}


def request_of(project: Project, name: str, *, count: int | None = None) -> FleetRequest:
    """Return what the file of a fleet requests now; for `count` nodes if it requests a range.

    Raises NoSuchFleet if no file describes it, or several do."""
    document, fleet = find_fleet(project.root, name)
    document.effective()
    count = count if is_range(fleet.nodes) else None
    return FleetRequest(fleet, document.directory.absolute(), file=document.file.absolute(), count=count)


_PLACES = frozenset({"backends", "regions", "availability_zones", "instance_types"})


def content_of(request: FleetRequest) -> str:
    """A fingerprint of what the file of a fleet says, with its scripts of `init`; where the fleet may be is
    left out."""
    scripts = [request.folder / Path(step.file).expanduser() for step in request.fleet.init if step.file]
    parts = [request.fleet.model_dump_json(exclude=set(_PLACES)).encode()]
    parts += [file.read_bytes() if file.is_file() else b"" for file in scripts]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def refuse_changed(request: FleetRequest, content: str, so: str) -> None:
    """Raises Conflict (ORCH406) where the file of a fleet says something else than when work on the fleet was
    planned: what it changes would come with that work. `content`: of then, "" where nobody knows; `so`: what
    is not done."""
    if content and content_of(request) != content:
        raise Conflict(
            f"the file of fleet {request.name} was changed since this was planned: {so}",
            where=str(request.file),
            hint="put it back as it was and run the same command; apply what it changes with `orch up` "
            "afterwards",
            code="ORCH406",
        )


def not_brought_up(
    request: FleetRequest, changes: Sequence[str], so: str, instead: str | None = None
) -> Conflict:
    """The refusal (ORCH406) of work on a fleet whose file has changes that would come with it. `so`: what is
    not done; `instead`: what else to do."""
    return Conflict(
        f"the file of fleet {request.name} has changes that are not brought up: {so}",
        detail=f"they come to {few(changes, 5)}",
        hint=f"look at them with `orch preview {request.file}`, and apply them with `orch up {request.file}`"
        + (f"; or {instead}" if instead else ""),
        code="ORCH406",
    )


def compile_for(stack: StackState, request: FleetRequest) -> Deployment:
    """Plan a fleet with its stack's recorded decisions. Raises PlanError, Conflict (a newer orch's state)."""
    wanted = plan_request(stack, request)
    deployment = planning.compile_fleet(wanted)
    return check(request.fleet, wanted.previous, deployment, request.approvals.lose_data)


def plan_request(stack: StackState, request: FleetRequest) -> PlanRequest:
    """Return the request of a plan: a fleet, with its stack's recorded decisions.

    Raises Conflict (a newer orch's state), OtherAccount, and what asking for nodes that ended raises."""
    require_own(stack)
    project, decided = stack.project, request.decided
    previous = replace(
        PriorState.of_outputs(stack.outputs),
        file_systems=stack.file_systems,
        unfinished=unfinished_pins(stack.recorded),
        locked={
            **read_lock(project.lock_file, request.name),
            **(decided.images if decided is not None else {}),
        },
        existing_nodes=stack.node_names,
        ended=ended_nodes(stack),
        layouts=stack.layouts,
    )
    if request.recovered is not None:
        found = request.recovered
        previous = replace(previous, unfinished=dict(found.pins), existing_nodes=found.nodes)
    budget = request.fleet.budget
    wanted = PlanRequest(
        with_secrets(project, request.fleet),
        project.backends,
        previous,
        decided.scope if decided is not None else scope_of(project),
        root=project.root,
        folder=request.folder,
        consent=request.approvals,
        session=project.session,
        stack=lambda name: PriorState.of_outputs(stack.sibling(name).outputs),
        tags=project.tags,
        created=created_at(stack, decided.created if decided is not None else None),
        spent=None if budget is None or budget.total is None else spent_by(stack),
        count=request.count,
        at_least=request.at_least,
        more=request.more,
        image=request.image,
        made_for=request.made_for,
        volumes=request.volumes,
        reservation=request.reservation,
        evacuated=evacuated_zones(stack) | ({request.avoids} if request.avoids else frozenset()),
        leaving=request.leaving,
        moves=request.moves,
    )
    return replace(wanted, settings=backends_with_secrets(project, wanted.backends))


def compile_there(stack: StackState, before: PlanRequest) -> Deployment:
    """Plan a fleet with each node where its machine is, after a call that moved some and failed.

    `before`: what was to be planned by the record before that call. Raises PlanError.
    """
    now = replace(before.previous, unfinished=unfinished_pins(stack.recorded), layouts=stack.layouts)
    return planning.compile_fleet(replace(before, previous=now))


def with_hosts(project: Project, fleet: Fleet, folder: Path) -> Fleet:
    """The same, with hosts where its file, in `folder`, names a cluster that is there already.

    Raises PlanErrors, and what asking its backend raises."""
    if not any("cluster" in each for each in fleet.backend_options):
        return fleet
    request = PlanRequest(
        fleet,
        backends_with_secrets(project),
        PriorState(),
        scope_of(project),
        root=project.root,
        folder=folder,
        session=project.session,
    )
    return planning.with_hosts(request).fleet


def created_at(stack: StackState, planned: int | None = None) -> int:
    """Return the creation time of a stack's fleet, in seconds since the epoch: now, or `planned`, if it never
    was up and no node of it is recorded."""
    pins = stack.outputs.get("pins") or {}
    if not pins and not stack.node_names:
        return int(time.time()) if planned is None else planned
    pins = {**unfinished_pins(stack.recorded), **pins}
    if str(pins.get(CREATED, "")).isdigit():
        return int(pins[CREATED])
    times = [parse_time(each.get("created")) for each in stack.resources]
    return int(min((each.timestamp() for each in times if each is not None), default=time.time()))


def over_since(stack: StackState, fleet: Fleet) -> int | None:
    """Return the time at which the `ttl` of a fleet that is up ended, by its file as it is now; None before.

    Raises PlanErrors if its machines have no such end: they run on.
    """
    ending = lifetime(fleet, created_at(stack)) if stack.resources else None
    if ending is None or ending.ends > time.time():
        return None
    pins = stack.outputs.get("pins") or {}
    if not is_over(pins, time.time()):
        raise PlanErrors([runs_on(fleet.name, ending.ends, ends_of(pins))])
    return ending.ends


def ended_nodes(stack: StackState) -> frozenset[str]:
    """The fleet's recorded nodes that ended themselves. Raises OtherAccount, and what asking the cloud
    raises."""
    previous, existing = PriorState.of_outputs(stack.outputs), stack.node_names
    nodes = tuple(node for node in previous.nodes if node.name in existing)
    asked = planning.may_have_ended(replace(previous, nodes=nodes))
    if not asked.nodes:
        return frozenset()
    require_own(stack)
    return planning.ended_nodes(
        asked,
        backends_with_secrets(stack.project, [previous.backend or ""]),
        stack.project.session,
    )


def ended_nodes_if_told(stack: StackState) -> frozenset[str]:
    """The same, and none where the cloud does not answer, as without credentials."""
    try:
        return ended_nodes(stack)
    except OrchError:
        return frozenset()


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
