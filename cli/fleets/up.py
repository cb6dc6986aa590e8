"""`orch up`: brings up the volumes and fleets of a file or folder, or applies a saved plan."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from orch.cli.context import lease_seconds
from orch.cli.errors import UsageError
from orch.cli.fleets.bring_up import UpMeans, bring_up
from orch.cli.options import (
    ALSO,
    Force,
    Forget,
    Json,
    NewKeys,
    Owner,
    Refusal,
    Rehearse,
    TraceOption,
    Upgrade,
    Verbose,
    Yes,
    refuse,
    with_records,
)
from orch.cli.output.tracing import traced
from orch.cli.targets.fleet_files import FleetFile

MOST_PARALLEL = 16


@dataclass(frozen=True)
class UpOptions:
    """The command line of `orch up`."""

    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help=f"A YAML file, a folder of them, or -. {ALSO}"),
    ] = None
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan",
            metavar="PLAN",
            help="Apply exactly this saved plan of `orch preview --out`, or refuse; nobody is asked.",
        ),
    ] = None
    result: Annotated[
        str | None,
        typer.Option(
            "--result",
            metavar="FILE",
            help="With --plan: write there what became of it, for `orch ci comment --result`.",
        ),
    ] = None
    lease: Annotated[
        str | None,
        typer.Option(
            "--lease",
            metavar="DURATION",
            help="With --plan: take the leases of its stacks for so long, before anything is compared.",
        ),
    ] = None
    yes: Yes = False
    as_json: Json = False
    accept_host_key: Annotated[
        list[str] | None,
        typer.Option("--accept-host-key", metavar="HOST", help="Pin the new key of this host; repeatable."),
    ] = None
    accept_new_host_keys: NewKeys = False
    accept_drift: Annotated[
        bool, typer.Option("--accept-drift", help="Take existing hosts as they are now.")
    ] = False
    upgrade: Upgrade = False
    force: Force = False
    lose_data: Annotated[
        list[str] | None,
        typer.Option(
            "--lose-data",
            metavar="PATH",
            help="Delete the file system created at this path, or make it anew where it is gone; repeatable.",
        ),
    ] = None
    make_another: Annotated[
        bool,
        typer.Option(
            "--make-another",
            help="Create a fleet or volume also if another state of the project has one of its name, or "
            "nobody knows.",
        ),
    ] = False
    verbose: Verbose = False
    rehearse: Rehearse = False
    owner: Owner = None
    parallel: Annotated[
        int,
        typer.Option(
            "--parallel",
            metavar="N",
            min=1,
            max=MOST_PARALLEL,
            help="Bring up so many fleets of a wave at once; with --yes.",
        ),
    ] = 1
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Of a folder: remove fleets that are up and that no file describes."),
    ] = False
    no_check: Annotated[
        bool,
        typer.Option("--no-check", help="Do not check the nodes of a wave before the next one begins."),
    ] = False
    forget: Forget = False
    trace: TraceOption = False


_DECIDED = "it changes what is planned: it does not go with --plan"
_NEEDS_PLAN = "it goes with a saved plan, `--plan PLAN`"

WITH_PLAN: tuple[Refusal[UpOptions], ...] = (
    Refusal("--accept-host-key", _DECIDED, lambda options: bool(options.accept_host_key)),
    Refusal("--accept-new-host-keys", _DECIDED, lambda options: options.accept_new_host_keys),
    Refusal("--accept-drift", _DECIDED, lambda options: options.accept_drift),
    Refusal("--upgrade", _DECIDED, lambda options: options.upgrade),
    Refusal("--lose-data", _DECIDED, lambda options: bool(options.lose_data)),
    Refusal("--make-another", _DECIDED, lambda options: options.make_another),
    Refusal("--prune", _DECIDED, lambda options: options.prune),
)
WITHOUT_PLAN: tuple[Refusal[UpOptions], ...] = (
    Refusal("--result", _NEEDS_PLAN, lambda options: options.result is not None),
    Refusal("--lease", _NEEDS_PLAN, lambda options: options.lease is not None),
)
OF_FILE: tuple[Refusal[UpOptions], ...] = (
    Refusal(
        "--prune",
        "it is for a folder, which has all fleets",
        lambda options: options.prune and not os.path.isdir(options.file or ""),
    ),
    Refusal(
        "--parallel",
        "nobody can be asked of several at once: add --yes",
        lambda options: options.parallel > 1 and not options.yes,
    ),
)


@traced
@with_records
def up(options: UpOptions) -> None:
    """Bring up the fleets of a file: what is missing is created, what differs is changed.

    Of a folder: in waves, each after the fleets that it depends on, once their nodes are in order. It stops
    at the first that fails, and goes on from there next time.
    """
    from orch.components.request import Approvals

    if options.plan is not None:
        refuse(WITH_PLAN, options)
        _apply_saved(options.plan, options)
        return
    refuse(WITHOUT_PLAN, options)
    if options.file is None:
        raise UsageError("no FILE is given", hint="`orch up FILE`, or `orch up --plan PLAN`")
    refuse(OF_FILE, options)
    approvals = Approvals(
        options.accept_drift,
        options.upgrade,
        options.force,
        unseen="all" if options.accept_new_host_keys else "none",
        lose_data=frozenset(options.lose_data or ()),
        another=options.make_another,
    )
    means = UpMeans(
        options.yes, options.as_json, options.verbose, options.parallel, not options.no_check, options.prune
    )
    bring_up(_source(options.file, options), approvals, means, accept_host_keys=options.accept_host_key or ())


def _apply_saved(plan: str, options: UpOptions) -> None:
    from orch.cli.fleets.saved_plans import ApplyMeans, apply_saved

    lease_s = None if options.lease is None else lease_seconds(options.lease, "--lease")
    means = ApplyMeans(
        options.force, options.as_json, options.rehearse, options.result, lease_s, check=not options.no_check
    )
    apply_saved(plan, options.file, lambda file: replace(_source(file, options), mixed=True).read(), means)


def _source(file: str, options: UpOptions) -> FleetFile:
    launch = ("fleet", "volume")
    return FleetFile(file, launch, options.rehearse, owner=options.owner, forget=options.forget)
