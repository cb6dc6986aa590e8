"""A folder of six fleets that depend on each other, through the real engine with real containers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.support import Folder, containers, docker

from orch.images.build import resolve
from orch.stacks.project.project import find, scope_of

pytestmark = pytest.mark.timeout(900)

NEEDS = {
    "base": [],
    "store": [],
    "left": ["base"],
    "right": ["base", "store"],
    "top": ["left", "right"],
    "last": ["top"],
}
WAVES = [["base", "store"], ["left", "right"], ["top"], ["last"]]


def yaml(name: str) -> str:
    return (
        f"type: fleet\nname: {name}\nbackend: local\nnodes: 1\nresources: {{memory: 512MB}}\n"
        f"depends_on: {json.dumps(NEEDS[name])}\n"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    path = tmp_path_factory.mktemp("folder")
    (path / "orch.yml").write_text("project: tests\n")
    (path / "fleets").mkdir()
    made = Folder(path)
    for name in NEEDS:
        made.write(f"fleets/{name}.yml", yaml(name))
    yield made
    made.orch("down", "fleets", "--yes", timeout=600)
    assert nodes(made) == {}


def nodes(folder: Folder) -> dict[str, str]:
    """The machines of each fleet that has any: its name -> the states of its containers."""
    found = {name: " ".join(containers(folder, name).values()) for name in NEEDS}
    return {name: states for name, states in found.items() if states}


def up(folder: Folder, *words: str) -> Any:
    return folder.orch("up", "fleets", "--yes", *words, timeout=600)


def summary(out: str) -> dict[str, str]:
    """The last object of `up FOLDER --json`: what became of each stack."""
    last = json.loads(out[out.rindex("\n{\n") if "\n{\n" in out else 0 :])
    return {each["stack"].removeprefix("fleet "): each["outcome"] for each in last["stacks"]}


@pytest.mark.parametrize(
    "wave", [pytest.param(1, marks=pytest.mark.soak), 2, pytest.param(3, marks=pytest.mark.soak), 4]
)
def test_an_up_that_is_killed_in_a_wave_is_gone_on_with(folder: Folder, wave: int) -> None:
    with folder.start("up", "fleets", "--yes", "--parallel", "2", "--no-check") as started:
        assert started.stderr is not None
        killed_at(started, wave)
    ended(started.pid)
    assert all(states == "running" for states in nodes(folder).values())
    if wave < len(WAVES):
        return
    said = up(folder, "--parallel", "2", "--json")
    assert said.code == 0, said.err
    assert set(summary(said.out).values()) == {"up"}
    assert nodes(folder) == dict.fromkeys(NEEDS, "running")
    again = folder.orch("preview", "fleets", "--exit-code")
    assert again.code == 0, again.out
    for earlier in WAVES[:-1]:
        assert re.search(rf"is up: checking the nodes of {', '.join(earlier)}\n", said.err)


def killed_at(started: subprocess.Popen[str], wave: int) -> None:
    """Kill it -9 when it has begun to make a wave's fleets, or has found one of them as it should be."""
    assert started.stderr is not None
    assert started.stdout is not None
    titles = tuple(f"fleet {name}: " for name in WAVES[wave - 1])
    begun = time.monotonic()
    while started.poll() is None and time.monotonic() - begun < 300:
        line = started.stderr.readline()
        if line.startswith(titles):
            break
    started.send_signal(signal.SIGKILL)


def ended(session: int) -> None:
    """Wait until no process of a session is there: those of a command that was killed stop by themselves."""
    for _ in range(600):
        if not any(session_of(each) == session for each in Path("/proc").glob("[0-9]*")):
            return
        time.sleep(0.2)
    raise AssertionError("processes of the command that was killed are still there")


def session_of(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[3])
    except OSError:
        return None


def test_a_failure_in_the_second_wave_stops_there_and_the_next_call_goes_on(folder: Folder) -> None:
    planned = folder.orch("preview", "fleets", "--json")
    assert planned.code == 0, planned.err
    told = {each["fleet"]: each["wave"] for each in planned.json["stacks"]}
    assert [[name for name in NEEDS if told[name] == wave] for wave in (1, 2, 3, 4)] == WAVES
    assert folder.orch("down", "right", "--yes").code == 0
    # Somebody else's container has the name of a node.
    foreign = f"orch-right-{scope_of(find(folder.path))}-0"
    docker("create", "--name", foreign, resolve("orch/node"), "true")
    try:
        said = up(folder, "--json", "--parallel", "2")
    finally:
        docker("rm", "--force", foreign)
    assert said.code == 5, said.err
    assert "error ORCH347" in said.err
    assert foreign in said.err
    later = {"right": "failed", "top": "not begun", "last": "not begun"}
    assert summary(said.out) == {"base": "up", "store": "up", "left": "up", **later}
    told = "up: fleet base, fleet store, fleet left; failed: fleet right; not begun: fleet top, fleet last"
    assert told in said.err
    assert "right" not in nodes(folder)
    # A saved plan goes in the same waves.
    saved = folder.orch("preview", "fleets", "--out", "plan.json")
    assert saved.code == 0, saved.err
    again = folder.orch("up", "--plan", "plan.json", timeout=600)
    assert again.code == 0, again.err
    assert "fleet right: 1 created (1 node)" in again.out
    assert re.findall(r"^fleet (\w+):", again.out, re.MULTILINE)[-2:] == ["top", "last"]
    assert "wave 2 of 4 is up: checking the nodes of left, right" in again.err
    assert nodes(folder) == dict.fromkeys(NEEDS, "running")


def test_a_renamed_file_changes_nothing_and_one_that_is_gone_is_pruned_on_demand(folder: Folder) -> None:
    (folder.path / "fleets" / "left.yml").rename(folder.path / "fleets" / "renamed.yml")
    (folder.path / "fleets" / "last.yml").unlink()
    planned = folder.orch("preview", "fleets", "--json", "--exit-code")
    assert planned.code == 0, planned.err
    assert [each["fleet"] for each in planned.json["undescribed"]] == ["last"]
    assert "the fleet last is up and no file describes it (1 node)" in planned.err
    assert "`orch up fleets --prune` removes it" in planned.err
    said = up(folder, "--prune", "--no-check", "--parallel", "4")
    assert said.code == 0, said.err
    assert "fleet last: 4 deleted" in said.out
    assert nodes(folder) == {name: "running" for name in NEEDS if name != "last"}


def test_a_folder_is_removed_in_the_reverse_order(folder: Folder) -> None:
    said = folder.orch("down", "fleets", "--yes", timeout=600)
    assert said.code == 0, said.err
    order = re.findall(r"fleet (\w+): 4 deleted", said.out)
    assert [order[:1], sorted(order[1:3]), sorted(order[3:])] == [["top"], *map(sorted, WAVES[1::-1])]
    assert nodes(folder) == {}
