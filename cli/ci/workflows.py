"""`orch ci init` and what its workflows call before anything is planned or applied."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli.ci.options import OnForge, ProjectPath, Repo, kind_of, pipeline_of
from orch.cli.context import project_at
from orch.cli.errors import UsageError, say

if TYPE_CHECKING:
    from orch.ci.pipeline import Kind
    from orch.ci.workflows.facts import PipelineFacts
    from orch.ci.workflows.gathering import Survey
    from orch.stacks.project.project import Project


def init(  # noqa: PLR0913  # options of a verb
    forge: Annotated[str, typer.Argument(metavar="github|gitlab", help="What the repository is on.")],
    *,
    path: ProjectPath = ".",
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that were changed.")] = False,
    repo: Annotated[
        str | None,
        typer.Option("--repo", metavar="OWNER/NAME", help="The repository; default: the remote `origin`."),
    ] = None,
    branch: Annotated[
        str | None,
        typer.Option("--branch", metavar="NAME", help="What is applied; default: the default branch."),
    ] = None,
    environment: Annotated[
        str, typer.Option("--environment", metavar="NAME", help="The environment whose reviewers approve.")
    ] = "production",
    runner: Annotated[
        str, typer.Option("--runner", metavar="LABEL", help="What jobs with access run on.")
    ] = "ubuntu-latest",
    apply_before_merge: Annotated[
        bool,
        typer.Option(
            "--apply-before-merge",
            help="On GitHub: the comment `/orch apply` applies a pull request, whose leases last until its "
            "merge.",
        ),
    ] = False,
    nightly_gc: Annotated[
        bool,
        typer.Option("--nightly-gc", help="Also run `orch gc --yes` each night, which nobody approves."),
    ] = False,
    package: Annotated[
        str | None,
        typer.Option(
            "--package",
            metavar="URL",
            help="What jobs install in place of this orch: `git+https://…@COMMIT`, or a wheel with "
            "`#sha256=DIGEST`.",
        ),
    ] = None,
    folder: Annotated[
        list[str] | None,
        typer.Option(
            "--folder", metavar="DIR", help="A folder with fleets; default: all that have some. Repeatable."
        ),
    ] = None,
) -> None:
    """Write workflows for this project: plans in pull requests, approved applies, drift, a nightly pass.

    They install this orch from a wheel that is written beside them, and its dependencies by their hashes.
    Files that were changed are not overwritten without --force. What is left to set by hand, secrets,
    variables, roles and environments, is printed, and written beside.
    """
    from orch.ci.workflows import gathering

    kind = kind_of(forge)
    if apply_before_merge and kind != "github":
        raise UsageError(
            "on GitLab no comment starts a job",
            hint="leave out --apply-before-merge; a manual job with `orch up --plan plan.json --owner NAME "
            "--lease 24h` does the same",
        )
    if not Path(path).is_dir():
        raise UsageError(f"there is no folder {path}", hint="give --path the folder of the project")
    project = project_at(path)
    gathering.require_shared_state(project)
    choices = gathering.Choices(
        kind, repo, branch, environment, runner, package, apply_before_merge, nightly_gc
    )
    survey = _surveyed(project, [Path(each) for each in folder or ()])
    facts = gathering.gathered(survey, choices)
    _write(facts, survey.top, kind, force=force)


def _surveyed(project: Project, folders: list[Path]) -> Survey:
    """Return what workflows depend on in some folders of a project, by default in all that have stacks."""
    from orch.ci.workflows import gathering

    top = gathering.repository_of(project.root)
    folders = folders or list(gathering.folders_with_stacks(project.root))
    for each in folders:
        gathering.relative(each, top)
    return gathering.Survey(
        project, top, folders, _backends(project, folders), _files_read(project, top, folders)
    )


def _write(facts: PipelineFacts, top: Path, kind: Kind, *, force: bool) -> None:
    """Write the workflows into a repository, and say what is left to set by hand."""
    from orch.ci.workflows import generate

    files = generate.files_of(facts)
    include = top / ".gitlab-ci.yml"
    if kind == "gitlab" and not include.exists():
        files[include.name] = f"include:\n  - local: {generate.gitlab_file(facts)}\n"
    written = generate.write_files(top, files, force=force)
    for each in files:
        say(f"{'written' if each in written else 'there already'}: {each}")
    say(generate.setup(facts).rstrip())
    if kind == "gitlab" and include.name not in files:
        say(f"In .gitlab-ci.yml, below `include:`, there must be: `- local: {generate.gitlab_file(facts)}`")


def watched(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A file or folder that is planned.")],
    *,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", metavar="PATTERN", help="What workflows watch; repeatable."),
    ] = None,
) -> None:
    """Fail unless workflows watch each file that a plan of PATH reads: scripts, policy packs, kubeconfigs."""
    from orch.ci.workflows.gathering import repository_of
    from orch.ci.workflows.watched import require_watched

    project = project_at(path)
    found = _files_read(project, repository_of(project.root), [Path(path)])
    require_watched(found, by or ())
    say(f"{path}: all files that its plans read are watched")


def environment(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The environment of this job.")],
    *,
    branch: Annotated[str, typer.Option("--branch", metavar="NAME", help="The one that may deploy to it.")],
    reviewed: Annotated[
        bool, typer.Option("--reviewed", help="Somebody has to approve a deployment.")
    ] = False,
    repo: Repo = None,
    forge: OnForge = None,
) -> None:
    """Fail (4) unless an environment is protected: only one branch deploys to it, after an approval.

    With ORCH_PROTECTED=branch in the environment no approval is asked for.
    """
    from orch.ci.github import GitHub
    from orch.ci.protection import BY_BRANCH, of_gitlab, require_protected

    pipeline = pipeline_of(forge).with_options(repo, None, None, None)
    if pipeline.kind == "github":
        service = pipeline.forge()
        assert isinstance(service, GitHub)
        found = service.environment(name, branch)
    else:
        found = of_gitlab(name, os.environ.get("ORCH_ID_TOKEN", ""))
    wanted = reviewed and os.environ.get("ORCH_PROTECTED") != BY_BRANCH
    require_protected(found, branch, reviewed=wanted, where=pipeline.repo)
    say(f"environment {name}: protected")


def _files_read(project: Project, top: Path, folders: list[Path]) -> list[str]:
    """The files of the repository that plans of folders read."""
    from orch.ci.workflows.programs import kubernetes_files
    from orch.ci.workflows.watched import files_read
    from orch.cli.diagnostics import read
    from orch.spec.loader.load import load_paths

    settings = [each.type for each in project.backends]
    documents = [each for folder in folders for each in read(str(folder), backends=settings).documents]
    if (own := project.root / "orch.yml").is_file():
        documents += load_paths([own]).documents
    programs = (*(project.root / each for each in project.policy_packs), *kubernetes_files(project))
    return list(files_read(top.resolve(), project.root, documents, programs))


def _backends(project: Project, folders: list[Path]) -> list[str]:
    """Backends of all fleets, in the order of their names."""
    from orch.cli.diagnostics import load
    from orch.spec.models import Fleet, Volume
    from orch.spec.models.backends import effective

    settings = tuple(each.type for each in project.backends)
    found: set[str] = set()
    for folder in folders:
        for document in load(str(folder), backends=settings):
            model = document.model
            if isinstance(model, Fleet):
                found |= (
                    {"ssh"}
                    if model.ssh_config is not None
                    else set(effective(model.written_backends, settings))
                )
            elif isinstance(model, Volume) and model.backend:
                found.add(str(model.backend))
    return sorted(found)
