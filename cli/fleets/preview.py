"""`orch preview`: what `up` would change, as text for people, as a review, as JSON, and as a saved plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orch.cli.context import Allow, File, Json, NewKeys, Owner, Rehearse, Untrusted, Verbose, strangers
from orch.cli.errors import coloured, end, json_text, print_json, say, tell, terminated_as_interrupted
from orch.cli.fleets import volumes
from orch.cli.fleets.prune import told
from orch.cli.fleets.targets import FleetFile
from orch.cli.output.files import print_or_write
from orch.spec.errors import ExitCode
from orch.stacks.plans.waves import order_lines

if TYPE_CHECKING:
    from orch.cli.fleets.preview_all import Previewed, Previews, Wanted
    from orch.components.request import Approvals
    from orch.review.model import Review
    from orch.stacks.plans.saved_plan import Commit, SavedPlan

SCHEMA = 1


class FindingsFormat(str, Enum):
    GITHUB = "github"
    SARIF = "sarif"
    GITLAB = "gitlab"


Form = Literal["markdown", "html", "json", "object", "plan"]


@dataclass(frozen=True)
class Output:
    """A form of the plans, and the file that gets it; None is stdout. `object` is JSON that is one object,
    also of a single file."""

    form: Form
    file: str | None = None


_FORMS: Mapping[str, Form] = {"--json": "json", "--markdown": "markdown", "--html": "html"}
_ENDINGS: Mapping[str, Form] = {".md": "markdown", ".html": "html", ".htm": "html", ".json": "plan"}


def outputs_of(forms: Sequence[Form], files: Sequence[str]) -> list[Output]:
    """What is written where: with a form, the one file gets it; without, the ending of each file says what it
    gets. Raises BadParameter."""
    if forms:
        if len(files) > 1:
            raise typer.BadParameter(f"with --{forms[0]}, one file is written", param_hint="--out")
        return [Output(forms[0], files[0] if files else None)]
    unknown = [each for each in files if Path(each).suffix.lower() not in _ENDINGS]
    if unknown:
        raise typer.BadParameter(
            f"say what to write to {unknown[0]}: --markdown, --html or --json; or name it .md, .html, or "
            ".json for a saved plan",
            param_hint="--out",
        )
    return [Output(_ENDINGS[Path(each).suffix.lower()], each) for each in files]


def review_in(folder: str) -> tuple[Output, ...]:
    """The whole review in a folder, which is made."""
    with suppress(OSError):  # which the first file tells
        os.makedirs(folder, exist_ok=True)
    names: tuple[tuple[Form, str], ...] = (
        ("markdown", "comment.md"),
        ("html", "review.html"),
        ("object", "review.json"),
    )
    return tuple(Output(form, os.path.join(folder, name)) for form, name in names)


@dataclass(frozen=True)
class Findings:
    """A report of all that is found: its form, and the file that gets it; without one it takes the place of
    the plan on stdout."""

    form: str
    file: str | None


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
    keyless: Annotated[
        bool,
        typer.Option(
            "--keyless",
            help="Plan without the key of the state: secrets count as unchanged, and no node is asked.",
        ),
    ] = False,
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="COMMIT",
            help="Run policy packs and kubeconfig plugins only as they are in this commit; others run after "
            "an approval.",
        ),
    ] = None,
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
    if as_review or out or expires or keyless or base or findings_format is not None or os.path.isdir(file):
        from orch.cli.fleets.preview_all import Wanted
        from orch.cli.fleets.saved_plans import validity

        outputs = outputs_of([_FORMS[word] for word in formats if word in _FORMS], out or ())
        if review is not None:
            outputs = [*review_in(review), *outputs]
        saves = any(each.form == "plan" for each in outputs)
        if saves and keyless:
            raise typer.BadParameter("a plan that is applied is made with the key", param_hint="--keyless")
        wanted = Wanted(
            rehearse,
            accept_new_host_keys,
            verbose,
            saves=saves,
            expires_s=validity(expires, file, saves=saves),
            basis=saves or any(each.form in ("markdown", "html") for each in outputs),
            owner=owner,
            keyless=keyless,
            base=base,
        )
        findings = Findings(findings_format.value, findings_out) if findings_format is not None else None
        end(_preview_all(file, wanted, outputs, findings, shown=not formats, exit_code=exit_code))
    from orch.components.request import Approvals

    approvals = Approvals(unseen="all" if accept_new_host_keys else "none")
    source = FleetFile(file, rehearse=rehearse, owner=owner)
    end(_preview_file(source, approvals, as_json=as_json, verbose=verbose, exit_code=exit_code))


@terminated_as_interrupted()
def _preview_file(
    source: FleetFile, approvals: Approvals, *, as_json: bool, verbose: bool, exit_code: bool
) -> ExitCode:
    """Show the plans of a file's volumes and fleets, each as soon as it is there; the exit code."""
    from orch.cli.hosts.host_keys import planned
    from orch.cli.output.plan import plan_json, plan_line, reason_lines, run_lines
    from orch.cli.output.progress import watching
    from orch.cli.output.review import judged_with_runs, on_nodes_that_go, shown_lines, tell_problems
    from orch.spec.diagnostics import render_human
    from orch.stacks.provisioning import operations

    pending, unfit = volumes.preview(source.volumes(), as_json=as_json, verbose=verbose), False
    refused = False
    for project, document, fleet in source.fleets():
        if warnings := document.effective():
            tell(render_human(warnings))
        request = source.request(document, fleet, approvals)
        with watching(as_json=as_json) as listener:
            plan = planned(
                document,
                lambda p=project, r=request, li=listener: operations.preview(p, r, li),
                as_json=as_json,
            )
            occupants = on_nodes_that_go(project, plan, listener)
        plan = judged_with_runs(plan, project, request, occupants)
        refused = refused or any(each.refuses for each in plan.policies)
        pending, unfit = pending or plan.is_due, unfit or bool(plan.problems)
        if as_json:
            print_json(plan_json(plan, document, occupants))
            continue
        for line in shown_lines(plan, verbose=verbose):
            say(line)
        for line in reason_lines(plan, colour=coloured(sys.stdout), verbose=verbose):
            say(line)
        say(plan_line(plan))
        for line in run_lines(occupants):
            say(line)
        tell_problems(plan, document)
    if refused:
        return ExitCode.POLICY
    if unfit:
        return ExitCode.HOSTS
    return ExitCode.CHANGES if exit_code and pending else ExitCode.OK


