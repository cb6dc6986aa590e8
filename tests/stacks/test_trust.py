"""Whose orch.yml is taken: it is looked for upwards, and says where state and keys go.

Files are given away with chown, so these tests are root's, as all that make nodes are.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import Folder

from orch.spec.errors import OrchError
from orch.stacks.errors import ProjectError
from orch.stacks.project import find
from orch.stacks.trust import VARIABLE, open_to_all, trusted_owners

MALLORY = 54_321


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A folder like /scratch or /tmp: all may write, and nobody removes what others wrote."""
    (tmp_path / "scratch" / "alice").mkdir(parents=True)
    (tmp_path / "scratch").chmod(0o1777)
    return tmp_path / "scratch"


def planted(path: Path, text: str | None = "state: file:///tmp/mine\n") -> Path:
    """What somebody else put there; a folder without a text."""
    if text is None:
        path.mkdir()
    else:
        path.write_text(text)
    os.chown(path, MALLORY, MALLORY)
    return path


def test_an_orch_yml_of_somebody_else_above_is_refused(scratch: Path) -> None:
    planted(scratch / "orch.yml")
    with pytest.raises(ProjectError) as caught:
        find(scratch / "alice" / "fleet.yml")
    told = caught.value.text()
    assert str(scratch / "orch.yml") in told
    assert f"export {VARIABLE}={scratch}" in told
    assert "orch init" in told
    assert caught.value.exit_code == 3


def test_the_command_line_makes_nothing_in_it(scratch: Path) -> None:
    planted(scratch / "orch.yml", f"project: theirs\nledger: sqlite:///{scratch}/theirs.db\n")
    alice = Folder(scratch / "alice")
    alice.write("t.yml", "type: task\ncommands: ['true']\n")
    for words in (("fleet",), ("run", "t.yml"), ("engine", "env"), ("down", "x")):
        said = alice.orch(*words)
        assert said.code == 3, (words, said.err)
        assert "belongs to somebody else" in said.err
    assert sorted(path.name for path in scratch.iterdir()) == ["alice", "orch.yml"]
    said = alice.orch("doctor")
    assert "belongs to somebody else" in said.out
    # The way out that the message names.
    assert alice.orch("init").code == 0
    assert find(alice.path).root == alice.path


def test_a_folder_that_its_user_names_is_taken(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(scratch / "orch.yml")
    monkeypatch.setenv(VARIABLE, f"/elsewhere{os.pathsep}{scratch}")
    assert find(scratch / "alice").root == scratch
    monkeypatch.setenv(VARIABLE, str(scratch / "alice"))
    with pytest.raises(ProjectError):
        find(scratch / "alice")


@pytest.mark.parametrize("mark", [".git", ".orch"])
def test_so_are_a_checkout_and_a_state_of_somebody_else(scratch: Path, mark: str) -> None:
    if mark == ".orch":
        (scratch / "orch.yml").write_text("project: tests\n")
    planted(scratch / mark, None)
    with pytest.raises(ProjectError, match="somebody else"):
        find(scratch / "alice")


def test_a_link_that_somebody_else_laid_to_one_s_own_file_is_refused(scratch: Path, tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    (scratch / "orch.yml").symlink_to(tmp_path / "orch.yml")
    os.chown(scratch / "orch.yml", MALLORY, MALLORY, follow_symlinks=False)
    with pytest.raises(ProjectError, match="somebody else"):
        find(scratch / "alice")


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    theirs = planted(tmp_path / "theirs", None)
    (theirs / "orch.yml").write_text("project: tests\n")
    with pytest.raises(OrchError, match="somebody else"):
        find(theirs)


def test_who_called_sudo_is_root_s_equal_and_nobody_else_s() -> None:
    assert trusted_owners(0, {"SUDO_UID": "1000"}) == {0, 1000}
    assert trusted_owners(0, {"SUDO_UID": "x"}) == {0}
    assert trusted_owners(1000, {"SUDO_UID": "1001"}) == {0, 1000}


def test_a_project_that_everybody_may_change_is_warned_of(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "orch.yml").write_text("project: tests\n")
    assert open_to_all(tmp_path) is None
    tmp_path.chmod(0o777)
    assert f"chmod o-w {tmp_path}" in folder.orch("ps").err
    tmp_path.chmod(0o1777)
    assert open_to_all(tmp_path) is None
    (tmp_path / "orch.yml").chmod(0o666)
    assert open_to_all(tmp_path) == tmp_path / "orch.yml"
