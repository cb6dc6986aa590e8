"""The history of a repository on its way to nodes: a bare repository that is fetched into.

It holds the commits of the branch and none that history has no more, has no settings of the caller's, and its
remote has no credentials.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from orch.runner.errors import BadTask
from orch.runner.private import private_folder
from orch.runner.upload.git import ask_remote, git, redacted, run_git
from orch.runner.upload.selection import SelectedEntry

_GIT_FOLDERS = ("objects", "refs")
_GIT_FILES = ("HEAD", "packed-refs", "shallow")


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
