"""Writes changes into the project's audit log (runner/ledger/changes.py): before they are made, and how they
ended."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from orch.runner.errors import LedgerUnusable, error_text
from orch.runner.upload.git import run_git
from orch.spec.confidential import hidden
from orch.spec.errors import ExitCode, OrchError
from orch.stacks.events.changes import Change
from orch.stacks.project.project import Project, ledger_scope
from orch.stacks.pulumi.progress import Listener, Note

if TYPE_CHECKING:
    from orch.runner.ledger.changes import Begun, Changes, Step, StepStatus

T = TypeVar("T")

# Options whose value is not written.
_CONFIDENTIAL = ("-e", "--env")

_PIPELINES = {
    "GITHUB_RUN_ID": "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID} by {GITHUB_ACTOR}",
    "CI_JOB_URL": "{CI_JOB_URL} by {GITLAB_USER_LOGIN}",
    "BUILDKITE_BUILD_URL": "{BUILDKITE_BUILD_URL} by {BUILDKITE_BUILD_CREATOR}",
    "BUILD_URL": "{BUILD_URL}",
}
"""A variable that runs of a pipeline have, and how such a run is told by its variables."""


class Journal:
    """A change that this process is at work on: its plan, its steps, and at last its result."""

    def __init__(self, changes: Changes, begun: Begun) -> None:
        self.change = begun.change
        self.resumed = begun.resumed
        self.result = "done"
        self.final = False
        """Whether nobody can go on with it, so that what it holds is free when it ends."""
        self._changes = changes
        self._lease = begun.lease

    def set_plan(self, plan: str) -> None:
        """Keep the plan, as JSON: what goes on with the change goes by it. Raises LeaseLost."""
        self._changes.set_plan(self._lease, plan)

    def step(self, host: str, name: str, do: Callable[[], T]) -> T | None:
        """Do a step on a host, or on none (""), unless it is done already; None then.

        It is written before and after. A step that was begun and not ended is done again: `do` must find what
        the one before it did. Raises LeaseLost, and what `do` raises, with the step written as failed.
        """
        if not self._changes.begin_step(self._lease, host, name):
            return None
        try:
            result = do()
        except OrchError as error:
            if error.exit_code != ExitCode.INTERRUPTED:
                self._changes.end_step(self._lease, host, name, "failed", _told(error))
            raise
        self._changes.end_step(self._lease, host, name, "done", result if isinstance(result, str) else None)
        return result

    def is_done(self, host: str, name: str) -> bool:
        """Return True if a step is done already."""
        return any((each.host, each.name, each.status) == (host, name, "done") for each in self.steps)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps so far, in the order in which they first began."""
        return self._changes.steps(self.change.id)

    def message_of(self, host: str, name: str) -> str | None:
        """Return the message of a step that is done; None if it has none or is not done."""
        done = [each for each in self.steps if (each.host, each.name, each.status) == (host, name, "done")]
        return done[0].message if done else None

    def undo(self, host: str, name: str, do: Callable[[], object]) -> None:
        """Take a step back that was done, and write so."""
        do()
        self._changes.end_step(self._lease, host, name, "undone")

    def begin_step(self, host: str, name: str) -> bool:
        """Write that a step begins, for a caller that tells itself how it ends; False where it is done.

        Raises LeaseLost.
        """
        return self._changes.begin_step(self._lease, host, name)

    def note_step(self, host: str, name: str, message: str) -> None:
        """Write what is known of a step that runs. Raises LeaseLost."""
        self._changes.note_step(self._lease, host, name, message)

    def end_step(self, host: str, name: str, status: StepStatus, message: str | None = None) -> None:
        """Write how a step ended. Raises LeaseLost."""
        self._changes.end_step(self._lease, host, name, status, message)

    def end(self, error: BaseException | None) -> None:
        """Write how the change ended. One that holds something and began a step can be gone on with, unless
        it is `final`.

        Raises LeaseLost.
        """
        if error is None:
            self._changes.end(self._lease, "done", self.result, int(ExitCode.OK))
            return
        own = isinstance(error, OrchError)
        words = _told(error) if own else type(error).__name__
        code = error.exit_code if own else ExitCode.INTERRUPTED
        goes_on = bool(self.change.holds and self.steps and not self.final)
        self._changes.end(self._lease, "interrupted" if goes_on else "failed", words, int(code))


@contextmanager
def undertaken(
    project: Project,
    verb: str,
    subject: str,
    *,
    plan: str = "{}",
    holds: Sequence[str] = (),
    resume: bool = True,
) -> Iterator[Journal]:
    """Log a change that the block makes, with a journal of its steps. `plan`: JSON; `holds`, `resume`: as in
    `runner/ledger/changes.py`.

    A change that holds something and whose block raises can be gone on with: the same command does. Raises
    LedgerUnusable, ChangeUnderWay, LeaseLost.
    """
    from orch.runner.ledger.changes import Undertaking
    from orch.runner.ledger.ledger import open_ledger

    new = Undertaking(
        project.name,
        ledger_scope(project),
        verb,
        subject,
        command=command_line(sys.argv),
        origin=origin(project.root),
        plan=plan,
        holds=tuple(holds),
    )
    with closing(open_ledger(project.ledger_url)) as ledger:
        yield from _at_work(ledger.changes, ledger.changes.begin(new, resume=resume))


