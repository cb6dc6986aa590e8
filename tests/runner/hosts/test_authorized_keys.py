"""Public keys on a node are changed without touching those of others: the scripts, run by a shell of this
machine in a home of their own."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path

import pytest

from orch.runner.hosts import authorized_keys
from orch.runner.hosts.authorized_keys import ALONE, LACKS
from orch.runner.node_api.commands import Command

pytestmark = pytest.mark.quick


def key(name: str, comment: str = "") -> str:
    return f"ssh-ed25519 {base64.b64encode(f'{name} of this test'.encode()).decode()} {comment}".strip()


OLD, NEW = key("old"), key("new", "rotated-2026-01-01")
THEIRS = f'from="10.0.0.0/8",command="echo hello" {key("theirs", "ada@desk")}'


class Node:
    """A machine whose user has a home, with an sshd that tells where keys are."""

    def __init__(self, folder: Path) -> None:
        self.home, programs = folder / "home", folder / "programs"
        (self.home / ".ssh").mkdir(parents=True)
        programs.mkdir()
        self.told = folder / "told"
        self.told.write_text("authorizedkeysfile .ssh/authorized_keys %h/.ssh/%u.keys none\n")
        for name, text in {
            "getent": f"echo root:x:0:0::{self.home}:/bin/sh",
            "sshd": f"cat {self.told}",
            "sudo": 'shift; exec "$@"',
        }.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        self.path = f"{programs}:{os.environ['PATH']}"
        self.file = self.home / ".ssh" / "authorized_keys"

    def run(self, command: Command) -> int:
        words = ["sh", "-c", command.text]
        own = {"PATH": self.path}
        said = subprocess.run(words, env=own, capture_output=True, text=True, timeout=60, check=False)
        assert said.stderr == ""
        return said.returncode

    @property
    def files(self) -> list[str]:
        return sorted(each.name for each in (self.home / ".ssh").iterdir())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_key_comes_beside_another_and_takes_its_place(node: Node) -> None:
    node.file.write_text(f"# by hand: {OLD}\n{THEIRS}\n{OLD}\n\n{key('last')}")  # no newline at its end
    node.file.chmod(0o640)
    before = node.file.stat()
    for _ in range(2):
        assert node.run(authorized_keys.add("root", OLD, NEW)) == 0
        assert node.file.read_text() == f"# by hand: {OLD}\n{THEIRS}\n{OLD}\n{NEW}\n\n{key('last')}\n"
    for _ in range(2):
        assert node.run(authorized_keys.remove("root", OLD, NEW)) == 0
        assert node.file.read_text() == f"# by hand: {OLD}\n{THEIRS}\n{NEW}\n\n{key('last')}\n"
    after = node.file.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert node.files == ["authorized_keys"]


def test_every_file_that_sshd_reads_is_changed_through_its_links(node: Node, tmp_path: Path) -> None:
    real = tmp_path / "real keys"
    real.write_text(f"{OLD}\n")
    node.file.symlink_to(tmp_path / "link")
    (tmp_path / "link").symlink_to(real)
    other = node.home / ".ssh" / "root.keys"
    other.write_text(f"{THEIRS}\n{OLD}\n")
    unread = node.home / ".ssh" / "unread"
    unread.write_text(f"{OLD}\n")
    assert node.run(authorized_keys.add("root", OLD, NEW)) == 0
    assert node.run(authorized_keys.remove("root", OLD, NEW)) == 0
    assert (real.read_text(), other.read_text()) == (f"{NEW}\n", f"{THEIRS}\n{NEW}\n")
    assert node.file.is_symlink()
    assert unread.read_text() == f"{OLD}\n"


def test_a_key_is_not_taken_away_without_the_other_and_one_that_is_nowhere_is_told(node: Node) -> None:
    node.file.write_text(f"{THEIRS}\n{OLD}\n")
    assert node.run(authorized_keys.remove("root", OLD, NEW)) == ALONE
    assert node.file.read_text() == f"{THEIRS}\n{OLD}\n"
    assert node.run(authorized_keys.look("root", OLD)) == 0
    node.file.write_text(f"{THEIRS}\n")
    for command in (
        authorized_keys.look("root", OLD),
        authorized_keys.add("root", OLD, NEW),
        authorized_keys.remove("root", OLD, NEW),
    ):
        assert node.run(command) == LACKS
        assert node.file.read_text() == f"{THEIRS}\n"


def test_a_rest_of_a_killed_change_is_written_over(node: Node) -> None:
    node.file.write_text(f"{OLD}\n")
    rest = node.file.with_name("authorized_keys.orch")
    rest.write_text("half of a li")
    assert node.run(authorized_keys.add("root", OLD, NEW)) == 0
    assert node.file.read_text() == f"{OLD}\n{NEW}\n"
    assert not rest.exists()
