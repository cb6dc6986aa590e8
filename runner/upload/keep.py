"""From the paths and repositories of a task to trees that are kept: what `submit` does before a run is
written down.

A Git repository comes as files of the working copy, and a `.git` with which Git works there. All that is
asked of a remote is asked from this machine, by the caller's own git: its SSH agent, its keys and its
credential helpers. No key reaches a node. The history goes through a bare repository under
`.orch/uploads/repos`, which is fetched into: it holds the commits of the branch and none that history has
no more, has no settings of the caller's, and its remote has no credentials.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orch.runner.errors import BadTask, about_property
from orch.runner.launch.run_plan import RunPlan
from orch.runner.private import private_folder
from orch.runner.upload.git import ask_remote, git, redacted, run_git
from orch.runner.upload.history import BareRepository, branch_ref, git_entry
from orch.runner.upload.ignore_files import is_ignored, read_rules
from orch.runner.upload.selection import (
    Selection,
    Source,
    is_private,
    messages,
    resolve_source,
    select_entries,
    some,
)
from orch.runner.upload.snapshot import Snapshots

if TYPE_CHECKING:
    from orch.spec.models import Task
    from orch.spec.models.mounts import Repo


def check_sources(base: Path, task: Task) -> None:
    """Raises BadTask that names every path of `files` missing on this machine, or for a repository that is
    not there, or refuses the caller."""
    paths: list[Path] = []
    for index, item in enumerate(task.files):
        with about_property(f"files.{index}"):
            paths.append(resolve_source(base, item.local_path).path)
    _check(paths)
    for repo in task.repos:
        with about_property("repos.0"):
            check_repository(base, repo)


@contextmanager
def repository_of(dot: Path, base: Path, task: Task) -> Iterator[Repository | None]:
    """The task's repository, fetched; it does not change before the end of the block. Raises BadTask."""
    if not task.repos:
        yield None
        return
    (repo,) = task.repos
    single = task.single_branch
    if single is None:
        single = repo.single_branch or "single_branch" not in repo.model_fields_set
    with ExitStack() as stack:
        with about_property("repos.0"):
            found = stack.enter_context(repository(dot, base, repo, single_branch=single))
        yield found


def _check(paths: Sequence[Path]) -> None:
    """Raises BadTask for paths of `files`, in their order, that are not there."""
    missing = [index for index, path in enumerate(paths) if not os.path.lexists(path)]
    if missing:
        names = ", ".join(str(paths[index]) for index in missing)
        raise BadTask(
            f"{names} {'is' if len(missing) == 1 else 'are'} not here",
            hint="`files` are looked for beside the file that names them",
            path=f"files.{missing[0]}",
        )


def keep_files(dot: Path, plan: RunPlan, repo: Repository | None = None) -> tuple[RunPlan, tuple[str, ...]]:
    """Keep what a run takes along: its plan with the trees, and `LEVEL: TEXT` lines for the user.

    Raises BadTask for what cannot be sent, LedgerUnusable when `.orch` cannot be written.
    """
    if not plan.files:
        return plan, ()
    _check([Path(item.source) for item in plan.files if item.if_exists is None])
    snapshots = Snapshots(dot)
    selections: list[Selection] = []
    key_files: list[str] = []
    files = []
    repositories = sum(1 for item in plan.files if item.if_exists is not None)
    for index, item in enumerate(plan.files):
        # The repository comes first, then `files` in their order.
        path = "repos.0" if item.if_exists is not None else f"files.{index - repositories}"
        with about_property(path):
            if item.if_exists is not None and repo is not None:
                selection = repo.selection
            else:
                selection = select_entries(Source(Path(item.source), item.pattern))
            kept = snapshots.keep(selection.entries)
        selections.append(selection)
        key_files += kept.key_files
        folder = any(stat.S_ISDIR(entry.status.st_mode) for entry in selection.entries)
        files.append(item.model_copy(update={"tree": kept.tree.id, "folder": folder}))
    notes = repo.notes if repo else ()
    return plan.model_copy(update={"files": tuple(files)}), (*messages(selections, key_files), *notes)


_GITLINK = "160000"


