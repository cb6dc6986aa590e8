"""Rebuilds the state of a fleet that was lost, from the marks of what is in its cloud. Nothing is made there.

The program of an `up` runs against a state in a folder of its own, whose provider finds what there is
(`adopting.py`). What comes of it is written into the project's state as a whole: until then nobody sees a
stack that records a part of the fleet, whose rest would be taken for leftovers.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization

from orch.components.deployment import Deployment
from orch.components.marks.marked import MarkedResource, Survey, stack_of
from orch.components.registry.backends import backends_of, require_backend
from orch.components.request import RecoveredFleet
from orch.components.request import whole as as_numbers
from orch.runner.ledger.ledger import open_ledger
from orch.runner.private import write_private
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models.backends import effective
from orch.spec.state import FleetState
from orch.spec.suggest import counted
from orch.stacks.errors import Conflict, NoSuchFleet, StackError
from orch.stacks.plans.program import program
from orch.stacks.plans.request import FleetRequest, compile_for, plan_request
from orch.stacks.plans.saved_plan import Decisions
from orch.stacks.project.passphrase import is_given, not_ours
from orch.stacks.project.project import Project, ledger_scope, scope_of
from orch.stacks.provisioning.gang import up_arguments
from orch.stacks.provisioning.other_states import survey_of_fleet
from orch.stacks.pulumi import accounts
from orch.stacks.pulumi.leasing import release, take
from orch.stacks.pulumi.operation import EngineCall, engine
from orch.stacks.pulumi.progress import Activity, Listener
from orch.stacks.pulumi.recovery import export
from orch.stacks.record.change_log import undertaken
from orch.stacks.secrets.identity import key_file, read_note
from orch.stacks.stack.command import init, plain
from orch.stacks.stack.locks import subject
from orch.stacks.stack.state import StackState, outputs, settings_file
from orch.stacks.states.adopting import MISSING, Adopted, Adoption
from orch.stacks.states.repair import damage_of

VERB = "state import"
THERE, NOTHING, AMBIGUOUS, OTHER = "ORCH430", "ORCH431", "ORCH432", "ORCH433"
OWNER = "orch state import"
"""Who has the lease of a stack that is written."""
_LEASE_S = 86_400


@dataclass(frozen=True)
class Rebuilt:
    """A state that was rebuilt, and is not written yet.

    `mark`: of what was found; `adopted`: the resources with what they are; `made`: what is new; `told`: what
    a person has to know; `whole`: the state as the engine exports it, and `settings` its key.
    """

    stack: StackState
    mark: str
    adopted: tuple[Adopted, ...]
    made: tuple[Adopted, ...]
    told: tuple[str, ...]
    whole: Mapping[str, Any]
    settings: str

    @property
    def found(self) -> tuple[Adopted, ...]:
        return tuple(each for each in self.adopted if each.id is not None)

    @property
    def missing(self) -> tuple[Adopted, ...]:
        return tuple(each for each in self.adopted if each.id is None)


def is_written(stack: StackState) -> bool:
    """Whether a call that was killed has written the state, and not said so. What somebody else has brought
    up since lacks what that call found."""
    recorded = {str(each["id"]) for each in stack.resources if each.get("id")}
    if not recorded:
        return False
    with closing(open_ledger(stack.project.ledger_url)) as ledger:
        unfinished = ledger.changes.listed(stack.project.name, verbs=(VERB,), unfinished=True)
    plans = [
        json.loads(each.plan)
        for each in unfinished
        if (each.scope, each.subject) == (ledger_scope(stack.project), subject(stack.name))
    ]
    return any(plan.get("found") and recorded.issuperset(plan["found"]) for plan in plans)


def refuse_known(stack: StackState) -> None:
    """Raises Conflict (ORCH430) where the state of a stack is there, or a copy of it; StackError where what
    is there cannot be read."""
    try:
        damage = damage_of(stack)
    except NoSuchFleet:
        return
    if damage.copy is not None and damage.copy.resources:
        raise Conflict(
            f"the state of the {subject(stack.name)} is gone, and a copy of it is there",
            detail=damage.copy.words,
            hint=f"`orch state repair {stack.name}` puts it back: it knows more than marks tell",
            code=THERE,
        )
    if damage.copy is None and stack.resources:
        raise Conflict(
            f"the state of the {subject(stack.name)} is not lost",
            detail=f"it records {counted(len(stack.resources), 'resource')}",
            hint="`orch preview` of its file tells what differs from it, `orch gc` what it does not record",
            code=THERE,
        )


def rebuild(project: Project, request: FleetRequest, mark: str | None, listener: Listener) -> Rebuilt:
    """Rebuild the state of a fleet in memory. Changes nothing, here and in the cloud.

    `mark`: whose resources they are, where marks of several stacks are found or another state made them.
    Raises Conflict (ORCH389, 430, 432), StackError (ORCH431), PlanErrors (ORCH433), and what asking its cloud
    raises.
    """
    stack = StackState(project, request.name)
    refuse_known(stack)
    if project.secrets_provider is None and not is_given() and not project.passphrase_file.exists():
        raise not_ours(project, f"the state of the {subject(stack.name)} needs the passphrase of the others")
    listener(Activity(f"looking for what is there of the fleet {request.name}"))
    found, told = _found(stack, request, mark)
    backend = require_backend(found[0].backend)
    wanted = plan_request(stack, request)
    fleet = backend.recover(wanted, found)
    scope = found[0].mark.rpartition("/")[2]
    recovered = replace(
        _with_nodes(request, fleet),
        recovered=fleet,
        decided=Decisions(scope=scope, created=fleet.created),
    )
    compiled = compile_for(stack, recovered)
    _refuse_another(request, fleet, compiled.pins, compiled.nodes)
    if compiled.shared is not None:
        raise PlanErrors([_not_rebuilt(f"the networks {compiled.shared.name} that its fleets share")])
    by_name = {(each.type, each.name): each.id for each in found}
    placed = replace(wanted, previous=replace(wanted.previous, unfinished=dict(fleet.pins)))

    def identify(kind: str, name: str, inputs: Mapping[str, Any]) -> str | None:
        return by_name.get((kind, name)) or backend.unmarked_id(placed, kind, inputs)

    packages = sorted({*(each.rstrip(":") for each in backend.packages), "orch"})
    key = _key_here(stack)
    adoption, whole, settings = _read_by_engine(stack, compiled, Adoption(identify, key), packages, listener)
    if key is not None and not _opens(stack, whole):
        key = None
        adoption, whole, settings = _read_by_engine(stack, compiled, Adoption(identify), packages, listener)
    ids = {each.id for each in adoption.adopted}
    if surplus := [each for each in found if each.id not in ids]:
        raise _surplus(request, surplus)
    return Rebuilt(
        stack,
        found[0].mark,
        tuple(adoption.adopted),
        tuple(adoption.made),
        (*told, *fleet.told, _words_of_key(stack, known=key is not None)),
        without_missing(whole),
        settings,
    )


def write(rebuilt: Rebuilt, listener: Listener) -> None:
    """Write a state that was rebuilt, whole or not at all. The same call goes on with one that was killed.

    Raises Conflict where somebody made the stack meanwhile, StackError, ChangeUnderWay.
    """
    stack = rebuilt.stack
    plan = json.dumps({"found": [each.id for each in rebuilt.found]})
    with undertaken(stack.project, VERB, subject(stack.name), plan=plan, holds=("state",)) as journal:
        journal.set_plan(plan)  # one that is gone on with found what was there then
        try:
            journal.step("", "write", partial(_write, rebuilt, listener))
        except Conflict:
            journal.final = True
            raise
        journal.result = f"{counted(len(rebuilt.found), 'resource')} found"


def finish(stack: StackState, listener: Listener) -> None:
    """Say of a state that a killed call has written that it is written."""
    with undertaken(stack.project, VERB, subject(stack.name), holds=("state",)) as journal:
        journal.step("", "write", lambda: release(stack, OWNER, listener) and None)
        journal.result = f"{counted(len(stack.resources), 'resource')} recorded"


def _write(rebuilt: Rebuilt, listener: Listener) -> None:
    stack = rebuilt.stack
    stack.invalidate()
    if not stack.exists:
        init(stack)
    # From here on nobody brings the fleet up a second time, nor takes it for what is left of one.
    take(stack, OWNER, _LEASE_S, listener)
    stack.invalidate()
    if stack.resources:
        release(stack, OWNER, listener)
        raise Conflict(
            f"somebody has brought up the {subject(stack.name)} meanwhile, or rebuilt its state",
            hint="`orch preview` of its file tells what there is",
            code=THERE,
        )
    write_private(settings_file(stack.project, stack.name), rebuilt.settings)
    # Before the resources: a call that was killed between the two leaves none without their account.
    types = (str(each["type"]) for each in rebuilt.whole["deployment"]["resources"])
    accounts.record(stack, accounts.asked(stack.project, backends_of(types)))
    plain(stack, ["stack", "import"], stdin=json.dumps(rebuilt.whole))
    release(stack, OWNER, listener)


# What is there


def _found(
    stack: StackState, request: FleetRequest, mark: str | None
) -> tuple[tuple[MarkedResource, ...], tuple[str, ...]]:
    project = stack.project
    backends = effective(request.fleet.written_backends, tuple(each.type for each in project.backends))
    if not any(require_backend(each).recovers for each in backends):
        raise PlanErrors([_not_rebuilt(f"a fleet on {', '.join(backends)}")])
    survey = survey_of_fleet(project, request.fleet)
    for error in survey.unseen:
        raise error
    found = resources_of(survey, project.name, request.name, mark, scope_of(project))
    if not require_backend(found[0].backend).recovers:
        raise PlanErrors([_not_rebuilt(f"a fleet on {found[0].backend}")])
    return found, tuple(f"not looked at: {each.summary}" for each in survey.closed)


def resources_of(
    survey: Survey, project: str, fleet: str, mark: str | None, scope: str
) -> tuple[MarkedResource, ...]:
    """What a look found of a fleet, where it is clear what that is. Pure.

    `mark`: whose it is, as a person says; `scope`: of this state, whose resources need no such word. Raises
    StackError (ORCH431), Conflict (ORCH432).
    """
    own = [each for each in survey.resources if stack_of(each.mark) == fleet]
    if mark is not None:
        own = [each for each in own if each.mark == mark]
    if not own:
        raise _nothing(survey, project, fleet, mark)
    if unsure := [each for each in own if not each.sure]:
        raise _ambiguous("labels alone do not tell whose it is", unsure)
    marks = sorted({each.mark for each in own})
    if len(marks) > 1:
        raise _ambiguous("several states have made a fleet of this name", own, marks)
    if mark is None and marks[0].rpartition("/")[2] != scope:
        raise _of_another_state(fleet, own)
    if len({each.backend for each in own}) > 1:
        raise _ambiguous("it is on several backends", own)
    same = defaultdict[tuple[str, str], list[MarkedResource]](list)
    for each in own:
        same[each.type, each.name].append(each)
    if twice := [each for rows in same.values() if len(rows) > 1 for each in rows]:
        raise _ambiguous("several resources have one name", twice)
    return tuple(own)


def _with_nodes(request: FleetRequest, found: RecoveredFleet) -> FleetRequest:
    """The same for the nodes that are there, however many the file asks for."""
    nodes, count = request.fleet.nodes, len(found.nodes)
    if nodes is None or (nodes.min <= count and (nodes.max is None or count <= nodes.max)):
        return replace(request, count=count)
    there = nodes.model_copy(update={"min": count, "target": count, "max": count})
    return replace(request, fleet=request.fleet.model_copy(update={"nodes": there}))


def _refuse_another(
    request: FleetRequest, found: RecoveredFleet, pins: Mapping[str, str], nodes: Iterable[str]
) -> None:
    """Raises PlanErrors where the file describes another fleet than the one that is there."""
    differ = [
        f"{key} {value}" for key, value in found.pins.items() if _is_place(key) and pins.get(key) != value
    ]
    if differ:
        raise PlanErrors(
            [_not_described(request, f"the nodes are at {', '.join(differ)}, which it excludes")]
        )
    if set(nodes) != set(found.nodes):
        raise PlanErrors([_not_described(request, f"it has {counted(len(found.nodes), 'node')}")])


def _is_place(pin: str) -> bool:
    return pin in ("backend", "region", "zone", "instance_type", "spot")


def _read_by_engine(
    stack: StackState,
    compiled: Deployment,
    adoption: Adoption,
    packages: Sequence[str],
    listener: Listener,
) -> tuple[Adoption, dict[str, Any], str]:
    """Have the engine bring up what is there already; what it found, the state, and its key."""
    project, name = stack.project, stack.name
    with _apart(project, name) as apart:
        listener(Activity(f"the engine reads what is there of the fleet {name}"))
        with adoption.served(project, packages) as variables:
            served = StackState(replace(apart, variables=variables), name)
            words = [*up_arguments(compiled), "--refresh=false"]
            engine(served, words, EngineCall(listener, planning=True), program(compiled))
        whole = export(StackState(apart, name))
        return adoption, whole, settings_file(apart, name).read_text("utf-8")


def _key_here(stack: StackState) -> tuple[str, str] | None:
    """The client's key pair as this folder has a copy of it, of whatever fleet of this name."""
    try:
        text = key_file(stack.project, stack.name).read_text("utf-8")
        public = serialization.load_ssh_private_key(text.encode(), None).public_key()
    except (OSError, ValueError):
        return None
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return text, public.public_bytes(encoding, form).decode()


