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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization

from orch.components.deployment import Deployment
from orch.components.marks.marked import MarkedResource
from orch.components.registry.backends import backends_of, require_backend
from orch.components.request import whole as as_numbers
from orch.runner.ledger.ledger import open_ledger
from orch.runner.private import write_private
from orch.spec.findings import PlanErrors
from orch.spec.models.backends import effective
from orch.spec.state import FleetState
from orch.spec.suggest import counted
from orch.stacks.errors import Conflict, NoSuchFleet
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
from orch.stacks.states.adopting import Adopted, Adoption
from orch.stacks.states.found_resources import (
    THERE,
    not_rebuilt,
    refuse_another,
    resources_of,
    surplus_error,
    with_nodes,
    without_missing,
)
from orch.stacks.states.repair import damage_of

VERB = "state import"
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
    """Return True if a killed call has written the state without recording that. A state that somebody else
    has brought up since lacks what that call found."""
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
        with_nodes(request, fleet),
        recovered=fleet,
        decided=Decisions(scope=scope, created=fleet.created),
    )
    compiled = compile_for(stack, recovered)
    refuse_another(request, fleet, compiled.pins, compiled.nodes)
    if compiled.shared is not None:
        raise PlanErrors([not_rebuilt(f"the networks {compiled.shared.name} that its fleets share")])
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
        raise surplus_error(request, surplus)
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
        raise PlanErrors([not_rebuilt(f"a fleet on {', '.join(backends)}")])
    survey = survey_of_fleet(project, request.fleet)
    for error in survey.unseen:
        raise error
    found = resources_of(survey, project.name, request.name, mark, scope_of(project))
    if not require_backend(found[0].backend).recovers:
        raise PlanErrors([not_rebuilt(f"a fleet on {found[0].backend}")])
    return found, tuple(f"not looked at: {each.summary}" for each in survey.closed)


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
    """Return True if the copy of the key is that of the existing fleet."""
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


# What cannot be rebuilt
