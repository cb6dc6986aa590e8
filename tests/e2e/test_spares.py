"""Spare nodes on real containers: a training goes on there while the machine of its node is made anew."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.nodes.stocked import stocked
from kit.nodes.wards import RUN, TRAIN, VOLUME, container, equip, kernel_tells, weights
from kit.support import Folder, docker, until

pytestmark = [pytest.mark.timeout(1800), pytest.mark.usefixtures("engine")]

FLEET = """\
type: fleet
name: ward
backend: local
nodes: {min: 2, max: 2, spare: 1}
placement: cluster
resources: {memory: 512MB}
health: {interval: 2s, auto_replace: true, max_replacements: 3}
"""
THREE = """\
type: task
name: three
image: orch/mpi
nodes: 3
resources: {cpu: 0.., memory: 64MB..}
commands: ["true"]
"""


class Machines:
    """The image that new machines are made of."""

    def __init__(self, folder: Path) -> None:
        self.tag, self.folder = f"orch-test/ward-{uuid.uuid4().hex[:12]}:node", folder

    def are_good(self) -> None:
        docker("tag", stocked("mpi"), self.tag)

    def are_bad(self) -> None:
        """Machines that are made from now on have a driver that does not answer."""
        tool = (
            "printf '#!/bin/sh\\nexit 9\\n' > /usr/local/bin/nvidia-smi && chmod +x /usr/local/bin/nvidia-smi"
        )
        (self.folder / "Dockerfile").write_text(f"FROM {stocked('mpi')}\nRUN {tool}\n")
        docker("build", "-q", "-t", self.tag, str(self.folder))


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    machines = Machines(tmp_path_factory.mktemp("machines"))
    machines.are_good()
    yield machines
    docker("rmi", "-f", machines.tag)


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory, machines: Machines) -> Iterator[Folder]:
    path = tmp_path_factory.mktemp("ward")
    backend = f"{{type: local, node_image: '{machines.tag}', simulate_gpu: 'H100:80GB:1'}}"
    (path / "orch.yml").write_text(f"project: tests\nbackends: [{backend}]\n")
    folder = Folder(path)
    folder.write("fleet.yml", FLEET)
    folder.write("volume.yml", VOLUME)
    folder.write("train.py", TRAIN)
    said = folder.orch("preview", "fleet.yml")
    assert "1 of 3 nodes is a spare: runs get it only in place of nodes that fail" in said.out, said.err
    for file in ("volume.yml", "fleet.yml"):
        said = folder.orch("up", file, "--yes", timeout=600)
        assert said.code == 0, said.err
    yield folder
    for name in ("fleet.yml", "volume.yml"):
        said = folder.orch("down", name, "--yes", "--force", timeout=600)
        assert said.code == 0, said.err


def spares(folder: Folder) -> list[str]:
    (fleet,) = folder.orch("fleet", "list", "--json").json["fleets"]
    assert fleet["spares"] == 1
    return [each["name"] for each in fleet["nodes"] if each["spare"]]


def machine(folder: Folder, index: int) -> str:
    return docker("inspect", "-f", "{{.Id}}", container(folder, index))


def nodes_of(folder: Folder, run: str) -> list[str]:
    shown = folder.orch("show", run, "--json").json["run"]
    return [rank["node"] for rank in shown["nodes"]]


def ends(folder: Folder, run: str) -> bool:
    return folder.orch("show", run, "--json").json["run"]["status"] == "done"


def test_a_spare_is_up_and_no_ordinary_run_gets_it(ward: Folder) -> None:
    said = ward.orch("up", "fleet.yml", "--yes")
    assert (said.code, "no changes" in said.out + said.err) == (0, True), said.out + said.err
    assert ward.orch("preview", "fleet.yml", "--exit-code").code == 0
    assert spares(ward) == ["ward-2"]
    assert "idle, spare" in ward.orch("fleet").out
    said = ward.orch("run", ward.write("three.yml", THREE))
    assert said.code != 0
    assert "it has 2 nodes and 1 spare, held back for nodes that fail, the task needs 3" in said.err
    assert ward.orch("run", ward.write("calm.yml", RUN.format(name="calm", interrupted="no"))).code == 0
    assert nodes_of(ward, "calm") == ["ward-0", "ward-1"]
    assert len(weights(ward, "calm")) == 2


def test_a_training_goes_on_and_the_fleet_has_its_spare_again(ward: Folder) -> None:
    for index in range(3):
        equip(ward, index)
    before = machine(ward, 1)
    said = ward.orch("run", ward.write("hit.yml", RUN.format(name="hit", interrupted="yes")), "--detach")
    assert said.code == 0, said.err
    controller = ward.start("controller")
    try:
        until(lambda: ward.orch("logs", "hit").out.count("begins at 0") == 2, 300, "it trains")
        kernel_tells(ward, 1, 79)
        until(lambda: ends(ward, "hit"), 800, "it has ended")
        until(lambda: len(spares(ward)) == 1 and machine(ward, 1) != before, 600, "it has a spare again")
    finally:
        controller.send_signal(signal.SIGTERM)
        _, err = controller.communicate(timeout=120)
    assert "run hit leaves node ward-1, whose health is a failure" in err
    assert "node ward-1 is replaced, passed its checks and takes jobs again" in err
    assert weights(ward, "hit") == weights(ward, "calm")


def test_a_training_goes_on_on_the_spare_while_new_machines_are_bad_and_the_fleet_is_protected(
    ward: Folder, machines: Machines
) -> None:
    machines.are_bad()
    for index in range(3):
        equip(ward, index)
    said = ward.orch("run", ward.write("late.yml", RUN.format(name="late", interrupted="yes")), "--detach")
    assert said.code == 0, said.err
    controller = ward.start("controller")
    try:
        until(lambda: ward.orch("logs", "late").out.count("begins at 0") == 2, 300, "it trains")
        kernel_tells(ward, 1, 79)
        until(lambda: ends(ward, "late"), 800, "it has ended")
        assert nodes_of(ward, "late") == ["ward-0", "ward-2"]
        until(lambda: "is protected" in ward.orch("fleet").err, 600, "it is protected")
    finally:
        controller.send_signal(signal.SIGTERM)
        _, err = controller.communicate(timeout=120)
    assert "run late leaves node ward-1" in err
    assert weights(ward, "late") == weights(ward, "calm")
    assert spares(ward) == []  # it is in the failed node's place

    after = machine(ward, 1)
    said = ward.orch("reconcile", "--json")
    assert said.code == 7, said.err
    (told,) = [each["text"] for each in said.json["health"] if "protected" in each["text"]]
    assert "the new machine of node ward-1 failed its checks 3 times" in told
    said = ward.orch("health", "ward", "--json")
    assert said.code == 7
    assert "`orch node replace ward-1`" in said.json["fleets"][0]["protected"]
    assert machine(ward, 1) == after

    # Somebody mends the machine, and says so.
    machines.are_good()
    docker("exec", container(ward, 1), "rm", "/usr/local/bin/nvidia-smi")
    assert ward.orch("reconcile").code == 7
    said = ward.orch("node", "replace", "ward-1", "--yes", timeout=300)
    assert said.code == 0, said.err
    assert machine(ward, 1) == after
    said = ward.orch("reconcile")
    assert (said.code, "protected" in said.err) == (0, False), said.err
    assert "protected" not in ward.orch("fleet").err
    assert spares(ward) == ["ward-2"]