@dataclass(frozen=True)
class Repository:
    """What is sent of a repository. `label`: its folder or URL, without credentials. `notes`: LEVEL: TEXT."""

    id: str
    label: str
    selection: Selection
    notes: tuple[str, ...] = ()


@dataclass
class _Work:
    """The working copy: where it lies, paths of Git's, and what of it does not go."""

    folder: Path
    tracked: set[str] = field(default_factory=set[str])
    others: set[str] = field(default_factory=set[str])
    submodules: list[str] = field(default_factory=list[str])


@contextmanager
def repository(dot: Path, base: Path, repo: Repo, *, single_branch: bool) -> Iterator[Repository]:
    """Fetch what a run takes of a repository. What it names does not change before the end of the block.

    Raises BadTask: no repository, no commit, no such branch or commit, a remote that refuses the caller.
    """
    if shutil.which("git") is None:
        raise BadTask("there is no git on this machine", hint="install git: `repos` needs it")
    local = None if repo.url is not None else _top(base, repo.local_path or ".")
    label = redacted(repo.url) if repo.url is not None else str(local)
    folder = dot / "uploads" / "repos" / hashlib.sha256((repo.url or label).encode()).hexdigest()[:16]
    private_folder(folder.parent)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if local is not None and repo.branch is None and repo.hash is None:
            yield _working_copy(folder, local, label, base, single_branch=single_branch)
        else:
            yield _clone(folder, repo.url or str(local), label, repo, single_branch=single_branch)


def check_repository(base: Path, repo: Repo) -> None:
    """Raises BadTask where a repository is not there, or a remote refuses the caller."""
    if repo.url is None:
        _top(base, repo.local_path or ".")
    else:
        ask_remote(["ls-remote", "--quiet", "--", repo.url, "HEAD"], redacted(repo.url))


def _top(base: Path, path_text: str) -> Path:
    path = Path(os.path.realpath(base / Path(path_text).expanduser()))
    if not path.is_dir():
        raise BadTask(f"{path} is no folder", hint="`repos` are looked for beside the file that names them")
    done = run_git(["rev-parse", "--show-toplevel"], path)
    if done.returncode:
        why = done.stderr.strip().splitlines()
        raise BadTask(
            f"{path} is not in a Git repository",
            detail=why[0] if why and "not a git repository" not in why[0] else None,
            hint="`git init` it and commit, or copy a plain folder with `files`",
        )
    return Path(done.stdout.rstrip("\n"))


