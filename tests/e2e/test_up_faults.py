"""What `up` survives: kills at any place, an interrupt, a second `up` at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.support import Folder, at_work, containers, fleet_yaml, kill, networks, processes, until

from orch.runner.processes import GONE, start_time_of

FLEET = "faulty"
NODES = 3


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Folder]:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    folder = Folder(tmp_path)
    folder.write("fleet.yml", fleet_yaml(FLEET, NODES))
    yield folder
    folder.orch("down", FLEET, "--yes")
    assert containers(folder, FLEET) == {}
    assert networks(folder, FLEET) == []


def engine_of(folder: Folder) -> list[int]:
    """Engine processes that work for this project (their working folder tells)."""
    return at_work(folder.path, "bin/pulumi", "--non-interactive", "up")


def provider_of(engine: int) -> list[int]:
    return [pid for pid in processes("pulumi-resource-orch") if _parent(pid) == engine]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def started(folder: Folder) -> tuple[subprocess.Popen[str], int]:
    """An `up` that has begun to make nodes, and its engine."""
    process = folder.start("up", "fleet.yml", "--yes")
    until(lambda: bool(containers(folder, FLEET)) or process.poll() is not None, 120, "a node is being made")
    engines = engine_of(folder)
    assert len(engines) == 1, process.communicate()
    # What is killed before it has marked its lock as its own needs `orch unlock`.
    until(lambda: any(folder.path.glob(".orch/**/holders/*/*/*.json")), 120, "the lock is marked")
    return process, engines[0]


@pytest.mark.parametrize(
    "victim", ["command line", pytest.param("engine", marks=pytest.mark.soak), "whole tree"]
)
def test_after_a_kill_the_next_up_completes_the_fleet_without_making_a_node_twice(
    faulty: Folder, victim: str
) -> None:
    process, engine = started(faulty)
    victims = {
        "command line": [process.pid],
        "engine": [engine],
        "whole tree": [process.pid, engine, *provider_of(engine)],
    }[victim]
    kill(*victims)
    _, err = process.communicate(timeout=120)
    if victim == "engine":
        assert process.returncode == 5
        assert "engine was killed" in err
    until(lambda: start_time_of(engine) == GONE, 120, "the engine has ended")

    said = faulty.orch("up", "fleet.yml", "--yes")
    assert said.code == 0, said.err
    assert sorted(name[-2:] for name in containers(faulty, FLEET)) == ["-0", "-1", "-2"]
    assert set(containers(faulty, FLEET).values()) == {"running"}
    assert faulty.orch("preview", "fleet.yml", "--exit-code").code == 0


def test_after_a_kill_down_leaves_nothing(faulty: Folder) -> None:
    process, engine = started(faulty)
    kill(process.pid, engine, *provider_of(engine))
    process.communicate(timeout=120)
    # A process that was killed ends when the machine comes to it; until then its lock stands.
    until(lambda: start_time_of(engine) == GONE, 120, "the engine has ended")

    said = faulty.orch("down", FLEET, "--yes")
    assert said.code == 0, said.err
    assert containers(faulty, FLEET) == {}
    assert networks(faulty, FLEET) == []


def test_an_interrupt_ends_in_order_and_the_state_says_what_is_there(faulty: Folder) -> None:
    process, _ = started(faulty)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "orch down" in err
    there = containers(faulty, FLEET)

    said = faulty.orch("preview", "fleet.yml", "--json")
    recorded = {
        c["name"] for c in said.json["changes"] if c["op"] == "same" and c["type"] == "orch:local:Node"
    }
    assert {name[-1] for name in there} == {name[-1] for name in recorded}
    assert "broke the lock" not in faulty.orch("up", "fleet.yml", "--yes").err


def test_a_second_up_at_the_same_time_is_told_who_holds_the_fleet(faulty: Folder) -> None:
    process, engine = started(faulty)
    os.kill(engine, signal.SIGSTOP)  # so that it is still there when the second one comes
    try:
        said = faulty.orch("up", "fleet.yml", "--yes")
    finally:
        os.kill(engine, signal.SIGCONT)
    assert said.code == 9, said.err
    assert f"process {engine}" in said.err
    assert "orch unlock" in said.err
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err


def test_a_lock_of_another_host_is_broken_by_unlock_only(faulty: Folder) -> None:
    assert faulty.orch("up", "fleet.yml", "--yes").code == 0
    folder = faulty.path / ".orch/state/.pulumi/locks/organization/tests" / FLEET
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.123456789Z", time.gmtime(time.time() - 280))
    (folder / "elsewhere.json").write_text(
        f'{{"pid": 1, "username": "ada", "hostname": "elsewhere", "timestamp": "{stamp}"}}'
    )
    said = faulty.orch("up", "fleet.yml", "--yes")
    assert said.code == 9
    assert "ada@elsewhere, for 5 min" in said.err
    assert faulty.orch("unlock", FLEET, "--yes").code == 0
    assert faulty.orch("up", "fleet.yml", "--yes").code == 0
