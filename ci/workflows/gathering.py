"""What the workflows of a project must know of it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from orch.ci.workflows.distribution import Package, named_package, own_package
from orch.ci.workflows.facts import OF_PREVIEWS, Forge, PipelineFacts, beside, suffix
from orch.ci.workflows.generate import CannotWrite
from orch.ci.workflows.watched import patterns
from orch.spec.models.backends import MODELS
from orch.stacks.project.project import Project

_PLAIN = re.compile(r"(?!-)[A-Za-z0-9_./@+-]+")
_SKIPPED = {"node_modules", "__pycache__", "venv"}
_MOST_FOLDERS = 2_000
_READ_BYTES = 1 << 20
_STACK = re.compile(rb"^(?:- )?type\s*:\s*[\"']?(?:fleet|volume)\b", re.MULTILINE)


@dataclass(frozen=True)
class Choices:
    """Choices of the user. `repo`, `branch`: None for those of the remote `origin`; `package`: the URL of
    orch, None for the running one."""

    forge: Forge
    repo: str | None
    branch: str | None
    environment: str
    runner: str
    package: str | None = None
    before_merge: bool = False
    nightly_gc: bool = False


@dataclass(frozen=True)
class Survey:
    """Survey of a project: its folders with stacks, the backends in use, the files that plans read (from the
    root of the repository, `top`)."""

    project: Project
    top: Path
    folders: Sequence[Path]
    backends: Sequence[str]
    read: Sequence[str]


def gathered(survey: Survey, choices: Choices) -> PipelineFacts:
    """The facts of a project. Raises CannotWrite, NoDistribution."""
    project, top, forge = survey.project, survey.top, choices.forge
    origin_host, origin = _origin(top)
    repo = choices.repo or origin
    branch = choices.branch or _default_branch(top)
    root = relative(project.root, top)
    names = [relative(each, top) for each in survey.folders]
    _require_writable(repo, forge, (*names, branch, choices.environment, choices.runner, *survey.read), top)
    if not names:
        raise CannotWrite(
            "there is no fleet in this project",
            where=str(project.root),
            hint="write a fleet first: a file that begins with `type: fleet`",
        )
    clouds = _clouds(project, survey.backends)
    secrets = tuple(_secrets(project))
    package = _package(project, survey.backends, choices, beside(forge, root))
    own = [f"{beside(forge, root)}/**"]
    own += [f".github/actions/orch{suffix(root)}/**"] if forge == "github" else []
    return PipelineFacts(
        forge=forge,
        project=project.name,
        repo=repo,
        host=origin_host or f"{forge}.com",
        branch=branch,
        environment=choices.environment,
        runner=choices.runner,
        root=root,
        state=project.state_url,
        secrets_provider=project.secrets_provider or "",
        folders=tuple(names),
        watched=(*patterns(root, names, survey.read), *own),
        clouds=clouds,
        secrets=secrets,
        previews=_of_previews(project, secrets),
        requirements=package.requirements,
        files=package.files,
        then=package.then,
        before_merge=choices.before_merge,
        nightly_gc=choices.nightly_gc,
        notes=tuple(_notes(project, survey.backends, choices.runner)),
    )


def _require_writable(repo: str, forge: Forge, words: Sequence[str], top: Path) -> None:
    """Raises CannotWrite for what cannot stand in a workflow."""
    if not repo:
        raise CannotWrite(
            "which repository is it?",
            where=str(top),
            detail="identities of jobs have its name in them, and there is no remote `origin`",
            hint="give --repo OWNER/NAME, or add the remote first",
        )
    shape = r"[\w.-]+/[\w.-]+" if forge == "github" else r"[\w.-]+(?:/[\w.-]+)+"
    if not re.fullmatch(shape, repo):
        raise CannotWrite("this is no repository", where=repo, hint="write OWNER/NAME")
    for each in words:
        if not _PLAIN.fullmatch(each):
            raise CannotWrite(
                f"`{each}` cannot stand in a workflow",
                detail="letters, digits and _ . / @ + - can; a - cannot be the first",
                hint="rename the file or folder, or choose another name",
            )


def _package(project: Project, backends: Sequence[str], choices: Choices, folder: str) -> Package:
    """Return the package that jobs install, with the extras that the project needs."""
    used = {*backends, *_clouds(project, backends)} - {"local"}
    extras = {"ci", *(name for name in used & set(MODELS) if MODELS[name].provisioned)}
    extras |= {"postgres"} if project.local_ledger is None else set()
    if choices.package is not None:
        return named_package(choices.package, sorted(extras))
    return own_package(folder, sorted(extras))


def _of_previews(project: Project, secrets: Sequence[str]) -> Mapping[str, str]:
    """Variables of jobs of pull requests: what reads alone, and no key.

    Such a job runs what anybody who may push has written, so it has secrets of its own.
    """
    found: dict[str, str] = {}
    for each in secrets:
        if each == "PULUMI_CONFIG_PASSPHRASE":
            found[each] = ""
        elif each == "AZURE_STORAGE_KEY":
            found["AZURE_STORAGE_SAS_TOKEN"] = f"{OF_PREVIEWS}AZURE_STORAGE_SAS_TOKEN"
        elif each == "AZURE_STORAGE_ACCOUNT":
            found[each] = each
        elif each != "PGPASSWORD" or not urlsplit(project.ledger_url).username:
            found[each] = f"{OF_PREVIEWS}{each}"
    return found


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
        if not urlsplit(project.ledger_url).username:
            yield "PGUSER"
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
    elif urlsplit(project.ledger_url).username:
        yield (
            "Plans of pull requests cannot read the ledger, so they do not tell which runs they would stop: "
            "leave the user out of `ledger:` in orch.yml, and give them one that only reads."
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
