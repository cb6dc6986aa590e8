"""One engine call on one stack: reports progress, collects errors, raises one error for a failure."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from orch.runner.private import write_private
from orch.spec.codes import EXIT_CODES
from orch.spec.suggest import counted
from orch.stacks.engine import install as engines
from orch.stacks.engine.process import Event, HeldWork, ProcessResult, Program, call
from orch.stacks.engine.shims import refuse_shims
from orch.stacks.errors import Conflict, EngineFailed, EngineGone, Interrupted, StackError, StackLocked
from orch.stacks.events.changes import gone, without_values
from orch.stacks.events.inspection import Inspection
from orch.stacks.events.notation import fold, name_of, type_of
from orch.stacks.project.passphrase import is_lacking, not_ours
from orch.stacks.project.project import Project
from orch.stacks.pulumi.accounts import doubt_of, is_unsure, refuse_gone, require_own
from orch.stacks.pulumi.keyless import keeping, secret_inputs, without_drift_of_secrets, without_secrets
from orch.stacks.pulumi.progress import Activity, EngineStep, Listener, Note
from orch.stacks.stack.command import init
from orch.stacks.stack.leases import refuse_held
from orch.stacks.stack.lock_holders import LockMark, changes_stack, takes_lock
from orch.stacks.stack.locks import going_on, subject
from orch.stacks.stack.state import StackState, environment_of, match_settings, project_file, work_folder
from orch.stacks.stack.unguarded import is_held, locked_error, refused

# How the engine begins to tell that a step of an update plan did not come.
UNSEEN = "expected resource operations for "

T = TypeVar("T")


@dataclass
class EngineCall:
    """One engine call: keeps its events, reports its progress to `listener`.

    `isolated`: resource types whose failure does not fail the call. `inspection`: what the project's policies
    find of its resources. `observer` sees the events with all their values, before they are kept without.
    `unseen`: steps of an update plan that did not come, which the engine tells after each failure too.
    """

    listener: Listener
    planning: bool
    isolated: frozenset[str] = frozenset()
    events: list[Event] = field(default_factory=list)
    inspection: Inspection = field(default_factory=Inspection)
    errors: dict[str, str] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    observer: Callable[[Event], None] | None = None
    unseen: list[str] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.inspection.see(event)
        if self.observer is not None:
            self.observer(event)
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
        if text.startswith(UNSEEN):
            self.unseen.append(text)
            return
        self.errors.setdefault(urn, text)

    def error_text(self) -> str:
        """The errors as text, one line each; an error that several resources share comes once."""
        names: dict[str, list[str]] = {}
        for urn, text in self.errors.items():
            names.setdefault(text, []).append(name_of(urn))
        return "\n".join(
            f"{fold(sorted(failed))}: {text}" if any(failed) else text for text, failed in names.items()
        )

    def node_errors(self) -> dict[str, str]:
        """Errors by node name; {} when anything but a node failed."""
        failed = {urn: text for urn, text in self.errors.items() if urn}
        if not all(type_of(urn) in self.isolated for urn in failed):
            return {}
        return {name_of(urn): text for urn, text in failed.items()}

    def _step(self, phase: str, data: dict[str, Any]) -> None:
        # The fleet itself is a group; its members take the time.
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
    """Return True if a resource's provider warns of problems that users can act on."""
    if not urn or type_of(urn).startswith("orch:fleet:"):
        return False
    return type_of(urn).startswith(("orch:", "kubernetes:"))


def engine(
    stack: StackState, words: list[str], run: EngineCall, code: Program | HeldWork | None = None
) -> ProcessResult:
    """Run one engine operation on a stack, and create the stack if there is none; a preview creates none.

    Raises StackLocked, Leased (a move or a rotation holds the state), Conflict (jobs run on hosts to be
    removed), OtherAccount, Interrupted, EngineFailed, StackError.
    """
    if not takes_lock(words):
        require_own(stack)
    elif not isinstance(code, HeldWork):
        require_confirmed(stack, run.listener)
    executable, project, name = engines.require(), stack.project, stack.name
    run.inspection.settings = project.policies
    if not project.rehearsal:
        refuse_shims(project.environment(executable))
    see: Callable[[Event], None] = run
    if project.keyless and not takes_lock(words) and stack.recorded is not None:
        see = lambda event: run(without_drift_of_secrets(event))  # noqa: E731
        if callable(code):
            code = keeping(code, secret_inputs(stack.recorded))
    with _place(stack, words, executable) as (folder, environment), LockMark(project, name, words) as mark:
        if changes_stack(words):
            refuse_held(stack)
        try:
            result = call(
                executable,
                [*words, "--stack", name],
                folder=folder,
                environment=environment,
                program=code,
                on_event=mark.marking(see),
                mark=mark,
            )
        finally:
            if takes_lock(words):
                stack.invalidate()
    if result.interrupted:
        raise Interrupted(
            f"stopped while changing the {subject(name)}" if not run.planning else "stopped",
            detail="operations under way were finished and recorded" if not run.planning else None,
            hint=going_on(name),
        )
    if result.code and not (run.isolated and run.node_errors()):
        raise _failure(project, name, words[0], run, result)
    if not takes_lock(words) and (doubt := doubt_of(stack, run.events)) is not None:
        run.listener(Note(f"warning: {doubt.summary}: {doubt.hint}"))
    return result


