"""`orch preview`: what `up` would change, as text for people, as a review, as JSON, and as a saved plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli.context import strangers
from orch.cli.errors import coloured, end, print_json, say, tell, terminated_as_interrupted
from orch.cli.fleets import volumes
from orch.cli.fleets.preview_files import FORMS, Output, outputs_of, review_in, validity, write
from orch.cli.fleets.prune import told
from orch.cli.options import (
    Allow,
    File,
    Json,
    NewKeys,
    Owner,
    Refusal,
    Rehearse,
    Untrusted,
    Verbose,
    refuse,
    with_records,
)
from orch.cli.output.files import print_or_write
from orch.cli.targets.fleet_files import FleetFile
from orch.spec.errors import ExitCode
from orch.stacks.plans.waves import order_lines

if TYPE_CHECKING:
    from orch.cli.fleets.preview_all import Previewed, Wanted


class FindingsFormat(str, Enum):
    """Form of a report of all that is found; without a file it takes the place of the plan on stdout."""

    GITHUB = "github"
    SARIF = "sarif"
    GITLAB = "gitlab"


@dataclass(frozen=True)
class PreviewOptions:
    """The command line of `orch preview`."""

    file: File
    as_json: Json = False
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 10 when changes are pending.")] = (
        False
    )
    accept_new_host_keys: NewKeys = False
    verbose: Verbose = False
    rehearse: Rehearse = False
    untrusted: Untrusted = False
    allow: Allow = None
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="The review as a comment of a pull request.")
    ] = False
    as_html: Annotated[bool, typer.Option("--html", help="The review as one HTML file.")] = False
    out: Annotated[
        list[str] | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write it there. Without a format the ending of the name says what: .md and .html the "
            "review, .json a saved plan for `orch up --plan`; repeatable.",
        ),
    ] = None
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            metavar="DURATION",
            help="How long the saved plan is valid; as orch.yml says, or 24h.",
        ),
    ] = None
    findings_format: Annotated[
        FindingsFormat | None,
        typer.Option(
            "--findings-format",
            help="Report violations of policies and other findings, in place of the plan.",
            show_default=False,
        ),
    ] = None
    findings_out: Annotated[
        str | None,
        typer.Option("--findings-out", metavar="FILE", help="Write that report there, beside the plan."),
    ] = None
    review: Annotated[
        str | None,
        typer.Option("--review", metavar="DIR", help="Write comment.md, review.html and review.json there."),
    ] = None
    owner: Owner = None
    keyless: Annotated[
        bool,
        typer.Option(
            "--keyless",
            help="Plan without the key of the state: secrets count as unchanged, and no node is asked.",
        ),
    ] = False
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="COMMIT",
            help="Run policy packs and kubeconfig plugins, and follow states and logins of orch.yml, only as "
            "they are in this commit; others wait for an approval.",
        ),
    ] = None

    @property
    def formats(self) -> list[str]:
        """The options that ask for a form other than text."""
        chosen = {
            "--json": self.as_json,
            "--markdown": self.as_markdown,
            "--html": self.as_html,
            "--review": self.review is not None,
        }
        return [option for option, is_given in chosen.items() if is_given]

    @property
    def is_review(self) -> bool:
        """Report whether all stacks are previewed before anything is shown, as reviews and saved plans need
        it."""
        asked = self.as_markdown, self.as_html, self.review is not None, self.out, self.expires
        return any((*asked, self.keyless, self.base, self.findings_format, os.path.isdir(self.file)))


_FORMATS = ("--json", "--markdown", "--html", "--review")

REFUSALS: tuple[Refusal[PreviewOptions], ...] = (
    *(
        Refusal[PreviewOptions](
            second,
            f"it does not go with {first}",
            lambda options, pair=(first, second): options.formats[:2] == [*pair],
        )
        for first, second in combinations(_FORMATS, 2)
    ),
    Refusal(
        "--findings-out",
        "say how: --findings-format",
        lambda options: options.findings_out is not None and options.findings_format is None,
    ),
    *(
        Refusal[PreviewOptions](
            "--findings-format",
            f"{form} is on stdout: add --findings-out",
            lambda options, form=form: (
                options.findings_format is not None
                and options.findings_out is None
                and form in options.formats
                and not options.out
            ),
        )
        for form in _FORMATS
    ),
)
REFUSALS_OF_UNTRUSTED: tuple[Refusal[PreviewOptions], ...] = (
    Refusal(
        "--untrusted",
        "nothing is planned; `orch validate --untrusted --format` reports",
        lambda options: options.findings_format is not None,
    ),
    Refusal(
        "--untrusted",
        "nothing is compared: --html, --review and a saved plan do not go with it; --markdown, also "
        "with --out FILE, is the comment of what was found",
        lambda options: (
            options.as_html or options.review is not None or bool(options.out and not options.as_markdown)
        ),
    ),
    Refusal(
        "--out",
        "with --markdown, one file is written",
        lambda options: len(options.out or ()) > 1,
    ),
    Refusal(
        "--untrusted",
        "nothing is looked at: --exit-code, --rehearse and --accept-new-host-keys do not go with it",
        lambda options: options.exit_code or options.rehearse or options.accept_new_host_keys,
    ),
)


@with_records
def preview(options: PreviewOptions) -> None:
    """Show what `up` would change, and why. Changes nothing.

    Of a folder: all fleets and volumes of it; one that has no plan keeps no other from its own.
    With --untrusted: what the fleets would be, from files and catalogue alone; nothing is asked or run.
    """
    allowed = strangers(options.untrusted, options.allow)
    refuse(REFUSALS, options)
    if allowed is not None:
        from orch.cli.output import untrusted

        refuse(REFUSALS_OF_UNTRUSTED, options)
        if options.as_markdown:
            end(untrusted.comment(options.file, allowed, options.out[0] if options.out else None))
        untrusted.preview(options.file, allowed, as_json=options.as_json)
        return
    if options.is_review:
        outputs = outputs_of([FORMS[each] for each in options.formats if each in FORMS], options.out or ())
        if options.review is not None:
            outputs = [*review_in(options.review), *outputs]
        end(_preview_all(options, _wanted(options, outputs), outputs))
    end(_preview_file(options))


def _wanted(options: PreviewOptions, outputs: Sequence[Output]) -> Wanted:
    """Return how all stacks are previewed for some outputs. Raises BadParameter."""
    from orch.cli.fleets.preview_all import Wanted

    saves = any(each.form == "plan" for each in outputs)
    if saves and options.keyless:
        raise typer.BadParameter("a plan that is applied is made with the key", param_hint="--keyless")
    return Wanted(
        options.rehearse,
        options.accept_new_host_keys,
        options.verbose,
        saves=saves,
        expires_s=validity(options.expires, options.file, saves=saves),
        basis=saves or any(each.form in ("markdown", "html") for each in outputs),
        owner=options.owner,
        keyless=options.keyless,
        base=options.base,
    )


@terminated_as_interrupted()
def _preview_file(options: PreviewOptions) -> ExitCode:
    """Show the plans of a file's volumes and fleets, each as soon as it is there; return the exit code."""
    from orch.cli.output.host_keys import planned
    from orch.cli.output.plan import plan_json, plan_line, reason_lines, run_lines
    from orch.cli.output.progress import watching
    from orch.cli.output.review import judged_with_runs, on_nodes_that_go, shown_lines, tell_problems
    from orch.components.request import Approvals
    from orch.spec.diagnostics import render_human
    from orch.stacks.provisioning import operations

    as_json, verbose = options.as_json, options.verbose
    approvals = Approvals(unseen="all" if options.accept_new_host_keys else "none")
    source = FleetFile(options.file, rehearse=options.rehearse, owner=options.owner)
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
    return ExitCode.CHANGES if options.exit_code and pending else ExitCode.OK