@contextmanager
def gone_on_with(project: Project, number: int) -> Iterator[Journal]:
    """Go on with a change that was interrupted or failed, by its number. Raises as `undertaken`."""
    from orch.runner.ledger.ledger import open_ledger

    with closing(open_ledger(project.ledger_url)) as ledger:
        yield from _at_work(ledger.changes, ledger.changes.resume(number))


def _at_work(changes: Changes, begun: Begun) -> Iterator[Journal]:
    """The journal of a change while its lease is renewed; how the block ends is written."""
    from orch.runner.ledger.lease import Renewal

    journal = Journal(changes, begun)
    try:
        with Renewal(changes, begun.lease):
            yield journal
    except BaseException as error:
        try:
            journal.end(error)
        except OrchError as unwritten:
            raise error from unwritten  # what went wrong first is what a user has to know
        raise
    journal.end(None)


NO_CHANGES = "no changes"
"""The result of a command that found nothing to change; lists leave it out."""

_MADE = {"create": "created", "update": "changed", "replace": "replaced", "delete": "deleted"}


class Outcome:
    """Outcome of a change of the block, for the log: `result` in a few words, `plan` as JSON."""

    def __init__(self) -> None:
        self.result = "done"
        self.plan: str | None = None

    def made(self, changes: Iterable[Change]) -> None:
        """Record what the engine did: the number of each operation, and in the plan the operation on each
        resource."""
        made = [each for each in changes if each.op != "same"]
        numbers = Counter(each.op for each in made)
        parts = [f"{numbers[op]} {word}" for op, word in _MADE.items() if numbers[op]]
        self.result = ", ".join(parts) or NO_CHANGES
        rows = [{"op": each.op, "type": each.type, "name": each.name} for each in made]
        self.plan = json.dumps({"changes": rows})

    def deleted(self, names: Iterable[str]) -> None:
        """Record what was deleted without the engine."""
        self.plan = json.dumps({"changes": [{"op": "delete", "name": name} for name in names]})


@contextmanager
def logged(project: Project, verb: str, subject: str, listener: Listener) -> Iterator[Outcome]:
    """Log a change that the block makes. A ledger that cannot be used keeps nothing from being done: a
    warning tells it."""
    outcome = Outcome()
    opened = undertaken(project, verb, subject)
    try:
        journal = opened.__enter__()
    except LedgerUnusable as error:
        listener(Note(f"warning: {_unlogged(verb, subject, error)}"))
        yield outcome
        return
    error: BaseException | None = None
    try:
        yield outcome
        journal.result = outcome.result
        if outcome.plan is not None:
            journal.set_plan(outcome.plan)
    except BaseException as raised:
        error = raised
        raise
    finally:
        try:
            if error is None:
                opened.__exit__(None, None, None)
            else:
                opened.__exit__(type(error), error, error.__traceback__)
        except OrchError as unwritten:
            if unwritten is not error:
                listener(Note(f"warning: {_unlogged(verb, subject, unwritten)}"))


def _unlogged(verb: str, subject: str, error: OrchError) -> str:
    return f"`orch {verb}` of {subject} is not in the log: {error_text(error)}"


def _told(error: OrchError) -> str:
    """An error as the log keeps it. What steps of `init` and other programs of the user wrote, as details of
    the engine's errors have it, is not kept."""
    return error_text(error) if error.detail_is_ours else hidden(error.summary)


def is_over(error: OrchError) -> bool:
    """Return True if an error ends a change: another process has the change, or the user stopped it."""
    from orch.runner.ledger.lease import LeaseLost

    return isinstance(error, LeaseLost) or error.exit_code == ExitCode.INTERRUPTED


def command_line(argv: Sequence[str]) -> str:
    """The command as a log may show it, without values of variables; "" of a program that is not orch."""
    if not argv or Path(argv[0]).name != "orch":
        return ""
    shown: list[str] = []
    words = iter(argv[1:4] if argv[1:3] == ["secret", "set"] else argv[1:])
    for word in words:
        name, given, value = word.partition("=")
        if word in _CONFIDENTIAL:
            shown += [word, next(words, "").partition("=")[0] + "=…"]
        elif name in _CONFIDENTIAL and given:
            shown.append(f"{name}={value.partition('=')[0]}=…")
        else:
            shown.append(word)
    return shlex.join(["orch", *shown])


def origin(root: Path) -> str:
    """Return the origin of a command: a pipeline's run, else the folder; with the commit that is checked
    out."""
    variables = defaultdict(lambda: "unknown", os.environ)
    runs = (words.format_map(variables) for name, words in _PIPELINES.items() if os.environ.get(name))
    place = next(runs, str(root))
    try:
        head = run_git(["rev-parse", "--verify", "--quiet", "--short=10", "HEAD^{commit}"], root)
    except OSError:
        return place
    return place if head.returncode else f"{place} at {head.stdout.strip()}"
