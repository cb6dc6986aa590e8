"""`orch ci comment`: posts plans, findings and results to pull requests."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli.ci.options import (
    SCHEMA,
    Author,
    BaseSha,
    FindingsFiles,
    FolderPath,
    HeadSha,
    Number,
    OnForge,
    Repo,
    Stranger,
    pipeline_of,
)
from orch.cli.context import project_at
from orch.cli.errors import UsageError, print_json, say, tell
from orch.cli.options import Json, with_records

if TYPE_CHECKING:
    from orch.ci.comments import Footing
    from orch.ci.findings import Findings
    from orch.ci.forge import Forge, Pull
    from orch.ci.pipeline import Pipeline
    from orch.stacks.project.project import Project

MOST_PULLS = 5
"""Pull requests of one commit of a fork that get a comment: whoever pushes it may open any number of them."""


@dataclass(frozen=True)
class CommentOptions:
    """The command line of `orch ci comment`."""

    body_file: Annotated[
        str | None,
        typer.Option(
            "--body-file", metavar="FILE", help="What to post, as `orch preview --markdown` writes it."
        ),
    ] = None
    findings: FindingsFiles = None
    untrusted: Stranger = False
    result: Annotated[
        str | None,
        typer.Option(
            "--result",
            metavar="FILE",
            help="Above the plan of --path: what became of its apply, as `orch up --plan --result` writes "
            "it. The pull request is --pr, or that of the commit.",
        ),
    ] = None
    stale: Annotated[
        str | None,
        typer.Option("--stale", metavar="REASON", help="Strike out the plan that is there, and say why."),
    ] = None
    every: Annotated[
        bool, typer.Option("--all", help="With --stale: of all open pull requests into this branch.")
    ] = False
    check_name: Annotated[
        str | None,
        typer.Option("--check", metavar="NAME", help="With --stale: this check of the commit fails too."),
    ] = None
    path: FolderPath = None
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="NAME", help="For a body without a marker of orch: what it is."),
    ] = None
    repo: Repo = None
    number: Number = None
    head_sha: HeadSha = None
    base_sha: BaseSha = None
    author: Author = None
    forge: OnForge = None
    as_json: Json = False


@with_records
def comment(options: CommentOptions) -> None:
    """Post the comment of a plan to its pull request, or bring the one that is there up to date.

    It is found by its hidden marker and its author. An unchanged one is left alone, a body that is too long
    is shortened, and a plan of a commit that is no longer the newest is not posted.
    """
    contents = {
        "--body-file": options.body_file,
        "--findings": options.findings,
        "--stale": options.stale,
        "--result": options.result,
    }
    given = [option for option, value in contents.items() if value]
    if len(given) != 1:
        raise UsageError(
            "say what to post" if not given else f"{given[0]} does not go with {given[1]}",
            hint="give --body-file, --findings, --stale or --result, one of them",
        )
    pipeline = pipeline_of(options.forge).with_options(
        options.repo, options.number, options.head_sha, options.base_sha
    )
    service = pipeline.forge(options.author)
    if options.stale is not None:
        _strike(service, pipeline, options.stale, options)
    elif options.result is not None:
        _post_result(service, pipeline, options.result, options.path or ".", as_json=options.as_json)
    elif options.findings:
        _post_findings(service, pipeline, options.findings, options)
    else:
        body = _body(options.body_file or "", options.key)
        pull = service.pull(pipeline.pull_number())
        _post(service, [pull], body, pipeline, as_json=options.as_json)


def _post_findings(service: Forge, pipeline: Pipeline, files: list[str], options: CommentOptions) -> None:
    """The comment that findings give; of strangers, to the pull requests that have their commit."""
    from orch.ci.findings import findings_comment, read_findings

    read: Findings = read_findings(files, untrusted=options.untrusted)
    body = findings_comment(read, options.path or ".", fork=options.untrusted)
    if not options.untrusted:
        _post(service, [service.pull(pipeline.pull_number())], body, pipeline, as_json=options.as_json)
        return
    if not pipeline.head:
        raise UsageError("which commit?", hint="give --head-sha: what a fork wrote is never asked for it")
    found = (each for each in service.pulls() if each.head == pipeline.head and each.is_fork)
    pulls = list(islice(found, MOST_PULLS))
    if not pulls:
        tell(f"no open {service.noun} of a fork has the commit {pipeline.head[:12]}: nothing is posted")
    _post(service, pulls, body, pipeline, as_json=options.as_json)


def _post(service: Forge, pulls: list[Pull], body: str, pipeline: Pipeline, *, as_json: bool) -> None:
    from orch.ci.comments import composed, sync_comment

    done: list[dict[str, object]] = []
    for pull in pulls:
        if pipeline.head and pull.head and pull.head != pipeline.head:
            what = "outdated"
            tell(
                f"{service.noun} {pull.number} has a newer commit, {pull.head[:12]}: "
                f"the plan of {pipeline.head[:12]} is not posted"
            )
        else:
            what = sync_comment(service, pull.number, composed(body, _footing(pipeline)))
            if not as_json:
                say(f"{service.noun} {pull.number}: {what}")
        done.append({"number": pull.number, "done": what})
    if as_json:
        print_json({"schema": SCHEMA, "comments": done})


def _post_result(service: Forge, pipeline: Pipeline, file: str, path: str, *, as_json: bool) -> None:
    from orch.ci.comments import PlanComment, post_result, read_result

    project, marker = _plan_of(path)
    read = read_result(file)
    if pipeline.number is not None:
        numbers = [pipeline.number]
    elif pipeline.head:
        numbers = [each.number for each in service.pulls_of(pipeline.head)]
    else:
        raise UsageError("which pull request?", hint="give --pr or --head-sha, or run in a pipeline")
    if not numbers:
        tell(f"the commit {pipeline.head[:12]} came with no {service.noun}: nothing is posted")
    title = f"orch plan of {project.name} {os.path.relpath(path, project.root)}"
    comment = PlanComment(marker, title, _footing(pipeline))
    done: list[dict[str, object]] = []
    for number in numbers:
        what = post_result(service, number, comment, read)
        done.append({"number": number, "done": what})
        if not as_json:
            say(f"{service.noun} {number}: {what}")
    if as_json:
        print_json({"schema": SCHEMA, "comments": done})


def _plan_of(path: str) -> tuple[Project, str]:
    """The project of a path, and the marker of its plan."""
    from orch.ci.comments import plan_marker

    project = project_at(path, tells=False)
    return project, plan_marker(project.name, os.path.relpath(path, project.root))


def _strike(service: Forge, pipeline: Pipeline, reason: str, options: CommentOptions) -> None:
    from orch.ci.comments import strike
    from orch.ci.forge import Check

    wanted = None if options.path is None else _plan_of(options.path)[1]
    if options.every and not pipeline.base_branch:
        raise UsageError("into which branch?", hint="run in a pipeline of that branch")
    pulls = (
        service.pulls(pipeline.base_branch) if options.every else iter([service.pull(pipeline.pull_number())])
    )
    done: list[int] = []
    for pull in strike(service, pulls, reason, pipeline.base or None, wanted):
        done.append(pull.number)
        if options.check_name is not None:
            title = "The plan is stale: plan again"
            check = Check(options.check_name, pull.head, "action_required", title, reason)
            service.post_check(check)
        if not options.as_json:
            say(f"{service.noun} {pull.number}: the plan is struck out")
    if options.as_json:
        print_json({"schema": SCHEMA, "stale": done})


def _footing(pipeline: Pipeline) -> Footing:
    from orch.ci.comments import Footing

    return Footing(pipeline.head, pipeline.base, pipeline.run_url)


def _body(file: str, key: str | None) -> str:
    """A body with a marker in its first line. Raises UsageError."""
    from orch.ci.comments import marker, marker_of

    try:
        text = Path(file).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError("the body cannot be read", where=file, detail=reason) from error
    if marker_of(text) is not None:
        return text
    if key is None:
        raise UsageError(
            "the body has no marker in its first line, by which its comment would be found again",
            where=file,
            hint="post what `orch preview --markdown` writes, or give --key NAME",
        )
    return f"{marker(key)}\n{text}"
