"""A task's repository: files of the working copy, and a `.git` with which Git works there.

All that is asked of a remote is asked from this machine, by the caller's own git: its SSH agent, its keys and
its credential helpers. No key reaches a node. The history goes through a bare repository under
`.orch/uploads/repos`, which is fetched into: it holds the commits of the branch and none that history has no
more, has no settings of the caller's, and its remote has no credentials.
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
from orch.runner.launch.files import RepoName
from orch.runner.private import private_folder
from orch.runner.upload.git import ask_remote, git, redacted, run_git
from orch.runner.upload.ignore_files import is_ignored, read_rules
from orch.runner.upload.selection import SelectedEntry, Selection, is_private, some

if TYPE_CHECKING:
    from orch.spec.models import Task
    from orch.spec.models.mounts import Repo

_GIT_FOLDERS = ("objects", "refs")
_GIT_FILES = ("HEAD", "packed-refs", "shallow")
_GITLINK = "160000"


@dataclass(frozen=True)
class Repository(RepoName):
    """The entries that are sent of a repository. `notes`: LEVEL: TEXT."""

    selection: Selection
    notes: tuple[str, ...] = ()


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


def branch_ref(branch: str | None) -> str:
    return f"refs/heads/{branch}" if branch else "refs/orch/head"


class BareRepository:
    """The bare repository that history goes through."""

    def __init__(self, folder: Path, source: Path | None) -> None:
        self.folder = folder
        self._source = source
        self._old = ""

    def begin(self) -> None:
        """Make sure that it is there."""
        if self.folder.exists():
            self._old = run_git(
                [*self._here, "rev-parse", "--verify", "--quiet", "HEAD^{commit}"], None
            ).stdout.strip()
            if self._old:
                return
            shutil.rmtree(self.folder)
        shutil.rmtree(self._tree, ignore_errors=True)
        private_folder(self.folder)
        kind = "sha1"
        if self._source is not None:
            kind = run_git(["rev-parse", "--show-object-format"], self._source).stdout.strip() or kind
        git(["init", "--quiet", "--bare", "--template=", f"--object-format={kind}", str(self.folder)], None)

    def fetch(self, source: str, refs: Sequence[str], label: str, *, single_branch: bool) -> None:
        # A shallow working copy has a shallow history, which is taken as it is.
        words = ["fetch", "--quiet", "--no-tags", "--update-shallow", "--no-write-fetch-head", "--prune"]
        words = [word for word in words if not (word == "--prune" and single_branch)]
        ask_remote([*self._here, *words, "--", source, *refs], label)

    def has(self, commit: str) -> bool:
        return not run_git([*self._here, "cat-file", "-e", f"{commit}^{{commit}}"], None).returncode

    def commit(self, name: str, label: str) -> str:
        done = run_git([*self._here, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"], None)
        if done.returncode:
            raise BadTask(
                f"the repository {label} has no commit {name.removeprefix('refs/remotes/origin/')}",
                hint="is it pushed, and is `branch` the one that holds it?",
            )
        return done.stdout.strip()

    def point(self, commit: str, branch: str | None, remote: str | None, *, single_branch: bool) -> None:
        """Set HEAD, the settings and an index of `commit`: what `git clone` would have made, and no more."""
        if branch:
            git([*self._here, "update-ref", branch_ref(branch), commit], None)
            git([*self._here, "symbolic-ref", "HEAD", branch_ref(branch)], None)
        else:
            git([*self._here, "update-ref", "--no-deref", "HEAD", commit], None)
        if single_branch:
            self._forget_others(commit, branch)
        kind = git([*self._here, "rev-parse", "--show-object-format"], None).strip()
        settings = [
            "[core]",
            f"\trepositoryformatversion = {int(kind != 'sha1')}",
            "\tfilemode = true",
            "\tbare = false",
        ]
        if kind != "sha1":
            settings += ["[extensions]", f"\tobjectformat = {kind}"]
        if remote is not None:
            quoted = redacted(remote).replace("\\", "\\\\").replace('"', '\\"')
            settings += [
                '[remote "origin"]',
                f'\turl = "{quoted}"',
                "\tfetch = +refs/heads/*:refs/remotes/origin/*",
            ]
        (self.folder / "orch-config").write_text("\n".join([*settings, ""]))
        (self.folder / "orch-index").unlink(missing_ok=True)
        git([*self._here, "read-tree", commit], None, GIT_INDEX_FILE=str(self.folder / "orch-index"))

    def _forget_others(self, commit: str, branch: str | None) -> None:
        """Remove other branches of earlier runs, and commits that history no longer has."""
        kept = {branch_ref(branch), f"refs/remotes/origin/{branch}"}
        for name in git([*self._here, "for-each-ref", "--format=%(refname)"], None).splitlines():
            if name not in kept:
                git([*self._here, "update-ref", "-d", name], None)
        ancestor = ["merge-base", "--is-ancestor", self._old, commit]
        if self._old and run_git([*self._here, *ancestor], None).returncode:
            git([*self._here, "repack", "-q", "-a", "-d"], None)
            git([*self._here, "prune", "--expire=now"], None)

    def check_out(self, commit: str) -> Path:
        """A folder with the files of `commit`, of which only those that differ are written."""
        private_folder(self._tree)
        words = [*self._here, "--work-tree", str(self._tree), "-c", "core.bare=false"]
        git([*words, "read-tree", "--reset", "-u", commit], None, GIT_INDEX_FILE=f"{self._tree}.index")
        return self._tree

    def entries(self) -> Iterator[SelectedEntry]:
        """What makes a `.git`: objects, references, HEAD, and settings and index of our own."""
        yield git_entry(self.folder, ".git")
        yield git_entry(self.folder / "orch-config", ".git/config")
        yield git_entry(self.folder / "orch-index", ".git/index")
        for name in _GIT_FILES:
            if (self.folder / name).exists():
                yield git_entry(self.folder / name, f".git/{name}")
        for name in _GIT_FOLDERS:
            for folder, _, files in os.walk(self.folder / name):
                place = os.path.relpath(folder, self.folder)
                yield git_entry(Path(folder), f".git/{place}")
                for file in files:
                    if not file.endswith((".lock", ".keep")) and not file.startswith("tmp_"):
                        yield git_entry(Path(folder, file), f".git/{place}/{file}")

    @property
    def shallow(self) -> bool:
        return (self.folder / "shallow").exists()

    @property
    def _here(self) -> list[str]:
        return ["--git-dir", str(self.folder)]

    @property
    def _tree(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.tree")


def git_entry(source: Path, path: str, *, private: bool = False) -> SelectedEntry:
    return SelectedEntry(str(source), path, os.lstat(source), private, named=path.startswith(".git/"))
