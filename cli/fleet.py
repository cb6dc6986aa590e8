"""The verbs of fleets: preview, up, down, drift, refresh, fleet list and show, unlock."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from orch.cli.context import project_at
from orch.cli.diagnostics import load
from orch.cli.errors import coloured, end, print_json, say, tell
from orch.cli.hosts.host_keys import planned, rekeyed
from orch.cli.output.plan import cost_line, counts, key_lines, plan_json, run_lines
from orch.cli.output.plan_tree import drift_lines, paint
from orch.cli.output.progress import watching
from orch.cli.output.review import agree, confirm, need_terminal, on_nodes_that_go, shown_lines, tell_problems
from orch.components.request import Approvals
from orch.spec.diagnostics import render_human
from orch.spec.errors import ExitCode
from orch.spec.models import Fleet
from orch.stacks import operations
from orch.stacks.errors import ProjectError
from orch.stacks.fleets import not_up
from orch.stacks.project import Project
from orch.stacks.request import FleetRequest
from orch.stacks.state import StackState
from orch.stacks.summary import fold

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from orch.spec import Document

SCHEMA = 1


def preview(
    file: str,
    *,
    as_json: bool,
    exit_code: bool,
    accept_new_host_keys: bool = False,
    rehearse: bool = False,
    verbose: bool = False,
) -> None:
    approvals = Approvals(unseen="all" if accept_new_host_keys else "none")
    pending, unfit = False, False
    for project, document, fleet in fleets_of(file, rehearse=rehearse):
        if doubtful := document.effective():
            tell(render_human(doubtful))
        request = _request(file, document, fleet, approvals)
        with watching(as_json=as_json) as listener:
            plan = planned(
                document,
                lambda p=project, r=request, told=listener: operations.preview(p, r, told),
                as_json=as_json,
            )
            on_them = on_nodes_that_go(project, plan, listener)
        pending, unfit = pending or plan.pending, unfit or bool(plan.problems)
        if as_json:
            print_json(plan_json(plan, document, on_them))
            continue
        for line in shown_lines(plan, verbose=verbose):
            say(line)
        for reason in plan.reasons:
            say(paint(f"  · {reason}", "2", coloured(sys.stdout)))
        say(f"plan: {counts(plan.changes, moves=plan.headline.moves)}; {cost_line(plan)}")
        for line in run_lines(on_them):
            say(line)
        tell_problems(plan, document)
    if unfit:
        end(ExitCode.HOSTS)
    end(ExitCode.CHANGES if exit_code and pending else ExitCode.OK)


def up(
    file: str,
    *,
    yes: bool,
    as_json: bool,
    accept_drift: bool,
    accept_host_keys: Sequence[str],
    accept_new_host_keys: bool = False,
    upgrade: bool = False,
    force: bool = False,
    rehearse: bool = False,
    verbose: bool = False,
    mixed: bool = False,
    environ: Mapping[str, str] | None = None,
    profile: str | None = None,
) -> None:
    """`mixed`: the file's other documents are somebody else's, who goes on when all is well. `environ`: what
    the file is read with, the caller's own variables if not given."""
    unfit = False
    found = fleets_of(
        file, launch=("fleet",), rehearse=rehearse, mixed=mixed, environ=environ, profile=profile
    )
    for project, described, fleet in found:
        document = described
        # Whoever asks for `--yes` has seen no key; on a terminal each is shown before it is used.
        unseen = "all" if accept_new_host_keys else "named" if yes else "none"
        approvals = Approvals(accept_drift, upgrade, force, rekeyed(fleet, accept_host_keys), unseen=unseen)
        at, request, shown = project, _request(file, document, fleet, approvals), None
        if not yes:
            need_terminal("orch up FILE --yes")
            again = partial(
                _read_again, file, fleet.name, rehearse=rehearse, environ=environ, profile=profile
            )
            agreed = agree(project, document, request, again, verbose=verbose)
            unfit = unfit or agreed.unfit
            if agreed.plan is None:
                continue
            at, document = agreed.project, agreed.document
            request, shown = agreed.request, agreed.plan
        with watching(as_json=as_json) as listener:
            done = planned(
                document,
                lambda p=at, r=request, told=listener, s=shown: operations.up(p, r, told, shown=s),
                as_json=as_json,
            )
        unfit = unfit or bool(done.problems)
        if as_json:
            print_json(plan_json(done, document))
            continue
        for line in key_lines(done.new_keys) if yes else ():
            tell(line)
        amiss = len({problem.node for problem in done.problems})
        suffix = f"; {amiss} not in order" if amiss else ""
        say(f"fleet {fleet.name}: {counts(done.changes, done=True)}{suffix}")
        tell_problems(done, document)
    if unfit:
        end(ExitCode.HOSTS)


