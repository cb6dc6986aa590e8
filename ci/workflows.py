"""The workflows of a project: what they must know of it, their files, and what is left to set by hand."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from orch import __version__
from orch.spec.errors import ExitCode, OrchError
from orch.stacks.project import Project
from orch.templates import render

Forge = Literal["github", "gitlab"]

GITHUB_ISSUER = "token.actions.githubusercontent.com"
AUDIENCE = "sts.amazonaws.com"

_PLAIN = re.compile(r"(?!-)[A-Za-z0-9_./@+-]+")
_SKIPPED = {"node_modules", "__pycache__", "venv"}
_MOST_FOLDERS = 2_000
_READ_BYTES = 1 << 20
_STACK = re.compile(rb"^(?:- )?type\s*:\s*[\"']?(?:fleet|volume)\b", re.MULTILINE)


class CannotWrite(OrchError):
    """Workflows cannot be written, or would not work."""

    exit_code = ExitCode.CONFIG


class Changed(OrchError):
    """Files that are there were changed since they were written, or others wrote them."""

    exit_code = ExitCode.CONFLICT


@dataclass(frozen=True)
class PipelineFacts:
    """What workflows must know of a project. Paths are from the root of the repository.

    `folders` have fleets or volumes; `clouds` are those that jobs log in to, for fleets, state or secrets.
    `repo` is OWNER/NAME or GROUP/PROJECT; `notes` are for people.
    """

    forge: Forge
    project: str
    repo: str
    host: str
    branch: str
    environment: str
    runner: str
    root: str
    folders: tuple[str, ...]
    clouds: tuple[str, ...]
    secrets: tuple[str, ...]
    package: str
    before_merge: bool = False
    notes: tuple[str, ...] = ()

    @property
    def nightly(self) -> str:
        return f"{self.environment}-nightly"

    @property
    def suffix(self) -> str:
        """Of names of files: several projects of one repository have workflows of their own."""
        return "" if self.root == "." else "-" + self.root.replace("/", "-")

    @property
    def paths(self) -> tuple[str, ...]:
        """Patterns of files whose change plans again."""
        ends = ("*.yml", "*.yaml", "orch.lock")
        folders = [*dict.fromkeys((*self.folders, self.root))]
        return tuple(end if folder == "." else f"{folder}/{end}" for folder in folders for end in ends)

    def values(self) -> dict[str, object]:
        return {
            "runner": self.runner,
            "branch": self.branch,
            "environment": self.environment,
            "nightly": self.nightly,
            "root": self.root,
            "suffix": self.suffix,
            "title": "" if self.root == "." else f" ({self.root})",
            "folders": self.folders,
            "clouds": self.clouds,
            "secrets": self.secrets,
            "paths": self.paths,
            "package": self.package,
            "before_merge": self.before_merge,
        }

    def plan_subjects(self) -> tuple[str, ...]:
        """Subjects of jobs that only read."""
        if self.forge == "github":
            return (f"repo:{self.repo}:pull_request", f"repo:{self.repo}:ref:refs/heads/{self.branch}")
        return (f"project_path:{self.repo}:ref_type:branch:ref:*",)

    def apply_subjects(self) -> tuple[str, ...]:
        """Subjects of jobs that write."""
        if self.forge == "github":
            return tuple(f"repo:{self.repo}:environment:{each}" for each in (self.environment, self.nightly))
        return (f"project_path:{self.repo}:ref_type:branch:ref:{self.branch}",)

    @property
    def issuer(self) -> str:
        return GITHUB_ISSUER if self.forge == "github" else self.host


def gathered(
    project: Project,
    backends: Sequence[str],
    folders: Sequence[Path],
    top: Path,
    forge: Forge,
    *,
    repo: str | None,
    branch: str | None,
    environment: str,
    runner: str,
    before_merge: bool,
) -> PipelineFacts:
    """The facts of a project, `top` being the root of its repository. Raises CannotWrite."""
    origin_host, origin = _origin(top)
    repo = repo or origin
    if not repo:
        raise CannotWrite(
            "which repository is it?",
            where=str(top),
            detail="identities of jobs have its name in them, and there is no remote `origin`",
            hint="give --repo OWNER/NAME, or add the remote first",
        )
    names = [relative(each, top) for each in folders]
    branch = branch or _default_branch(top)
    shape = r"[\w.-]+/[\w.-]+" if forge == "github" else r"[\w.-]+(?:/[\w.-]+)+"
    if not re.fullmatch(shape, repo):
        raise CannotWrite("this is no repository", where=repo, hint="write OWNER/NAME")
    for each in (*names, branch, environment, runner):
        if not _PLAIN.fullmatch(each):
            raise CannotWrite(
                f"`{each}` cannot stand in a workflow",
                detail="letters, digits and _ . / @ + - can; a - cannot be the first",
                hint="rename the folder, or choose another name",
            )
    if not names:
        raise CannotWrite(
            "there is no fleet in this project",
            where=str(project.root),
            hint="write a fleet first: a file that begins with `type: fleet`",
        )
    clouds = _clouds(project, backends)
    extras = ",".join(sorted({"ci", *clouds, *(["postgres"] if project.local_ledger is None else [])}))
    return PipelineFacts(
        forge,
        project.name,
        repo,
        origin_host or f"{forge}.com",
        branch,
        environment,
        runner,
        relative(project.root, top),
        tuple(names),
        clouds,
        tuple(_secrets(project)),
        f"orch-fleet[{extras}]=={__version__}",
        before_merge,
        tuple(_notes(project, backends, runner)),
    )


def folders_with_stacks(root: Path) -> tuple[Path, ...]:
    """Folders of a project with a file that has a fleet or a volume; other projects within are left out.

    Raises CannotWrite for a project of too many folders.
    """
    found: list[Path] = []
    waiting = [root]
    for number, folder in enumerate(_walk(waiting)):
        if number > _MOST_FOLDERS:
            raise CannotWrite(
                f"the project has more than {_MOST_FOLDERS} folders",
                where=str(root),
                hint="name those with fleets: --folder",
            )
        if any(_has_stack(each) for each in sorted(folder.glob("*.y*ml"))):
            found.append(folder)
    return tuple(sorted(found))


def files_of(facts: PipelineFacts) -> dict[str, str]:
    """Path from the root of the repository -> text."""
    values = facts.values()
    of = facts.suffix
    if facts.forge == "github":
        names = ["preview", "fork", "apply", "drift", "nightly"]
        names += ["before-merge"] if facts.before_merge else []
        files = {
            f".github/workflows/orch-{name}{of}.yml": render(f"ci/github/{name}.yml.j2", **values)
            for name in names
        }
        files[f".github/actions/orch{of}/action.yml"] = render("ci/github/action.yml.j2", **values)
        beside = f".github/orch{of}"
    else:
        files = {gitlab_file(facts): render("ci/gitlab/pipeline.yml.j2", **values)}
        beside = f".gitlab/orch{of}"
    if "aws" in facts.clouds:
        files[f"{beside}/aws-plan-trust.json"] = aws_trust(facts, facts.plan_subjects())
        files[f"{beside}/aws-apply-trust.json"] = aws_trust(facts, facts.apply_subjects())
    if "gcp" in facts.clouds:
        claim = "repository" if facts.forge == "github" else "project_path"
        files[f"{beside}/gcp-trust.sh"] = render(
            "ci/trust/gcp.sh.j2",
            forge="GitHub" if facts.forge == "github" else "GitLab",
            pool=facts.forge,
            issuer=f"https://{facts.issuer}",
            condition=f"assertion.{claim} == '{facts.repo}'",
            plan_subjects=facts.plan_subjects(),
            apply_subjects=facts.apply_subjects(),
        )
    files[f"{beside}/SETUP.md"] = setup(facts)
    return files


def gitlab_file(facts: PipelineFacts) -> str:
    """The file that `.gitlab-ci.yml` includes."""
    return f".gitlab/orch{facts.suffix}.gitlab-ci.yml"


def aws_trust(facts: PipelineFacts, subjects: Sequence[str]) -> str:
    """The trust policy of a role: tokens for AWS, and of these subjects alone.

    Source: docs.github.com, "Configuring OpenID Connect in Amazon Web Services"; docs.gitlab.com, the same.
    """
    exact = [each for each in subjects if "*" not in each]
    patterns = [each for each in subjects if "*" in each]
    condition: dict[str, dict[str, object]] = {"StringEquals": {f"{facts.issuer}:aud": AUDIENCE}}
    if exact:
        condition["StringEquals"][f"{facts.issuer}:sub"] = exact
    if patterns:
        condition["StringLike"] = {f"{facts.issuer}:sub": patterns}
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Federated": f"arn:aws:iam::ACCOUNT_ID:oidc-provider/{facts.issuer}"},
                "Action": "sts:AssumeRoleWithWebIdentity",
                "Condition": condition,
            }
        ],
    }
    return json.dumps(policy, indent=2) + "\n"


def write_files(top: Path, files: Mapping[str, str], *, force: bool) -> list[str]:
    """Write what differs; the paths of it. One that somebody changed stays, and then nothing is written.

    Raises Changed, CannotWrite.
    """
    ahead = [(top / path, path, text) for path, text in files.items()]
    try:
        pending = [
            (file, path, text)
            for file, path, text in ahead
            if not file.exists() or file.read_text("utf-8", errors="replace") != text
        ]
        taken = [path for file, path, _ in pending if file.exists() or file.is_symlink()]
        if taken and not force:
            raise Changed(
                "files are there that differ from what would be written",
                where=", ".join(taken),
                hint="look at the differences, then give --force to overwrite them",
            )
        for file, path, text in pending:
            if any(each.is_symlink() for each in (file, *file.parents) if each.is_relative_to(top)):
                raise CannotWrite("it is a link, or lies behind one", where=path, hint="remove the link")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
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
        issuer=facts.issuer,
        notes=facts.notes,
        variables="Settings, Secrets and variables, Actions" if github else "Settings, CI/CD, Variables",
        **facts.values(),
    )


def _secrets(project: Project) -> Iterator[str]:
    """Variables with secrets that the engine needs."""
    if project.secrets_provider is None or project.secrets_provider == "passphrase":
        yield "PULUMI_CONFIG_PASSPHRASE"
    if urlsplit(project.state_url).scheme in ("http", "https"):
        yield "PULUMI_ACCESS_TOKEN"
    if urlsplit(project.state_url).scheme == "azblob":
        yield "AZURE_STORAGE_ACCOUNT"
        yield "AZURE_STORAGE_KEY"
    if project.local_ledger is None:
        yield "PGPASSWORD"


def _clouds(project: Project, backends: Sequence[str]) -> tuple[str, ...]:
    found = {each for each in backends if each in ("aws", "gcp")}
    for url in (project.state_url, project.secrets_provider or ""):
        scheme = url.partition("://")[0]
        found |= {"aws"} if scheme in ("s3", "awskms") else {"gcp"} if scheme in ("gs", "gcpkms") else set()
    return tuple(sorted(found))


def _notes(project: Project, backends: Sequence[str], runner: str) -> Iterator[str]:
    if project.local_state is not None:
        yield (
            f"The state lies in {project.local_state}: every job must run on a machine that has this folder "
            f"(`--runner`, now `{runner}`)."
        )
    if project.local_ledger is not None:
        yield (
            "The ledger of runs lies on one machine, so plans tell what runs by the nodes' word alone, and "
            "`orch reconcile` goes on with no run: set `ledger: postgresql://…` in orch.yml."
        )
    if local := sorted({"local", "ssh"} & set(backends)):
        yield (
            f"Fleets of {' and '.join(local)} need a runner that reaches their nodes: a self-hosted one "
            f"(`--runner`, now `{runner}`)."
        )


def require_shared_state(project: Project) -> None:
    """Raises CannotWrite for a state that no job would see: each would plan to make everything."""
    if project.local_state is not None and project.local_state.is_relative_to(project.root):
        raise CannotWrite(
            "the state of this project is on this machine alone",
            where=str(project.root / "orch.yml"),
            detail="a job would find no state, plan to make everything, and make it a second time",
            hint="give it a place that jobs reach: `state: s3://…` or `gs://…`, with `secrets_provider:`, in "
            "orch.yml (docs/how-to/teams.md)",
        )


def repository_of(path: Path) -> Path:
    """The root of the Git checkout that a path is in. Raises CannotWrite."""
    top = _git(path, "rev-parse", "--show-toplevel")
    if top is None:
        raise CannotWrite(
            "this is no Git repository", where=str(path), hint="run `git init` there, and commit the project"
        )
    return Path(top)


def _walk(waiting: list[Path]) -> Iterator[Path]:
    while waiting:
        folder = waiting.pop(0)
        yield folder
        for each in sorted(folder.iterdir()):
            is_other = each.name.startswith(".") or each.name in _SKIPPED or each.is_symlink()
            if each.is_dir() and not is_other and not (each / "orch.yml").exists():
                waiting.append(each)


def _has_stack(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return file.name != "orch.yml" and _STACK.search(opened.read(_READ_BYTES)) is not None
    except OSError:
        return False


def relative(path: Path, top: Path) -> str:
    """A path from the root of the repository. Raises CannotWrite for one outside."""
    try:
        return path.resolve().relative_to(top.resolve()).as_posix()
    except ValueError:
        raise CannotWrite("it is outside the repository", where=str(path), detail=f"it is {top}") from None


def _origin(top: Path) -> tuple[str, str]:
    """Host and path of the remote `origin`; empty where there is none."""
    url = _git(top, "remote", "get-url", "origin") or ""
    match = re.fullmatch(r"(?:[a-z+]+://)?(?:[^@/]+@)?([\w.-]+)(?::\d+)?[:/](.+?)(?:\.git)?/?", url.strip())
    return (match[1], match[2].strip("/")) if match and "/" in match[2] else ("", "")


def _default_branch(top: Path) -> str:
    remote = _git(top, "symbolic-ref", "--short", "refs/remotes/origin/HEAD")
    if remote:
        return remote.removeprefix("origin/")
    return _git(top, "symbolic-ref", "--short", "HEAD") or "main"


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder if folder.is_dir() else folder.parent), *words],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
