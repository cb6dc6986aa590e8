"""The verbs that create and remove fleets and volumes, and see to them: up, down, drift, refresh, unlock."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orch.cli.context import (
    ALSO,
    FileOrName,
    Force,
    Indices,
    Json,
    NewKeys,
    Owner,
    Rehearse,
    Verbose,
    Yes,
    lease_seconds,
    project_at,
)
from orch.cli.errors import UsageError, end, print_json, say, tell
from orch.cli.fleets import volumes
from orch.cli.fleets.targets import FleetFile, fleets_at, fleets_of, is_file, stacks_of
from orch.spec.errors import ExitCode, OrchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from orch.components.request import Approvals
    from orch.spec.loader.load import Document
    from orch.stacks.project import Project

SCHEMA = 1


def up(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help=f"A YAML file, a folder of them, or -. {ALSO}"),
    ] = None,
    *,
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan",
            metavar="PLAN",
            help="Apply exactly this saved plan of `orch preview --out`, or refuse; nobody is asked.",
        ),
    ] = None,
    result: Annotated[
        str | None,
        typer.Option(
            "--result",
            metavar="FILE",
            help="With --plan: write there what became of it, for `orch ci comment --result`.",
        ),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(
            "--lease",
            metavar="DURATION",
            help="With --plan: take the leases of its stacks for so long, before anything is compared.",
        ),
    ] = None,
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
    lose_data: Annotated[
        list[str] | None,
        typer.Option(
            "--lose-data",
            metavar="PATH",
            help="Delete the file system created at this path, or make it anew where it is gone; repeatable.",
        ),
    ] = None,
    verbose: Verbose = False,
    rehearse: Rehearse = False,
    owner: Owner = None,
) -> None:
    """Bring up the fleets of a file: what is missing is created, what differs is changed."""
    from orch.components.request import Approvals

    if plan is not None:
        from orch.cli.fleets.saved_plans import ApplyMeans, apply_saved

        changing = {
            "--accept-host-key": accept_host_key,
            "--accept-new-host-keys": accept_new_host_keys,
            "--accept-drift": accept_drift,
            "--upgrade": upgrade,
            "--lose-data": lose_data,
        }
        for word, is_given in changing.items():
            if is_given:
                raise typer.BadParameter(
                    "it changes what is planned: it does not go with --plan", param_hint=word
                )

        def documents(target: str) -> tuple[Project, tuple[Document, ...]]:
            launch = ("fleet", "volume")
            return FleetFile(target, launch=launch, rehearse=rehearse, mixed=True, owner=owner).read()

        seconds = None if lease is None else lease_seconds(lease, "--lease")
        means = ApplyMeans(force, as_json, rehearse, result, seconds)
        apply_saved(plan, file, documents, means)
        return
    for word, is_given in (("--result", result is not None), ("--lease", lease is not None)):
        if is_given:
            raise typer.BadParameter("it goes with a saved plan, `--plan PLAN`", param_hint=word)
    if file is None:
        raise UsageError("no FILE is given", hint="`orch up FILE`, or `orch up --plan PLAN`")
    bring_up(
        FleetFile(file, launch=("fleet", "volume"), rehearse=rehearse, owner=owner),
        Approvals(
            accept_drift,
            upgrade,
            force,
            unseen="all" if accept_new_host_keys else "none",
            lose_data=frozenset(lose_data or ()),
        ),
        accept_host_keys=accept_host_key or (),
        yes=yes,
        as_json=as_json,
        verbose=verbose,
    )


def bring_up(
    source: FleetFile,
    approvals: Approvals,
    *,
    accept_host_keys: Sequence[str] = (),
    yes: bool,
    as_json: bool = False,
    verbose: bool = False,
) -> None:
    """Bring up the volumes and then the fleets of a file; exits with 7 when hosts are unfit.

    `accept_host_keys`: hosts whose changed key is accepted.
    """
    from orch.cli.hosts.host_keys import planned, rekeyed
    from orch.cli.output.plan import counts, key_lines, plan_json
    from orch.cli.output.progress import watching
    from orch.cli.output.review import Agreement, agree, need_terminal, tell_problems
    from orch.stacks import operations

    if yes and approvals.unseen == "none":
        # With `--yes` nobody sees a key; on a terminal each is shown before it is used.
        approvals = replace(approvals, unseen="named")
    unfit = False
    volumes.bring_up(source.volumes(), yes=yes, as_json=as_json, verbose=verbose)
    for project, document, fleet in source.fleets():
        own_approvals = replace(approvals, rekeyed=rekeyed(fleet, accept_host_keys))
        request = source.request(document, fleet, own_approvals)
        agreement = Agreement(project, document, request, None, False)
        if not yes:
            need_terminal("orch up FILE --yes")
            reload = partial(source.read_again, fleet.name)
            agreement = agree(project, document, request, reload, verbose=verbose)
            unfit = unfit or agreement.unfit
            if agreement.plan is None:
                continue
        with watching(as_json=as_json) as listener:
            result = planned(
                agreement.document,
                lambda a=agreement, li=listener: operations.up(a.project, a.request, li, plan=a.plan),
                as_json=as_json,
            )
        unfit = unfit or bool(result.problems)
        if as_json:
            print_json(plan_json(result, agreement.document))
            continue
        for line in key_lines(result.new_keys) if yes else ():
            tell(line)
        failed = len({problem.node for problem in result.problems})
        suffix = f"; {failed} not in order" if failed else ""
        say(f"fleet {fleet.name}: {counts(result.changes, done=True)}{suffix}")
        tell_problems(result, agreement.document)
    if unfit:
        end(ExitCode.HOSTS)


def down(
    target: FileOrName,
    *,
    indices: Indices = None,
    yes: Yes = False,
    force: Force = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
    owner: Owner = None,
) -> None:
    """Remove a fleet: its nodes, its networks, its state. Existing hosts are left as they were found.

    Nodes that runs are on stay, and the runs are named, unless --force is given. Volumes of the file go last;
    those that are protected stay.
    """
    source = FleetFile(target, rehearse=rehearse, owner=owner) if is_file(target) else None
    fleets = fleets_of(source) if source else [(project_at(rehearse=rehearse, owner=owner), target)]
    remove(target, fleets, indices or (), yes=yes, force=force, as_json=as_json)
    if source and not indices:
        volumes.remove_those_of(source.volumes(), yes=yes, as_json=as_json)


def remove(
    target: str,
    fleets: Iterable[tuple[Project, str]],
    indices: Sequence[int],
    *,
    yes: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Remove fleets, or with `indices` nodes of them. `target`: the file or name that the user typed."""
    from orch.cli.output.plan import counts, plan_json
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal
    from orch.components.file_systems import words_of
    from orch.stacks import operations
    from orch.stacks.fleets import not_up
    from orch.stacks.state import StackState

    for project, name in fleets:
        if not StackState(project, name).exists:
            if target == name:
                raise not_up(project, name, removing=True)
            # A pipeline may run `down FILE` twice; a mistyped name is an error.
            (tell if as_json else say)(f"fleet {name}: not up, nothing to remove")
            continue
        what = f"node {', '.join(map(str, indices))} of the fleet {name}" if indices else f"the fleet {name}"
        data = () if indices else StackState(project, name).file_systems
        for each in data:
            tell(f"fleet {name}: {words_of(each)} is deleted, and all data on it")
        if not yes:
            need_terminal(f"orch down {target} --yes")
            confirm(f"Remove {what} and all that runs on it?")
        with watching(as_json=as_json) as listener:
            if indices:
                result = operations.remove_nodes(project, name, indices, listener, force=force)
            else:
                result = operations.down(project, name, listener, force=force)
        if as_json:
            print_json(plan_json(result))
        else:
            say(f"fleet {name}: {counts(result.changes, done=True)}")