def down(
    target: str,
    *,
    yes: bool,
    as_json: bool,
    indices: Sequence[int] = (),
    by_name: bool = False,
    force: bool = False,
    rehearse: bool = False,
) -> None:
    for project, name in _targets(target, by_name=by_name, rehearse=rehearse):
        if not StackState(project, name).exists:
            if target == name:
                raise not_up(project, name, removing=True)
            # A pipeline may ask twice; a mistyped name is told.
            (tell if as_json else say)(f"fleet {name}: not up, nothing to remove")
            continue
        what = f"node {', '.join(map(str, indices))} of the fleet {name}" if indices else f"the fleet {name}"
        if not yes:
            need_terminal(f"orch down {target} --yes")
            confirm(f"Remove {what} and all that runs on it?")
        with watching(as_json=as_json) as listener:
            if indices:
                done = operations.remove_nodes(project, name, indices, listener, force=force)
            else:
                done = operations.down(project, name, listener, force=force)
        if as_json:
            print_json(plan_json(done))
        else:
            say(f"fleet {name}: {counts(done.changes, done=True)}")


def drift(target: str, *, as_json: bool, rehearse: bool = False) -> None:
    _show_drift(target, operations.drift, as_json=as_json, code=ExitCode.CHANGES, rehearse=rehearse)


def refresh(target: str, *, as_json: bool, rehearse: bool = False) -> None:
    _show_drift(target, operations.refresh, as_json=as_json, code=ExitCode.OK, rehearse=rehearse)


def _show_drift(
    target: str, operation: Any, *, as_json: bool, code: ExitCode, rehearse: bool = False
) -> None:
    any_found = False
    for project, name in _targets(target, rehearse=rehearse):
        with watching(as_json=as_json) as listener:
            found = operation(project, name, listener)
        any_found = any_found or bool(found)
        if as_json:
            print_json({"schema": SCHEMA, "fleet": name, "drift": [item.as_json() for item in found]})
            continue
        say(f"fleet {name}: {'drifted' if found else 'as registered'}")
        for line in drift_lines(found):
            say(line)
        if found:
            say("`orch up` mends what it can; `orch up --accept-drift` takes existing hosts as they are")
    end(code if any_found else ExitCode.OK)


def show(name: str | None, *, as_json: bool, verbose: bool, rehearse: bool = False) -> None:
    from orch.cli.output.fleet import Row, fleet_json, fleet_table
    from orch.cli.run import opened
    from orch.runner.node.status import node_statuses
    from orch.runner.runs.lifecycle import reconcile_once
    from orch.stacks.fleets import fleet_of, known_fleets
    from orch.stacks.records import node_records

    with opened(None, as_json=True, rehearse=rehearse) as (project, place):
        up = {name: StackState(project, name)} if name else known_fleets(project)
        states = [(fleet_of(stack), stack) for stack in up.values()]
        reconcile_once(place)  # a run whose end nobody noticed would still hold its nodes
        found = [
            Row(state, node_statuses(state, place.connector), node_records(stack.recorded))
            for state, stack in states
        ]
    if as_json:
        print_json({"schema": SCHEMA, "fleets": [fleet_json(each) for each in found]})
    elif not found:
        tell("no fleet is up in this project; bring one up with `orch up fleet.yml`")
    else:
        say(fleet_table(found, verbose=verbose, colour=coloured(sys.stdout)))


