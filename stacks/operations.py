"""Preview, up, down, refresh and drift of one fleet's stack."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from orch.components.backends import Compiled, compile_fleet
from orch.components.plan import Previous
from orch.spec.models import Fleet
from orch.stacks import engine as engines
from orch.stacks.changes import Change, Drifted, changes, drifted, name_of
from orch.stacks.command import Event, Finished, Program, call
from orch.stacks.errors import Interrupted, StackError
from orch.stacks.locks import claim, held_by, locks
from orch.stacks.program import program, scope_of
from orch.stacks.project import Project
from orch.stacks.states import deployment, forget_identity, not_up, outputs, require_up, work_folder


@dataclass(frozen=True)
class Step:
    """Progress of one resource: `phase` is "start", "done" or "failed"."""

    phase: str
    op: str
    type: str
    name: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Note:
    """Something worth telling that is no resource: a lock broken, an image built."""

    text: str


Listener = Callable[[Step | Note], None]


@dataclass(frozen=True)
class Plan:
    """What `up` would do, or did. `reasons` are the plan's own words on its decisions.

    `hourly` is the price of the whole fleet afterwards, `delta` what changes in it, in US dollars an hour.
    """

    fleet: str
    stack: str
    changes: tuple[Change, ...]
    reasons: tuple[str, ...]
    hourly: float
    delta: float

    @property
    def pending(self) -> bool:
        return any(change.op != "same" for change in self.changes)


@dataclass
class _Run:
    """One engine call under way: its events kept, its progress told."""

    listener: Listener
    planning: bool
    events: list[Event] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        diagnostic = event.get("diagnosticEvent")
        if diagnostic and diagnostic["severity"] == "error":
            self._error(diagnostic)
            return
        for key, phase in (
            ("resourcePreEvent", "start"),
            ("resOutputsEvent", "done"),
            ("resOpFailedEvent", "failed"),
        ):
            if key in event and not self.planning:
                self._step(phase, event[key]["metadata"])

    def _error(self, diagnostic: dict[str, Any]) -> None:
        urn = diagnostic.get("urn") or ""
        text = diagnostic["message"].strip()
        if text == "update failed" or text.endswith("resource plugin exited prematurely"):
            return
        self.errors.setdefault(urn, text)

    def _step(self, phase: str, data: dict[str, Any]) -> None:
        # The fleet itself is a group; what takes time are its members.
        if data["type"].startswith(("pulumi:", "orch:fleet:")) or data["op"] in ("same", "refresh", "read"):
            return
        urn = data["urn"]
        seconds = 0.0
        if phase == "start":
            self.started[urn] = time.monotonic()
        elif urn in self.started:
            seconds = time.monotonic() - self.started[urn]
        self.listener(Step(phase, data["op"], data["type"], name_of(urn), seconds))


def compile_for(project: Project, fleet: Fleet) -> Compiled:
    """Plan a fleet with what its stack decided before. Raises PlanError, Conflict (a newer orch's state)."""
    previous = Previous.of_outputs(outputs(deployment(project, fleet.name)))
    return compile_fleet(fleet, project.backends, previous, scope_of(project.root))


def preview(project: Project, fleet: Fleet, listener: Listener) -> Plan:
    """What `up` would do, after looking at what is there.

    Takes no lock; changes nothing but an empty stack's record.
    """
    project.prepare()
    compiled = compile_for(project, fleet)
    before = recorded_hourly(project, fleet.name)
    run = _Run(listener, planning=True)
    _engine(project, fleet.name, ["preview"], run, program(compiled))
    return _planned(fleet.name, before, compiled, run)


def up(project: Project, fleet: Fleet, listener: Listener) -> Plan:
    """Make it so; what was done.

    Raises StackError naming each resource that failed, Conflict, Interrupted.
    """
    project.prepare()
    compiled = compile_for(project, fleet)
    before = recorded_hourly(project, fleet.name)
    _ensure_images(compiled.images, listener)
    _take(project, fleet.name, listener)
    run = _Run(listener, planning=False)
    _engine(project, fleet.name, ["up", "--yes", "--skip-preview"], run, program(compiled))
    return _planned(fleet.name, before, compiled, run)


def down(project: Project, name: str, listener: Listener) -> Plan:
    """Remove everything of a fleet and its stack.

    A fleet that is not there is an error; leftovers of a killed `up` are not.
    """
    if deployment(project, name) is None:
        raise not_up(project, name)
    project.prepare()
    before = recorded_hourly(project, name)
    _refuse_protected(project, name)
    _take(project, name, listener, removing=True)
    run = _Run(listener, planning=False)
    _engine(project, name, ["destroy", "--yes", "--skip-preview"], run)
    _plain(project, name, ["stack", "rm", "--yes"])
    forget_identity(project, name)
    shutil.rmtree(project.dot / "work" / name, ignore_errors=True)
    return Plan(name, name, changes(run.events), (), hourly=0.0, delta=-before)


def drift(project: Project, name: str, listener: Listener) -> tuple[Drifted, ...]:
    """What is not as registered. Changes nothing, takes no lock."""
    require_up(project, name)
    project.prepare()
    run = _Run(listener, planning=True)
    _engine(project, name, ["refresh", "--preview-only"], run)
    return drifted(run.events)


def refresh(project: Project, name: str, listener: Listener) -> tuple[Drifted, ...]:
    """Record what is there; what differed. The next `up` mends it."""
    require_up(project, name)
    project.prepare()
    _take(project, name, listener)
    run = _Run(listener, planning=True)
    _engine(project, name, ["refresh", "--yes", "--skip-preview"], run)
    return drifted(run.events)


def recorded_hourly(project: Project, stack: str) -> float:
    """What the fleet costs an hour as it was last brought up, in US dollars; 0 when it is not up."""
    fleet = outputs(deployment(project, stack)).get("fleet") or {}
    return sum(node.get("price_hourly") or 0.0 for node in fleet.get("nodes") or ())


def unlock(project: Project, name: str) -> None:
    """Break every lock on a stack, whoever holds it."""
    if project.local_state is not None:
        for lock in locks(project, name):
            lock.file.unlink(missing_ok=True)
        return
    _plain(project, name, ["cancel", "--yes"])


def _planned(stack: str, before: float, compiled: Compiled, run: _Run) -> Plan:
    delta = compiled.hourly - before
    return Plan(stack, stack, changes(run.events), compiled.reasons, compiled.hourly, delta)


def _refuse_protected(project: Project, name: str) -> None:
    resources = (deployment(project, name) or {}).get("resources") or ()
    if any(resource.get("protect") for resource in resources):
        raise StackError(
            f"the fleet {name} is protected",
            hint="set `protect: false` in its file and `orch up` it, then remove it",
            code="ORCH348",
        )


def _take(project: Project, stack: str, listener: Listener, *, removing: bool = False) -> None:
    """Clear what a killed process left: its lock, and creations it had begun.

    Creations of ours repeat without making a second one, so `up` only forgets that they were begun. Before a
    removal they are recorded as made (our ids are the names they were asked for by), so that they are removed
    too.
    """
    for lock in claim(project, stack):
        listener(Note(f"broke the lock that {lock} had left: that process is gone"))
    recorded = deployment(project, stack)
    pending = (recorded or {}).get("pending_operations") or []
    if not pending:
        return
    names = ", ".join(sorted(name_of(operation["resource"]["urn"]) for operation in pending))
    exported = json.loads(_plain(project, stack, ["stack", "export"]).stdout)
    whole = exported["deployment"]
    begun = [o["resource"] for o in whole.pop("pending_operations") if o["type"] == "creating"]
    if removing:
        known = {resource["urn"] for resource in whole["resources"]}
        whole["resources"] += [
            {**resource, "id": resource["inputs"]["name"], "outputs": resource["inputs"]}
            for resource in begun
            if resource["urn"] not in known
            and resource["type"].startswith("orch:")
            and resource.get("custom")
        ]
    _plain(project, stack, ["stack", "import"], stdin=json.dumps(exported))
    listener(Note(f"an earlier call was killed while changing {names}: taking it up again"))


def _ensure_images(references: Iterable[str], listener: Listener) -> None:
    """Build those of this version that are missing; one pinned by another version is there or the node says
    so."""
    from orch.images.build import PREFIX, ensure, is_ours, resolve

    for reference in references:
        name = reference.removeprefix(PREFIX).partition(":")[0]
        if is_ours(reference) and resolve(f"{PREFIX}{name}") == reference:
            ensure(name, progress=lambda text: listener(Note(text)))


def _engine(
    project: Project, stack: str, words: list[str], run: _Run, code: Program | None = None
) -> Finished:
    """Run one engine operation on a stack, which is made when it is new."""
    engine = engines.require()
    folder = work_folder(project, stack)
    environment = project.environment(engine)
    if deployment(project, stack) is None:
        provider = ["--secrets-provider", project.secrets_provider] if project.secrets_provider else []
        _plain(project, stack, ["stack", "init", *provider])
    done = call(
        engine,
        [*words, "--stack", stack],
        folder=folder,
        environment=environment,
        program=code,
        on_event=run,
    )
    if done.interrupted:
        raise Interrupted(
            f"stopped while changing the fleet {stack}" if not run.planning else "stopped",
            detail="what was under way was finished and recorded" if not run.planning else None,
            hint="run the same command again to go on, or `orch down` to remove it",
        )
    if done.code:
        raise _failure(stack, words[0], run, done)
    return done


def _plain(project: Project, stack: str, words: list[str], stdin: str | None = None) -> Finished:
    engine = engines.require()
    done = call(
        engine,
        [*words, *(["--stack", stack] if words[:2] != ["stack", "init"] else [stack])],
        folder=work_folder(project, stack),
        environment=project.environment(engine),
        stdin=stdin,
    )
    if done.code and "already exists" not in done.stderr:
        raise StackError(
            f"the engine refused `{' '.join(words)}`",
            where=stack,
            detail=done.stderr.strip()[-600:],
            code="ORCH346",
        )
    return done


def _failure(stack: str, verb: str, run: _Run, done: Finished) -> StackError:
    if "currently locked by" in done.stderr or any(
        "currently locked by" in text for text in run.errors.values()
    ):
        said = done.stderr + "\n".join(run.errors.values())
        line = next(
            (line.strip() for line in said.splitlines() if "locked by" in line or "created by" in line), ""
        )
        return held_by(stack, line)
    if done.code < 0:
        return StackError(
            f"the engine was killed (signal {-done.code}) while changing the fleet {stack}",
            hint="run `orch up` again: it takes up what was begun",
            code="ORCH346",
        )
    failed = [f"{name_of(urn)}: {text}" if urn else text for urn, text in run.errors.items()]
    detail = "\n".join(failed) or done.stderr.strip()[-800:] or done.stdout.strip()[-800:]
    word = {"preview": "previewed", "up": "brought up", "destroy": "removed"}.get(verb, "looked at")
    return StackError(
        f"the fleet {stack} could not be {word} whole",
        detail=detail,
        hint="mend the cause and run it again: it goes on from what is there",
        code="ORCH347",
    )
