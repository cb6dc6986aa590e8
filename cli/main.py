"""The table of verbs. Imports nothing heavy: each verb loads what it needs when it is called."""

from __future__ import annotations

import atexit
import gc
from functools import cache
from typing import Annotated, Any

import typer
from typer.main import get_command

from orch import __version__
from orch.cli import errors, offers, validate, verbs
from orch.cli import run as runs
from orch.cli.context import FileCommand
from orch.cli.hosts import cordon, exec
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
    validate.schema_command
)
app.command(
    "apply", rich_help_panel=BOTH, cls=FileCommand, epilog="Example: orch apply -f train.dstack.yml --yes"
)(verbs.apply)
app.command("show", rich_help_panel=BOTH, epilog="Example: orch show laptop")(verbs.show)
app.command(
    "preview", rich_help_panel=FLEETS, cls=FileCommand, epilog="Example: orch preview fleet.yml --exit-code"
)(verbs.preview)
app.command("plan", hidden=True, cls=FileCommand)(verbs.plan)
app.command("up", rich_help_panel=FLEETS, cls=FileCommand, epilog="Example: orch up fleet.yml --yes")(
    verbs.up
)
app.command("down", rich_help_panel=FLEETS, cls=FileCommand, epilog="Example: orch down fleet.yml --yes")(
    verbs.down
)
app.command(
    "drift",
    rich_help_panel=FLEETS,
    cls=FileCommand,
    epilog="Example: orch drift laptop  (exit code 10 when something differs)",
)(verbs.drift)
app.command(
    "check",
    rich_help_panel=FLEETS,
    cls=FileCommand,
    epilog="Example: orch check fleet.yml  (exit code 7 when a host lacks something)",
)(verbs.check)
app.command("refresh", rich_help_panel=FLEETS, cls=FileCommand, epilog="Example: orch refresh laptop")(
    verbs.refresh
)
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
fleet_app.callback(invoke_without_command=True)(verbs.fleet)
fleet_app.command("list", epilog="Example: orch fleet list --json")(verbs.fleet_list)
fleet_app.command("show", epilog="Example: orch fleet show laptop -v")(verbs.fleet_show)
fleet_app.command("ids", epilog="Example: docker kill $(orch fleet ids laptop -i 0)")(verbs.fleet_ids)
fleet_app.command("delete", epilog="Example: orch fleet delete laptop --yes")(verbs.fleet_delete)
app.command("unlock", rich_help_panel=FLEETS, cls=FileCommand, epilog="Example: orch unlock laptop")(
    verbs.unlock
)


@app.command("doctor", rich_help_panel=MACHINE, epilog="Example: orch doctor")
def doctor(as_json: verbs.Json = False) -> None:
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
