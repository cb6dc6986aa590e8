"""The table of verbs. Imports nothing heavy: each verb loads what it needs when it is called."""

from __future__ import annotations

import atexit
import gc
from functools import cache
from typing import Annotated, Any

import typer
from typer.main import get_command

from orch import __version__
from orch.cli import completion, errors, offers, validate
from orch.cli import run as runs
from orch.cli.context import ALSO, FileCommand, Rehearse
from orch.cli.hosts import cordon, exec
from orch.cli.output import schema
from orch.cli.output.redaction import cover_arguments

app = typer.Typer(
    name="orch",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog="Exit codes: 0 done, 3 configuration, 4 policy, 5 provisioning, 6 run failed, 7 hosts, "
    "9 conflict, 10 changes pending, 130 interrupted.",
)
fleet_app = typer.Typer(no_args_is_help=False, help="Fleets that are up: list, show, ids, delete.")
engine_app = typer.Typer(no_args_is_help=True, help="The Pulumi engine: install it, see it, use it by hand.")

# Headings of `orch --help`, in the order in which their first verbs stand below.
FILES = "Files"
BOTH = "Fleets and runs"
FLEETS = "Fleets"
RUNS = "Runs"
NODES = "Nodes"
MACHINE = "This machine"


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


def _version(asked: bool) -> None:
    if asked:
        print(f"orch {__version__}")
        raise typer.Exit


