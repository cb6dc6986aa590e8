"""`orch lease`: who alone changes a fleet or a volume, until it is released or over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli.context import FileCommand, lease_seconds
from orch.cli.errors import print_json, say
from orch.cli.options import FileOrName, Json, Owner, Rehearse
from orch.cli.targets.fleet_files import is_file, stacks_of

if TYPE_CHECKING:
    from orch.stacks.stack.leases import StackLease
    from orch.stacks.stack.state import StackState

SCHEMA = 1

app = typer.Typer(no_args_is_help=True)


@app.command("take", cls=FileCommand, epilog='Example: orch lease take infra --for 8h --owner "PR #12"')
def take(
    target: FileOrName,
    *,
    duration: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="How long, if it is not released before.")
    ] = "24h",
    owner: Owner = None,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Take the leases of the fleets and volumes of a file or folder, all or none; extend one's own."""
    from orch.cli.output.progress import watching
    from orch.stacks.pulumi import leasing
    from orch.stacks.record.change_log import logged
    from orch.stacks.stack.locks import subject

    seconds = lease_seconds(duration, "--for")
    with watching(as_json=as_json) as listener:
        stacks = _stacks(target, rehearse=rehearse, owner=owner)
        words = ", ".join(subject(stack.name) for stack in stacks)
        with logged(stacks[0].project, "lease take", words, listener) as outcome:
            taken = leasing.take_all(stacks, seconds, listener)
            outcome.result = ", ".join(each.lease.words for each in taken)
    _show([(each.stack, each.lease) for each in taken], as_json=as_json)


@app.command("release", cls=FileCommand, epilog='Example: orch lease release infra --owner "PR #12"')
def release(
    target: FileOrName,
    *,
    owner: Owner = None,
    force: Annotated[bool, typer.Option("--force", help="Also another owner's.")] = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Release the leases of the fleets and volumes of a file or folder. What nobody has leased stays so."""
    from orch.cli.output.progress import watching
    from orch.stacks.pulumi import leasing
    from orch.stacks.record.change_log import NO_CHANGES, logged
    from orch.stacks.stack.locks import subject

    for stack in _stacks(target, rehearse=rehearse, owner=owner):
        words = subject(stack.name)
        with (
            watching(as_json=as_json) as listener,
            logged(stack.project, "lease release", words, listener) as outcome,
        ):
            former = leasing.release(stack, stack.project.owner, listener, force=force)
            outcome.result = NO_CHANGES if former is None else f"released, was of {former.words}"
        if not as_json:
            words = "no lease" if former is None else f"released, was of {former.words}"
            say(f"{subject(stack.name)}: {words}")
    if as_json:
        _show([(stack, None) for stack in _stacks(target, rehearse=rehearse, owner=owner)], as_json=True)


@app.command("show", cls=FileCommand, epilog="Example: orch lease show infra")
def show(target: FileOrName, *, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """The leases of the fleets and volumes of a file or folder: owner, since when, until when."""
    from orch.stacks.stack.leases import lease_of

    _show([(stack, lease_of(stack)) for stack in _stacks(target, rehearse=rehearse)], as_json=as_json)


def _show(rows: list[tuple[StackState, StackLease | None]], *, as_json: bool) -> None:
    from datetime import datetime, timezone

    from orch.stacks.stack.locks import subject

    now = datetime.now(timezone.utc)
    if as_json:
        found = [
            {"stack": stack.name, "lease": lease and {**lease.as_json(), "is_over": lease.is_over(now)}}
            for stack, lease in rows
        ]
        print_json({"schema": SCHEMA, "leases": found})
        return
    for stack, lease in rows:
        over = ", which is over" if lease is not None and lease.is_over(now) else ""
        say(f"{subject(stack.name)}: {'no lease' if lease is None else f'leased to {lease.words}{over}'}")


def _stacks(target: str, *, rehearse: bool, owner: str | None = None) -> list[StackState]:
    """The stacks of a file, also those that are not up yet, or the one of a name. Raises NoSuchFleet for a
    name that is not up."""
    from orch.stacks.record.fleets import not_up
    from orch.stacks.stack.state import StackState

    found = [StackState(*each) for each in stacks_of(target, rehearse=rehearse, owner=owner)]
    for stack in found:
        stack.project.prepare()
        if not is_file(target) and not stack.exists:
            raise not_up(stack.project, stack.name)
    return found
