"""The verbs of fleets, and those of fleets and runs, as they are typed: options, help, and what they lead to.

Imports nothing heavy: each loads what it needs when it is called.
"""

from __future__ import annotations

from typing import Annotated

import typer

from orch.cli import completion, validate
from orch.cli import run as runs
from orch.cli.context import ALSO, Rehearse

File = Annotated[str, typer.Argument(metavar="FILE", help=f"A YAML file, a folder of them, or -. {ALSO}")]
FileOrName = Annotated[
    str,
    typer.Argument(
        metavar="FILE|NAME",
        help=f"A fleet's file, or its name. {ALSO}",
        autocompletion=completion.files_or_fleets,
    ),
]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A fleet's name.", autocompletion=completion.fleets)
]
Json = Annotated[bool, typer.Option("--json", help="Data on stdout, for pipelines.")]
Indices = Annotated[
    list[int] | None,
    typer.Option("--instance", "-i", metavar="INDEX", help="Only this node of the fleet; repeatable."),
]
NewKeys = Annotated[
    bool,
    typer.Option(
        "--accept-new-host-keys",
        help="Trust hosts whose keys nobody has seen yet; a changed key is refused.",
    ),
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Every property that changes, also what only follows."),
]
Force = Annotated[bool, typer.Option("--force", help="Remove nodes also while runs are on them.")]
NodeDetails = Annotated[
    bool, typer.Option("--verbose", "-v", help="Type, place, id, resources and addresses of each node too.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def apply(
    file: File,
    *,
    yes: Yes = False,
    name: Annotated[str | None, typer.Option("--name", "-n", help="The run's name.")] = None,
    env: runs.Variables = None,
    profile: runs.Profile = None,
    detach: runs.Detach = False,
    fleet: runs.OnFleet = None,
    rehearse: Rehearse = False,
) -> None:
    """Bring up the fleets of a file, then run its tasks: `up` and `run` in one, as dstack users type it."""
    from orch.cli import apply as applying

    applying.apply(
        file,
        yes=yes,
        name=name,
        env=env or [],
        detach=detach,
        fleet=fleet,
        rehearse=rehearse,
        profile=profile,
    )


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Of a fleet or a run.", autocompletion=completion.fleets_and_runs
        ),
    ],
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """All there is to know of a fleet or a run, on one screen."""
    from orch.cli import show as shows

    shows.show(name, as_json=as_json, rehearse=rehearse)


def preview(
    file: File,
    *,
    as_json: Json = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 10 when changes are pending.")
    ] = False,
    accept_new_host_keys: NewKeys = False,
    verbose: Verbose = False,
    rehearse: Rehearse = False,
    untrusted: validate.Untrusted = False,
    allow: validate.Allow = None,
) -> None:
    """Show what `up` would change, and why. Changes nothing.

    With --untrusted: what the fleets would be, from files and catalogue alone; nothing is asked or run.
    """
    allowed = validate.strangers(untrusted, allow)
    if allowed is not None:
        if exit_code or rehearse or accept_new_host_keys:
            raise typer.BadParameter(
                "nothing is looked at: --exit-code, --rehearse and --accept-new-host-keys do not go with it",
                param_hint="--untrusted",
            )
        from orch.cli.output import untrusted as outlooks

        outlooks.preview(file, allowed, as_json=as_json)
        return
    from orch.cli import fleet as fleets

    fleets.preview(
        file,
        as_json=as_json,
        exit_code=exit_code,
        accept_new_host_keys=accept_new_host_keys,
        rehearse=rehearse,
        verbose=verbose,
    )


def plan(
    file: File,
    *,
    as_json: Json = False,
    exit_code: Annotated[bool, typer.Option("--exit-code")] = False,
    accept_new_host_keys: NewKeys = False,
    verbose: Verbose = False,
    rehearse: Rehearse = False,
    untrusted: validate.Untrusted = False,
    allow: validate.Allow = None,
) -> None:
    """The same as `preview`."""
    preview(
        file,
        as_json=as_json,
        exit_code=exit_code,
        accept_new_host_keys=accept_new_host_keys,
        rehearse=rehearse,
        verbose=verbose,
        untrusted=untrusted,
        allow=allow,
    )


