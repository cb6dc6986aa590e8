"""The table of verbs. Imports none of them: each is loaded when it is called, or asked for its options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from orch import __version__
from orch.cli.context import FileCommand

# Headings of `orch --help`, in the order in which their first verbs stand below.
FILES = "Files"
BOTH = "Fleets and runs"
FLEETS = "Fleets"
RUNS = "Runs"
NODES = "Nodes"
MACHINE = "This machine"


@dataclass(frozen=True)
class Verb:
    """A verb, or a group of verbs, as `orch --help` and completion tell of it.

    `at`: its function, or the `Typer` of a group, as `module:attribute` of this package; it is loaded when
    the verb is called. `help`: the first line of its docstring. `takes_file`: FILE may be written `-f FILE`.
    """

    name: str
    at: str
    help: str
    heading: str = ""
    example: str | None = None
    takes_file: bool = False

    def listed(self) -> TyperCommand:
        """Return a stand-in for lists, which does not load the verb."""
        return TyperCommand(
            self.name, help=self.help, rich_help_panel=self.heading or None, hidden=not self.heading
        )

    def load(self) -> Any:
        """The command or the group. Imports its module."""
        module, _, attribute = self.at.partition(":")
        loaded = getattr(import_module(f"orch.cli.{module}"), attribute)
        if isinstance(loaded, typer.Typer):
            loaded.info.help = loaded.info.help or self.help
        else:
            function, loaded = loaded, typer.Typer()
            loaded.command(
                self.name,
                cls=FileCommand if self.takes_file else None,
                epilog=self.example and f"Example: {self.example}",
            )(function)
        loaded.pretty_exceptions_enable = loaded._add_completion = False
        return get_command(loaded)


# In the order of `orch --help`: headings as their first verbs come.
VERBS = (
    Verb(
        "validate",
        "validate:command",
        "Check configurations without touching anything.",
        FILES,
        "orch validate fleet.yml train.yml",
        takes_file=True,
    ),
    Verb(
        "schema",
        "validate:schema_command",
        "Print a JSON Schema with which editors complete and check configurations.",
        FILES,
        "orch schema > .orch.schema.json",
    ),
    Verb(
        "apply",
        "apply:apply",
        "Bring up the fleets of a file, then run its tasks: `up` and `run` in one, as dstack users type it.",
        BOTH,
        "orch apply -f train.dstack.yml --yes",
        takes_file=True,
    ),
    Verb(
        "show",
        "show:show",
        "All there is to know of a fleet or a run, on one screen.",
        BOTH,
        "orch show laptop",
    ),
    Verb(
        "preview",
        "fleets.preview:preview",
        "Show what `up` would change, and why. Changes nothing.",
        FLEETS,
        "orch preview fleet.yml --exit-code",
        takes_file=True,
    ),
    Verb(
        "plan",
        "fleets.preview:preview",
        "Show what `up` would change, and why. Changes nothing.",
        takes_file=True,
    ),
    Verb(
        "up",
        "fleets.up:up",
        "Bring up the fleets of a file: what is missing is created, what differs is changed.",
        FLEETS,
        "orch up fleet.yml --yes",
        takes_file=True,
    ),
    Verb(
        "down",
        "fleets.provision:down",
        "Remove a fleet: its nodes, its networks, its state. Existing hosts are left as they were found.",
        FLEETS,
        "orch down fleet.yml --yes",
        takes_file=True,
    ),
    Verb(
        "drift",
        "fleets.provision:drift",
        "List what has changed since the last `up`. Changes nothing.",
        FLEETS,
        "orch drift laptop  (exit code 10 when something differs)",
        takes_file=True,
    ),
    Verb(
        "check",
        "nodes.check:check",
        "Check the hosts of a fleet and say how to mend what fails. Changes nothing.",
        FLEETS,
        "orch check fleet.yml  (exit code 7 when a host lacks something)",
        takes_file=True,
    ),
    Verb(
        "verify",
        "runs.verify:verify",
        "Measure the nodes of a fleet and the network between them, and say what falls short.",
        FLEETS,
        "orch verify laptop --pairs  (exit code 8 when something falls short)",
    ),
    Verb(
        "refresh",
        "fleets.provision:refresh",
        "Update the state with what is really there. `up` does this by itself.",
        FLEETS,
        "orch refresh laptop",
        takes_file=True,
    ),
    Verb(
        "run",
        "runs.run:run",
        "Run the tasks and dev environments of a file on a fleet, and show their logs until they end.",
        RUNS,
        "orch run train.yml --env LR=0.1 -- --epochs 3",
        takes_file=True,
    ),
    Verb(
        "ps",
        "runs.ps:ps",
        "Show the active runs of this project; the latest one when none is active.",
        RUNS,
        "orch ps --watch",
    ),
    Verb(
        "logs",
        "runs.logs:logs",
        "Print the logs of a run, while it runs and after.",
        RUNS,
        "orch logs train-k3f9 --rank 1 --tail 50",
    ),
    Verb(
        "attach",
        "runs.attach:attach",
        "Follow a run from where its log stopped, and take over if nobody drives it. Ctrl-C detaches again.",
        RUNS,
        "orch attach train-k3f9",
    ),
    Verb(
        "stop",
        "runs.attach:stop",
        "End a run: its processes get SIGTERM, and `stop_duration` to finish.",
        RUNS,
        "orch stop train-k3f9",
    ),
    Verb(
        "reconcile",
        "runs.control:reconcile",
        "One pass over the runs that nobody drives: go on with them, begin those that wait, clean up.",
        RUNS,
        "orch reconcile --json",
    ),
    Verb(
        "controller",
        "runs.control:controller",
        "`orch reconcile` in a loop, until SIGTERM. Any number may run at once.",
        RUNS,
        "orch controller --listen 8642",
    ),
    Verb(
        "cp",
        "runs.copy:copy",
        "Copy files and folders from or to the containers of a run, or a node.",
        RUNS,
        "orch cp train-k3f9/0:/out/model.pt .",
    ),
    Verb(
        "metrics",
        "runs.metrics:app",
        "What a run or a fleet uses: CPU, memory, GPUs and network of each rank or node.",
        BOTH,
        "orch metrics train-k3f9",
    ),
    Verb(
        "cost",
        "project.cost:cost",
        "What nodes cost and for whom, what of it was idle, and what the month comes to.",
        BOTH,
        "orch cost --by user --since 30d",
        takes_file=True,
    ),
    Verb(
        "log",
        "project.log:log",
        "Who changed what in this project, from where, by which plan and with which result; the audit log.",
        BOTH,
        "orch log --since 7d --verb up",
    ),
    Verb(
        "secret",
        "project.secret:app",
        "Secrets of this project, encrypted in its state: set, list, delete.",
        BOTH,
    ),
    Verb(
        "exec",
        "runs.exec:execute",
        "Run a command on every node of a fleet, or in every container of a run, in the job's environment.",
        NODES,
        "orch exec train-k3f9 --rank 0 -- nvidia-smi -L",
    ),
    Verb(
        "ssh",
        "nodes.ssh:ssh",
        "Log in to a node, through its jump hosts, with the fleet's key and the pinned host key.",
        NODES,
        "orch ssh gpu3 -- -L 8888:localhost:8888",
    ),
    Verb(
        "inventory",
        "nodes.inventory:inventory",
        "The nodes that are up as an inventory for Ansible, with jump hosts, keys and pinned host keys.",
        NODES,
        "orch inventory --list",
    ),
    Verb(
        "health",
        "nodes.health:health",
        "Examine nodes now: GPUs, links, memory, disks, the kernel's log. A failure keeps new jobs off.",
        NODES,
        "orch health lab --history",
    ),
    Verb(
        "cordon",
        "nodes.cordon:cordon",
        "Keep new jobs off nodes. Jobs that run there stay, and everybody who uses the nodes sees the mark.",
        NODES,
        'orch cordon "gpu[1-2]" --reason "fan broken"',
    ),
    Verb(
        "node",
        "nodes.node:app",
        "Maintain nodes, by plan and in waves: drain, reboot, replace, reset-gpu.",
        NODES,
    ),
    Verb(
        "rollout",
        "nodes.rollout:rollout",
        "Make nodes anew that differ from their fleet's file, in waves: another image or root disk.",
        FLEETS,
        "orch rollout fleet.yml --wait 2h",
        takes_file=True,
    ),
    Verb(
        "gc",
        "project.gc:gc",
        "Find what the clouds hold with this project's marks and no state knows; show it, then delete it.",
        FLEETS,
        "orch gc --stack demo/train/1a2b3c",
    ),
    Verb(
        "unlock",
        "fleets.provision:unlock",
        "Break the lock on a fleet's or volume's state, after showing who holds it and since when.",
        FLEETS,
        "orch unlock laptop",
        takes_file=True,
    ),
    Verb(
        "lease",
        "fleets.lease:app",
        "Leases: until it is released or over, its owner alone changes a fleet. Take, release, show.",
        FLEETS,
    ),
    Verb(
        "runbook",
        "runbooks.runbook:app",
        "Runbooks: steps in Markdown, planned, run, stopped where a person must decide, and gone on with.",
        FLEETS,
    ),
    Verb(
        "doctor",
        "doctor:doctor",
        "What this machine has and lacks, and what to do about it.",
        MACHINE,
        "orch doctor",
    ),
    Verb(
        "init",
        "project.init:init",
        "Write what a GitOps folder needs so that `pulumi preview` and `pulumi up` work in it by hand.",
        MACHINE,
        "cd infra && orch init",
    ),
    Verb(
        "state",
        "project.state:app",
        "The state, which records what is up: move it, repair it, rebuild one that was lost.",
        FLEETS,
    ),
    Verb(
        "rotate",
        "project.rotate:app",
        "New keys in place of old ones: the SSH keys of fleets, the passphrase of the state.",
        FLEETS,
    ),
    Verb(
        "ci",
        "ci.ci:app",
        "Pipelines: write the workflows of this project; post their comments, checks and issues.",
        FILES,
    ),
    Verb(
        "fleet",
        "fleets.fleet:app",
        "Fleets that are up: list, show, ids, delete.",
        FLEETS,
    ),
    Verb(
        "volume",
        "fleets.volumes:app",
        "Volumes that are up: list, show, delete, and gc for those that nobody uses.",
        FLEETS,
    ),
    Verb(
        "offers",
        "offers:app",
        "List what the clouds offer for a fleet, the cheapest first.",
        FLEETS,
    ),
    Verb(
        "engine",
        "doctor:engine",
        "The Pulumi engine: install it, see it, use it by hand.",
        MACHINE,
    ),
)


class Verbs(TyperGroup):
    """The verbs of the table; each is loaded when it is called."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.commands = {verb.name: verb.listed() for verb in VERBS}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and load(str(name)), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:  # which Typer would end with, without a word
            raise typer.Abort from error


@cache
def load(name: str) -> Any:
    """The command or the group of a verb of the table."""
    return next(verb for verb in VERBS if verb.name == name).load()


app = typer.Typer(
    name="orch",
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog="Exit codes: 0 done, 3 configuration, 4 policy, 5 provisioning, 6 run failed, 7 hosts, "
    "9 conflict, 10 changes pending, 130 interrupted.",
)


def _version(value: bool) -> None:
    if value:
        print(f"orch {__version__}")
        raise typer.Exit


@app.callback()
def orch(
    version: Annotated[
        bool, typer.Option("--version", help="Tell which orch this is.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """GPU clusters from one YAML file, and distributed jobs on them."""


@cache
def commands() -> Any:
    """Return all verbs with their options, which takes a fortieth of a second."""
    return get_command(app)
