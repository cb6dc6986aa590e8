"""`orch ci`: workflows for this project, and what they post: comments, checks, issues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli.ci.comment import comment
from orch.cli.ci.options import (
    SCHEMA,
    Author,
    FindingsFiles,
    HeadSha,
    Number,
    OnForge,
    ProjectPath,
    Repo,
    Stranger,
    pipeline_of,
)
from orch.cli.ci.workflows import environment, init, watched
from orch.cli.context import project_at
from orch.cli.errors import UsageError, print_json, say
from orch.cli.options import Json

if TYPE_CHECKING:
    from orch.ci.forge import Pull

app = typer.Typer(no_args_is_help=True)
app.command("init", epilog="Example: orch ci init github")(init)
app.command("watched", epilog="Example: orch ci watched infra --by 'infra/**' --by '*'")(watched)
app.command("environment", epilog="Example: orch ci environment production --branch main --reviewed")(
    environment
)
app.command("comment", epilog="Example: orch ci comment --body-file comment.md")(comment)


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
    path: ProjectPath = ".",
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
