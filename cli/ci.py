"""`orch ci`: workflows for this project, and what they post: comments, checks, issues."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli.context import Json, project_at
from orch.cli.errors import UsageError, print_json, say, tell
from orch.cli.workflows import OnForge, Repo, environment, init, pipeline_of, watched

if TYPE_CHECKING:
    from orch.ci.comments import Footing
    from orch.ci.findings import Findings
    from orch.ci.forge import Forge, Pull
    from orch.ci.pipeline import Pipeline
    from orch.stacks.project.project import Project

SCHEMA = 1

MOST_PULLS = 5
"""Pull requests of one commit of a fork that get a comment: whoever pushes it may open any number of them."""

app = typer.Typer(no_args_is_help=True)
app.command("init", epilog="Example: orch ci init github")(init)
app.command("watched", epilog="Example: orch ci watched infra --by 'infra/**' --by '*'")(watched)
app.command("environment", epilog="Example: orch ci environment production --branch main --reviewed")(
    environment
)

Number = Annotated[
    int | None,
    typer.Option("--pr", metavar="NUMBER", min=1, help="The pull or merge request; default: the pipeline's."),
]
HeadSha = Annotated[
    str | None,
    typer.Option("--head-sha", metavar="SHA", help="The commit that it is about; default: the pipeline's."),
]
BaseSha = Annotated[
    str | None,
    typer.Option("--base-sha", metavar="SHA", help="The commit that it is merged into."),
]
Author = Annotated[
    str | None,
    typer.Option(
        "--author", metavar="LOGIN", help="The login of the token's owner, where the API does not tell it."
    ),
]
FindingsFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--findings",
        metavar="FILE",
        help="JSON of `orch preview --json` or `orch validate --format json`; repeatable.",
    ),
]
Stranger = Annotated[
    bool,
    typer.Option(
        "--untrusted",
        help="The findings are a fork's: their size and shape are checked, and the pull request is found by "
        "--head-sha.",
    ),
]
FolderPath = Annotated[
    str | None, typer.Option("--path", metavar="PATH", help="The file or folder that was previewed.")
]


@app.command("comment", epilog="Example: orch ci comment --body-file comment.md")
def comment(
    *,
    body_file: Annotated[
        str | None,
        typer.Option(
            "--body-file", metavar="FILE", help="What to post, as `orch preview --markdown` writes it."
        ),
    ] = None,
    findings: FindingsFiles = None,
    untrusted: Stranger = False,
    result: Annotated[
        str | None,
        typer.Option(
            "--result",
            metavar="FILE",
            help="Above the plan of --path: what became of its apply, as `orch up --plan --result` writes "
            "it. The pull request is --pr, or that of the commit.",
        ),
    ] = None,
    stale: Annotated[
        str | None,
        typer.Option("--stale", metavar="REASON", help="Strike out the plan that is there, and say why."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="With --stale: of all open pull requests into this branch.")
    ] = False,
    check_name: Annotated[
        str | None,
        typer.Option("--check", metavar="NAME", help="With --stale: this check of the commit fails too."),
    ] = None,
    path: FolderPath = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="NAME", help="For a body without a marker of orch: what it is."),
    ] = None,
    repo: Repo = None,
    number: Number = None,
    head_sha: HeadSha = None,
    base_sha: BaseSha = None,
    author: Author = None,
    forge: OnForge = None,
    as_json: Json = False,
) -> None:
    """Post the comment of a plan to its pull request, or bring the one that is there up to date.

    It is found by its hidden marker and its author. An unchanged one is left alone, a body that is too long
    is shortened, and a plan of a commit that is no longer the newest is not posted.
    """
    given = [
        name
        for name, value in (
            ("--body-file", body_file),
            ("--findings", findings),
            ("--stale", stale),
            ("--result", result),
        )
        if value
    ]
    if len(given) != 1:
        raise UsageError(
            "say what to post" if not given else f"{given[0]} does not go with {given[1]}",
            hint="give --body-file, --findings, --stale or --result, one of them",
        )
    pipeline = pipeline_of(forge).with_options(repo, number, head_sha, base_sha)
    service = pipeline.forge(author)
    if stale is not None:
        _strike(service, pipeline, stale, path, check_name, every=every, as_json=as_json)
        return
    if result is not None:
        _post_result(service, pipeline, result, path or ".", as_json=as_json)
        return
    if findings:
        _post_findings(service, pipeline, findings, path, untrusted=untrusted, as_json=as_json)
        return
    body = _body(body_file or "", key)
    pull = service.pull(pipeline.pull_number())
    _post(service, [pull], body, pipeline, as_json=as_json)


@app.command("check", epilog='Example: orch ci check --name "orch plan infra" --findings review.json')
def check(
    *,
    findings: FindingsFiles = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What the check is called.")] = "orch",
    untrusted: Stranger = False,
    repo: Repo = None,
    head_sha: HeadSha = None,
    author: Author = None,
    forge: OnForge = None,
    as_json: Json = False,
) -> None:
    """Post a check of the commit, with each finding at its line; on GitLab the status of the commit."""
    from orch.ci.findings import annotations_of, read_findings, summary_of
    from orch.ci.forge import Check

    if not findings:
        raise UsageError("say what was found", hint="give --findings FILE")
    pipeline = pipeline_of(forge).with_options(repo, None, head_sha, None)
    if not pipeline.head:
        raise UsageError("which commit?", hint="give --head-sha, or run in a pipeline")
    read = read_findings(findings, untrusted=untrusted)
    at_lines = annotations_of(read)
    service = pipeline.forge(author)
    service.post_check(
        Check(
            name,
            pipeline.head,
            read.conclusion,
            read.title,
            summary_of(read),
            at_lines,
            pipeline.run_url or None,
        )
    )
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "check": name,
                "conclusion": read.conclusion,
                "annotations": len(at_lines),
            }
        )
    else:
        say(f"check {name}: {read.conclusion}, {read.title}; {len(at_lines)} at lines of files")


@app.command(
    "drift-issue", epilog="Example: orch drift infra --json > drift.json; orch ci drift-issue drift.json"
)
def drift_issue(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="JSON of `orch drift --json`.", show_default=False)
    ],
    *,
    path: Annotated[str, typer.Option("--path", metavar="DIR", help="The project; default here.")] = ".",
    label: Annotated[
        str, typer.Option("--label", metavar="NAME", help="By which its issues are found.")
    ] = "orch-drift",
    repo: Repo = None,
    author: Author = None,
    forge: OnForge = None,
    as_json: Json = False,
) -> None:
    """Open, update, close and reopen the issue of each stack, by what has drifted."""
    from orch.ci.drift import read_drift, sync_issues

    project = project_at(path, tells=False)
    stacks = read_drift(files)
    service = pipeline_of(forge).with_options(repo, None, None, None).forge(author)
    done: list[dict[str, object]] = []
    for stack, what, issue in sync_issues(service, project.name, stacks, label):
        done.append({"stack": f"{stack.kind}/{stack.name}", "issue": issue, "done": what})
        if not as_json:
            say(f"{stack.kind} {stack.name}: {'no issue' if issue is None else f'issue {issue}: {what}'}")
    if as_json:
        print_json({"schema": SCHEMA, "issues": done})


@app.command("pull-request", epilog='Example: orch ci pull-request >> "$GITHUB_OUTPUT"')
def pull_request(
    *,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="LOGIN",
            help="Who wants it applied before its merge: refused unless LOGIN may write and it is open, of "
            "this repository and can be merged.",
        ),
    ] = None,
    repo: Repo = None,
    number: Number = None,
    head_sha: HeadSha = None,
    author: Author = None,
    forge: OnForge = None,
    as_json: Json = False,
) -> None:
    """Tell the pull request of --pr or of the commit, one `name=value` a line, and the owner of its leases.

    A commit that came with none is an owner itself.
    """
    from orch.ci.github import GitHub

    pipeline = pipeline_of(forge).with_options(repo, number, head_sha, None)
    service = pipeline.forge(author)
    found: Pull | None = None
    if by is not None:
        if not isinstance(service, GitHub):
            raise UsageError("comments start jobs on GitHub alone", hint="leave out --by")
        found = service.applicable(pipeline.pull_number(), by)
    elif pipeline.number is not None:
        found = service.pull(pipeline.number)
    elif pipeline.head:
        found = next(service.pulls_of(pipeline.head), None)
    else:
        raise UsageError("which commit?", hint="give --pr or --head-sha, or run in a pipeline")
    told: dict[str, object] = {"owner": f"commit {pipeline.head[:12]}"}
    if found is not None:
        told = {
            "owner": f"PR #{found.number}",
            "number": found.number,
            "head": found.head,
            "merge": found.merge,
        }
    if as_json:
        print_json({"schema": SCHEMA, **told})
        return
    for name, value in told.items():
        say(f"{name}={value}")


def _post_findings(
    service: Forge,
    pipeline: Pipeline,
    files: list[str],
    path: str | None,
    *,
    untrusted: bool,
    as_json: bool,
) -> None:
    """The comment that findings give; of strangers, to the pull requests that have their commit."""
    from orch.ci.findings import findings_comment, read_findings

    read: Findings = read_findings(files, untrusted=untrusted)
    body = findings_comment(read, path or ".", fork=untrusted)
    if not untrusted:
        _post(service, [service.pull(pipeline.pull_number())], body, pipeline, as_json=as_json)
        return
    if not pipeline.head:
        raise UsageError("which commit?", hint="give --head-sha: what a fork wrote is never asked for it")
    found = (each for each in service.pulls() if each.head == pipeline.head and each.is_fork)
    pulls = list(islice(found, MOST_PULLS))
    if not pulls:
        tell(f"no open {service.noun} of a fork has the commit {pipeline.head[:12]}: nothing is posted")
    _post(service, pulls, body, pipeline, as_json=as_json)


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


def _strike(
    service: Forge,
    pipeline: Pipeline,
    reason: str,
    path: str | None,
    check_name: str | None,
    *,
    every: bool,
    as_json: bool,
) -> None:
    from orch.ci.comments import strike
    from orch.ci.forge import Check

    wanted = None if path is None else _plan_of(path)[1]
    if every and not pipeline.base_branch:
        raise UsageError("into which branch?", hint="run in a pipeline of that branch")
    pulls = service.pulls(pipeline.base_branch) if every else iter([service.pull(pipeline.pull_number())])
    done: list[int] = []
    for pull in strike(service, pulls, reason, pipeline.base or None, wanted):
        done.append(pull.number)
        if check_name is not None:
            title = "The plan is stale: plan again"
            check = Check(check_name, pull.head, "action_required", title, reason)
            service.post_check(check)
        if not as_json:
            say(f"{service.noun} {pull.number}: the plan is struck out")
    if as_json:
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