def ids(name: str, indices: Sequence[int], *, rehearse: bool = False) -> None:
    """Raises NoSuchFleet, NoSuchNode."""
    from orch.stacks.errors import NoSuchNode
    from orch.stacks.fleets import require_up
    from orch.stacks.records import node_records

    stack = StackState(project_at(rehearse=rehearse), name)
    require_up(stack)
    records = node_records(stack.recorded)
    there = {int(node["index"]): str(node["name"]) for node in stack.nodes}
    if missing := sorted(set(indices) - set(there)):
        raise NoSuchNode(
            f"the fleet {name} has no node {', '.join(map(str, missing))}",
            detail=f"its nodes are {', '.join(f'{i} ({there[i]})' for i in sorted(there)) or 'none'}",
            code="ORCH355",
        )
    found = {there[index]: records[there[index]].id for index in sorted(indices or there)}
    if unknown := [node for node, its in found.items() if its is None]:
        raise NoSuchNode(
            f"{fold(unknown)}: made by a group, and recorded without an id of its own",
            hint=f"`orch fleet show {name} -v` shows addresses",
            code="ORCH355",
        )
    for its in found.values():
        say(str(its))


def unlock(target: str, *, yes: bool, rehearse: bool = False) -> None:
    from orch.stacks.pulumi.locks import locks

    for project, name in _targets(target, rehearse=rehearse):
        held = locks(project, name)
        if project.local_state is not None and not held:
            if not StackState(project, name).exists:
                raise not_up(project, name)
            say(f"fleet {name}: nobody holds it")
            continue
        for lock in held:
            tell(f"fleet {name} is held by {lock}{' (that process is gone)' if lock.dead else ''}")
        if not yes:
            need_terminal(f"orch unlock {target} --yes")
            confirm("Break the lock? If its holder is still at work, the state will be damaged.")
        operations.unlock(project, name)
        say(f"fleet {name}: unlocked")


def fleets_of(
    file: str,
    *,
    launch: Sequence[str] = (),
    rehearse: bool = False,
    mixed: bool = False,
    environ: Mapping[str, str] | None = None,
    profile: str | None = None,
) -> Iterator[tuple[Project, Document, Fleet]]:
    """The fleets of a file, with the project it belongs to. Other documents get a note, unless `mixed`."""
    project = project_at(None if file == "-" else file, rehearse=rehearse)
    backends = [each.type for each in project.backends]
    documents = load(file, launch=launch, environ=environ, backends=backends, profile=profile)
    fleets = [(document, document.model) for document in documents if isinstance(document.model, Fleet)]
    others = len(documents) - len(fleets)
    if others and not mixed:
        tell(f"note: {others} of {len(documents)} documents are no fleets; start tasks with `orch run`")
    if not fleets:
        raise ProjectError("there is no fleet in it", where=file, hint="a fleet begins with `type: fleet`")
    for document, fleet in fleets:
        yield project, document, fleet


def _read_again(
    file: str,
    name: str,
    *,
    rehearse: bool,
    environ: Mapping[str, str] | None,
    profile: str | None,
) -> tuple[Project, Document, Fleet]:
    """The fleet of this name as its file and `orch.yml` describe it now. Raises ProjectError when they do no
    more."""
    found = fleets_of(
        file, launch=("fleet",), rehearse=rehearse, mixed=True, environ=environ, profile=profile
    )
    for project, document, fleet in found:
        if fleet.name == name:
            return project, document, fleet
    raise ProjectError(
        f"the file describes the fleet {name} no more", where=file, hint="run the same command again"
    )


def _request(file: str, document: Document, fleet: Fleet, approvals: Approvals) -> FleetRequest:
    path = document.file.absolute() if file != "-" else None
    return FleetRequest(fleet, document.directory.absolute(), approvals, path)


def is_file(target: str) -> bool:
    """Whether FILE|NAME is a file."""
    return os.path.exists(target) or "/" in target or target.endswith((".yml", ".yaml")) or target == "-"


def _targets(target: str, *, by_name: bool = False, rehearse: bool = False) -> list[tuple[Project, str]]:
    """A file's fleets, or the one fleet of a name in the project here."""
    if not by_name and is_file(target):
        return [(project, fleet.name) for project, _, fleet in fleets_of(target, rehearse=rehearse)]
    return [(project_at(rehearse=rehearse), target)]
