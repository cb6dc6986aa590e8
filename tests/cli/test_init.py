"""`orch init --state`: a folder of a team's project; what it says of what is up there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kit.support import Folder

from orch.runner.processes import here


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def recorded(folder: Folder, project: str, stack: str) -> None:
    """As if a fleet of a project were up in the state."""
    stacks = folder.path / "state" / ".pulumi" / "stacks" / project
    stacks.mkdir(parents=True)
    (stacks / f"{stack}.json").write_text('{"version": 3, "checkpoint": {}}')


def init(folder: Folder, name: str, *words: str):
    return folder.orch("init", name, "--state", f"file://{folder.path}/state", *words)


def test_a_team_begins_and_a_second_clone_joins(folder: Folder) -> None:
    said = init(folder, "first", "--project", "demo", "--ledger", "postgresql://db/orch")
    assert said.code == 0, said.err
    assert (folder.path / "first" / "orch.yml").read_text() == (
        f"project: demo\nstate: file://{folder.path}/state\nledger: postgresql://db/orch\n"
    )
    assert f"project demo at file://{folder.path}/state: nothing is up" in said.out
    recorded(folder, "demo", "lab")
    (folder.path / "second").mkdir()
    shutil.copy(folder.path / "first" / "orch.yml", folder.path / "second")
    said = init(folder, "second")
    assert said.code == 0, said.err
    assert "kept    orch.yml" in said.out
    assert f"project demo at file://{folder.path}/state: lab" in said.out
    passphrase = folder.path / "first" / ".orch" / "passphrase"
    assert f"note: the state has a passphrase: {here()} made it, in {passphrase}" in said.err


def test_a_mistyped_name_is_told(folder: Folder) -> None:
    recorded(folder, "demo", "lab")
    said = init(folder, "clone", "--project", "dmeo")
    assert said.code == 0, said.err
    assert "note: that state has other projects: demo; is one of them meant?" in said.err


def test_what_init_refuses(folder: Folder) -> None:
    said = init(folder, "clone")
    assert (said.code, "a state that others use needs the project's name" in said.err) == (2, True)
    assert "add `--project clone`" in said.err
    assert not (folder.path / "clone" / "orch.yml").exists()
    said = init(folder, "clone", "--project", "No Name")
    assert (said.code, "ORCH115" in said.err) == (3, True)
    assert not (folder.path / "clone" / "orch.yml").exists()
    assert init(folder, "clone", "--project", "demo").code == 0
    said = folder.orch("init", "clone", "--state", "file:///elsewhere")
    assert (said.code, "has another `state`" in said.err) == (2, True)
    assert "orch state move --to file:///elsewhere" in said.err


def test_what_is_up_here_is_not_lost_sight_of(folder: Folder) -> None:
    stacks = folder.path / "old" / ".orch" / "state" / ".pulumi" / "stacks" / "old"
    stacks.mkdir(parents=True)
    (stacks / "lab.json").write_text("{}")
    said = init(folder, "old", "--project", "old")
    assert (said.code, "would be lost sight of: lab" in said.err) == (2, True)
    assert "orch state move --to" in said.err
    assert not (folder.path / "old" / "orch.yml").exists()


def test_a_state_is_not_moved_to_where_it_is_by_way_of_a_link(folder: Folder) -> None:
    folder.write("orch.yml", "project: lab\n")
    (folder.path / "link").symlink_to(folder.path)
    for place in (f"file://{folder.path}/.orch/state/", "file://link/.orch/state"):
        said = folder.orch("state", "move", "--to", place, "--yes")
        assert said.code == 3
        assert "error ORCH301: the state is there already" in said.err
    assert (folder.path / "orch.yml").read_text() == "project: lab\n"


def test_a_place_that_cannot_be_written_is_named(folder: Folder) -> None:
    folder.write("orch.yml", "project: lab\n")
    said = folder.orch("state", "move", "--to", "file:///proc/sys/orch", "--yes")
    assert said.code == 3
    assert "/proc/sys/orch: error ORCH302: cannot write the project's state folder" in said.err
    assert (folder.path / "orch.yml").read_text() == "project: lab\n"
