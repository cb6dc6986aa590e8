"""Runbooks of the library that make nodes anew: faults before, in the middle and after, kills, gone on with.
The other ones are in test_runbooks.py and test_lost_state.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.nodes.stocked import stocked
from kit.support import Folder, Said, containers, docker, until

pytestmark = [pytest.mark.timeout(1800), pytest.mark.soak, pytest.mark.usefixtures("engine")]

FLEET = "type: fleet\nname: roll\nbackend: local\nnodes: 3\nresources: {{{resources}}}\n"
WITHOUT = FLEET.format(resources="cpu: 1..")
"""Docker does not lift a limit of memory, so that nodes without one are new ones."""
TASK = """\
type: task
name: short
image: orch/mpi
fleets: [roll]
instances: [roll-1]
resources: {cpu: 0.., memory: 64MB..}
commands: ["echo begun", "sleep 25", "echo over"]
"""


def run(folder: Any, *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the run as data, and what was told."""
    said: Said = folder.orch("runbook", *words, "--json", timeout=1500)
    rows = said.json["run"] if said.out.startswith("{") else {}
    return said.code, rows, said.err


def statuses(run: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["status"] for each in run["steps"]}


@pytest.fixture(scope="module")
def roll(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    path = tmp_path_factory.mktemp("roll")
    backend = f"{{type: local, node_image: '{stocked('mpi')}'}}"
    (path / "orch.yml").write_text(f"project: tests\nbackends: [{backend}]\n")
    folder = Folder(path)
    folder.write("fleet.yml", FLEET.format(resources="memory: 512MB"))
    said = folder.orch("up", "fleet.yml", "--yes", timeout=600)
    assert said.code == 0, said.err
    yield folder
    said = folder.orch("down", "fleet.yml", "--yes", "--force", timeout=600)
    assert said.code == 0, said.err


def ids(folder: Folder) -> list[str]:
    """Of the containers behind the nodes, by index."""
    names = sorted(containers(folder, "roll"))
    return docker("inspect", "-f", "{{.Id}}", *names).split()


def container(folder: Folder, index: int) -> str:
    return next(name for name in containers(folder, "roll") if name.endswith(f"-{index}"))


@pytest.mark.parametrize("name", ["rolling-image", "driver-upgrade"])
def test_a_rollout_waits_for_a_run_and_goes_on_after_kills(roll: Folder, name: str) -> None:
    roll.write("fleet.yml", FLEET.format(resources="memory: 512MB"))
    said = roll.orch("up", "fleet.yml", "--yes", timeout=600)
    assert said.code == 0, said.err
    before = ids(roll)
    words = (name, "fleet=roll", "file=fleet.yml", "serial=1", "--yes", "--report", f"{name}.md")

    # Before: a file that is none.
    roll.write("fleet.yml", FLEET.format(resources="memory: much"))
    code, failed, err = run(roll, "run", *words)
    assert code == 6, err
    assert "step preview failed" in err
    roll.write("fleet.yml", WITHOUT)
    code, waiting, err = run(roll, "run", *words)
    assert (code, waiting["status"], waiting["id"]) == (10, "waits", failed["id"]), err
    assert ids(roll) == before

    # In the middle: a run on the second node, a kill of the runbook, and one of the rollout itself.
    roll.write("short.yml", TASK)
    assert roll.orch("run", "short.yml", "--detach").code == 0
    with roll.start("runbook", "resume", str(waiting["id"]), "--approve") as process:
        until(lambda: ids_now(roll)[0] != before[0], 300, "the first node is new")
        process.kill()
        process.communicate(timeout=60)
    rollout = rollouts(roll)
    assert len(rollout) == 1, "the step goes on without the runbook"
    kill_all(rollout)
    code, resumed, err = run(roll, "resume", str(waiting["id"]), "--report", f"{name}.md")
    for _ in range(2):
        if code == 0:
            break
        code, resumed, err = run(roll, "resume", str(waiting["id"]), "--report", f"{name}.md")
    assert (code, resumed["status"]) == (0, "done"), err
    ended = {
        each["status"] for each in roll.orch("ps", "-a", "--json").json["runs"] if each["run"] == "short"
    }
    assert (ended, roll.orch("logs", "short").out.split()[-1]) == ({"done"}, "over")

    # After: each node is new, once; nothing is left to do.
    assert not set(ids(roll)) & set(before)
    assert roll.orch("preview", "fleet.yml", "--exit-code").code == 0
    assert all(each == "done" for step, each in statuses(resumed).items()), resumed
    assert "rollout" in (roll.path / f"{name}.md").read_text()


def ids_now(folder: Folder) -> list[str]:
    """The same while nodes come and go: an empty name for one that is not there."""
    found = {name.rsplit("-", 1)[1]: name for name in containers(folder, "roll")}
    return [
        docker("inspect", "-f", "{{.Id}}", found[index]).strip() if index in found else ""
        for index in ("0", "1", "2")
    ]


def rollouts(folder: Folder) -> list[int]:
    """Processes of this folder's rollouts."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"rollout" in words and (entry / "cwd").readlink() == folder.path:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def kill_all(processes: list[int]) -> None:
    for each in processes:
        os.kill(each, signal.SIGKILL)