@terminated_as_interrupted()
def _preview_all(
    file: str,
    wanted: Wanted,
    outputs: Sequence[Output],
    findings: Findings | None,
    *,
    shown: bool,
    exit_code: bool,
) -> ExitCode:
    """Preview all stacks of a file or folder and print or write them; the worst exit code of them. `shown`:
    as text for people, too. Raises as `preview_all`, and UsageError for a file that cannot be written."""
    from orch.cli.fleets.preview_all import preview_all

    files = [*(each.file for each in outputs), findings.file if findings else None]
    previews = preview_all(file, wanted, files)
    done, code = previews.done, previews.code
    if code == ExitCode.INTERRUPTED:
        tell("interrupted")
        return code
    if code == ExitCode.OK and exit_code and any(each.pending for each in done):
        code = ExitCode.CHANGES
    if findings is not None:
        from orch.cli.output.findings import report

        found = (*previews.loaded.diagnostics, *(each for one in done for each in one.findings))
        print_or_write(report(findings.form, found), findings.file)
        shown = shown and findings.file is not None
    if shown:
        _print(done)
        if len(order := order_lines(previews.stacks)) > 1:
            say("`up` goes in waves:")
            for line in order:
                say(line)
    elif findings is not None or any(each.form != "json" for each in outputs):
        _tell(done)
    told(previews.undescribed, file)
    if outputs:
        _write(previews, outputs, code, basis=wanted.basis)
    return code


def _write(previews: Previews, outputs: Sequence[Output], code: ExitCode, *, basis: bool) -> None:
    from orch.cli.fleets.saved_plans import commit_behind, saved_plan
    from orch.review.html import html
    from orch.review.markdown import markdown

    commit = commit_behind(previews) if basis else None
    saved = saved_plan(previews, commit)
    file = next((each.file for each in outputs if each.form == "plan"), None)
    review = _review(previews, commit, saved, file)
    for each in outputs:
        if each.form in ("json", "object"):
            text = _json(previews, code, whole=each.form == "object")
        elif each.form == "plan":
            text = saved.text() if saved is not None else ""
        else:
            text = (markdown if each.form == "markdown" else html)(review)
        print_or_write(text, each.file)
    if saved is not None and saved.unplanned:
        names = ", ".join(each.title for each in saved.unplanned)
        tell(f"the saved plan cannot be applied: there is no plan of {names}")


def _review(previews: Previews, commit: Commit | None, saved: SavedPlan | None, file: str | None) -> Review:
    from orch.review.model import Basis, Review, worst_first
    from orch.stacks.plans.saved_plan import stamp

    target, root = previews.target, previews.project.root
    path = os.path.relpath(target, root) if target != "-" else "-"
    stacks = worst_first([each.review for each in previews.done])
    basis = Basis(
        commit=commit.commit if commit else "",
        base=(commit.base or "") if commit else "",
        dirty=commit.dirty if commit else False,
        plan=saved.id if saved else "",
        valid_until=stamp(saved.terms.expires) if saved else "",
    )
    command = f"orch up --plan {file}" if saved and file else f"orch up {path}"
    return Review(previews.project.name, path, stacks, command, basis)


def _json(previews: Previews, code: ExitCode, *, whole: bool = False) -> str:
    """One object for a folder, or with `whole`; for a file one for each of its stacks, as without `--out`."""
    target, done = previews.target, previews.done
    waves = {each.title: each.wave for each in previews.stacks}
    if not whole and not os.path.isdir(target):
        return "".join(f"{json_text(each.data)}\n" for each in done)
    data = {
        "schema": SCHEMA,
        "path": target,
        "stacks": [
            {
                "where": each.review.where,
                "wave": waves.get(each.review.title),
                "verdict": each.review.verdict,
                "exit_code": int(each.code),
                **each.data,
            }
            for each in done
        ],
        "undescribed": [each.as_json() for each in previews.undescribed],
        "exit_code": int(code),
    }
    return f"{json_text(data)}\n"


def _print(done: Sequence[Previewed]) -> None:
    for each in done:
        for line in each.shown:
            say(line)
        for line in each.told:
            tell(line)


def _tell(done: Sequence[Previewed]) -> None:
    for each in done:
        for line in each.told:
            tell(line)
