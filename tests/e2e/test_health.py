"""Health of nodes on real containers whose GPU and kernel pretend: found by the gate, by interval, mended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from kit.nodes.stocked import stocked
from kit.nodes.wards import RUN, TRAIN, VOLUME, container, equip, kernel_tells, weights
from kit.support import Folder, docker, until

pytestmark = [pytest.mark.timeout(1800), pytest.mark.usefixtures("engine")]

FLEET = """\
type: fleet
name: ward
backend: local
nodes: 2
placement: cluster
resources: {memory: 512MB}
"""
TASK = """\
type: task
name: {name}
image: orch/mpi
nodes: {nodes}
resources: {{cpu: 0.., memory: 64MB..}}
commands: ["echo here $ORCH_INSTANCE"]
"""


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    path = tmp_path_factory.mktemp("ward")
    backend = f"{{type: local, node_image: '{stocked('mpi')}', simulate_gpu: 'H100:80GB:1'}}"
    (path / "orch.yml").write_text(f"project: tests\nbackends: [{backend}]\n")
    folder = Folder(path)
    folder.write("fleet.yml", FLEET)
    folder.write("volume.yml", VOLUME)
    folder.write("train.py", TRAIN)
    for file in ("volume.yml", "fleet.yml"):
        said = folder.orch("up", file, "--yes", timeout=600)
        assert said.code == 0, said.err
    yield folder
    for name in ("fleet.yml", "volume.yml"):
        said = folder.orch("down", name, "--yes", "--force", timeout=600)
        assert said.code == 0, said.err


def nodes(folder: Folder) -> list[tuple[str, str | None]]:
    listed = folder.orch("fleet", "list", "--json").json["fleets"][0]["nodes"]
    return [(each["status"], each["health"]) for each in listed]


def run(folder: Folder, name: str, count: int) -> Any:
    return folder.orch("run", folder.write(f"{name}.yml", TASK.format(name=name, nodes=count)))


def test_a_fault_is_found_by_the_gate_and_by_interval_and_no_job_goes_there(ward: Folder) -> None:
    for index in (0, 1):
        equip(ward, index)
    said = ward.orch("health", "ward", "--json")
    assert said.code == 0, said.err
    told = said.json["fleets"][0]["nodes"]
    assert [each["status"] for each in told] == ["healthy", "healthy"]
    assert "xid" in told[1]["passed"]
    # As after a boot: nobody has examined the node yet.
    kernel_tells(ward, 1, 79)
    docker("exec", container(ward, 1), "rm", "/var/lib/orch/health")
    said = run(ward, "both", 2)
    assert said.code == 7, said.out
    assert "ORCH390: node ward-1 is kept out" in said.err
    assert "GPU 0 (0000:00:06): Xid 79" in said.err
    said = run(ward, "one", 1)
    assert (said.code, "here ward-0" in said.out) == (0, True), said.err
    assert nodes(ward) == [("idle", "healthy"), ("idle", "failure")]
    assert "idle (failure): GPU 0 (0000:00:06): Xid 79" in ward.orch("fleet").out

    kernel_tells(ward, 1, None)
    said = ward.orch("health", "ward", "--node", "ward-1")
    assert said.code == 0, said.out
    assert run(ward, "both", 2).code == 0
    # A warning is told, and takes jobs.
    kernel_tells(ward, 1, 94)
    docker(
        "exec",
        container(ward, 1),
        "sed",
        "-i",
        r"s/|20[^|]*/|2026-01-01T00:00:00Z/g",
        "/var/lib/orch/health",
    )
    said = ward.orch("reconcile")
    assert "warning: node ward-1: warning: GPU 0 (0000:00:06): Xid 94" in said.err, said.err
    assert run(ward, "both", 2).code == 0
    assert nodes(ward)[1] == ("idle", "warning")
    kernel_tells(ward, 1, 79)
    said = ward.orch("health", "ward")
    assert said.code == 7
    assert "ward-1: what helps: `orch node reboot ward-1`" in said.out
    history = ward.orch("health", "ward", "--history", "--json").json["periods"]
    told_of = [each["status"] for each in history if each["node"] == "ward-1"]
    assert told_of == ["healthy", "warning", "failure"]
    kernel_tells(ward, 1, None)
    assert ward.orch("health", "ward").code == 0


def test_a_training_goes_on_by_itself_on_another_machine_and_ends_with_the_same_weights(ward: Folder) -> None:
    ward.write("fleet.yml", f"{FLEET}health: {{interval: 2s, auto_replace: true, max_replacements: 1}}\n")
    said = ward.orch("preview", "fleet.yml", "--exit-code")
    assert (said.code, "`health` of its file is recorded" in said.out) == (10, True), said.out
    said = ward.orch("up", "fleet.yml", "--yes", timeout=300)
    assert said.code == 0, said.err
    assert ward.orch("preview", "fleet.yml", "--exit-code").code == 0
    for index in (0, 1):
        equip(ward, index)
    before = docker("inspect", "-f", "{{.Id}}", container(ward, 1))
    assert ward.orch("run", ward.write("calm.yml", RUN.format(name="calm", interrupted="no"))).code == 0
    said = ward.orch("run", ward.write("hit.yml", RUN.format(name="hit", interrupted="yes")), "--detach")
    assert said.code == 0, said.err
    controller = ward.start("controller")
    try:
        until(lambda: ward.orch("logs", "hit").out.count("begins at 0") == 2, 300, "it trains")
        kernel_tells(ward, 1, 79)
        until(
            lambda: ward.orch("ps", "-a", "--json").json["runs"][0]["status"] == "done", 800, "it has ended"
        )
    finally:
        controller.send_signal(signal.SIGTERM)
        _, err = controller.communicate(timeout=120)
    assert "run hit leaves node ward-1, whose health is a failure" in err
    assert "node ward-1 is replaced, passed its checks and takes jobs again" in err
    assert docker("inspect", "-f", "{{.Id}}", container(ward, 1)) != before
    shown = ward.orch("show", "hit", "--json").json["run"]
    (failed,) = shown["attempts"]
    assert "interruption" in failed["events"]
    assert "its health is a failure" in failed["message"]

    assert len(weights(ward, "calm")) == 2
    assert weights(ward, "hit") == weights(ward, "calm")
    # The next one is not replaced: it would be the second in a day.
    equip(ward, 1)
    kernel_tells(ward, 1, 79)
    until(lambda: "`max_replacements` is 1" in ward.orch("reconcile").err, 60, "it stays as it is")
    said = ward.orch("reconcile", "--json")
    assert said.code == 7, said.err
    assert ["not replaced" in each["text"] for each in said.json["health"]] == [True]
    assert nodes(ward)[1] == ("idle", "failure")
