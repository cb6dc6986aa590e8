"""`orch gc`: what clouds hold with this project's marks and no state knows; shown, then deleted."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orch.cli.context import project_at
from orch.cli.errors import UsageError, coloured, end, print_json, say, tell
from orch.cli.options import Json, Rehearse, Yes
from orch.spec.errors import ExitCode
from orch.spec.suggest import counted

if TYPE_CHECKING:
    from orch.components.marks.marked import Leftovers, MarkedResource
    from orch.stacks.project.project import Project
    from orch.stacks.runs.leftovers import Deleted, Found

SCHEMA = 1


def gc(
    stack: Annotated[
        list[str] | None,
        typer.Option(
            "--stack",
            metavar="MARK",
            help="Delete what has this mark, PROJECT/STACK/SCOPE as listed, data too, and nothing else; "
            "repeatable.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --stack: delete machines also while runs are on them.")
    ] = False,
    *,
    yes: Yes = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Find what the clouds hold with this project's marks and no state knows; show it, then delete it.

    Alone, it deletes what was made for stacks of this state, is not recorded there, and is surely nobody's:
    no run is on it, and the ledger does not know it as a node. What is of another state, what holds data, and
    what an older copy of the state may have lost, is deleted only where --stack names it. Exits with 5 when
    something could not be looked at.
    """
    from orch.stacks.runs.leftovers import Deleted, find_leftovers, refuse_in_use, refuse_mounted

    project = project_at(rehearse=rehearse)
    project.prepare()
    found = find_leftovers(project)
    marks = frozenset(stack or ())
    chosen = _chosen(found, marks)
    done = Deleted()
    if not as_json:
        _show(found)
    refuse_mounted(found, chosen)
    if marks and not force:
        refuse_in_use(project, chosen)
    if chosen and not yes:
        _confirm(project, found, chosen, marks, as_json=as_json)
    if chosen:
        _delete(project, found, chosen, done, data=bool(marks), as_json=as_json)
    _show_end(found, chosen, done, as_json=as_json)
    if failed := next(iter((*done.errors, *found.not_seen)), None):
        # Whatever keeps a cloud from being looked at, the account's being another one apart.
        end(ExitCode.CONFLICT if failed.exit_code == ExitCode.CONFLICT else ExitCode.PROVISION)
    if done.skipped and marks:
        end(ExitCode.CONFLICT)


def _chosen(found: Found, marks: frozenset[str]) -> Leftovers:
    """Return what is deleted: what has the marks of a command line, or what nobody may need.

    Raises UsageError for a mark that nothing has for sure.
    """
    if unsure := sorted(marks & {each.mark for each in found.leftovers.unsure} - found.leftovers.marks):
        raise UsageError(
            f"what has the mark {', '.join(unsure)} may be another project's: labels alone tell it",
            hint="look whose it is, and delete it with the cloud's own tools",
        )
    unknown = sorted(marks - found.leftovers.marks)
    if unknown and not found.not_seen:
        raise UsageError(
            f"nothing that is left has the mark {', '.join(unknown)}",
            hint="`orch gc` lists what is left, with marks",
        )
    return found.leftovers.of(marks) if marks else found.deletable


def _confirm(
    project: Project, found: Found, chosen: Leftovers, marks: frozenset[str], *, as_json: bool
) -> None:
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks.runs.leftovers import Deleted

    if as_json and (sys.stdin is None or not sys.stdin.isatty()):
        print_json(_as_json(found, Deleted()))
    need_terminal(" ".join(["orch gc", *(f"--stack {each}" for each in sorted(marks)), "--yes"]), project)
    confirm(_question(chosen))


def _delete(
    project: Project, found: Found, chosen: Leftovers, done: Deleted, *, data: bool, as_json: bool
) -> None:
    """Delete what was chosen, and add to `done` what is gone."""
    from orch.cli.output.progress import watching
    from orch.stacks.errors import Interrupted
    from orch.stacks.record.change_log import logged
    from orch.stacks.runs.leftovers import delete_leftovers

    with (
        watching(as_json=as_json) as listener,
        logged(project, "gc", ", ".join(sorted(chosen.marks)), listener) as outcome,
    ):
        try:
            delete_leftovers(project, found, chosen, listener, done, data=data)
        except (Interrupted, KeyboardInterrupt):
            _tell_remaining(done, chosen)
            raise
        outcome.result = f"{counted(len(done.names), 'resource')} deleted"
        outcome.deleted(done.names)


