"""`orch node reset-gpu` on servers whose GPUs and kernel pretend: evidence, what no reset helps, kills."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kit.nodes.hostlab import Client, Room
from kit.nodes.labserver import Server
from kit.support import until

from orch.runner.ledger.changes import Change, Step
from orch.runner.ledger.ledger import open_ledger
from orch.stacks.project.project import find

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("engine")]

FLEET = "type: fleet\nname: pool\nssh_config:\n  connect_timeout: 5s\n  hosts: [gpu1]\n"
RESETS = "/etc/accelerators/resets"


@pytest.fixture(scope="module")
def pool(room: Room, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    path = tmp_path_factory.mktemp("pool")
    (path / "orch.yml").write_text("project: tests\n")
    (path / "fleet.yml").write_text(FLEET)
    project = Client(path, room.home)
    said = project.orch("up", "fleet.yml", "--yes", timeout=300)
    assert said.code == 0, said.out + said.err
    yield project
    room.servers[0].run(f"rm -f {RESETS}")
    said = project.orch("down", "fleet.yml", "--yes", timeout=300)
    assert said.code == 0, said.err


@contextmanager
def told(server: Server, *xids: str) -> Iterator[None]:
    """The kernel of a server has told these faults."""
    lines = "".join(
        f"[ 8.1] NVRM: Xid (PCI:{each.partition(' ')[0]}): {each.partition(' ')[2]}, pid=7\n" for each in xids
    )
    server.put("/usr/local/bin/dmesg", f"#!/bin/sh\ncat <<'END'\n{lines}END\n", 0o755)
    try:
        yield
    finally:
        server.run("rm /usr/local/bin/dmesg")


def latest(client: Client) -> tuple[Change, tuple[Step, ...]]:
    with closing(open_ledger(find(client.path).ledger_url)) as ledger:
        change = ledger.changes.listed("tests", verbs=("node",))[0]
        return change, ledger.changes.steps(change.id)


def resets(server: Server) -> list[str]:
    return server.run(f"cat {RESETS}", check=False).split()


def status(client: Client) -> str:
    return client.orch("fleet", "list", "--json").json["fleets"][0]["nodes"][0]["status"]


def test_no_reset_where_it_does_not_help(pool: Client, room: Room) -> None:
    server = room.servers[0]
    with told(server, "0000:18:00 31"):
        said = pool.orch("node", "reset-gpu", "gpu1", "--yes", "--report", "report.md")
    assert said.code == 7, said.err
    assert "ORCH407" in said.err
    assert "faults are those of applications" in said.err
    assert "Xid 31 at 0000:18:00: memory page fault" in said.err
    assert (resets(server), status(pool)) == ([], "idle")
    change, steps = latest(pool)
    folder = pool.path / ".orch/evidence" / str(change.id) / "gpu1"
    assert "NVRM: Xid (PCI:0000:18:00): 31" in (folder / "dmesg-nvrm.txt").read_text()
    assert "Attached GPUs" in (folder / "nvidia-smi-q.txt").read_text()
    assert (folder / "gpus.csv").read_text().count("GPU-") == 8
    assert [each.name for each in steps] == ["evidence", "triage"]
    assert f"- .orch/evidence/{change.id}/gpu1/dmesg-nvrm.txt" in (pool.path / "report.md").read_text()
    with told(server, "0000:18:00 31", "0000:28:00 79"):
        said = pool.orch("node", "reset-gpu", "gpu1", "--yes")
    assert said.code == 7
    assert "the GPU has fallen off the bus" in said.err
    assert "`orch node reboot gpu1`" in said.err
    assert (resets(server), status(pool)) == ([], "cordoned")
    # It holds nothing, and what was asked for instead may let the node back, as this reset does.
    assert latest(pool)[0].status == "failed"
    with told(server, "0000:28:00 94"):
        said = pool.orch("node", "reset-gpu", "gpu1", "--yes")
    assert said.code == 0, said.err
    assert (resets(server), status(pool)) == (["1"], "idle")
    server.run(f"rm {RESETS}")


def test_one_gpu_is_reset_once_though_the_call_was_killed_and_a_reset_failed(
    pool: Client, room: Room
) -> None:
    server, words = room.servers[0], ("node", "reset-gpu", "gpu1", "--yes")
    server.run("echo 3 > /etc/accelerators/ecc; touch /etc/accelerators/reset-fails")
    with told(server, "0000:28:00 48"):
        before = latest(pool)[0].id
        with pool.start(*words) as process:
            until(lambda: latest(pool)[0].id > before, 120, "it has begun")
            process.kill()
            process.communicate(timeout=60)
        failed = pool.orch(*words)
        assert failed.code == 7, failed.err
        assert "ORCH408" in failed.err
        assert "is the primary GPU" in failed.err
        assert "`orch node reboot gpu1`" in failed.err
        assert (resets(server), status(pool)) == ([], "cordoned")
        server.run("rm /etc/accelerators/reset-fails")
        said = pool.orch(*words)
        assert said.code == 0, said.err
    change, steps = latest(pool)
    assert (change.id, change.status, change.calls) == (before + 1, "done", 3)
    assert (resets(server), status(pool)) == (["1"], "idle")
    assert [each.name for each in steps if each.status == "done"] == [
        *("evidence", "triage", "cordon", "drain", "reset", "verify", "check", "uncordon")
    ]


@pytest.mark.soak
def test_the_runbook_resets_once_and_stops_where_a_reset_fails(pool: Client, room: Room) -> None:
    server = room.servers[0]
    words = ("gpu-fault", "fleet=pool", "node=gpu1", "--yes", "--report", "gpu.md")
    server.run(f"rm -f {RESETS}")
    try:
        server.run("echo 3 > /etc/accelerators/ecc; touch /etc/accelerators/reset-fails")
        with told(server, "0000:28:00 48"):
            # Before: evidence comes first, nothing is reset without a verdict and an approval.
            code, waiting, err = in_runbook(pool, "run", *words)
            assert (code, waiting["status"]) == (10, "waits"), err
            assert resets(server) == []
            code, waiting, err = in_runbook(pool, "resume", str(waiting["id"]), "verdict=reset")
            assert code == 10, err
            # In the middle: killed, then a reset that fails.
            with pool.start("runbook", "resume", str(waiting["id"]), "--approve") as process:
                until(lambda: "reset" in in_steps(pool, waiting["id"]), 180, "the reset has begun")
                process.kill()
                process.communicate(timeout=60)
            code, failed, err = in_runbook(pool, "resume", str(waiting["id"]))
            assert code == 6, err
            assert resets(server) == []
            server.run("rm /etc/accelerators/reset-fails")
            code, done, err = in_runbook(pool, "resume", str(waiting["id"]), "--report", "gpu.md")
        # After: once, the node takes runs again, the kernel's lines are kept.
        assert (code, done["status"], done["id"]) == (0, "done", failed["id"]), err
        assert resets(server) == ["1"]
        assert pool.orch("fleet", "list", "--json").json["fleets"][0]["nodes"][0]["status"] == "idle"
        assert "Xid (PCI:0000:28:00): 48" in (pool.path / "gpu.md").read_text()
    finally:
        server.run(f"rm -f {RESETS} /etc/accelerators/reset-fails; echo 0 > /etc/accelerators/ecc")


def in_steps(pool: Client, number: int) -> set[str]:
    """Steps of a run that have begun."""
    steps = json.loads(pool.orch("runbook", "status", str(number), "--json").out)["run"]["steps"]
    return {each["name"] for each in steps if each["status"] != "not begun"}


def in_runbook(client: Client, *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the run as data, and what was told."""
    said = client.orch("runbook", *words, "--json", timeout=900)
    return said.code, json.loads(said.out)["run"] if said.out.startswith("{") else {}, said.err


def test_existing_hosts_are_not_replaced(pool: Client) -> None:
    said = pool.orch("node", "replace", "gpu1", "--yes")
    assert said.code == 2
    assert "ORCH404" in said.err
    assert "`orch node drain gpu1`" in said.err