def up(
    file: File,
    *,
    yes: Yes = False,
    as_json: Json = False,
    accept_host_key: Annotated[
        list[str] | None,
        typer.Option("--accept-host-key", metavar="HOST", help="Pin the new key of this host; repeatable."),
    ] = None,
    accept_new_host_keys: NewKeys = False,
    accept_drift: Annotated[
        bool, typer.Option("--accept-drift", help="Take existing hosts as they are now.")
    ] = False,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Look for newer machine images.")] = False,
    force: Force = False,
    verbose: Verbose = False,
    rehearse: Rehearse = False,
) -> None:
    """Bring up the fleets of a file: all that is missing is made, all that differs is mended."""
    from orch.cli import fleet as fleets

    fleets.up(
        file,
        yes=yes,
        as_json=as_json,
        accept_drift=accept_drift,
        accept_host_keys=accept_host_key or (),
        accept_new_host_keys=accept_new_host_keys,
        upgrade=upgrade,
        force=force,
        rehearse=rehearse,
        verbose=verbose,
    )


def down(
    target: FileOrName,
    *,
    indices: Indices = None,
    yes: Yes = False,
    force: Force = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Remove a fleet: its nodes, its networks, its state. Existing hosts are left as they were found.

    Nodes that runs are on stay, and the runs are named, unless --force is given.
    """
    from orch.cli import fleet as fleets

    fleets.down(target, yes=yes, as_json=as_json, indices=indices or (), force=force, rehearse=rehearse)


def drift(target: FileOrName, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """Tell what is no longer as `up` left it. Changes nothing."""
    from orch.cli import fleet as fleets

    fleets.drift(target, as_json=as_json, rehearse=rehearse)


def check(
    target: FileOrName,
    as_json: Json = False,
    accept_new_host_keys: NewKeys = False,
    rehearse: Rehearse = False,
) -> None:
    """Tell what the hosts of a fleet lack, and what to do about it. Changes nothing."""
    from orch.cli.hosts import check as checks

    checks.check(target, as_json=as_json, accept_new_host_keys=accept_new_host_keys, rehearse=rehearse)


def refresh(target: FileOrName, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """Record in the state what is really there. `up` does this by itself."""
    from orch.cli import fleet as fleets

    fleets.refresh(target, as_json=as_json, rehearse=rehearse)


def fleet(
    context: typer.Context, verbose: NodeDetails = False, as_json: Json = False, rehearse: Rehearse = False
) -> None:
    """Fleets that are up. Alone, the same as `fleet list`."""
    if context.invoked_subcommand is None:
        fleet_list(verbose, as_json, rehearse)


def fleet_list(verbose: NodeDetails = False, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """The fleets of this project and the state of their nodes."""
    from orch.cli import fleet as fleets

    fleets.show(None, as_json=as_json, verbose=verbose, rehearse=rehearse)


def fleet_show(
    name: Name,
    verbose: NodeDetails = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """One fleet."""
    from orch.cli import fleet as fleets

    fleets.show(name, as_json=as_json, verbose=verbose, rehearse=rehearse)


def fleet_ids(name: Name, *, indices: Indices = None, rehearse: Rehearse = False) -> None:
    """What Docker or the cloud calls the nodes of a fleet, one a line: for their own commands."""
    from orch.cli import fleet as fleets

    fleets.ids(name, indices or (), rehearse=rehearse)


def fleet_delete(
    name: Name,
    *,
    indices: Indices = None,
    yes: Yes = False,
    force: Force = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """The same as `orch down NAME`."""
    from orch.cli import fleet as fleets

    fleets.down(
        name,
        yes=yes,
        as_json=as_json,
        indices=indices or (),
        by_name=True,
        force=force,
        rehearse=rehearse,
    )


def unlock(target: FileOrName, yes: Yes = False, rehearse: Rehearse = False) -> None:
    """Break the lock on a fleet's state, after showing who holds it and since when."""
    from orch.cli import fleet as fleets

    fleets.unlock(target, yes=yes, rehearse=rehearse)
