"""The verbs that plan, create and remove fleets and volumes: preview, up, down, drift, refresh, unlock."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orch.cli.context import (
    ALSO,
    Allow,
    File,
    FileOrName,
    Force,
    Indices,
    Json,
    NewKeys,
    Owner,
    Rehearse,
    Untrusted,
    Verbose,
    Yes,
    lease_seconds,
    project_at,
    strangers,
)
from orch.cli.errors import UsageError, coloured, end, print_json, say, tell
from orch.cli.fleets import volumes
from orch.cli.fleets.targets import FleetFile, fleets_at, fleets_of, is_file, stacks_of
from orch.spec.errors import ExitCode, OrchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from orch.components.request import Approvals
    from orch.spec import Document
    from orch.spec.models import Fleet
    from orch.stacks.project import Project
    from orch.stacks.request import FleetRequest

SCHEMA = 1


class FindingsFormat(str, Enum):
    GITHUB = "github"
    SARIF = "sarif"
    GITLAB = "gitlab"


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
    untrusted: Untrusted = False,
    allow: Allow = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="The review as a comment of a pull request.")
    ] = False,
    as_html: Annotated[bool, typer.Option("--html", help="The review as one HTML file.")] = False,
    out: Annotated[
        list[str] | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write it there. Without a format the ending of the name says what: .md and .html the "
            "review, .json a saved plan for `orch up --plan`; repeatable.",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            metavar="DURATION",
            help="How long the saved plan is valid; as orch.yml says, or 24h.",
        ),
    ] = None,
    findings_format: Annotated[
        FindingsFormat | None,
        typer.Option(
            "--findings-format",
            help="Report violations of policies and other findings, in place of the plan.",
            show_default=False,
        ),
    ] = None,
    findings_out: Annotated[
        str | None,
        typer.Option("--findings-out", metavar="FILE", help="Write that report there, beside the plan."),
    ] = None,
    review: Annotated[
        str | None,
        typer.Option("--review", metavar="DIR", help="Write comment.md, review.html and review.json there."),
    ] = None,
    owner: Owner = None,
) -> None:
    """Show what `up` would change, and why. Changes nothing.

    Of a folder: all fleets and volumes of it; one that has no plan keeps no other from its own.
    With --untrusted: what the fleets would be, from files and catalogue alone; nothing is asked or run.
    """
    allowed = strangers(untrusted, allow)
    given = (
        ("--json", as_json),
        ("--markdown", as_markdown),
        ("--html", as_html),
        ("--review", review is not None),
    )
    formats = [word for word, is_given in given if is_given]
    if len(formats) > 1:
        raise typer.BadParameter(f"it does not go with {formats[0]}", param_hint=formats[1])
    if findings_out is not None and findings_format is None:
        raise typer.BadParameter("say how: --findings-format", param_hint="--findings-out")
    if findings_format is not None and findings_out is None and formats and not out:
        raise typer.BadParameter(
            f"{formats[0]} is on stdout: add --findings-out", param_hint="--findings-format"
        )
    if allowed is not None:
        if findings_format is not None:
            raise typer.BadParameter(
                "nothing is planned; `orch validate --untrusted --format` reports", param_hint="--untrusted"
            )
        files = out or []
        if as_html or review is not None or (files and not as_markdown):
            raise typer.BadParameter(
                "nothing is compared: --html, --review and a saved plan do not go with it; --markdown, also "
                "with --out FILE, is the comment of what was found",
                param_hint="--untrusted",
            )
        if len(files) > 1:
            raise typer.BadParameter("with --markdown, one file is written", param_hint="--out")
        if exit_code or rehearse or accept_new_host_keys:
            raise typer.BadParameter(
                "nothing is looked at: --exit-code, --rehearse and --accept-new-host-keys do not go with it",
                param_hint="--untrusted",
            )
        from orch.cli.output import untrusted as strangers_files

        if as_markdown:
            end(strangers_files.comment(file, allowed, files[0] if files else None))
        strangers_files.preview(file, allowed, as_json=as_json)
        return
    as_review = as_markdown or as_html or review is not None
    if as_review or out or expires or findings_format is not None or os.path.isdir(file):
        from orch.cli.fleets.preview_all import Form, Wanted, outputs_of, preview_all, review_in

        kinds = [word.removeprefix("--") for word in formats if word != "--review"]
        forms: list[Form] = kinds  # type: ignore[assignment]
        outputs = outputs_of(forms, out or ())
        if review is not None:
            outputs = [*review_in(review), *outputs]
        saves = any(each.form == "plan" for each in outputs)
        wanted = Wanted(
            rehearse,
            accept_new_host_keys,
            verbose,
            saves=saves,
            expires_s=_validity(expires, file, saves=saves),
            basis=saves or any(each.form in ("markdown", "html") for each in outputs),
            findings=findings_format.value if findings_format is not None else None,
            findings_out=findings_out,
            owner=owner,
        )
        end(preview_all(file, wanted, outputs, shown=not formats, exit_code=exit_code))
    from orch.cli.hosts.host_keys import planned
    from orch.cli.output.plan import cost_line, counts, plan_json, reason_lines, run_lines
    from orch.cli.output.progress import watching
    from orch.cli.output.review import judged_with_runs, on_nodes_that_go, shown_lines, tell_problems
    from orch.components.request import Approvals
    from orch.spec.diagnostics import render_human
    from orch.stacks import operations

    approvals = Approvals(unseen="all" if accept_new_host_keys else "none")
    source = FleetFile(file, rehearse=rehearse, owner=owner)
    pending, unfit = volumes.preview(source.volumes(), as_json=as_json, verbose=verbose), False
    refused = False
    for project, document, fleet in source.fleets():
        if warnings := document.effective():
            tell(render_human(warnings))
        request = _request(file, document, fleet, approvals)
        with watching(as_json=as_json) as listener:
            plan = planned(
                document,
                lambda p=project, r=request, li=listener: operations.preview(p, r, li),
                as_json=as_json,
            )
            occupants = on_nodes_that_go(project, plan, listener)
        plan = judged_with_runs(plan, project, request, occupants)
        refused = refused or any(each.refuses for each in plan.policies)
        pending, unfit = pending or plan.pending, unfit or bool(plan.problems)
        if as_json:
            print_json(plan_json(plan, document, occupants))
            continue
        for line in shown_lines(plan, verbose=verbose):
            say(line)
        for line in reason_lines(plan, colour=coloured(sys.stdout), verbose=verbose):
            say(line)
        say(f"plan: {counts(plan.changes, moves=plan.headline.moves)}; {cost_line(plan)}")
        for line in run_lines(occupants):
            say(line)
        tell_problems(plan, document)
    if refused:
        end(ExitCode.POLICY)
    if unfit:
        end(ExitCode.HOSTS)
    end(ExitCode.CHANGES if exit_code and pending else ExitCode.OK)


def _validity(expires: str | None, file: str, *, saves: bool) -> int | None:
    """How many seconds a saved plan is valid; None: as long as the project says. Raises BadParameter."""
    from orch.spec.grammar.values import Problem, parse_duration

    if not saves:
        if expires is not None:
            raise typer.BadParameter("it goes with a saved plan, `--out plan.json`", param_hint="--expires")
        return None
    if file == "-":
        raise typer.BadParameter("a saved plan is of a file: name it", param_hint="--out")
    if expires is None:
        return None
    try:
        seconds = parse_duration(expires)
    except Problem as problem:
        raise typer.BadParameter(str(problem), param_hint="--expires") from problem
    if not seconds:
        raise typer.BadParameter("a plan expires: write `24h` or `3d`", param_hint="--expires")
    return seconds


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
        request = _request(source.file, document, fleet, own_approvals)
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


def _request(file: str, document: Document, fleet: Fleet, approvals: Approvals) -> FleetRequest:
    from orch.stacks.request import FleetRequest

    path = document.file.absolute() if file != "-" else None
    return FleetRequest(fleet, document.directory.absolute(), approvals, path)