@app.callback()
def orch(
    version: Annotated[
        bool, typer.Option("--version", help="Tell which orch this is.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """GPU clusters from one YAML file, and distributed jobs on them."""


app.command(
    "validate", rich_help_panel=FILES, cls=FileCommand, epilog="Example: orch validate fleet.yml train.yml"
)(validate.command)
app.command("schema", rich_help_panel=FILES, epilog="Example: orch schema > .orch.schema.json")(
    schema.command
)


@app.command(
    "apply", rich_help_panel=BOTH, cls=FileCommand, epilog="Example: orch apply -f train.dstack.yml --yes"
)
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


@app.command("show", rich_help_panel=BOTH, epilog="Example: orch show laptop")
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


@app.command(
    "preview", rich_help_panel=FLEETS, cls=FileCommand, epilog="Example: orch preview fleet.yml --exit-code"
)
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
        from orch.cli import untrusted as outlooks

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


@app.command("plan", hidden=True, cls=FileCommand)
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


@app.command("up", rich_help_panel=FLEETS, cls=FileCommand, epilog="Example: orch up fleet.yml --yes")
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


@app.command("down", rich_help_panel=FLEETS, cls=FileCommand, epilog="Example: orch down fleet.yml --yes")
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


@app.command(
    "drift",
    rich_help_panel=FLEETS,
    cls=FileCommand,
    epilog="Example: orch drift laptop  (exit code 10 when something differs)",
)
def drift(target: FileOrName, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """Tell what is no longer as `up` left it. Changes nothing."""
    from orch.cli import fleet as fleets

    fleets.drift(target, as_json=as_json, rehearse=rehearse)


@app.command(
    "check",
    rich_help_panel=FLEETS,
    cls=FileCommand,
    epilog="Example: orch check fleet.yml  (exit code 7 when a host lacks something)",
)
def check(
    target: FileOrName,
    as_json: Json = False,
    accept_new_host_keys: NewKeys = False,
    rehearse: Rehearse = False,
) -> None:
    """Tell what the hosts of a fleet lack, and what to do about it. Changes nothing."""
    from orch.cli.hosts import check as checks

    checks.check(target, as_json=as_json, accept_new_host_keys=accept_new_host_keys, rehearse=rehearse)


@app.command("refresh", rich_help_panel=FLEETS, cls=FileCommand, epilog="Example: orch refresh laptop")
def refresh(target: FileOrName, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """Record in the state what is really there. `up` does this by itself."""
    from orch.cli import fleet as fleets

    fleets.refresh(target, as_json=as_json, rehearse=rehearse)


app.command(
    "run",
    rich_help_panel=RUNS,
    cls=FileCommand,
    epilog="Example: orch run train.yml --env LR=0.1 -- --epochs 3",
)(runs.run)
app.command("ps", rich_help_panel=RUNS, epilog="Example: orch ps -a")(runs.ps)
app.command("logs", rich_help_panel=RUNS, epilog="Example: orch logs train-k3f9 --node 1 --tail 50")(
    runs.logs
)
app.command("attach", rich_help_panel=RUNS, epilog="Example: orch attach train-k3f9")(runs.attach)
app.command("stop", rich_help_panel=RUNS, epilog="Example: orch stop train-k3f9")(runs.stop)
app.command(
    "exec", rich_help_panel=NODES, epilog="Example: orch exec cluster --node gpu[1-4] -- nvidia-smi -L"
)(exec.execute)
app.command("ssh", rich_help_panel=NODES, epilog="Example: orch ssh gpu3 -- -L 8888:localhost:8888")(exec.ssh)
app.command("cordon", rich_help_panel=NODES, epilog='Example: orch cordon "gpu[1-2]" --reason "fan broken"')(
    cordon.cordon
)


@fleet_app.callback(invoke_without_command=True)
def fleet(
    context: typer.Context, verbose: NodeDetails = False, as_json: Json = False, rehearse: Rehearse = False
) -> None:
    """Fleets that are up. Alone, the same as `fleet list`."""
    if context.invoked_subcommand is None:
        fleet_list(verbose, as_json, rehearse)


@fleet_app.command("list", epilog="Example: orch fleet list --json")
def fleet_list(verbose: NodeDetails = False, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """The fleets of this project and the state of their nodes."""
    from orch.cli import fleet as fleets

    fleets.show(None, as_json=as_json, verbose=verbose, rehearse=rehearse)


@fleet_app.command("show", epilog="Example: orch fleet show laptop -v")
def fleet_show(
    name: Name,
    verbose: NodeDetails = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """One fleet."""
    from orch.cli import fleet as fleets

    fleets.show(name, as_json=as_json, verbose=verbose, rehearse=rehearse)


@fleet_app.command("ids", epilog="Example: docker kill $(orch fleet ids laptop -i 0)")
def fleet_ids(name: Name, *, indices: Indices = None, rehearse: Rehearse = False) -> None:
    """What Docker or the cloud calls the nodes of a fleet, one a line: for their own commands."""
    from orch.cli import fleet as fleets

    fleets.ids(name, indices or (), rehearse=rehearse)


@fleet_app.command("delete", epilog="Example: orch fleet delete laptop --yes")
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


@app.command("unlock", rich_help_panel=FLEETS, cls=FileCommand, epilog="Example: orch unlock laptop")
def unlock(target: FileOrName, yes: Yes = False, rehearse: Rehearse = False) -> None:
    """Break the lock on a fleet's state, after showing who holds it and since when."""
    from orch.cli import fleet as fleets

    fleets.unlock(target, yes=yes, rehearse=rehearse)


@app.command("doctor", rich_help_panel=MACHINE, epilog="Example: orch doctor")
def doctor(as_json: Json = False) -> None:
    """What this machine has and lacks, and what to do about it."""
    from orch.cli import doctor as machine

    machine.doctor(as_json=as_json)


@app.command("init", rich_help_panel=MACHINE, epilog="Example: cd infra && orch init")
def init(
    folder: Annotated[str, typer.Argument(metavar="[FOLDER]", help="Where; default here.")] = ".",
) -> None:
    """Write what a GitOps folder needs so that `pulumi preview` and `pulumi up` work in it by hand."""
    from orch.cli import doctor as machine

    machine.init(folder)


@engine_app.command("install", epilog="Example: orch engine install")
def engine_install() -> None:
    """Make sure of an engine: found, else downloaded, else built from Go modules."""
    from orch.cli import doctor as machine

    machine.engine_install()


@engine_app.command("version", epilog="Example: orch engine version")
def engine_version() -> None:
    """The engine that will be used."""
    from orch.cli import doctor as machine

    machine.engine_version()


@engine_app.command("env", epilog='Example: eval "$(orch engine env)" && pulumi preview --stack laptop')
def engine_env(
    folder: Annotated[str, typer.Argument(metavar="[FOLDER]", help="A project; default here.")] = ".",
) -> None:
    """Print the environment in which `pulumi` by hand sees the same stacks, as shell commands."""
    from orch.cli import doctor as machine

    machine.engine_env(folder)


app.add_typer(fleet_app, name="fleet", rich_help_panel=FLEETS)
app.add_typer(offers.app, name="offers", rich_help_panel=FLEETS)
app.add_typer(engine_app, name="engine", rich_help_panel=MACHINE)


@cache
def commands() -> Any:
    """All verbs with their options, which takes a fortieth of a second to make."""
    return get_command(app)


def main() -> None:
    """The console script `orch`."""
    # The clouds' SDKs are millions of objects and no garbage: looking through them, as often as Python does
    # and again at the end, is a quarter of a `preview` on GCP (measured).
    gc.set_threshold(100_000, 20, 100)
    atexit.register(gc.freeze)
    cover_arguments()
    errors.run(lambda: commands()(standalone_mode=False))


if __name__ == "__main__":
    main()
