"""The workflows of a project: their files, and what is left to set by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orch.ci.workflows.distribution import REQUIREMENTS
from orch.ci.workflows.facts import PipelineFacts
from orch.ci.workflows.trust import ROLES, aws_reads, aws_trust, gcp_role, issuer
from orch.spec.errors import ExitCode, OrchError
from orch.templates import render


class CannotWrite(OrchError):
    """Workflows cannot be written, or would not work."""

    exit_code = ExitCode.CONFIG


class Changed(OrchError):
    """Files that are there were changed since they were written, or others wrote them."""

    exit_code = ExitCode.CONFLICT


def files_of(facts: PipelineFacts) -> dict[str, str | bytes]:
    """Path from the root of the repository -> what is in it."""
    values = facts.values()
    of = facts.suffix
    files: dict[str, str | bytes] = {}
    if facts.forge == "github":
        names = ["preview", "fork", "apply", "drift", "nightly"]
        names += ["before-merge"] if facts.before_merge else []
        for name in names:
            files[f".github/workflows/orch-{name}{of}.yml"] = render(f"ci/github/{name}.yml.j2", **values)
        files[f".github/actions/orch{of}/action.yml"] = render("ci/github/action.yml.j2", **values)
    else:
        files[gitlab_file(facts)] = render("ci/gitlab/pipeline.yml.j2", **values)
    files[f"{facts.beside}/{REQUIREMENTS}"] = facts.requirements
    files |= facts.files
    if "aws" in facts.clouds:
        for role in ROLES:
            files[f"{facts.beside}/aws-{role}-trust.json"] = aws_trust(facts, role)
        for role in ROLES[:2]:
            files[f"{facts.beside}/aws-{role}-policy.json"] = aws_reads(facts, role)
    if "gcp" in facts.clouds:
        files[f"{facts.beside}/gcp-trust.sh"] = _gcp_script(facts)
    files[f"{facts.beside}/SETUP.md"] = setup(facts)
    return files


def _gcp_script(facts: PipelineFacts) -> str:
    claim = "repository" if facts.forge == "github" else "project_path"
    kind, _, key = facts.secrets_provider.partition("://")
    return render(
        "ci/trust/gcp.sh.j2",
        forge="GitHub" if facts.forge == "github" else "GitLab",
        pool=facts.forge,
        issuer=f"https://{issuer(facts)}",
        condition=f"assertion.{claim} == '{facts.repo}'",
        mapping=f"^;^google.subject=assertion.sub;attribute.orch_role={gcp_role(facts)}",
        roles=ROLES,
        bucket=facts.state.removeprefix("gs://").partition("/")[0] if facts.state.startswith("gs://") else "",
        key=key.partition("?")[0] if kind == "gcpkms" else "",
    )


def gitlab_file(facts: PipelineFacts) -> str:
    """The file that `.gitlab-ci.yml` includes."""
    return f".gitlab/orch{facts.suffix}.gitlab-ci.yml"


def write_files(top: Path, files: Mapping[str, str | bytes], *, force: bool) -> list[str]:
    """Write what differs; the paths of it. One that somebody changed stays, and then nothing is written.

    Raises Changed, CannotWrite.
    """
    ahead = [
        (top / path, path, content.encode() if isinstance(content, str) else content)
        for path, content in files.items()
    ]
    try:
        pending = [
            (file, path, data) for file, path, data in ahead if not file.exists() or file.read_bytes() != data
        ]
        taken = [path for file, path, _ in pending if file.exists() or file.is_symlink()]
        if taken and not force:
            raise Changed(
                "files are there that differ from what would be written",
                where=", ".join(taken),
                hint="look at the differences, then give --force to overwrite them",
            )
        for file, path, data in pending:
            if any(each.is_symlink() for each in (file, *file.parents) if each.is_relative_to(top)):
                raise CannotWrite("it is a link, or lies behind one", where=path, hint="remove the link")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            if path.endswith(".sh"):
                file.chmod(0o755)
    except OSError as error:
        raise CannotWrite(
            "the workflows cannot be written", where=error.filename, detail=error.strerror or str(error)
        ) from error
    return [path for _, path, _ in pending]


def setup(facts: PipelineFacts) -> str:
    """Return the settings that people configure afterwards, as Markdown."""
    github = facts.forge == "github"
    return render(
        "ci/trust/setup.md.j2",
        forge=facts.forge,
        repo=facts.repo,
        issuer=issuer(facts),
        notes=facts.notes,
        variables="Settings, Secrets and variables, Actions" if github else "Settings, CI/CD, Variables",
        hosted=facts.runner.startswith(("ubuntu-", "windows-", "macos-")),
        key="KEY_ARN" if facts.secrets_provider.startswith("awskms://") else "",
        **facts.values(),
    )
