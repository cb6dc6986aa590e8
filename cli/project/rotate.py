"""`orch rotate`: new keys in place of old ones."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from orch.cli import completion
from orch.cli.context import project_at
from orch.cli.errors import UsageError, end, print_json, say, tell
from orch.cli.options import Json, PlanOnly, Rehearse, Yes
from orch.spec.errors import ExitCode

app = typer.Typer(no_args_is_help=True)


@app.callback()
def rotate() -> None:
    """New keys in place of old ones: the SSH keys of fleets, the passphrase of the state."""


@app.command("ssh-keys", epilog="Example: orch rotate ssh-keys lab")
def ssh_keys(
    *,
    fleets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FLEET...]",
            help="Fleets; default: all that have keys of orch.",
            show_default=False,
            autocompletion=completion.fleets,
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="NODE",
            help="A node that keeps the old key, as one that is gone; repeatable.",
            show_default=False,
        ),
    ] = None,
    plan_only: PlanOnly = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
    yes: Yes = False,
) -> None:
    """Open the nodes of fleets with new SSH keys, and no longer with the old ones. No run stops."""
    from orch.cli.driver.opening import connector_of, open_runner
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal
    from orch.cli.targets.nodes import nodes_named
    from orch.stacks.keys import key_plan
    from orch.stacks.keys.key_rotation import rotate_keys
    from orch.stacks.record.fleets import fleet_of, known_fleets
    from orch.stacks.stack.state import StackState

    names = list(dict.fromkeys(fleets or ()))
    with open_runner(None, as_json=True, rehearse=rehearse) as (project, runner):
        changes = runner.ledger.changes
        left_out: set[str] = set()
        if without:
            up = {name: StackState(project, name) for name in names} or known_fleets(project)
            states = {name: fleet_of(stack) for name, stack in up.items()}
            left_out = {node.name for node in nodes_named(without, states)}
        earlier = key_plan.interrupted(changes, project, names)
        if earlier is not None:
            plan = key_plan.KeyPlan.parse(earlier.plan).leaving_out(left_out)
            tell(f"going on with change {earlier.id} of {earlier.by}, by its plan")
        else:
            with watching(as_json=as_json) as listener:
                usual = key_plan.usual_s(changes, project)
                plan = key_plan.plan_keys(
                    project, names, left_out, lambda: connector_of(project), listener, usual=usual
                )
        for line in () if as_json else plan.lines():
            (say if plan_only else tell)(line)
        if plan_only or not plan.fleets:
            if as_json:
                print_json({"schema": 1, "plan": plan.as_json()})
            elif not plan.fleets:
                say("no fleet here has keys of orch: nothing was done")
            end(ExitCode.OK)
        if not yes:
            words = ["orch", "rotate", "ssh-keys", *names, *_options(without), "--yes"]
            need_terminal(shlex.join(words), project)
            confirm("Rotate the keys?")
        with watching(as_json=as_json) as listener:
            plan = rotate_keys(project, plan, lambda: connector_of(project), listener)
        if as_json:
            print_json({"schema": 1, "rotated": plan.as_json()["fleets"]})
        else:
            for each in plan.fleets:
                say(f"fleet {each.name}: the new key opens {_counted(each.nodes)}, the old one none of them")
        tell("note: another clone gets the new key from the state with its next command")


def _options(without: list[str] | None) -> list[str]:
    return [word for node in without or () for word in ("--without", node)]


def _counted(nodes: tuple[str, ...]) -> str:
    from orch.spec.suggest import counted

    return counted(len(nodes), "node")


@app.command("passphrase", epilog="Example: orch rotate passphrase")
def passphrase(
    *,
    new_from: Annotated[
        Path | None,
        typer.Option(
            "--new-from",
            metavar="FILE",
            help="The file with the new one, where PULUMI_CONFIG_PASSPHRASE has the old one.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Encrypt the secrets of this project's state with a new passphrase. Nothing that is up changes."""
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks.stack.locks import subject
    from orch.stacks.states.passphrase_rotation import plan_rotation, rotate_passphrase

    project = project_at()
    project.prepare()
    given = None if new_from is None else _read(new_from)
    names = plan_rotation(project)
    tell(f"passphrase of {project.name}: its secrets are encrypted anew in {project.state_url}")
    for name in names:
        tell(f"  {subject(name)}")
    if not yes:
        of = [] if new_from is None else ["--new-from", str(new_from)]
        need_terminal(shlex.join(["orch", "rotate", "passphrase", *of, "--yes"]), project)
        confirm("Rotate the passphrase?")
    with watching() as listener:
        file = rotate_passphrase(project, given, listener)
    if file is None:
        say("rotated: from now on PULUMI_CONFIG_PASSPHRASE is the text of that file, here and for all others")
    else:
        say(f"rotated: {file} has the new passphrase")
        if project.shares_files:
            tell("note: others who use this state need a copy of that file")
    tell("note: older copies of the state, as backups of a bucket, still open with the former passphrase")


def _read(file: Path) -> str:
    try:
        text = file.read_text("utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "the file with the new passphrase cannot be read",
            where=str(file),
            detail=getattr(error, "strerror", None) or str(error),
        ) from error
    if not text or "\n" in text:
        raise UsageError("a passphrase is one line of text", where=str(file))
    return text
