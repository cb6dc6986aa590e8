"""`orch volume`, and what `preview`, `up`, `down` and `drift` do with the volumes of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from orch.cli import completion
from orch.cli.context import project_at
from orch.cli.errors import UsageError, end, print_json, say, tell
from orch.cli.options import Forget, Json, Rehearse, Yes
from orch.cli.output.volumes import SCHEMA, outcome_json, outcome_lines

if TYPE_CHECKING:
    from orch.spec.loader.load import Document
    from orch.spec.models import Volume
    from orch.stacks.errors import StackError
    from orch.stacks.project.project import Project
    from orch.stacks.volumes.operations import VolumeOutcome

    Volumes = Iterable[tuple[Project, Document, Volume]]

T = TypeVar("T")


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


def bring_up(volumes: Volumes, *, yes: bool, as_json: bool, verbose: bool, another: bool = False) -> None:
    """Bring volumes up, after asking unless `yes`. `another`: also if their cloud has one of that name, or
    does not say."""
    from orch.cli.output.plan import counts
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks.volumes.operations import up_volume

    for project, document, volume in volumes:
        if not yes:
            need_terminal("orch up FILE --yes", project)
            outcome = _previewed(project, document, volume, as_json=as_json)
            for line in outcome_lines(outcome, verbose=verbose):
                tell(line)
            if not outcome.pending:
                continue
            lost = ", and lose what is on it" if outcome.loses_data else ""
            confirm(f"Bring up the volume {volume.name}{lost}?")
        with watching(as_json=as_json) as listener:
            # Who was asked has seen what the plan says of others.
            outcome = _placed(
                document,
                volume.name,
                lambda p=project, v=volume, li=listener: up_volume(p, v, li, another=another or not yes),
            )
        if as_json:
            print_json(outcome_json(outcome))
        else:
            say(f"volume {volume.name}: {counts(outcome.changes, done=True)}")


def remove_those_of(volumes: Volumes, *, yes: bool, as_json: bool) -> None:
    """Delete the volumes of a file that are not protected. Raises StackError when one is."""
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks.record.volumes import exists, is_protected, is_recorded, stack_of, volume_of

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
            need_terminal("orch down FILE --yes", project)
            external = is_recorded(stack) and exists(stack) and volume_of(stack).external
            confirm(f"Delete the volume {volume.name}{'' if external else ' and all that is on it'}?")
        delete(project, volume.name, as_json=as_json)
    if protected:
        raise protected_error(*protected)


def protected_error(first: str, *others: str) -> StackError:
    """The error for volumes that are deleted by their names alone."""
    from orch.stacks.errors import StackError

    return StackError(
        f"{'volumes' if others else 'volume'} {', '.join((first, *others))} stayed: protected",
        detail="`--yes` alone deletes no protected volume",
        hint=f"`orch volume delete {first} --confirm {first}` deletes it with all that is on it",
        code="ORCH348",
    )


def delete(project: Project, name: str, *, as_json: bool) -> None:
    """Delete a volume that nobody uses. Raises Conflict (ORCH386), NoSuchFleet, StackError."""
    from orch.cli.output.plan import counts
    from orch.cli.output.progress import watching
    from orch.stacks.volumes.operations import down_volume, require_unused

    require_unused(project, name)
    with watching(as_json=as_json) as listener:
        outcome = down_volume(project, name, listener)
    if as_json:
        print_json(outcome_json(outcome))
    else:
        say(f"volume {name}: {counts(outcome.changes, done=True)}")


def drift(volumes: Volumes, *, as_json: bool, record: bool) -> bool:
    """Show the drift of the volumes of a file that are up; whether there is any. `record`: it is recorded."""
    from orch.cli.output.progress import watching
    from orch.review.tree import drift_lines
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


def _previewed(project: Project, document: Document, volume: Volume, *, as_json: bool) -> VolumeOutcome:
    from orch.cli.output.progress import watching
    from orch.spec.diagnostics import render_human
    from orch.stacks.volumes.operations import preview_volume

    if warnings := document.effective():
        tell(render_human(warnings))
    with watching(as_json=as_json) as listener:
        outcome = _placed(document, volume.name, lambda: preview_volume(project, volume, listener))
    if outcome.findings:
        tell(render_human([each.placed(document) for each in outcome.findings]))
    return outcome


def _placed(document: Document, name: str, work: Callable[[], T]) -> T:
    """The result of some work on a volume of a file. Errors of a plan get their place in the file, and what
    was stopped tells how it goes on."""
    from orch.spec.findings import PlanError
    from orch.stacks.errors import Interrupted
    from orch.stacks.record.volumes import hint_to_continue

    try:
        return work()
    except PlanError as error:
        raise error.placed(document) from error
    except Interrupted as error:
        error.hint = hint_to_continue(name, str(document.file))
        raise


# Verbs on those that are up


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
    from orch.cli.output.volumes import table, usage_json
    from orch.stacks.record.volumes import is_recorded, no_such_volume, volume_stacks
    from orch.stacks.volumes.operations import usages

    project = project_at(rehearse=rehearse)
    stacks = volume_stacks(project)
    volumes = usages(project, stacks)
    if as_json:
        print_json({"schema": SCHEMA, "volumes": [usage_json(each) for each in volumes]})
        return
    if volumes:
        say(table(volumes))
    for name, stack in stacks.items():
        if not is_recorded(stack):
            error = no_such_volume(project, name)
            tell(f"note: {error.summary}; {error.hint}")
    if not stacks:
        tell("no volume is up in this project; bring one up with `orch up volume.yml`")


@app.command("show", epilog="Example: orch volume show data")
def volume_show(name: Name, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """All there is to know of one volume."""
    from orch.cli.output.volumes import facts, usage_json
    from orch.stacks.record.volumes import is_recorded, no_such_volume, volume_stacks
    from orch.stacks.volumes.operations import usages

    project = project_at(rehearse=rehearse)
    stack = volume_stacks(project).get(name)
    if stack is None or not is_recorded(stack):
        raise no_such_volume(project, name)
    (usage,) = usages(project, {name: stack})
    if as_json:
        print_json({"schema": SCHEMA, **usage_json(usage)})
        return
    shown = [(key, value) for key, value in facts(usage) if value]
    width = max(len(key) for key, _ in shown)
    for key, value in shown:
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
    forget: Forget = False,
) -> None:
    """Delete a volume and all that is on it. A protected one asks for its name."""
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks.record.volumes import (
        exists,
        is_protected,
        is_recorded,
        no_such_volume,
        stack_of,
        volume_of,
    )

    project = project_at(rehearse=rehearse, forget=forget)
    stack = stack_of(project, name)
    if not stack.exists:
        raise no_such_volume(project, name)
    if confirm_name is not None and confirm_name != name:
        raise UsageError(f"--confirm names another volume: {confirm_name}", hint=f"write `--confirm {name}`")
    state = volume_of(stack) if exists(stack) and is_recorded(stack) else None
    what = f"the volume {name}" + ("" if state is None or state.external else " and all that is on it")
    if confirm_name is None and is_protected(stack):
        if yes:
            raise protected_error(name)
        need_terminal(f"orch volume delete {name} --confirm {name}", project)
        tell(f"Delete {what}? It is protected: type its name to delete it: ")
        if input().strip() != name:
            tell("nothing was done")
            end(0)
    elif confirm_name is None and not yes:
        need_terminal(f"orch volume delete {name} --yes", project)
        confirm(f"Delete {what}?")
    delete(project, name, as_json=as_json)


@app.command("gc", epilog="Example: orch volume gc --yes")
def volume_gc(yes: Yes = False, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """Delete volumes that no run has used for their `auto_cleanup_duration`."""
    from orch.cli.output.review import confirm, need_terminal
    from orch.cli.output.volumes import idle
    from orch.spec.errors import OrchError
    from orch.stacks.record.volumes import volume_stacks
    from orch.stacks.volumes.operations import require_all_runs_known, usages

    project = project_at(rehearse=rehearse)
    require_all_runs_known(project)
    due = [usage for usage in usages(project, volume_stacks(project)) if usage.is_due]
    for usage in due:
        tell(f"volume {usage.state.name}: unused for {idle(usage)}, longer than its `auto_cleanup_duration`")
    if not due:
        tell("no volume is due")
    elif not yes:
        need_terminal("orch volume gc --yes", project)
        confirm("Delete these volumes and all that is on them?")
    errors: list[OrchError] = []
    for usage in due:
        try:
            delete(project, usage.state.name, as_json=as_json)
        except OrchError as error:  # one that cannot go keeps no other
            errors.append(error)
            tell(f"volume {usage.state.name} stays: {error.summary}")
    if errors:
        raise errors[0]