def _opens(stack: StackState, whole: Mapping[str, Any]) -> bool:
    """Whether the copy of the key is of the fleet that is there."""
    note = read_note(stack.project, stack.name)
    try:
        fleet = FleetState.model_validate(as_numbers(outputs(whole["deployment"])["fleet"]))
    except (KeyError, ValueError):
        return False
    return note is not None and note.machine in {node.access.machine for node in fleet.nodes}


def _words_of_key(stack: StackState, *, known: bool) -> str:
    if known:
        return (
            f"the SSH key is the copy in {key_file(stack.project, stack.name)}: it opens the nodes as before"
        )
    return (
        "the SSH key was in the lost state alone, and a new one is made: the nodes do not know it, so orch "
        "cannot enter them, while their jobs go on; nodes that are made anew know it"
    )


@contextmanager
def _apart(project: Project, name: str) -> Iterator[Project]:
    """The same project with a state of its own, which goes at the end; the stack's settings stay. Raises
    Conflict while another call in this folder has one."""
    folder, settings = project.dot / "importing", settings_file(project, name)
    apart = replace(project, state_url=f"file://{folder}")
    with _alone(project.dot / "importing.lock"):
        before = settings.read_text("utf-8") if settings.exists() else None
        shutil.rmtree(folder, ignore_errors=True)
        settings.unlink(missing_ok=True)
        try:
            apart.prepare()
            yield apart
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            settings.unlink(missing_ok=True)
            if before is not None:
                write_private(settings, before)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a lock that ends with this process."""
    file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(
                "another call in this folder rebuilds a state; nothing was written",
                hint="wait for its end, then run the same command again",
                code="ORCH389",
            ) from error
        yield
    finally:
        os.close(file)


def without_missing(whole: Mapping[str, Any]) -> dict[str, Any]:
    """A state without the resources that were not found."""
    deployment = whole["deployment"]
    rows = deployment.get("resources") or []
    gone = {each["urn"] for each in rows if str(each.get("id", "")).startswith(MISSING)}
    kept = [_without(each, gone) for each in rows if each["urn"] not in gone]
    return {**whole, "deployment": {**deployment, "resources": kept}}


def _without(resource: Mapping[str, Any], gone: set[str]) -> dict[str, Any]:
    """A record that depends on none of these."""
    record = dict(resource)
    if "dependencies" in record:
        record["dependencies"] = [each for each in record["dependencies"] if each not in gone]
    if "propertyDependencies" in record:
        record["propertyDependencies"] = {
            key: [each for each in urns or () if each not in gone]
            for key, urns in record["propertyDependencies"].items()
        }
    return record


# What cannot be rebuilt


def _rows(resources: Iterable[MarkedResource]) -> str:
    return "\n".join(
        f"{each.kind} {each.name} ({each.id}) in {each.backend} {each.region}, mark {each.mark}".strip()
        for each in resources
    )


def _nothing(survey: Survey, project: str, fleet: str, mark: str | None) -> StackError:
    others = sorted({stack_of(each.mark) for each in survey.resources})
    parts = [f"of this project there is: {', '.join(others)}"] if others else []
    parts += [f"of other projects: {counted(survey.foreign, 'resource')}"] if survey.foreign else []
    return StackError(
        f"nothing in the cloud bears the mark {mark or f'{project}/{fleet}/…'}",
        detail="; ".join(parts) or None,
        hint="marks have the project's name: set `project` in orch.yml as it was; and see whether `backends` "
        "and `regions` lead to the account and the regions where it is",
        code=NOTHING,
    )


def _ambiguous(why: str, resources: Iterable[MarkedResource], marks: Sequence[str] = ()) -> Conflict:
    return Conflict(
        f"it is not clear what belongs to the fleet: {why}",
        detail=_rows(resources),
        hint=f"name whose it is: `--stack {marks[0]}`" + "".join(f", or {each}" for each in marks[1:])
        if marks
        else "look which is the fleet's, and remove the other, or its tags, with the cloud's own tools",
        code=AMBIGUOUS,
    )


def _of_another_state(name: str, resources: Sequence[MarkedResource]) -> Conflict:
    return Conflict(
        f"what is there of the fleet {name} was made from another folder, machine or state",
        detail=_rows(resources),
        hint="somebody may still have that state: ask, and join it by `orch init --state URL`; where it is "
        f"lost, add `--stack {resources[0].mark}`",
        code=AMBIGUOUS,
    )


def _surplus(request: FleetRequest, resources: Sequence[MarkedResource]) -> Conflict:
    return Conflict(
        f"the file describes less than what is there of the fleet {request.name}",
        where=str(request.file) if request.file else None,
        detail=_rows(resources),
        hint="use the file as it was when the fleet was last brought up, from Git; edit it afterwards",
        code=OTHER,
    )


def _not_described(request: FleetRequest, why: str) -> Finding:
    return Finding(
        OTHER,
        "name",
        f"the file does not describe the fleet {request.name} that is there: {why}",
        hint="use the file as it was when the fleet was last brought up, from Git; edit it afterwards",
    )


def _not_rebuilt(what: str) -> Finding:
    return Finding(
        OTHER,
        "name",
        f"orch does not rebuild the state of {what}",
        hint="restore a copy of the state; `orch gc` lists what is there and, with `--stack`, deletes it",
    )
