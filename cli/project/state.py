"""`orch state`: where the record of what is up lies, and what to do when it has to move or is damaged."""

from __future__ import annotations

from typing import Annotated

import typer

from orch.cli.context import FileOrName, Json, Rehearse, Yes, project_at
from orch.cli.errors import print_json, say, tell

SCHEMA = 1

app = typer.Typer(no_args_is_help=True)


@app.callback()
def state() -> None:
    """The state, which records what is up: move it to another place, repair it."""


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
    from orch.stacks.team import moving

    project = project_at()
    project.prepare()
    plan = moving.plan_move(project, to, secrets_provider)
    if not as_json or not yes:
        tell(f"state of {project.name}: {project.state_url} -> {plan.target.state_url}")
        for each in plan.stacks:
            tell(f"  {each.words}")
        tell("  orch.yml gets the new place; commit it: other clones need it")
    if not yes:
        need_terminal(f"orch state move --to {to} --yes", project)
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
    from orch.cli.fleets.targets import stacks_of
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks.pulumi.locks import subject
    from orch.stacks.state import StackState
    from orch.stacks.team.repair import damage_of
    from orch.stacks.team.repair import repair as mend

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
            need_terminal(f"orch state repair {target} --yes", project)
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
