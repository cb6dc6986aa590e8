"""One call of the engine on one stack: its progress told, its errors kept, its failure as one error."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from orch.spec.suggest import counted
from orch.stacks.errors import Conflict, EngineFailed, Held, Interrupted, StackError
from orch.stacks.pulumi import install as engines
from orch.stacks.pulumi.changes import name_of, type_of, without_values
from orch.stacks.pulumi.lock_holders import Marking
from orch.stacks.pulumi.locks import held_by
from orch.stacks.pulumi.process import CALLERS, PRIVATE, Aside, Event, ProcessResult, Program, call
from orch.stacks.pulumi.shims import refuse_shims
from orch.stacks.state import StackState, work_folder
from orch.stacks.summary import fold

# What the engine says of a stack that somebody else changes, with a state in files and with Pulumi Cloud's.
LOCKED = ("currently locked by", "Another update is currently in progress")

T = TypeVar("T")


@dataclass(frozen=True)
class EngineStep:
    """Progress of one resource: `phase` is "start", "done" or "failed"."""

    phase: str
    op: str
    type: str
    name: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Note:
    """Something worth telling that is no resource: a lock broken, an image built.

    `lasts`: it is under way from then on, as a place that is tried is.
    """

    text: str
    lasts: bool = False


@dataclass(frozen=True)
class Doing:
    """What is under way from now on, beside resources; told only where it takes long."""

    text: str


@dataclass(frozen=True)
class Expected:
    """Resources of nodes that are going to be made or removed, by name: how far it is, is told of them."""

    names: frozenset[str]


Progress = EngineStep | Note | Doing | Expected
Listener = Callable[[Progress], None]


@dataclass
class EngineCall:
    """One engine call under way: its events kept, its progress told.

    `apart`: types of resources whose errors are theirs alone, the call as a whole did its work. `nodes`: how
    many it may make.
    """

    listener: Listener
    planning: bool
    apart: frozenset[str] = frozenset()
    nodes: int = 0
    events: list[Event] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        self.events.append(without_values(event))
        diagnostic = event.get("diagnosticEvent")
        if diagnostic and diagnostic["severity"] == "error":
            self._error(diagnostic)
            return
        if diagnostic and diagnostic["severity"] == "warning" and _is_ours(diagnostic.get("urn") or ""):
            self.listener(Note(f"warning: {diagnostic['message'].strip()}"))
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

    def told(self) -> str:
        """The errors, the same one of several resources once."""
        names: dict[str, list[str]] = {}
        for urn, text in self.errors.items():
            names.setdefault(text, []).append(name_of(urn))
        return "\n".join(
            f"{fold(sorted(each))}: {text}" if any(each) else text for text, each in names.items()
        )

    def node_errors(self) -> dict[str, str]:
        """What failed, by the node's name; nothing when something else than nodes failed."""
        failed = {urn: text for urn, text in self.errors.items() if urn}
        if not all(type_of(urn) in self.apart for urn in failed):
            return {}
        return {name_of(urn): text for urn, text in failed.items()}

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
        self.listener(EngineStep(phase, data["op"], data["type"], name_of(urn), seconds))


def _is_ours(urn: str) -> bool:
    """Whether a resource is our own provider's, which warns of what a user can act on."""
    return bool(urn) and type_of(urn).startswith("orch:") and not type_of(urn).startswith("orch:fleet:")


def engine(
    stack: StackState, words: list[str], run: EngineCall, code: Program | Aside | None = None
) -> ProcessResult:
    """Run one engine operation on a stack, which is made when it is new."""
    found, project, name = engines.require(), stack.project, stack.name
    folder = work_folder(project, name)
    environment = {**project.environment(found), **_thrift(run.nodes)}
    if not project.rehearsal:
        refuse_shims(environment)
    if not stack.exists:
        init(stack)
    with Marking(project, name, words) as marking:
        try:
            done = call(
                found,
                [*words, "--stack", name],
                folder=folder,
                environment=environment,
                program=code,
                on_event=marking.then(run),
                on_start=marking.begin,
                umask=CALLERS if project.shares_files else PRIVATE,
            )
        finally:
            if not only_looks(words):
                stack.changed()
    if done.interrupted:
        raise Interrupted(
            f"stopped while changing the fleet {name}" if not run.planning else "stopped",
            detail="what was under way was finished and recorded" if not run.planning else None,
            hint="run the same command again to go on, or `orch down` to remove it",
        )
    if done.code and not (run.apart and run.node_errors()):
        raise _failure(name, words[0], run, done)
    return done