def require_confirmed(stack: StackState, listener: Listener) -> None:
    """Raise OtherAccount unless the credentials lead to the stack's account, or something of it is there.

    Of a stack without a record the engine looks what is there, and records nothing. Raises what asking
    raises, StackError."""
    require_own(stack)
    if is_unsure(stack):
        listener(Activity(f"looking whether the {subject(stack.name)} is in the account of the credentials"))
        look = EngineCall(lambda _: None, planning=True)
        engine(stack, ["refresh", "--preview-only"], look)
        refuse_gone(stack, gone(look.events))


@contextmanager
def _place(
    stack: StackState, words: list[str], executable: engines.Engine
) -> Iterator[tuple[Path, Mapping[str, str]]]:
    """The folder of an operation, and the environment in which the engine finds the stack.

    A preview of what was never up finds an empty stack of the same name in a folder that goes with it: it
    writes nothing to the project's state, which its caller may only be allowed to read.
    """
    project, name = stack.project, stack.name
    folder = work_folder(project, name)
    copied = project.keyless and not takes_lock(words)
    if (stack.exists and not copied) or takes_lock(words):
        if not stack.exists:
            init(stack)
        match_settings(stack)
        yield folder, environment_of(stack, executable)
        return
    with tempfile.TemporaryDirectory(prefix="preview-", dir=folder) as path:
        place = Path(path)
        (place / "state").mkdir()
        write_private(place / "Pulumi.yaml", project_file(project.name, "."))
        # The engine encrypts nothing in a preview, and still wants a key.
        own = {"PULUMI_BACKEND_URL": f"file://{place / 'state'}", "PULUMI_CONFIG_PASSPHRASE": ""}
        environment = {**project.environment(executable), **own}
        words = ["stack", "init", "--no-select", name]
        result = call(executable, words, folder=place, environment=environment)
        if result.code:
            raise refused(words, name, result)
        if copied and stack.recorded is not None:
            settings = (place / f"Pulumi.{name}.yaml").read_text("utf-8")
            words, text = ["stack", "import", "--stack", name], without_secrets(stack.recorded, settings)
            result = call(executable, words, folder=place, environment=environment, stdin=text)
            if result.code:
                raise refused(words, name, result)
        yield place, environment


def while_held(stack: StackState, work: Callable[[Callable[[], None]], T], listener: Listener) -> T:
    """Do some work while the engine holds a stack's lock, wherever the state is; the stack does not change.

    Nobody else can begin to change the stack until the work is done. `work` gets a function that raises
    EngineGone once the lock is lost, as when the engine is killed. Raises StackLocked when somebody else
    changes the stack, and what the work raises.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run(is_held: Callable[[], bool]) -> None:
        def still_held() -> None:
            if not is_held():
                raise EngineGone(
                    f"the engine ended while {stack.name} was cleared up",
                    hint="run the same command again; the system's log may tell what ended it",
                    code="ORCH346",
                )

        try:
            results.append(work(still_held))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            errors.append(error)

    words = ["up", "--yes", "--skip-preview", "--refresh=false"]
    try:
        engine(stack, words, EngineCall(listener, planning=True), HeldWork(run))
    except (StackLocked, Interrupted):
        raise
    except StackError:
        if not results and not errors:
            raise
    if errors:
        raise errors[0]
    return results[0]


def _failure(project: Project, stack: str, verb: str, run: EngineCall, result: ProcessResult) -> StackError:
    output = "\n".join([result.stderr, *run.errors.values()])
    if is_held(output):
        return locked_error(stack, output)
    if result.code < 0:
        return StackError(
            f"the engine was killed (signal {-result.code}) while changing the {subject(stack)}",
            hint="run `orch up` again: it continues where the engine stopped",
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
    detail = (
        run.error_text()
        or "\n".join(run.unseen)
        or result.stderr.strip()[-800:]
        or result.stdout.strip()[-800:]
    )
    command = {"destroy": "down"}.get(verb, verb)
    if is_lacking(detail):
        return not_ours(project, f"{command} of the {subject(stack)} needs the passphrase of its state")
    failed = sum(bool(urn) for urn in run.errors)
    error = EngineFailed(
        f"{command} failed for {subject(stack)}"
        + (f": {counted(failed, 'resource')} failed" if failed else ""),
        detail=detail,
        hint="fix the cause and run the same command again: it continues where it stopped",
        code="ORCH347",
        errors=run.errors,
    )
    told = [text for urn, text in run.errors.items() if urn]
    for code, exit_code in EXIT_CODES.items():
        if told and all(code in text for text in told):
            error.exit_code = exit_code
    return error
