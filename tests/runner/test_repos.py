"""What a job gets of a Git repository: of a working copy as it is now, and of a remote one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orch.runner.errors import BadTask
from orch.runner.launch.compile import compile_run
from orch.runner.launch.files import RepoName
from orch.runner.launch.run_request import RunRequest
from orch.runner.placement.placement import place_task
from orch.runner.upload.repository import repository_of
from orch.runner.upload.snapshot import Snapshots, check_sources, keep_files
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeState

SECRET = "s3cr3t-t0ken"


@pytest.fixture(autouse=True)
def author(monkeypatch: pytest.MonkeyPatch) -> None:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ada@localhost")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def put(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A working copy with two commits, a token in its remote's URL, and changes that are not committed."""
    folder = tmp_path / "work"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    put(folder, "train.py", "one\n")
    put(folder, "gone.py", "x\n")
    put(folder, "src/lib.py", "lib\n")
    put(folder, ".gitignore", "*.ckpt\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    put(folder, "train.py", "two\n")
    git(folder, "commit", "-qam", "second")
    git(folder, "remote", "add", "origin", f"https://ada:{SECRET}@git.invalid/team/Proj.git")
    git(folder, "config", "http.extraHeader", f"Authorization: {SECRET}")
    git(folder, "branch", "other")
    put(folder, "train.py", "three\n")
    put(folder, "new.py", "new\n")
    put(folder, "big.ckpt", "ignored\n")
    (folder / "gone.py").unlink()
    return folder


def given(base: Path, repo: object, target: Path, **more: object) -> tuple[str, list[str]]:
    """Lay out in `target` what a job gets; the REPO_ID, and what is told."""
    task = Task.model_validate({"name": "job", "commands": ["true"], "repos": [repo], **more})
    node = NodeState(index=0, name="n", address="a", user="root", host_key="k", internal_ip="10.0.0.1")
    fleet = FleetState(name="f", stack="f", backend="local", nodes=(node,))
    dot = target.parent / ".orch"
    with repository_of(dot, base, task) as found:
        assert found is not None
        request = RunRequest(
            task=task,
            name="job",
            number=1,
            fleet=fleet,
            seats=place_task(task, fleet),
            image="i",
            base=base,
            repo=RepoName(found.id, found.label),
        )
        compiled = compile_run(request)
        plan, told = keep_files(dot, compiled.plan, found)
    tree = Snapshots(dot).tree(plan.files[0].tree)
    assert tree is not None
    reader = Snapshots(dot).reader(tree.entries)
    for entry in tree.entries:
        path = target / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.kind == "folder":
            path.mkdir(exist_ok=True)
        elif entry.kind == "link":
            path.symlink_to(entry.content)
        else:
            path.write_bytes(b"".join(reader.read(entry)))
            path.chmod(entry.mode)
    assert SECRET not in plan.model_dump_json()
    return compiled.environments[0]["DSTACK_REPO_ID"], list(told)


def test_a_working_copy_goes_as_it_is_with_a_git_that_works(work: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    repo_id, told = given(work, ".", there)
    files = {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}
    assert {name for name in files if not name.startswith(".git/")} == {
        *("train.py", "new.py", "src/lib.py", ".gitignore"),
    }
    assert git(there, "log", "--format=%s").split() == ["second", "first"]
    assert git(there, "status", "--porcelain").splitlines() == ["D gone.py", " M train.py", "?? new.py"]
    assert "+three" in git(there, "diff", "train.py")
    assert git(there, "branch", "--format=%(refname:short)") == "main"
    assert git(there, "remote", "get-url", "origin") == "https://git.invalid/team/Proj.git"
    found = [path for path in there.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert found == []
    assert not (there / ".git" / "hooks").exists()
    assert repo_id.startswith("proj-")
    assert told[0].startswith("note: packed ")


def test_history_that_was_rewritten_does_not_stay(work: Path, tmp_path: Path) -> None:
    put(work, "key.txt", SECRET)
    git(work, "add", "-A")
    git(work, "commit", "-qm", "third")
    given(work, ".", tmp_path / "before")
    leaked = git(work, "rev-parse", "HEAD:key.txt")
    git(work, "reset", "-q", "--hard", "HEAD~1")
    given(work, ".", tmp_path / "after")
    assert git(tmp_path / "before", "cat-file", "-t", leaked) == "blob"
    assert subprocess.run(["git", "cat-file", "-e", leaked], cwd=tmp_path / "after", check=False).returncode


def test_a_branch_of_an_earlier_run_does_not_go(work: Path, tmp_path: Path) -> None:
    git(work, "checkout", "-q", "-f", "other")
    put(work, "secret.py", SECRET)
    git(work, "add", "-A")
    git(work, "commit", "-qm", "on other")
    theirs = git(work, "rev-parse", "HEAD")
    given(work, ".", tmp_path / "before")
    git(work, "checkout", "-q", "main")
    given(work, ".", tmp_path / "after")
    assert git(tmp_path / "after", "branch", "--format=%(refname:short)") == "main"
    assert subprocess.run(["git", "cat-file", "-e", theirs], cwd=tmp_path / "after", check=False).returncode
    assert git(tmp_path / "after", "fsck", "--full") == ""


def test_a_new_commit_adds_to_what_is_there(work: Path, tmp_path: Path) -> None:
    given(work, ".", tmp_path / "one")
    old = {path.name for path in (tmp_path / "one" / ".git" / "objects").rglob("*") if path.is_file()}
    git(work, "add", "-A")
    git(work, "commit", "-qm", "third")
    given(work, ".", tmp_path / "two")
    assert old < {path.name for path in (tmp_path / "two" / ".git" / "objects").rglob("*") if path.is_file()}
    assert git(tmp_path / "two", "status", "--porcelain") == ""


def test_all_branches_go_where_they_are_asked_for(work: Path, tmp_path: Path) -> None:
    given(work, ".", tmp_path / "there", single_branch=False)
    assert git(tmp_path / "there", "branch", "--format=%(refname:short)").split() == ["main", "other"]


def test_a_branch_or_a_commit_of_a_url_is_checked_out(work: Path, tmp_path: Path) -> None:
    first = git(work, "rev-parse", "HEAD~1")
    git(work, "checkout", "-q", "-f", "other")
    put(work, "train.py", "other\n")
    git(work, "commit", "-qam", "on other")
    base = tmp_path / "base"
    base.mkdir()
    for name, repo, text in (
        ("default", {"local_path": str(work), "branch": "main"}, "two\n"),
        ("branch", {"local_path": str(work), "branch": "other"}, "other\n"),
        ("commit", {"local_path": str(work), "hash": first}, "one\n"),
    ):
        given(base, repo, tmp_path / name)
        assert (tmp_path / name / "train.py").read_text() == text
        assert git(tmp_path / name, "status", "--porcelain") == ""
    with pytest.raises(BadTask, match="has no branch or commit nowhere"):
        given(base, {"local_path": str(work), "branch": "nowhere"}, tmp_path / "none")


def test_submodules_and_links_that_lead_out_are_told(work: Path, tmp_path: Path) -> None:
    nested = work / "nested"
    nested.mkdir()
    git(nested, "init", "-q")
    put(nested, "x", "")
    git(nested, "add", "-A")
    git(nested, "commit", "-qm", "x")
    (work / "out").symlink_to("/etc/hostname")
    there = tmp_path / "there"
    _, told = given(work, ".", there)
    assert any("nested is a repository of its own and stays here" in line for line in told)
    assert any("out leads out of the repository" in line for line in told)
    assert os.readlink(there / "out") == "/etc/hostname"
    git(work, "add", "nested", "-f")
    _, told = given(work, ".", tmp_path / "again")
    assert any("nested is a repository of its own and stays here" in line for line in told)


def test_what_is_no_repository_and_who_is_refused_is_told_before_anything_is_done(tmp_path: Path) -> None:
    def refused(repo: str) -> str:
        task = Task.model_validate({"name": "job", "commands": ["true"], "repos": [repo]})
        with pytest.raises(BadTask) as caught:
            check_sources(tmp_path, task)
        return caught.value.text()

    assert "is not in a Git repository" in refused(".")
    assert "is no folder" in refused("missing")
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    with pytest.raises(BadTask, match="has no commit yet"):
        given(tmp_path, "empty", tmp_path / "there")
    # A port that nobody listens at.
    text = refused(f"https://ada:{SECRET}@127.0.0.1:9/team/private.git")
    assert "https://127.0.0.1:9/team/private.git cannot be reached" in text
    assert SECRET not in text


@pytest.mark.parametrize(
    ("said", "summary", "detail"),
    [
        ("git@forge.test: Permission denied (publickey).", "refuses you", "Permission denied (publickey)."),
        ("Host key verification failed.", "cannot be reached", "Host key verification failed."),
    ],
)
def test_a_remote_over_ssh_that_takes_no_key_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, summary: str, detail: str
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh))
    task = Task.model_validate(
        {"name": "job", "commands": ["true"], "repos": ["git@forge.test:team/private.git"]}
    )
    with pytest.raises(BadTask) as caught:
        check_sources(tmp_path, task)
    assert summary in caught.value.summary
    assert detail in (caught.value.detail or "")
    assert "git@forge.test:team/private.git" in caught.value.text()
