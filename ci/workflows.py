"""The workflows of a project: their files, and what is left to set by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from orch.ci.distribution import REQUIREMENTS
from orch.ci.trust import ROLES, aws_reads, aws_trust, gcp_role, issuer
from orch.spec.errors import ExitCode, OrchError
from orch.templates import render

Forge = Literal["github", "gitlab"]

KEPT_DAYS = 7
"""How long a forge keeps a saved plan and a review: a plan is valid for a day, unless orch.yml says more."""

OF_PREVIEWS = "ORCH_PREVIEW_"
"""How variables begin that jobs of pull requests get in place of those that write or decrypt."""


class CannotWrite(OrchError):
    """Workflows cannot be written, or would not work."""

    exit_code = ExitCode.CONFIG


class Changed(OrchError):
    """Files that are there were changed since they were written, or others wrote them."""

    exit_code = ExitCode.CONFLICT


@dataclass(frozen=True)
class PipelineFacts:
    """What workflows must know of a project. Paths are from the root of the repository.

    `folders` have fleets or volumes; `watched` are patterns of files whose change plans again; `clouds` are
    those that jobs log in to, for fleets, state or secrets. `repo` is OWNER/NAME or GROUP/PROJECT. `secrets`
    are names of variables; `previews`: those of jobs of pull requests, each with where its value is. The wheel
    and other `files` lie beside what is written, `then` is what pip installs after the requirements. `notes`
    are for people.
    """

    forge: Forge
    project: str
    repo: str
    host: str
    branch: str
    environment: str
    runner: str
    root: str
    state: str
    secrets_provider: str
    folders: tuple[str, ...]
    watched: tuple[str, ...]
    clouds: tuple[str, ...]
    secrets: tuple[str, ...]
    previews: Mapping[str, str]
    requirements: str
    files: Mapping[str, bytes] = field(repr=False)
    then: str = ""
    before_merge: bool = False
    nightly_gc: bool = False
    notes: tuple[str, ...] = ()

    @property
    def nightly(self) -> str:
        return f"{self.environment}-nightly"

    @property
    def planning(self) -> str:
        return f"{self.environment}-plan"

    @property
    def suffix(self) -> str:
        """Of names of files: several projects of one repository have workflows of their own."""
        return suffix(self.root)

    @property
    def beside(self) -> str:
        """The folder with what is no workflow."""
        return beside(self.forge, self.root)

    @property
    def globs(self) -> tuple[str, ...]:
        """`watched` as `git diff` and GitLab's `changes` read it."""
        if self.forge == "github":
            return tuple(f":(glob){each}" for each in self.watched)
        return tuple(f"{each}/*" if each.endswith("**") else each for each in self.watched)

    def values(self) -> dict[str, object]:
        return {
            "runner": self.runner,
            "branch": self.branch,
            "environment": self.environment,
            "planning": self.planning,
            "nightly": self.nightly,
            "root": self.root,
            "suffix": self.suffix,
            "title": "" if self.root == "." else f" ({self.root})",
            "folders": self.folders,
            "clouds": self.clouds,
            "secrets": self.secrets,
            "previews": tuple(self.previews.items()),
            "watched": self.watched,
            "globs": self.globs,
            "beside": self.beside,
            "then": self.then,
            "before_merge": self.before_merge,
            "nightly_gc": self.nightly_gc,
            "days": str(KEPT_DAYS),
        }


def suffix(root: str) -> str:
    return "" if root == "." else "-" + root.replace("/", "-")


def beside(forge: Forge, root: str) -> str:
    return f".{forge}/orch{suffix(root)}"


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
    """What people set afterwards, as Markdown."""
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