# At each write the engine encrypts the secrets of the newest thousand anew, and keeps what it had before: of
# 1,000 nodes on GCP, whose labels its provider takes for secrets, that is half of 1.7 GiB (measured with its
# heap profile, 3.259.0). Collecting garbage at 60 % instead of 100 % costs a tenth of its CPU, saves a fifth.
MANY_NODES, SOONER = 500, "60"


def _thrift(nodes: int) -> dict[str, str]:
    """What makes the engine collect its garbage sooner where a plan has many nodes; a caller's own wins."""
    return {"GOGC": SOONER} if nodes >= MANY_NODES and "GOGC" not in os.environ else {}


def init(stack: StackState) -> None:
    """Make a stack."""
    provider = stack.project.secrets_provider
    plain(stack, ["stack", "init", *(["--secrets-provider", provider] if provider else [])])


def while_held(stack: StackState, work: Callable[[Callable[[], None]], T], listener: Listener) -> T:
    """Do some work while the engine holds a stack, wherever its state is kept; nothing of it is changed.

    Nobody else can begin to change it until the work is done. It is given what raises Interrupted once the
    stack is no longer held: an engine may be killed. Raises Held when somebody else changes the stack, and
    what the work raises.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run(is_held: Callable[[], bool]) -> None:
        def still_held() -> None:
            if not is_held():
                raise Interrupted(f"the engine ended while {stack.name} was cleared up")

        try:
            done.append(work(still_held))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            failed.append(error)

    words = ["up", "--yes", "--skip-preview", "--refresh=false"]
    try:
        engine(stack, words, EngineCall(listener, planning=True), Aside(run))
    except (Held, Interrupted):
        raise
    except StackError:
        if not done and not failed:
            raise
    if failed:
        raise failed[0]
    return done[0]


def plain(stack: StackState, words: list[str], stdin: str | None = None) -> ProcessResult:
    """Run a command of the engine that is no operation on resources."""
    found, project, name = engines.require(), stack.project, stack.name
    try:
        done = call(
            found,
            [*words, *(["--stack", name] if words[:2] != ["stack", "init"] else [name])],
            folder=work_folder(project, name),
            environment=project.environment(found),
            stdin=stdin,
            umask=CALLERS if project.shares_files else PRIVATE,
        )
    finally:
        if not only_looks(words):
            stack.changed()
    if done.code and is_held(done.stderr):
        raise _held(name, done.stderr)
    if done.code and "already exists" not in done.stderr:
        raise StackError(
            f"the engine refused `{' '.join(words)}`",
            where=name,
            detail=done.stderr.strip()[-600:],
            code="ORCH346",
        )
    return done


def only_looks(words: Sequence[str]) -> bool:
    """Whether a command of the engine leaves what is recorded of its stack as it was."""
    return words[0] == "preview" or "--preview-only" in words or words[:2] in _LOOKS


_LOOKS = (["stack", "export"], ["stack", "output"], ["stack", "tag"])


def is_held(said: str) -> bool:
    """Whether the engine refused because somebody else changes the stack."""
    return any(words in said for words in LOCKED)


def _held(stack: str, said: str) -> StackError:
    lines = [line.strip() for line in said.splitlines()]
    # Who it is stands in a line of its own, after the number of them.
    told = (line for words in ("created by", *LOCKED) for line in lines if words in line)
    return held_by(stack, next(told, ""))


def _failure(stack: str, verb: str, run: EngineCall, done: ProcessResult) -> StackError:
    said = "\n".join([done.stderr, *run.errors.values()])
    if is_held(said):
        return _held(stack, said)
    if done.code < 0:
        return StackError(
            f"the engine was killed (signal {-done.code}) while changing the fleet {stack}",
            hint="run `orch up` again: it takes up what was begun",
            code="ORCH346",
        )
    busy = [text for text in run.errors.values() if "ORCH386" in text]
    if busy and verb == "destroy":
        return Conflict(
            f"jobs run on hosts of the fleet {stack}",
            detail="\n".join(busy),
            hint="end them, or add `--force`, then remove it again; hosts without jobs have left already",
            code="ORCH386",
        )
    detail = run.told() or done.stderr.strip()[-800:] or done.stdout.strip()[-800:]
    word = {"destroy": "down"}.get(verb, verb)
    failed = sum(bool(urn) for urn in run.errors)
    return EngineFailed(
        f"{word} failed for fleet {stack}" + (f": {counted(failed, 'resource')} failed" if failed else ""),
        detail=detail,
        hint="mend the cause and run it again: it goes on from what is there",
        code="ORCH347",
        errors=run.errors,
    )
