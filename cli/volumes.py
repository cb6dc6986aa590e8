"""`orch volume`: the volumes that are up, one of them, and deleting those."""

from __future__ import annotations

from typing import Annotated

import typer

from orch.cli import completion
from orch.cli.context import Forget, Json, Rehearse, Yes, project_at
from orch.cli.errors import print_json, say, tell
from orch.cli.fleets.volumes import delete, protected_error
from orch.cli.output.volumes import SCHEMA

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
    from orch.cli.errors import UsageError, end
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
