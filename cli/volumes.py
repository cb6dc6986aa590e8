"""`orch volume`, and what `preview`, `up`, `down` and `drift` do with the volumes of a file."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from orch.cli import completion
from orch.cli.context import Json, Rehearse, Yes, project_at
from orch.cli.errors import coloured, print_json, say, tell

if TYPE_CHECKING:
    from datetime import datetime

    from orch.runner.launch.volumes import VolumeUse
    from orch.spec import Document
    from orch.spec.models import Volume
    from orch.spec.volume_state import VolumeState
    from orch.stacks.project import Project
    from orch.stacks.volumes.operations import VolumeOutcome

    Volumes = Iterable[tuple[Project, Document, Volume]]

SCHEMA = 1
T = TypeVar("T")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A volume's name.", autocompletion=completion.volumes)
]

app = typer.Typer(no_args_is_help=False)


@app.callback(invoke_without_command=True)
def volume(context: typer.Context, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """Volumes that are up. Alone, the same as `volume list`."""
    if context.invoked_subcommand is None:
        volume_list(as_json, rehearse)


@app.command("list", epilog="Example: orch volume list --json")
def volume_list(as_json: Json = False, rehearse: Rehearse = False) -> None:
    """The volumes of this project, and the runs that use them."""
    rows = _rows(project_at(rehearse=rehearse))
    if as_json:
        print_json({"schema": SCHEMA, "volumes": [row.as_json() for row in rows]})
    elif not rows:
        tell("no volume is up in this project; bring one up with `orch up volume.yml`")
    else:
        say(_table(rows))


@app.command("show", epilog="Example: orch volume show data")
def volume_show(name: Name, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """All there is to know of one volume."""
    from orch.stacks.volumes.state import no_such_volume

    project = project_at(rehearse=rehearse)
    row = next((each for each in _rows(project) if each.state.name == name), None)
    if row is None:
        raise no_such_volume(project, name)
    if as_json:
        print_json({"schema": SCHEMA, **row.as_json()})
        return
    facts = [(key, value) for key, value in row.facts() if value]
    width = max(len(key) for key, _ in facts)
    for key, value in facts:
        say(f"{key:{width}}  {value}")


@app.command("delete", epilog="Example: orch volume delete data --confirm data")
def volume_delete(
    name: Name,
    *,
    confirm_name: Annotated[
        str | None,
        typer.Option("--confirm", metavar="NAME", help="The name again: what a protected volume asks for."),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Delete a volume and all that is on it. A protected one asks for its name."""
    from orch.cli.errors import UsageError, end
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks.volumes.state import exists, is_protected, no_such_volume, stack_of, volume_of

    project = project_at(rehearse=rehearse)
    stack = stack_of(project, name)
    if not stack.exists:
        raise no_such_volume(project, name)
    if confirm_name is not None and confirm_name != name:
        raise UsageError(f"--confirm names another volume: {confirm_name}", hint=f"write `--confirm {name}`")
    state = volume_of(stack) if exists(stack) and "volume" in stack.outputs else None
    what = f"the volume {name}" + ("" if state is None or state.external else " and all that is on it")
    if confirm_name is None and is_protected(stack):
        need_terminal(f"orch volume delete {name} --confirm {name}")
        tell(f"Delete {what}? It is protected: type its name to delete it: ")
        if input().strip() != name:
            tell("nothing was done")
            end(0)
    elif confirm_name is None and not yes:
        need_terminal(f"orch volume delete {name} --yes")
        confirm(f"Delete {what}?")
    delete(project, name, as_json=as_json)


