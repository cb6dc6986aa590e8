"""`orch state`: where the record of what is up lies; when it has to move, is damaged or was lost."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orch.cli.context import project_at
from orch.cli.errors import print_json, say, tell
from orch.cli.options import File, FileOrName, Json, Rehearse, Yes

if TYPE_CHECKING:
    from orch.spec.loader.load import Document
    from orch.spec.models import Fleet
    from orch.stacks.project.project import Project
    from orch.stacks.states.importing import Rebuilt

SCHEMA = 1

app = typer.Typer(no_args_is_help=True)


@app.callback()
def state() -> None:
    """The state, which records what is up: move it, repair it, rebuild one that was lost."""


@app.command(
    "move", epilog="Example: orch state move --to s3://our-bucket/orch --secrets-provider awskms://alias/orch"
)
def move(
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="URL", help="s3://BUCKET, gs://BUCKET, azblob://CONTAINER or file:///FOLDER."
        ),
    ],
    secrets_provider: Annotated[
        str | None,
        typer.Option(
            "--secrets-provider",
            metavar="URL",
            help="What encrypts the secrets there, as awskms://alias/NAME; else what does now.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Move the state to another place, all of it or nothing, and write that into `orch.yml`.

    Nothing that is up changes. The former state stays, and nobody can change anything by it any more.
    """
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks.states import moving

    project = project_at()
    project.prepare()
    plan = moving.plan_move(project, to, secrets_provider)
    if not as_json or not yes:
        tell(f"state of {project.name}: {project.state_url} -> {plan.target.state_url}")
        for each in plan.stacks:
            tell(f"  {each.words}")
        tell("  orch.yml gets the new place; commit it: other clones need it")
    if not yes:
        of = [] if secrets_provider is None else ["--secrets-provider", secrets_provider]
        need_terminal(shlex.join(["orch", "state", "move", "--to", to, *of, "--yes"]), project)
        confirm("Move the state?")
    with watching(as_json=as_json) as listener:
        moved = moving.move(plan, listener)
    if as_json:
        rows = [{"stack": each.name, "resources": each.resources} for each in plan.stacks]
        print_json({"schema": SCHEMA, "from": project.state_url, "to": moved.state_url, "stacks": rows})
        return
    say(f"moved: the state of {project.name} is at {moved.state_url}")


@app.command("repair", epilog="Example: orch state repair pretrain")
def repair(
    target: FileOrName, *, yes: Yes = False, as_json: Json = False, rehearse: Rehearse = False
) -> None:
    """Repair the record of a fleet or volume, after showing what is wrong with it.

    Clears locks and operations of calls that were killed, as `up` does; a state file that cannot be read, or
    is gone, is replaced by the latest copy of it that is there.
    """
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal
    from orch.cli.targets.fleet_files import stacks_of
    from orch.stacks.stack.locks import subject
    from orch.stacks.stack.state import StackState
    from orch.stacks.states.repair import damage_of
    from orch.stacks.states.repair import repair as mend

    rows: list[dict[str, object]] = []
    for project, name in stacks_of(target, rehearse=rehearse):
        project.prepare()
        stack = StackState(project, name)
        damage = damage_of(stack)
        for words in damage.found:
            tell(f"{subject(name)}: {words}")
        if damage.copy is not None:
            tell(f"{subject(name)}: it is replaced by {damage.copy.words}")
        if not yes:
            need_terminal(shlex.join(["orch", "state", "repair", target, "--yes"]), project)
            confirm(f"Repair the record of the {subject(name)}?")
        with watching(as_json=as_json) as listener:
            done = mend(stack, damage, listener)
        rows.append({"stack": name, "found": list(damage.found), "done": list(done)})
        if as_json:
            continue
        say(f"{subject(name)}: {'; '.join(done) or 'nothing was wrong'}")
        if damage.copy is not None:
            tell("note: what was made since that copy is not recorded; `orch gc` and `orch preview` tell it")
    if as_json:
        print_json({"schema": SCHEMA, "stacks": rows})


@app.command("import", epilog="Example: orch state import pretrain.yml")
def import_state(
    file: File,
    *,
    stack: Annotated[
        str | None,
        typer.Option(
            "--stack",
            metavar="MARK",
            help="Whose resources they are, PROJECT/STACK/SCOPE as `orch gc` lists them, where that is not "
            "clear.",
        ),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Rebuild the state of a fleet that was lost, from the marks of what is in the cloud.

    Shows what was found, what was not, and what is new; makes and removes nothing in the cloud. A state that
    is there, and what is not clear, is refused.
    """
    from orch.cli.targets.fleet_files import FleetFile

    fleets = list(FleetFile(file, launch=("fleet",), rehearse=rehearse, mixed=True).fleets())
    rows = [_import(file, each, stack, yes=yes, as_json=as_json) for each in fleets]
    if as_json:
        print_json({"schema": SCHEMA, "stacks": rows})


def _import(
    file: str, described: tuple[Project, Document, Fleet], mark: str | None, *, yes: bool, as_json: bool
) -> dict[str, Any]:
    from orch.cli.output.plan import counts
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal
    from orch.spec.findings import PlanError
    from orch.stacks.plans.request import FleetRequest
    from orch.stacks.provisioning import operations
    from orch.stacks.stack.state import StackState
    from orch.stacks.states import importing

    project, document, fleet = described
    project.prepare()
    request = FleetRequest(fleet, document.directory, file=None if file == "-" else document.file)
    stack, rebuilt = StackState(project, fleet.name), None
    try:
        if importing.is_written(stack):
            with watching(as_json=as_json) as listener:
                importing.finish(stack, listener)
        else:
            with watching(as_json=as_json) as listener:
                rebuilt = importing.rebuild(project, request, mark, listener)
            if not as_json or not yes:
                _show(rebuilt)
            if not yes:
                of = [] if mark is None else ["--stack", mark]
                need_terminal(shlex.join(["orch", "state", "import", file, *of, "--yes"]), project)
                confirm(f"Write the state of the fleet {fleet.name}?")
            with watching(as_json=as_json) as listener:
                importing.write(rebuilt, listener)
        with watching(as_json=as_json) as listener:
            plan = operations.preview(project, request, listener)
    except PlanError as error:
        raise error.placed(document) from error
    if not as_json:
        say(f"fleet {fleet.name}: its state is written")
        say(f"the next preview shows: {counts(plan.changes, moves=plan.headline.moves)}")
    return {
        "stack": fleet.name,
        "mark": None if rebuilt is None else rebuilt.mark,
        "found": [] if rebuilt is None else [vars(each) for each in rebuilt.found],
        "missing": [] if rebuilt is None else [vars(each) for each in rebuilt.missing],
        "new": [] if rebuilt is None else [vars(each) for each in rebuilt.made],
        "notes": [] if rebuilt is None else list(rebuilt.told),
        "pending": plan.pending,
    }


def _show(rebuilt: Rebuilt) -> None:
    """The plan: what of the fleet is there, what is not, and what is new."""
    from orch.stacks.events.kinds import kind_of

    tell(f"fleet {rebuilt.stack.name}: {len(rebuilt.found)} resources of the mark {rebuilt.mark} are there")
    for each in rebuilt.found:
        tell(f"  found: {kind_of(each.type)} {each.name}: {each.id}")
    for each in rebuilt.missing:
        tell(f"  gone: {kind_of(each.type)} {each.name}; `orch up` makes it anew")
    for each in rebuilt.made:
        tell(f"  new in the state alone: {kind_of(each.type)} {each.name}")
    for text in rebuilt.told:
        tell(f"  note: {text}")
    tell("  nothing is made or removed in the cloud")
