"""The state of a real fleet moves to another place, its passphrase and its keys are rotated: also by killed
calls."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.nodes.labmachine import docker
from kit.support import Folder, at_work, fleet_yaml, kill, until

from orch.runner.ledger.ledger import open_ledger
from orch.stacks.project.passphrase import new_file
from orch.stacks.project.project import find
from orch.stacks.secrets.values import ProjectSecrets

pytestmark = pytest.mark.usefixtures("passphrase")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, passphrase: None) -> Iterator[Folder]:
    """A fleet of one node and a secret, in a state that is files beside the project."""
    del passphrase
    path = tmp_path_factory.mktemp("moves") / "clone"
    path.mkdir()
    folder = Folder(path)
    folder.write("orch.yml", "# ours\nproject: moves\nstate: file://../state\n")
    folder.write("fleet.yml", fleet_yaml("moved", 1))
    said = folder.orch("up", "fleet.yml", "--yes")
    assert said.code == 0, said.err
    assert folder.orch("secret", "set", "token", "geheim").code == 0
    yield folder
    assert folder.orch("down", "moved", "--yes").code == 0


def unchanged(folder: Folder) -> None:
    """What is up is known as before, its secrets are readable, and its key still opens the node."""
    said = folder.orch("preview", "fleet.yml", "--exit-code")
    assert said.code == 0, said.out + said.err
    assert ProjectSecrets(find(folder.path)).values(["token"]) == {"token": "geheim"}
    said = folder.orch("exec", "moved", "--", "echo", "in")
    assert (said.code, "in" in said.out) == (0, True), said.err


def in_clear(folder: Path) -> list[Path]:
    files = [each for each in folder.rglob("*") if each.is_file() and each.name != "passphrase"]
    return [
        each for each in files if b"geheim" in each.read_bytes() or b"OPENSSH PRIVATE" in each.read_bytes()
    ]


def test_a_state_moves_whole_and_who_has_the_old_place_is_told(lab: Folder, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(lab.path, old)
    (old / "orch.yml").write_text(f"project: moves\nstate: file://{lab.path.parent}/state\n")
    target = tmp_path / "target"
    said = lab.orch("state", "move", "--to", f"file://{target}")
    assert said.code == 2, "no terminal can be asked"
    said = lab.orch("state", "move", "--to", f"file://{target}", "--yes")
    assert said.code == 0, said.err
    assert "  fleet moved: " in said.err
    assert (lab.path / "orch.yml").read_text() == f"# ours\nproject: moves\nstate: file://{target}\n"
    unchanged(lab)
    # Copies of keys that a node is logged in to with lie in .orch/keys.
    assert in_clear(target) == []
    assert not (lab.path / ".orch" / "moving").exists()
    said = Folder(old).orch("up", "fleet.yml", "--yes")
    assert said.code == 9
    assert f"the state of the fleet moved has moved to file://{target}" in said.err
    assert f"`state: file://{target}`" in said.err
    said = lab.orch("log", "--json")
    assert said.json["changes"][0]["result"] == "2 stacks moved"


def test_where_other_stacks_of_the_project_are_nothing_moves(lab: Folder, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(lab.path / "fleet.yml", other)
    there = Folder(other)
    there.write("orch.yml", f"project: moves\nstate: file://{tmp_path}/taken\n")
    assert there.orch("secret", "set", "token", "another").code == 0
    before = (lab.path / "orch.yml").read_text()
    said = lab.orch("state", "move", "--to", f"file://{tmp_path}/taken", "--yes")
    assert said.code == 9, said.err
    assert "ORCH424" in said.err
    assert (lab.path / "orch.yml").read_text() == before
    unchanged(lab)
    for wrong, why in (
        (before.rpartition("state: ")[2].strip(), "the state is there already"),
        ("s3://bucket", "a state outside this machine needs a key"),
        (str(tmp_path / "folder"), "is no place of a state"),
        ("", "is no place of a state"),
    ):
        said = lab.orch("state", "move", "--to", wrong, "--yes")
        assert (said.code, "ORCH301" in said.err, why in said.err) == (3, True, True), said.err
    # What is to be written where nobody can be asked keeps the key.
    said = lab.orch("state", "move", "--to", f"file://{tmp_path}/a b", "--secrets-provider", "passphrase")
    words = f"orch state move --to 'file://{tmp_path}/a b' --secrets-provider passphrase --yes"
    assert (said.code, words in said.err) == (2, True), said.err


@pytest.mark.parametrize("after_s", [pytest.param(1.0, marks=pytest.mark.soak), 4.0])
def test_a_move_that_was_killed_is_gone_on_with(lab: Folder, tmp_path: Path, after_s: float) -> None:
    words = ("state", "move", "--to", f"file://{tmp_path}/target", "--yes")
    killed_after(lab, words, after_s)
    said = lab.orch(*words)
    assert said.code == 0 or "the state is there already" in said.err, said.err
    unchanged(lab)


@pytest.mark.parametrize("after_s", [pytest.param(1.5, marks=pytest.mark.soak), 5.0])
def test_a_rotation_that_was_killed_is_gone_on_with(lab: Folder, after_s: float) -> None:
    before = (lab.path / ".orch" / "passphrase").read_text()
    killed_after(lab, ("rotate", "passphrase", "--yes"), after_s)
    said = lab.orch("rotate", "passphrase", "--yes")
    assert said.code == 0, said.err
    after = (lab.path / ".orch" / "passphrase").read_text()
    assert after != before
    assert not (lab.path / ".orch" / "passphrase.new").exists()
    unchanged(lab)
    state = find(lab.path).local_state
    assert state is not None
    assert in_clear(state) == []


def test_a_rotation_goes_on_where_an_engine_that_was_left_behind_ends_it(lab: Folder) -> None:
    """The engine outlives a call that is killed, and writes the state while the next one begins."""
    project = find(lab.path)

    def importing() -> list[int]:
        return at_work(lab.path, "bin/pulumi", "--non-interactive", "stack import")

    with lab.start("rotate", "passphrase", "--yes") as process:
        until(lambda: bool(importing()) or process.poll() is not None, 120, "a stack is written anew")
        kill(process.pid)
        process.communicate()
    new = new_file(project).read_text()
    said = lab.orch("rotate", "passphrase", "--yes")
    assert said.code == 0, said.err
    assert project.passphrase_file.read_text() == new
    assert not new_file(project).exists()
    unchanged(lab)


def test_another_clone_needs_the_new_passphrase_and_nothing_else(lab: Folder, tmp_path: Path) -> None:
    clone = Folder(tmp_path / "clone")
    shutil.copytree(lab.path, clone.path)
    said = lab.orch("rotate", "passphrase", "--yes")
    assert said.code == 0, said.err
    assert "others who use this state need a copy of that file" in said.err
    said = clone.orch("preview", "fleet.yml")
    assert (said.code, "ORCH354" in said.err) == (5, True), said.err
    assert f"{lab.path}/.orch/passphrase" in said.err
    shutil.copy(lab.path / ".orch" / "passphrase", clone.path / ".orch" / "passphrase")
    unchanged(clone)


@pytest.mark.timeout(900)
def test_the_ssh_keys_of_a_fleet_are_rotated_under_a_run_and_by_a_killed_call(
    lab: Folder, tmp_path: Path
) -> None:
    lab.write("long.yml", "type: task\nname: long\nimage: orch/mpi\ncommands: ['sleep 3000']\n")
    assert lab.orch("run", "long.yml", "--detach").code == 0
    clone = Folder(tmp_path / "clone")
    shutil.copytree(lab.path, clone.path)
    clone.write("orch.yml", f"project: moves\nstate: {find(lab.path).state_url}\n")
    key, theirs = lab.path / ".orch" / "keys" / "moved", "ssh-ed25519 AAAAtheirs ada@desk"
    former = let_in(lab)
    assert lab.orch("exec", "moved", "--", f"echo {theirs} >> /etc/orch/authorized_keys").code == 0
    shutil.copy(key, tmp_path / "former")
    said = lab.orch("rotate", "ssh-keys", "moved", "--plan-only", "--json")
    assert said.json["plan"]["fleets"][0]["nodes"] == ["moved-0"]
    assert lab.orch("rotate", "ssh-keys", "moved").code == 2, "no terminal can be asked"
    begun = "keep the new pair of moved"
    killed_when(lab, ("rotate", "ssh-keys", "--yes"), lambda: begun in steps(lab))
    unchanged(lab)
    said = lab.orch("rotate", "ssh-keys", "--yes")
    assert said.code == 0, said.err
    assert "going on with change" in said.err
    assert set(steps(lab).values()) == {"done"}
    present = let_in(lab)
    assert (len(former), len(present), theirs in present) == (1, 2, True)
    assert not set(former) & set(present)
    assert sorted(each.name for each in key.parent.iterdir()) == ["moved", "moved.of"]
    assert key.read_text() != (tmp_path / "former").read_text()
    unchanged(clone)
    assert [each["status"] for each in lab.orch("ps", "--json").json["runs"]] == ["running"]
    # The one that was there before opens nothing any more.
    keep = key.read_text()
    shutil.copy(tmp_path / "former", key)
    said = lab.orch("exec", "moved", "--", "true")
    key.write_text(keep)
    assert said.code == 7, said.err
    assert lab.orch("stop", "long", "--abort").code == 0
    state = find(lab.path).local_state
    assert state is not None
    assert in_clear(state) == []


def test_ssh_keys_are_not_rotated_while_a_node_is_silent_unless_it_is_left_out(lab: Folder) -> None:
    (container,) = lab.orch("fleet", "ids", "moved").out.split()
    docker("stop", "--time", "0", container)
    try:
        said = lab.orch("rotate", "ssh-keys", "--yes")
        assert said.code == 7, said.err
        assert "ORCH440" in said.err
        assert "--without moved-0" in said.err
        said = lab.orch("rotate", "ssh-keys", "--without", "moved-0", "--plan-only")
        assert "moved-0 keeps the old key" in said.out
    finally:
        docker("start", container)
    said = lab.orch("up", "fleet.yml", "--yes")
    assert said.code == 0, said.err


def let_in(folder: Folder) -> list[str]:
    said = folder.orch("exec", "moved", "--json", "--", "cat", "/etc/orch/authorized_keys")
    return said.json["nodes"][0]["stdout"].splitlines()


def steps(folder: Folder) -> dict[str, str]:
    """How far the latest rotation of keys is, by the ledger."""
    project = find(folder.path)
    with contextlib.closing(open_ledger(project.ledger_url)) as ledger:
        found = ledger.changes.listed(project.name, verbs=("rotate ssh-keys",), limit=1)
        return {each.name: each.status for change in found for each in ledger.changes.steps(change.id)}


def killed_when(folder: Folder, words: tuple[str, ...], came: Callable[[], bool]) -> None:
    """Begin a call, and kill it and its engine once something has come."""
    with folder.start(*words) as process:
        until(came, 120, "the moment at which it is killed")
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def checkpoint_of(folder: Folder) -> Path:
    found = find(folder.path).checkpoint("moved")
    assert found is not None
    return found


def test_a_state_that_cannot_be_read_or_is_gone_is_repaired_from_its_copies(lab: Folder) -> None:
    said = lab.orch("up", "fleet.yml", "--yes")
    assert said.code == 0, said.err
    checkpoint = checkpoint_of(lab)
    whole = checkpoint.read_text()
    checkpoint.write_text(whole[:1000])
    said = lab.orch("preview", "fleet.yml")
    assert (said.code, "ORCH351" in said.err) == (5, True), said.err
    assert "orch state repair moved" in said.err
    said = lab.orch("state", "repair", "moved")
    assert (said.code, "the state file cannot be read" in said.err) == (2, True), said.err
    said = lab.orch("state", "repair", "moved", "--yes")
    assert (said.code, "the state file is " in said.out) == (0, True), said.err
    unchanged(lab)
    assert checkpoint.with_name(f"{checkpoint.name}.broken").read_text() == whole[:1000]
    checkpoint.unlink()
    said = lab.orch("state", "repair", "moved", "--yes", "--json")
    assert said.code == 0, said.err
    assert said.json["stacks"][0]["found"] == ["the state file cannot be read: it is not there"]
    unchanged(lab)
    said = lab.orch("state", "repair", "moved", "--yes")
    assert (said.code, said.out) == (0, "fleet moved: nothing was wrong\n")
    said = lab.orch("state", "repair", "another", "--yes")
    assert (said.code, "ORCH353" in said.err) == (3, True), said.err


def test_a_state_that_somebody_holds_is_not_repaired(lab: Folder) -> None:
    folder = checkpoint_of(lab).parents[2] / "locks" / "organization" / "moves" / "moved"
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "held.json"
    lock.write_text(
        '{"pid": 1, "username": "ada", "hostname": "elsewhere", "timestamp": "2026-01-01T00:00:00Z"}'
    )
    try:
        said = lab.orch("state", "repair", "moved", "--yes")
    finally:
        lock.unlink()
    assert (said.code, "ada@elsewhere" in said.err) == (9, True), said.err


def killed_after(folder: Folder, words: tuple[str, ...], seconds: float) -> None:
    """Begin a call, and kill it and its engine at some moment."""
    with folder.start(*words) as process:
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