def _working_copy(folder: Path, top: Path, label: str, base: Path, *, single_branch: bool) -> Repository:
    head = run_git(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"], top)
    if head.returncode:
        raise BadTask(f"the repository {top} has no commit yet", hint="commit something first")
    commit = head.stdout.strip()
    branch = run_git(["symbolic-ref", "--quiet", "--short", "HEAD"], top).stdout.strip() or None
    remote = run_git(["remote", "get-url", "origin"], top).stdout.strip() or None
    bare = BareRepository(folder, top)
    bare.begin()
    refs = [f"+HEAD:{branch_ref(branch)}"]
    if not single_branch:
        # One reference cannot be fetched by two names.
        refs = [each for each in refs if branch is None]
        refs += ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
    bare.fetch(str(top), refs, label, single_branch=single_branch)
    bare.point(commit, branch, remote, single_branch=single_branch)
    work = _Work(top)
    for word in _lines(git(["ls-files", "-z", "--stage"], top)):
        facts, _, path = word.partition("\t")
        work.submodules.append(path) if facts.startswith(_GITLINK) else work.tracked.add(path)
    for path in _lines(git(["ls-files", "-z", "--others", "--exclude-standard"], top)):
        work.submodules.append(path.rstrip("/")) if path.endswith("/") else work.others.add(path)
    selection = _selection(work, bare)
    notes = list(_notes(work, selection, bare))
    if Path(os.path.realpath(base)) != top and not top.is_relative_to(os.path.realpath(base)):
        notes.append(f"note: the repository is {top}, all of it goes")
    return Repository(_identifier(remote or label), label, selection, tuple(notes))


def _clone(folder: Path, url: str, label: str, repo: Repo, *, single_branch: bool) -> Repository:
    branch = repo.branch or (None if repo.hash else _default_branch(url, label))
    bare = BareRepository(folder, None)
    bare.begin()
    if branch is not None:
        refs = [f"+refs/heads/{branch}:refs/remotes/origin/{branch}"]
    else:
        refs = ["+refs/heads/*:refs/remotes/origin/*"]
    if not single_branch:
        refs = ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"]
    bare.fetch(url, refs, label, single_branch=single_branch)
    if repo.hash is not None and not bare.has(repo.hash):
        bare.fetch(url, [repo.hash], label, single_branch=single_branch)
    commit = bare.commit(repo.hash or f"refs/remotes/origin/{branch}", label)
    bare.point(commit, branch, url, single_branch=single_branch)
    work = _Work(bare.check_out(commit))
    for word in _lines(git(["--git-dir", str(folder), "ls-tree", "-r", "-z", commit], None)):
        facts, _, path = word.partition("\t")
        work.submodules.append(path) if facts.startswith(_GITLINK) else work.tracked.add(path)
    selection = _selection(work, bare)
    return Repository(_identifier(url), label, selection, tuple(_notes(work, selection, bare)))


def _default_branch(url: str, label: str) -> str:
    told = ask_remote(["ls-remote", "--symref", "--", url, "HEAD"], label)
    found = re.search(r"^ref: refs/heads/(\S+)\tHEAD$", told, re.MULTILINE)
    if found is None:
        raise BadTask(f"the repository {label} names no branch of its own", hint="write `branch`")
    return found.group(1)


def _selection(work: _Work, bare: BareRepository) -> Selection:
    """The files of a working copy as they are now, with their folders, and `.git`."""
    selection = Selection(list(bare.entries()))
    folders: dict[str, bool] = {"": False}

    def folder(path: str) -> bool:
        """Whether a folder, or one above it, is closed to others."""
        if path not in folders:
            found = os.lstat(work.folder / path)
            folders[path] = folder(os.path.dirname(path)) or is_private(found.st_mode)
            selection.entries.append(git_entry(work.folder / path, path, private=folders[path]))
        return folders[path]

    for path in sorted(work.tracked | _not_ignored(work)):
        source = work.folder / path
        try:
            mode = os.lstat(source).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed and not committed
        if ".orch" in Path(path).parts:
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            selection.special_files.append(path)
            continue
        closed = folder(os.path.dirname(path)) or (is_private(mode) and not stat.S_ISLNK(mode))
        if stat.S_ISLNK(mode) and not Path(os.path.realpath(source)).is_relative_to(work.folder):
            selection.links_outside.append(path)
        selection.entries.append(git_entry(source, path, private=closed))
    return selection


def _not_ignored(work: _Work) -> set[str]:
    """Untracked files without those that `.dstackignore` or `.orchignore` name."""
    rules = {folder: read_rules(work.folder / folder) for folder in _folders(work.others)}
    kept: set[str] = set()
    for path in work.others:
        above = [rules[folder] for folder in _parents(path)]
        whole = str(work.folder / path)
        if not is_ignored(whole, is_folder=False, rules=[each for each in above if each is not None]):
            kept.add(path)
    return kept


def _folders(paths: Iterable[str]) -> set[str]:
    return {folder for path in paths for folder in _parents(path)}


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[:length]) for length in range(len(parts) + 1)]


def _notes(work: _Work, selection: Selection, bare: BareRepository) -> Iterator[str]:
    if work.submodules:
        yield (
            f"warning: {some(sorted(work.submodules))} is a repository of its own and stays here; "
            "what the job needs of it, copy with `files`"
        )
    if selection.links_outside:
        yield (
            f"warning: {some(selection.links_outside)} leads out of the repository: "
            "it goes as the link it is, without what it leads to"
        )
        selection.links_outside.clear()
    if bare.shallow:
        yield "note: this repository is shallow, and so is the job's"


def _identifier(text: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", redacted(text).removesuffix(".git").rpartition("/")[2].lower()).strip(
        "-"
    )
    return f"{name or 'repo'}-{hashlib.sha256(redacted(text).encode()).hexdigest()[:12]}"


def _lines(text: str) -> list[str]:
    return [word for word in text.split("\0") if word]