@app.command("gc", epilog="Example: orch volume gc --yes")
def volume_gc(yes: Yes = False, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """Delete volumes that no run has used for their `auto_cleanup_duration`."""
    from orch.cli.output.review import confirm, need_terminal
    from orch.spec.errors import OrchError

    project = project_at(rehearse=rehearse)
    due = [row for row in _rows(project) if row.is_due]
    for row in due:
        tell(f"volume {row.state.name}: unused for {row.idle}, longer than its `auto_cleanup_duration`")
    if not due:
        tell("no volume is due")
    elif not yes:
        need_terminal("orch volume gc --yes")
        confirm("Delete these volumes and all that is on them?")
    errors: list[OrchError] = []
    for row in due:
        try:
            delete(project, row.state.name, as_json=as_json)
        except OrchError as error:  # one that cannot go keeps no other
            errors.append(error)
            tell(f"volume {row.state.name} stays: {error.summary}")
    if errors:
        raise errors[0]


@dataclass(frozen=True)
class VolumeRow:
    """A volume as it is shown: its state, when it was created, and the runs that use it or did."""

    state: VolumeState
    created: datetime | None
    uses: Sequence[VolumeUse]
    now: float

    @property
    def active(self) -> tuple[VolumeUse, ...]:
        """Runs that use it now."""
        return tuple(each for each in self.uses if each.ended is None)

    @property
    def idle_s(self) -> float | None:
        """Seconds since a run used it, or since it was created; None while one does."""
        if self.active:
            return None
        moments = [each.ended for each in self.uses if each.ended is not None]
        moments += [self.created.timestamp()] if self.created else []
        return max(0.0, self.now - max(moments)) if moments else None

    @property
    def idle(self) -> str:
        """The same in words."""
        from orch.spec.grammar.values import render_duration

        return "" if self.idle_s is None else render_duration(int(self.idle_s))

    @property
    def is_due(self) -> bool:
        """Whether its `auto_cleanup_duration` is over. One that existed before orch is never due."""
        limit = self.state.auto_cleanup_s
        return (
            limit is not None
            and not self.state.external
            and (self.idle_s or 0.0) >= limit
            and not self.active
        )

    @property
    def users(self) -> str:
        return ", ".join(f"{each.run} on {each.node}" for each in self.active)

    def as_json(self) -> dict[str, Any]:
        """One entry of `volumes` in `volume list --json`."""
        state = self.state
        return {
            "name": state.name,
            "backend": state.backend,
            "region": state.region,
            "zone": state.zone,
            "status": "active",
            "id": state.volume_id,
            "size_mib": state.size_mib,
            "disk_type": state.disk_type,
            "external": state.external,
            "protect": state.protect,
            "monthly": state.monthly,
            "created_at": self.created.isoformat() if self.created else None,
            "runs": [{"run": each.run, "node": each.node} for each in self.active],
            "idle_s": self.idle_s,
            "cleanup_due": self.is_due,
        }

    def facts(self) -> list[tuple[str, str]]:
        """What `volume show` tells."""
        from orch.components.volumes import in_words

        state = self.state
        due = "due: `orch volume gc` deletes it" if self.is_due else ""
        return [
            ("volume", state.name),
            ("backend", state.backend),
            ("place", state.place),
            ("id", state.volume_id + (", registered: orch does not delete it" if state.external else "")),
            ("size", in_words(state.size_mib) if state.size_mib else ""),
            ("type", state.disk_type or ""),
            ("IOPS", str(state.iops or "")),
            ("throughput", f"{state.throughput} MB/s" if state.throughput else ""),
            ("cost", f"${state.monthly:.2f} per month" if state.monthly is not None else "unknown"),
            ("protected", "yes" if state.protect else "no"),
            ("used by", self.users or (f"no run for {self.idle}" if self.idle else "no run")),
            ("cleanup", due),
        ]


def _rows(project: Project) -> list[VolumeRow]:
    from orch.stacks.volumes.state import created_at, known_volumes, stack_of

    uses, now = _uses(project, active_only=False), time.time()
    return [
        VolumeRow(state, created_at(stack_of(project, name)), uses.get(name, ()), now)
        for name, state in known_volumes(project).items()
    ]


def _table(rows: Sequence[VolumeRow]) -> str:
    from rich.console import Console
    from rich.table import Table

    from orch.components.volumes import in_words

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("NAME", "BACKEND", "PLACE", "SIZE", "STATUS", "USED BY", "COST", "NOTE"):
        table.add_column(heading)
    for row in rows:
        state = row.state
        table.add_row(
            state.name,
            state.backend,
            state.place,
            in_words(state.size_mib) if state.size_mib else "-",
            "in use" if row.active else "active",
            row.users or "-",
            "-" if state.monthly is None else f"${state.monthly:.2f}/month",
            "cleanup is due: `orch volume gc`" if row.is_due else "",
        )
    console = Console(file=(written := io.StringIO()), width=200, color_system=None)
    console.print(table)
    return "\n".join(line.rstrip() for line in written.getvalue().rstrip("\n").split("\n"))


def _uses(project: Project, *, active_only: bool = True) -> Mapping[str, Sequence[VolumeUse]]:
    """Runs of the project by the volume that they use."""
    from orch.runner.launch.volumes import volume_uses
    from orch.runner.ledger.ledger import open_ledger

    project.prepare()
    ledger = open_ledger(project.ledger_url)
    try:
        return volume_uses(ledger, active_only=active_only)
    finally:
        ledger.close()


def preview(volumes: Volumes, *, as_json: bool, verbose: bool) -> bool:
    """Show what `up` would do to volumes. Returns whether anything is to do."""
    pending = False
    for project, document, volume in volumes:
        outcome = _previewed(project, document, volume, as_json=as_json)
        pending = pending or outcome.pending
        if as_json:
            print_json(outcome_json(outcome))
            continue
        for line in outcome_lines(outcome, verbose=verbose):
            say(line)
    return pending


def bring_up(volumes: Volumes, *, yes: bool, as_json: bool, verbose: bool) -> None:
    """Bring volumes up, after asking unless `yes`."""
    from orch.cli.output.plan import counts
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks.volumes.operations import up_volume

    for project, document, volume in volumes:
        if not yes:
            need_terminal("orch up FILE --yes")
            outcome = _previewed(project, document, volume, as_json=as_json)
            for line in outcome_lines(outcome, verbose=verbose):
                tell(line)
            if not outcome.pending:
                continue
            lost = ", and lose what is on it" if any(c.op == "replace" for c in outcome.changes) else ""
            confirm(f"Bring up the volume {volume.name}{lost}?")
        with watching(as_json=as_json) as listener:
            outcome = _placed(document, lambda p=project, v=volume, li=listener: up_volume(p, v, li))
        if as_json:
            print_json(outcome_json(outcome))
        else:
            say(f"volume {volume.name}: {counts(outcome.changes, done=True)}")


def remove_those_of(volumes: Volumes, *, yes: bool, as_json: bool) -> None:
    """Delete the volumes of a file that are not protected. Raises StackError when one is."""
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks.errors import StackError
    from orch.stacks.volumes.state import exists, is_protected, stack_of, volume_of

    protected: list[str] = []
    for project, _, volume in volumes:
        stack = stack_of(project, volume.name)
        if not stack.exists:
            (tell if as_json else say)(f"volume {volume.name}: not up, nothing to delete")
            continue
        if is_protected(stack):
            protected.append(volume.name)
            continue
        if not yes:
            need_terminal("orch down FILE --yes")
            external = "volume" in stack.outputs and exists(stack) and volume_of(stack).external
            confirm(f"Delete the volume {volume.name}{'' if external else ' and all that is on it'}?")
        delete(project, volume.name, as_json=as_json)
    if protected:
        first = protected[0]
        raise StackError(
            f"{'volumes' if len(protected) > 1 else 'volume'} {', '.join(protected)} stayed: protected",
            detail="`--yes` alone deletes no protected volume",
            hint=f"`orch volume delete {first} --confirm {first}` deletes it with all that is on it",
            code="ORCH348",
        )


def delete(project: Project, name: str, *, as_json: bool) -> None:
    """Delete a volume that no active run uses. Raises Conflict (ORCH386), NoSuchFleet, StackError."""
    from orch.cli.output.plan import counts
    from orch.cli.output.progress import watching
    from orch.stacks.volumes.operations import down_volume, require_unused

    require_unused(name, [f"{each.run} on {each.node}" for each in _uses(project).get(name, ())])
    with watching(as_json=as_json) as listener:
        outcome = down_volume(project, name, listener)
    if as_json:
        print_json(outcome_json(outcome))
    else:
        say(f"volume {name}: {counts(outcome.changes, done=True)}")


def drift(volumes: Volumes, *, as_json: bool, record: bool) -> bool:
    """Show the drift of the volumes of a file that are up; whether there is any. `record`: it is recorded."""
    from orch.cli.output.plan_tree import drift_lines
    from orch.cli.output.progress import watching
    from orch.stacks.volumes.operations import drift_of_volume

    any_drift = False
    for project, _, volume in volumes:
        with watching(as_json=as_json) as listener:
            drifts = drift_of_volume(project, volume.name, listener, record=record)
        any_drift = any_drift or bool(drifts)
        if as_json:
            data = [item.as_json() for item in drifts]
            print_json({"schema": SCHEMA, "volume": volume.name, "drift": data})
            continue
        say(f"volume {volume.name}: {'drifted' if drifts else 'as registered'}")
        for line in drift_lines(drifts):
            say(line)
    return any_drift


def outcome_lines(outcome: VolumeOutcome, *, verbose: bool) -> list[str]:
    """A plan for people."""
    from orch.cli.output.plan import counts
    from orch.cli.output.plan_tree import drift_lines, paint, tree
    from orch.stacks.summary import NO_HEADLINE

    colour = coloured(sys.stdout)
    lines = [f"volume {outcome.name}"]
    if any(change.op == "replace" for change in outcome.changes):
        lines.append(paint("  it is replaced: all that is on it is lost", "1", colour))
    if outcome.drift:
        lines.append(paint("  drift, changed outside orch since the last `up`:", "33", colour))
        lines += [f"  {line}" for line in drift_lines(outcome.drift)]
    lines += tree(outcome.changes, NO_HEADLINE, colour=colour, verbose=verbose)
    lines += [paint(f"  · {reason}", "2", colour) for reason in outcome.reasons]
    price = "an unknown price" if outcome.monthly is None else f"${outcome.monthly:.2f} per month"
    return [*lines, f"plan: {counts(outcome.changes)}; costs {price}"]


def outcome_json(outcome: VolumeOutcome) -> dict[str, Any]:
    """A plan, or what was done, as JSON."""
    from orch.stacks.pulumi.changes import summary

    return {
        "schema": SCHEMA,
        "volume": outcome.name,
        "summary": summary(outcome.changes),
        "changes": [change.as_json() for change in outcome.changes],
        "drift": [each.as_json() for each in outcome.drift],
        "reasons": list(outcome.reasons),
        "cost": {"monthly": outcome.monthly, "currency": "USD"},
    }


def _previewed(project: Project, document: Document, volume: Volume, *, as_json: bool) -> VolumeOutcome:
    from orch.cli.output.progress import watching
    from orch.spec.diagnostics import render_human
    from orch.stacks.volumes.operations import preview_volume

    if warnings := document.effective():
        tell(render_human(warnings))
    with watching(as_json=as_json) as listener:
        return _placed(document, lambda: preview_volume(project, volume, listener))


def _placed(document: Document, work: Callable[[], T]) -> T:
    """The result of some work; errors of a plan get their place in the file."""
    from orch.spec.findings import PlanError

    try:
        return work()
    except PlanError as error:
        raise error.placed(document) from error
