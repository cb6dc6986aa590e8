"""Brings up volumes and fleets in waves: one stack after the other, or several of a wave at once."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import typer

from orch.cli.diagnostics import tell_of_folders_below
from orch.cli.errors import as_bug, end, print_json, say, tell, terminated_as_interrupted
from orch.cli.fleets import side_by_side, volumes
from orch.cli.fleets.node_gates import pass_gate, require_healthy
from orch.cli.fleets.provision import remove
from orch.cli.fleets.prune import Undescribed, found_undescribed, refuse_protected, told, undescribed
from orch.cli.output.tracing import tracing
from orch.spec.errors import ExitCode, OrchError
from orch.stacks.plans.waves import Stack, in_waves, refuse_missing

if TYPE_CHECKING:
    from orch.cli.targets.fleet_files import FleetFile
    from orch.components.request import Approvals
    from orch.stacks.project.project import Project

SCHEMA = 1


@dataclass(frozen=True)
class UpMeans:
    """Settings of an `up`. `parallel`: number of stacks of a wave at once, each in a process of its own;
    `check`: the nodes of a wave are checked before the next one; `prune`: fleets that no file describes are
    removed."""

    yes: bool
    as_json: bool = False
    verbose: bool = False
    parallel: int = 1
    check: bool = True
    prune: bool = False


@terminated_as_interrupted()
def bring_up(
    source: FleetFile,
    approvals: Approvals,
    means: UpMeans,
    *,
    accept_host_keys: Sequence[str] = (),
) -> None:
    """Bring up the volumes and then the fleets of a file, wave by wave; exits with 7 when hosts are unfit.

    `accept_host_keys`: hosts whose changed key is accepted. Raises NoSuchFleet, Unhealthy, and what the
    operations raise, with what was brought up before and what was not begun.
    """
    if means.yes and approvals.unseen == "none":
        # With `--yes` nobody sees a key; on a terminal each is shown before it is used.
        approvals = replace(approvals, unseen="named")
    project, documents = source.read()
    if os.path.isdir(source.file):
        tell_of_folders_below([source.file])
    stacks = in_waves(project, documents)
    refuse_missing(stacks)
    obsolete: tuple[Undescribed, ...] = ()
    if means.prune:
        obsolete = undescribed(project)
        refuse_protected(obsolete)
    at_once = means.parallel > 1 and side_by_side.can_fork()
    if at_once:
        _import_before(stacks, project)

    def do(stack: Stack) -> bool:
        return _bring_up(stack, source, approvals, means, accept_host_keys)

    def do_apart(stack: Stack) -> bool:
        with tracing(f"up {stack.title}"):  # in a process of its own, which ends with it
            return do(stack)

    progress = _Progress(stacks)
    try:
        for wave in range(1, stacks[-1].wave + 1):
            if wave > 1 and means.check:
                gate = _require_healthy_apart if at_once else require_healthy
                gate(stacks, wave - 1, unfit=bool(progress.unfit))
            members = [each for each in stacks if each.wave == wave]
            if at_once:
                _all_at_once(members, do_apart, means, progress)
            else:
                for each in members:
                    progress.began(each)
                    progress.ended(each, unfit=do(each))
    except OrchError as error:
        if len(stacks) > 1:
            error.detail = f"{error.detail}\n{progress.text()}" if error.detail else progress.text()
        if means.as_json and os.path.isdir(source.file):
            print_json(progress.as_json(()))
        raise
    except KeyboardInterrupt:
        if len(stacks) > 1:
            progress.ending = "interrupted"
            tell(progress.text())
        raise
    for each in obsolete:
        tell(each.text())
    fleets = [(project, each.name) for each in obsolete]
    remove(source.file, fleets, (), yes=means.yes, force=approvals.force, as_json=means.as_json)
    if means.as_json and os.path.isdir(source.file):
        print_json(progress.as_json(obsolete))
    if os.path.isdir(source.file) and not means.prune:
        told(found_undescribed(project), source.file)
    if progress.unfit:
        end(ExitCode.HOSTS)


@dataclass
class _Progress:
    """Progress of the stacks of a file: begun, up, and up but not in order. `ending`: outcome of those that
    were begun and are not up."""

    stacks: Sequence[Stack]
    up: list[Stack] = field(default_factory=list["Stack"])
    begun: list[Stack] = field(default_factory=list["Stack"])
    unfit: list[Stack] = field(default_factory=list["Stack"])
    ending: str = "failed"

    def began(self, stack: Stack) -> None:
        self.begun.append(stack)

    def ended(self, stack: Stack, *, unfit: bool) -> None:
        self.up.append(stack)
        if unfit:
            self.unfit.append(stack)

    def outcome(self, stack: Stack) -> str:
        if stack in self.unfit:
            return "not in order"
        if stack in self.up:
            return "up"
        return self.ending if stack in self.begun else "not begun"

    def text(self) -> str:
        """Return the stacks by outcome: `up: fleet a; not begun: fleet c`."""
        titles: dict[str, list[str]] = {}
        for each in self.stacks:
            titles.setdefault(self.outcome(each), []).append(each.title)
        return "; ".join(f"{outcome}: {', '.join(each)}" for outcome, each in titles.items())

    def as_json(self, pruned: Sequence[Undescribed]) -> dict[str, Any]:
        stacks = [
            {"stack": each.title, "wave": each.wave, "outcome": self.outcome(each)} for each in self.stacks
        ]
        return {"schema": SCHEMA, "stacks": stacks, "pruned": [each.as_json() for each in pruned]}


def _bring_up(
    stack: Stack,
    source: FleetFile,
    approvals: Approvals,
    means: UpMeans,
    accept_host_keys: Sequence[str],
) -> bool:
    """Bring up a fleet or a volume, after asking unless `means.yes`; whether hosts of it are unfit."""
    from orch.cli.output.host_keys import planned, rekeyed
    from orch.cli.output.plan import counts, key_lines, plan_json
    from orch.cli.output.progress import watching
    from orch.cli.output.review import Agreement, agree, need_terminal, tell_problems
    from orch.stacks.provisioning import operations

    project, document, fleet = stack.project, stack.document, stack.fleet
    if fleet is None:
        one: Any = [(project, document, stack.model)]
        another = approvals.another
        volumes.bring_up(one, yes=means.yes, as_json=means.as_json, verbose=means.verbose, another=another)
        return False
    own_approvals = replace(approvals, rekeyed=rekeyed(fleet, accept_host_keys))
    request = source.request(document, fleet, own_approvals)
    agreement = Agreement(project, document, request, None, False)
    if not means.yes:
        need_terminal("orch up FILE --yes", project)
        reload = partial(source.read_again, fleet.name)
        agreement = agree(project, document, request, reload, verbose=means.verbose)
        if agreement.plan is None:
            return agreement.unfit
    with watching(as_json=means.as_json or means.parallel > 1) as listener:
        result = planned(
            agreement.document,
            lambda: operations.up(agreement.project, agreement.request, listener, plan=agreement.plan),
            as_json=means.as_json,
        )
    if means.as_json:
        print_json(plan_json(result, agreement.document))
        return pass_gate(agreement.project, result) or agreement.unfit or bool(result.problems)
    for line in key_lines(result.new_keys) if means.yes else ():
        tell(line)
    failed = len({problem.node for problem in result.problems})
    suffix = "; `health` of its file is recorded" if result.rewatched else ""
    suffix += f"; {failed} not in order" if failed else ""
    say(f"{stack.title}: {counts(result.changes, done=True)}{suffix}")
    tell_problems(result, agreement.document)
    return pass_gate(agreement.project, result) or agreement.unfit or bool(result.problems)


# Several at once


@dataclass(frozen=True)
class _Brought:
    """Result of one stack in a process of its own: its output, and its error or whether it is unfit."""

    printed: str = ""
    unfit: bool = False
    error: OrchError | None = None


def _import_before(stacks: Sequence[Stack], project: Project) -> None:
    side_by_side.import_before([each.fleet for each in stacks if each.fleet is not None], project)


def _all_at_once(
    stacks: Sequence[Stack], do: Callable[[Stack], bool], means: UpMeans, progress: _Progress
) -> None:
    """Bring up the stacks of a wave, a few at a time; after one that fails no other is begun.

    Raises the error of the first of them that failed; those of the others are told.
    """

    def told_of(stack: Stack, done: _Brought, _: int) -> None:
        print(done.printed, end="", flush=True)
        if done.error is None:
            progress.ended(stack, unfit=done.unfit)

    work = side_by_side.Work(partial(in_own_process, do), _gone, told_of, lambda done: done.error is not None)
    results = side_by_side.run(stacks, work, means.parallel, began=progress.began)
    errors = [each.error for each in results if each is not None and each.error is not None]
    for error in errors[1:]:
        tell(error.text())
    if errors:
        raise errors[0]


def in_own_process(do: Callable[[Stack], bool], stack: Stack) -> _Brought:
    """Do the work on a stack in a process of its own: what it prints is kept, what it tells has its name."""
    from orch.stacks.errors import StackError

    sys.stderr = _Named(sys.stderr, stack.title)
    printed = io.StringIO()
    try:
        own = replace(stack, project=side_by_side.own_project(stack.project))
        with redirect_stdout(printed):
            unfit = do(own)
    except OrchError as error:
        return _Brought(printed.getvalue(), error=error)
    except typer.Exit as ended:
        failure = StackError(f"the {stack.title} was not brought up", code=None)
        failure.exit_code = ExitCode(ended.exit_code)
        return _Brought(printed.getvalue(), error=failure)
    except Exception as error:  # noqa: BLE001 - a bug with one stack is told in its place
        return _Brought(printed.getvalue(), error=as_bug(error))
    return _Brought(printed.getvalue(), unfit)


def _require_healthy_apart(stacks: Sequence[Stack], wave: int, *, unfit: bool) -> None:
    """The same as `require_healthy` in a process of its own: logging in starts threads, and a process that
    is forked beside threads may wait for ever for what one of them held."""

    def check(number: int) -> _Brought:
        try:
            own = side_by_side.own_project(stacks[0].project)
            require_healthy([replace(each, project=own) for each in stacks], number, unfit=unfit)
        except OrchError as error:
            return _Brought(error=error)
        except Exception as error:  # noqa: BLE001 - as of a stack
            return _Brought(error=as_bug(error))
        return _Brought()

    from orch.stacks.errors import StackError

    def gone(number: int, code: int | None) -> _Brought:
        words = f"the process that checked the nodes of wave {number} ended ({code})"
        return _Brought(error=StackError(words, hint="run the same command again", code="ORCH346"))

    (done,) = side_by_side.run([wave], side_by_side.Work(check, gone, lambda *_: None), 1)
    if done is not None and done.error is not None:
        raise done.error


def _gone(stack: Stack, code: int | None) -> _Brought:
    from orch.stacks.errors import StackError

    error = StackError(
        f"the process that brought up the {stack.title} ended ({code})",
        hint="run the same command again: it goes on from there; the system's log may tell what ended it",
        code="ORCH346",
    )
    return _Brought(error=error)


class _Named(io.TextIOBase):
    """A stream that begins each line with whose it is: several stacks tell something at once."""

    def __init__(self, stream: TextIO, title: str) -> None:
        self._stream, self._title = stream, title

    def write(self, text: str) -> int:
        lines = text.splitlines(keepends=True)
        self._stream.write("".join(f"{self._title}: {line}" for line in lines))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return False