def drift(target: FileOrName, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """List what has changed since the last `up`. Changes nothing.

    Of a folder: one that is not up is left out, and one that cannot be looked at keeps no other from it.
    """
    from orch.stacks import operations

    _show_drift(target, operations.drift, as_json=as_json, code=ExitCode.CHANGES, rehearse=rehearse)


def refresh(target: FileOrName, as_json: Json = False, rehearse: Rehearse = False) -> None:
    """Update the state with what is really there. `up` does this by itself."""
    from orch.stacks import operations

    _show_drift(target, operations.refresh, as_json=as_json, code=ExitCode.OK, rehearse=rehearse)


def _show_drift(
    target: str, operation: Any, *, as_json: bool, code: ExitCode, rehearse: bool = False
) -> None:
    source = FleetFile(target, rehearse=rehearse) if is_file(target) else None
    looks: list[tuple[str, Callable[[], bool]]] = []
    record = code == ExitCode.OK
    for each in source.volumes() if source else ():
        look = partial(volumes.drift, [each], as_json=as_json, record=record)
        looks.append((f"volume {each[2].name}", look))
    for project, name in fleets_of(source) if source else fleets_at(target, rehearse=rehearse):
        look = partial(_drift_of, project, name, operation, as_json=as_json)
        looks.append((f"fleet {name}", look))
    found = [_looked(title, look, go_on=os.path.isdir(target)) for title, look in looks]
    failed = next((each for each in found if isinstance(each, OrchError)), None)
    end(failed.exit_code if failed is not None else code if any(found) else ExitCode.OK)


def _looked(title: str, look: Callable[[], bool], *, go_on: bool) -> bool | OrchError:
    """Whether something has drifted. With `go_on` what is not up has not; an error is told and returned."""
    from orch.stacks.errors import Interrupted, NoSuchFleet

    try:
        return look()
    except NoSuchFleet:
        if not go_on:
            raise
        tell(f"note: {title} is not up")
        return False
    except Interrupted:
        raise
    except OrchError as error:
        if not go_on:
            raise
        tell(error.text())
        return error


def _drift_of(project: Project, name: str, operation: Any, *, as_json: bool) -> bool:
    """Show the drift of a fleet; whether there is any."""
    from orch.cli.output.progress import watching
    from orch.review.tree import drift_lines

    with watching(as_json=as_json) as listener:
        drifts = operation(project, name, listener)
    if as_json:
        print_json({"schema": SCHEMA, "fleet": name, "drift": [item.as_json() for item in drifts]})
        return bool(drifts)
    say(f"fleet {name}: {'drifted' if drifts else 'as registered'}")
    for line in drift_lines(drifts):
        say(line)
    if drifts:
        say("`orch up` mends what it can; `orch up --accept-drift` takes existing hosts as they are")
    return bool(drifts)


def unlock(target: FileOrName, yes: Yes = False, rehearse: Rehearse = False) -> None:
    """Break the lock on a fleet's or volume's state, after showing who holds it and since when."""
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks import operations
    from orch.stacks.fleets import not_up
    from orch.stacks.pulumi.locks import locks, subject
    from orch.stacks.state import StackState
    from orch.stacks.volumes.state import STACK, no_such_volume

    for project, name in stacks_of(target, rehearse=rehearse):
        held_locks = locks(project, name)
        if project.local_state is not None and not held_locks:
            if not StackState(project, name).exists:
                volume = name.partition(STACK)[2]
                raise no_such_volume(project, volume) if volume else not_up(project, name)
            say(f"{subject(name)}: nobody holds it")
            continue
        for lock in held_locks:
            tell(f"{subject(name)} is held by {lock}{' (that process is gone)' if lock.dead else ''}")
        if not yes:
            need_terminal(f"orch unlock {target} --yes")
            confirm("Break the lock? If its holder is still at work, the state will be damaged.")
        operations.unlock(project, name)
        say(f"{subject(name)}: unlocked")
