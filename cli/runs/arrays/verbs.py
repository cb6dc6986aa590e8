"""`orch run`, `attach`, `stop` and `show` of arrays: progress of many runs in few lines."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from orch.cli.driver.background import drive_afresh
from orch.cli.errors import end, print_json, say, tell
from orch.cli.output.ticking import still
from orch.cli.runs.arrays.words import array_json, counts_text, ends, members_text, summary
from orch.runner.errors import LedgerUnusable
from orch.runner.plan.run_names import as_argument
from orch.runner.runs.arrays.choose import Chosen
from orch.runner.runs.arrays.drive import ArrayDriver
from orch.spec.errors import ExitCode

if TYPE_CHECKING:
    from orch.runner.ledger.arrays import Member
    from orch.runner.ledger.records import ArrayKey, RunRow
    from orch.runner.runs.context import RunnerContext
    from orch.stacks.project.project import Project


def begin(project: Project, runner: RunnerContext, row: RunRow, *, detach: bool, as_json: bool) -> ExitCode:
    """Drive an array that was just submitted, here or from a background process. `row`: its first member."""
    array = _array_of(row)
    members = runner.ledger.arrays.members(array)
    if detach:
        drive_afresh(project, runner, row, array=array)
        if as_json:
            print_json(array_json(runner, array, runner.ledger.arrays.members(array)))
        else:
            say(array.name)
        return ExitCode.OK
    if not as_json:
        limit = f", at most {members[0].limit} at once" if members[0].limit is not None else ""
        tell(f"array {array.name} on fleet {row.fleet}: {members_text(members)}{limit}")
    return attach(project, runner, Chosen(array, members, True), as_json=as_json)


def attach(project: Project, runner: RunnerContext, chosen: Chosen, *, as_json: bool) -> ExitCode:
    """Drive members or follow who does, until they have ended.

    On Ctrl-C or a closed terminal a background process takes over."""
    only = None if chosen.whole else chosen.numbers
    told = _Told(chosen.members, only)

    def leave(number: int, frame: Any) -> None:
        del number, frame
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        with still(told.status):
            ArrayDriver(runner, chosen.array, only=only, on_look=told.look).run()
    except KeyboardInterrupt:
        # A terminal that is closed may send several. Not SIG_IGN, which the other process would inherit.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: None)
        _leave(project, runner, chosen.array)
    return _end(runner, chosen, as_json=as_json)


def stop(runner: RunnerContext, chosen: Chosen, *, abort: bool, as_json: bool) -> None:
    """End members and wait for it: those that have not begun at once."""
    active = [each for each in chosen.members if each.active]
    if not active and not as_json:
        tell(f"{members_text(chosen.members)}: ended already")
    runner.ledger.arrays.stop(chosen.array, [each.id for each in active], "abort" if abort else "stop")
    told = _Told(chosen.members, chosen.numbers)
    if active:
        with still(told.status):
            ArrayDriver(runner, chosen.array, only=chosen.numbers, on_look=told.look).run()
    _end(runner, chosen, as_json=as_json)


def show(runner: RunnerContext, chosen: Chosen) -> str:
    """An array on one screen: how many of its runs are how, those that run, and those that failed."""
    row = runner.ledger.by_id(chosen.members[0].id)
    lines = [summary(chosen.array, chosen.members)]
    running = [each for each in chosen.members if each.has_nodes]
    waiting = [each for each in chosen.members if each.status == "pending"]
    pairs = [
        ("id", str(chosen.array.id)),
        ("fleet", row.fleet),
        ("at once", "" if row.array_limit is None else str(row.array_limit)),
        ("running", members_text(running) if running else ""),
        ("pending", members_text(waiting) if waiting else ""),
    ]
    lines += [f"  {key:<8} {value}" for key, value in pairs if value]
    return "\n".join(lines)


def _end(runner: RunnerContext, chosen: Chosen, *, as_json: bool) -> ExitCode:
    """Tell how members ended; the exit code, which is 0 where all are done."""
    named = set(chosen.numbers)
    members = [each for each in runner.ledger.arrays.members(chosen.array) if each.id in named]
    if as_json:
        print_json(array_json(runner, chosen.array, members))
    else:
        tell(summary(chosen.array, members))
    return ExitCode.OK if all(each.status == "done" for each in members) else ExitCode.RUN_FAILED


def _leave(project: Project, runner: RunnerContext, array: ArrayKey) -> None:
    """Have a background process go on with an array, and end this one."""
    members: Sequence[Member] = ()
    with suppress(LedgerUnusable):  # the new process waits for it
        members = runner.ledger.arrays.members(array)
        if not any(each.active for each in members):
            return
    alone = next((each for each in members if each.active and not each.held), None)
    if alone is not None:
        drive_afresh(project, runner, runner.ledger.by_id(alone.id), array=array)
    name = as_argument(array.name)
    tell(f"\ndetached, the array goes on; `orch attach {name}` follows, `orch stop {name}` ends it")
    end(ExitCode.INTERRUPTED)


def _array_of(row: RunRow) -> ArrayKey:
    if row.array is None:
        raise TypeError(f"{row.name} is of no array")
    return row.array


class _Told:
    """Tells which members end; the others are counted."""

    def __init__(self, members: Sequence[Member], only: Sequence[int] | None) -> None:
        self._before = {each.id: each.status for each in members}
        self._only = None if only is None else frozenset(only)
        self._members = tuple(members)

    def look(self, members: Sequence[Member]) -> None:
        self._members = tuple(each for each in members if self._only is None or each.id in self._only)
        for line in ends(self._before, self._members):
            tell(line)

    def status(self) -> str:
        return counts_text(self._members)