@terminated_as_interrupted()
def _preview_all(options: PreviewOptions, wanted: Wanted, outputs: Sequence[Output]) -> ExitCode:
    """Preview all stacks of a file or folder and print or write them; return the worst exit code of them.

    Raises as `preview_all`, and UsageError for a file that cannot be written."""
    from orch.cli.fleets.preview_all import preview_all

    findings_file, shown = options.findings_out, not options.formats
    previews = preview_all(options.file, wanted, [*(each.file for each in outputs), findings_file])
    done, code = previews.done, previews.code
    if code == ExitCode.INTERRUPTED:
        tell("interrupted")
        return code
    if code == ExitCode.OK and options.exit_code and any(each.pending for each in done):
        code = ExitCode.CHANGES
    if options.findings_format is not None:
        from orch.cli.output.findings import report

        found = (*previews.loaded.diagnostics, *(each for one in done for each in one.findings))
        print_or_write(report(options.findings_format.value, found), findings_file)
        shown = shown and findings_file is not None
    if shown:
        _print(done)
        if len(order := order_lines(previews.stacks)) > 1:
            say("`up` goes in waves:")
            for line in order:
                say(line)
    elif options.findings_format is not None or any(each.form != "json" for each in outputs):
        _tell(done)
    told(previews.undescribed, options.file)
    if outputs:
        write(previews, outputs, code, basis=wanted.basis)
    return code


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
