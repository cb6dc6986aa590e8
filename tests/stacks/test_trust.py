"""Whose orch.yml is taken: it is looked for upwards, and says where state and keys go.

Files are given away with chown, so these tests are root's, as all that make nodes are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from kit.ledgers.oldrows import FLEET
from kit.support import Folder

from orch.cli import errors
from orch.cli.verbs import app
from orch.runner.ledger.run_folder import new_key_pair
from orch.spec.errors import OrchError
from orch.stacks.errors import ProjectError
from orch.stacks.project.project import find
from orch.stacks.project.trust import VARIABLE, open_to_all, trusted_owners

MALLORY = 54_321
KEY = new_key_pair().public


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A folder like /scratch or /tmp: all may write, and nobody removes what others wrote."""
    (tmp_path / "scratch" / "alice").mkdir(parents=True)
    (tmp_path / "scratch").chmod(0o1777)
    return tmp_path / "scratch"


def planted(path: Path, text: str | None = "project: mine\nstate: file:///tmp/mine\n") -> Path:
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


VERBS = [
    ("ssh", "n0"),
    ("exec", "lab", "--", "true"),
    ("check", "lab"),
    ("cordon", "n0"),
    ("fleet",),
    ("drift", "lab"),
    ("ps",),
    ("logs", "x"),
    ("attach", "x"),
    ("stop", "x"),
]


def state_of(project: Path, state: Path, mark: Path) -> Path:
    """A state in which a fleet is up whose node is reached by a command, recorded as the engine does."""
    node = FLEET.nodes[0].reached(proxy_command=f"touch {mark}", host_key=KEY)
    fleet = FLEET.model_copy(update={"nodes": (node,)}).model_dump(mode="json")
    resources = [
        {"urn": "urn::lab", "type": "pulumi:pulumi:Stack", "outputs": {"fleet": fleet}},
        {"urn": "urn::n0", "type": "t", "outputs": {}},
    ]
    folder = state / ".pulumi" / "stacks" / "tests"
    folder.mkdir(parents=True)
    (folder / "lab.json").write_text(json.dumps({"checkpoint": {"latest": {"resources": resources}}}))
    project.mkdir(exist_ok=True)
    (project / "orch.yml").write_text(f"project: tests\nstate: file://{state}\n")
    return folder


Orch = Callable[..., tuple[int, str]]


@pytest.fixture
def orch(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Orch:
    """The command line in this process: its exit code, and what it wrote to stderr."""

    def call(folder: Path, verb: Sequence[str]) -> tuple[int, str]:
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            errors.run(lambda: app([*verb], standalone_mode=False))
        assert isinstance(ended.value.code, int)
        return ended.value.code, capfd.readouterr().err

    return call


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_no_verb_takes_a_state_of_somebody_else_s(tmp_path: Path, verb: tuple[str, ...], orch: Orch) -> None:
    mark, state = tmp_path / "ran", tmp_path / "elsewhere"
    state_of(tmp_path / "mine", state, mark)
    os.chown(state, MALLORY, MALLORY)
    code, told = orch(tmp_path / "mine", verb)
    assert code == 3, told
    assert "ORCH305" in told
    assert "belongs to somebody else" in told
    assert f"export {VARIABLE}={state}" in told
    assert not mark.exists()


def test_a_state_that_was_planted_where_everybody_may_write_is_refused(scratch: Path) -> None:
    mark, mine = scratch.parent / "ran", scratch / "alice"
    folder = state_of(mine, scratch, mark)
    assert find(mine).local_state == scratch
    for planted_one in (scratch / ".pulumi", folder / "lab.json"):
        os.chown(planted_one, MALLORY, MALLORY)
        folder.chmod(0o1777)
        with pytest.raises(ProjectError, match="somebody else"):
            find(mine)
        os.chown(planted_one, 0, 0)
    find(mine)


def test_a_state_that_its_user_shares_with_colleagues_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "team"
    folder = state_of(tmp_path / "mine", state, tmp_path / "ran")
    # The folder is root's, and a colleague wrote into it, who was let.
    for path in (state / ".pulumi", folder / "lab.json"):
        os.chown(path, MALLORY, MALLORY)
    assert find(tmp_path / "mine").local_state == state
    # It is the colleague's, and this user says so.
    os.chown(state, MALLORY, MALLORY)
    monkeypatch.setenv(VARIABLE, str(state))
    assert find(tmp_path / "mine").local_state == state


def test_a_ledger_of_somebody_else_s_is_refused(tmp_path: Path, scratch: Path) -> None:
    theirs = planted(tmp_path / "theirs", None)
    (tmp_path / "orch.yml").write_text(f"project: tests\nledger: sqlite:///{theirs}/ledger.db\n")
    with pytest.raises(ProjectError, match="somebody else"):
        find(tmp_path)
    (tmp_path / "orch.yml").write_text(f"project: tests\nledger: sqlite:///{scratch}/ledger.db\n")
    find(tmp_path)
    planted(scratch / "ledger.db", "")
    with pytest.raises(ProjectError, match="somebody else"):
        find(tmp_path)


@pytest.mark.parametrize("verb", [*VERBS, ("engine", "env")], ids=" ".join)
def test_every_verb_warns_of_what_everybody_may_change(
    tmp_path: Path, verb: tuple[str, ...], orch: Orch
) -> None:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    (tmp_path / ".orch").mkdir()
    (tmp_path / ".orch").chmod(0o777)
    assert f"chmod o-w {tmp_path}/.orch" in orch(tmp_path, verb)[1]
    (tmp_path / ".orch").chmod(0o700)
    (tmp_path / "orch.yml").write_text(f"project: tests\nstate: file://{tmp_path}/shared\n")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    assert f"chmod o-w {tmp_path}/shared" in orch(tmp_path, verb)[1]


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