def _show_end(found: Found, chosen: Leftovers, done: Deleted, *, as_json: bool) -> None:
    remaining = done.remaining(chosen) if done.errors else []
    if as_json:
        print_json(_as_json(found, done) | {"remaining": [_row(each) for each in remaining]})
    elif chosen:
        say(f"gc: {counted(len(done.names), 'resource')} deleted")
    for each in done.names if not as_json else ():
        say(f"  {each}")
    for name, who in done.skipped.items():
        tell(f"{name} is left alone, for somebody else changes it: {who}")
    for error in (*found.not_seen, *done.errors):
        tell(error.text())
    _tell_left(remaining)


def _tell_remaining(done: Deleted, chosen: Leftovers) -> None:
    """Show the progress of a deletion that was interrupted."""
    for each in done.names:
        tell(f"deleted: {each}")
    _tell_left(done.remaining(chosen))


def _tell_left(remaining: Sequence[MarkedResource]) -> None:
    for each in remaining:
        tell(f"not deleted, or not seen to go: {each.kind} {each.name} ({each.id})")


def _question(chosen: Leftovers) -> str:
    count = len(chosen.all)
    data = [each.id for each in chosen.all if each.holds_data]
    lost = f", and lose all data of {', '.join(data)}" if data else ""
    return f"Delete {counted(count, 'resource')}{lost}?"


def _show(found: Found) -> None:
    left = found.leftovers
    _section(
        "made for stacks of this state, which does not record it; `orch gc` deletes it:",
        found.deletable.orphans,
    )
    kept = [each for each in left.orphans if each.id in found.kept]
    _section("the same, but it may be in use; `orch gc --stack MARK` deletes it:", kept)
    for each in kept:
        say(f"  {each.id}: {found.kept[each.id]}")
    _section("the same, of stacks that somebody changes at this moment; it is left alone:", left.held)
    for stack in sorted({found.owners[each.mark] for each in left.held}):
        say(f"  {stack}: {found.holders[stack]}")
    _section(
        "of no stack of this state, but a colleague's or a lost one; `orch gc --stack MARK` deletes it:",
        left.unknown,
    )
    _section("holds data; `orch gc --stack MARK` deletes it:", left.data)
    for each in left.data:
        if each.id in found.mounted:
            say(f"  {each.id}: mounted by the fleet {', '.join(found.mounted[each.id])}")
    _section(
        "not sure: a project whose name reads the same in labels may have made it; nothing deletes it:",
        left.unsure,
    )
    if found.survey.foreign:
        say(f"{counted(found.survey.foreign, 'resource')} of other projects: not looked at any further")
    if not left and not found.not_seen:
        say(f"nothing is left on {', '.join(found.looked)}")


def _section(heading: str, resources: Sequence[MarkedResource]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from orch.cli.output.fleet import age
    from orch.spec.errors import visible

    if not resources:
        return
    say(heading)
    colour = coloured(sys.stdout)
    table = Table(box=None, pad_edge=False, header_style="bold" if colour else "")
    for column in ("MARK", "KIND", "NAME", "ID", "PLACE", "CREATED", "$/H"):
        table.add_column(column, no_wrap=True)
    now = datetime.now(timezone.utc)
    for each in resources:
        place = f"{each.backend} {each.region}".strip()
        price = "-" if each.hourly is None else f"{each.hourly:.2f}"
        cells = (each.mark, each.kind, each.name, each.id, place, age(each.created, now), price)
        table.add_row(*(Text(visible(cell)) for cell in cells))
    text = io.StringIO()
    Console(file=text, force_terminal=colour, width=1000).print(table)
    for line in text.getvalue().splitlines():
        say(f"  {line.rstrip()}")


def _as_json(found: Found, done: Deleted) -> dict[str, Any]:
    left = found.leftovers
    return {
        "schema": SCHEMA,
        "orphans": [_row(each) for each in found.deletable.orphans],
        "kept": [_row(each) | {"why": found.kept[each.id]} for each in left.orphans if each.id in found.kept],
        "held": [_row(each) for each in left.held],
        "unknown": [_row(each) for each in left.unknown],
        "data": [_row(each) | {"mounted_by": list(found.mounted.get(each.id, ()))} for each in left.data],
        "unsure": [_row(each) for each in left.unsure],
        "other_projects": found.survey.foreign,
        "backends": list(found.looked),
        "unseen": [each.summary for each in found.not_seen],
        "deleted": done.names,
        "skipped": done.skipped,
        "errors": [each.summary for each in done.errors],
    }


def _row(each: MarkedResource) -> dict[str, Any]:
    return {
        "mark": each.mark,
        "backend": each.backend,
        "kind": each.kind,
        "id": each.id,
        "name": each.name,
        "region": each.region,
        "created_at": each.created.isoformat() if each.created else None,
        "price_hourly": each.hourly,
    }
