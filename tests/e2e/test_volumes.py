"""Volumes through the command line: local ones on the nodes of the quickstart, EBS in a rehearsal."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from kit.clouds.rehearsals import stock_nodes
from kit.support import Folder

from orch.rehearsal.aws.account import Cloud
from orch.stacks.project.project import find

VOLUME = "type: volume\nname: {name}\nbackend: local\nsize: 10GB\n"
TASK = """\
type: task
name: {name}
image: orch/job
nodes: {nodes}
volumes: [{volume}]
commands: ['{command}']
"""


def folders() -> str:
    """The folders of all local volumes of this machine, as Docker has them."""
    image = subprocess.run(
        ["docker", "images", "-q", "orch/node"], capture_output=True, text=True, check=True
    ).stdout.split()[0]
    words = ["docker", "run", "--rm", "-v", "orch-volumes:/v", "--entrypoint", "ls", image, "/v"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def run(folder: Folder, name: str, volume: str, command: str, nodes: int = 1) -> str:
    folder.write(f"{name}.yml", TASK.format(name=name, volume=volume, command=command, nodes=nodes))
    said = folder.orch("run", f"{name}.yml", timeout=280)
    (folder.path / f"{name}.yml").unlink()
    assert said.code == 0, said.err
    return said.out


@pytest.mark.timeout(900)  # the fleet may be brought up for it
def test_a_local_volume_outlives_runs_and_goes_only_when_it_is_named(quickstart: Folder) -> None:
    quickstart.write("volume.yml", VOLUME.format(name="e2e-data"))
    said = quickstart.orch("up", "volume.yml", "--yes", timeout=300)
    assert (said.code, said.out) == (0, "volume e2e-data: 1 created (1 volume)\n"), said.err
    assert quickstart.orch("fleet", "list").out.count("e2e-data") == 0

    run(quickstart, "writes", '"e2e-data:/data"', "echo $DSTACK_NODE_RANK >> /data/ranks", nodes=2)
    reads = "sort /data/ranks; touch /data/no || echo closed"
    out = run(
        quickstart,
        "reads",
        "{name: e2e-data, path: /data, read_only: true}",
        reads,
    )
    assert [line.rpartition("] ")[2] for line in out.splitlines() if "touch:" not in line] == [
        "0",
        "1",
        "closed",
    ]

    (row,) = quickstart.orch("volume", "list", "--json").json["volumes"]
    assert (row["name"], row["backend"], row["size_mib"], row["runs"]) == ("e2e-data", "local", 10240, [])
    assert row["id"] in folders()

    quickstart.write("smaller.yml", VOLUME.format(name="e2e-data").replace("10GB", "5GB"))
    smaller = quickstart.orch("up", "smaller.yml", "--yes")
    assert (smaller.code, smaller.err.split(": ")[:2]) == (3, ["smaller.yml:4:7", "error ORCH264"])

    kept = quickstart.orch("down", "volume.yml", "--yes")
    assert kept.code == 5
    assert "`orch volume delete e2e-data --confirm e2e-data`" in kept.err
    kept = quickstart.orch("volume", "delete", "e2e-data", "--yes")
    assert (kept.code, "`--yes` alone deletes no protected volume" in kept.err) == (5, True), kept.err
    assert quickstart.orch("volume", "delete", "e2e-data", "--confirm", "e2e").code == 2
    assert row["id"] in folders()

    gone = quickstart.orch("volume", "delete", "e2e-data", "--confirm", "e2e-data")
    assert gone.code == 0, gone.err
    assert row["id"] not in folders()
    assert quickstart.orch("volume", "list", "--json").json["volumes"] == []
    for file in ("volume.yml", "smaller.yml"):
        (quickstart.path / file).unlink()


@pytest.mark.timeout(900)
def test_a_volume_that_a_run_uses_stays_and_the_run_is_named(quickstart: Folder) -> None:
    quickstart.write(
        "used.yml", VOLUME.format(name="e2e-used") + "protect: false\nauto_cleanup_duration: 0s\n"
    )
    assert quickstart.orch("up", "used.yml", "--yes", timeout=300).code == 0
    quickstart.write(
        "holds.yml", TASK.format(name="holds", volume='"e2e-used:/d"', command="sleep 280", nodes=1)
    )
    assert quickstart.orch("run", "holds.yml", "--detach").code == 0

    assert "holds on laptop-" in quickstart.orch("volume", "show", "e2e-used").out
    said = quickstart.orch("volume", "delete", "e2e-used", "--yes")
    assert said.code == 9
    assert "holds on laptop-" in said.err
    assert quickstart.orch("volume", "gc", "--yes").err.endswith("no volume is due\n")

    assert quickstart.orch("stop", "holds", "--abort", timeout=120).code == 0
    assert "longer than its `auto_cleanup_duration`" in quickstart.orch("volume", "gc", "--yes").err
    assert quickstart.orch("volume", "list", "--json").json["volumes"] == []
    for file in ("used.yml", "holds.yml"):
        (quickstart.path / file).unlink()


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("engine")
def test_a_volume_changes_for_what_is_its_own_and_goes_on_after_a_cut_short_up(folder: Folder) -> None:
    text = VOLUME.format(name="e2e-kept")
    folder.write("volume.yml", text)
    assert folder.orch("up", "volume.yml", "--yes", timeout=300).code == 0

    # What a later version of the node's image comes to.
    settings = (folder.path / "orch.yml").read_text()
    folder.write("orch.yml", f"{settings}backends: [{{type: local, node_image: 'orch/node:later'}}]\n")
    said = folder.orch("preview", "volume.yml", "--exit-code")
    assert (said.code, said.out.splitlines()[-1]) == (
        0,
        "plan: no changes (1 resources); costs $0.00 per month",
    ), said.err
    folder.write("orch.yml", settings)

    # The disk stays as it is; the record changes.
    folder.write("volume.yml", f"{text}protect: false\n")
    assert folder.orch("preview", "volume.yml", "--exit-code").code == 10

    # An `up` that ended between the disk and the end of its program has recorded the disk alone.
    file = find(folder.path).checkpoint("volume.e2e-kept")
    assert file is not None
    state = json.loads(file.read_text())
    for resource in state["checkpoint"]["latest"]["resources"]:
        if resource["type"] == "pulumi:pulumi:Stack":
            del resource["outputs"]
    file.write_text(json.dumps(state))
    assert "`orch up volume.yml` continues" in folder.orch("volume", "show", "e2e-kept").err
    assert folder.orch("up", "volume.yml", "--yes", timeout=300).code == 0
    (row,) = folder.orch("volume", "list", "--json").json["volumes"]
    assert (row["name"], row["protect"], row["id"] in folders()) == ("e2e-kept", False, True)
    assert folder.orch("volume", "delete", "e2e-kept", "--yes").code == 0
    assert row["id"] not in folders()


FLEET = """\
---
type: fleet
name: volfleet
backends: [aws]
regions: [us-east-1]
zone: us-east-1b
instance_types: [m7i.large]
nodes: 1
"""


@pytest.mark.timeout(900)
def test_an_ebs_volume_follows_the_runs_of_a_rehearsed_fleet(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    stock_nodes(tmp_path, "mpi")
    folder = Folder(tmp_path)
    volume = "type: volume\nname: saved\nbackend: aws\nregion: us-east-1\nzone: us-east-1b\nsize: 10GB\n"
    volume += "protect: false\n"
    folder.write("all.yml", volume + FLEET)

    def task(name: str, command: str) -> str:
        folder.write("task.yml", TASK.format(name=name, nodes=1, volume='"saved:/saved"', command=command))
        text = (tmp_path / "task.yml").read_text().replace("orch/job", "orch/mpi")
        folder.write("task.yml", text)
        said = folder.orch("run", "task.yml", "--rehearse", timeout=280)
        assert said.code == 0, said.err
        return said.out

    try:
        said = folder.orch("up", "all.yml", "--rehearse", "--yes", timeout=400)
        assert said.code == 0, said.err
        assert said.out.startswith("volume saved: 1 created (1 volume)\nfleet volfleet: ")
        task("writes", "echo kept >> /saved/file")
        assert task("reads", "cat /saved/file").splitlines() == ["[0 volfleet-0] kept"]
        cloud = Cloud(tmp_path / ".orch" / "rehearsal" / "aws.db")
        actions = [call.action for call in cloud.calls]
        assert (actions.count("AttachVolume"), actions.count("DetachVolume")) == (2, 2)
        (doc,) = [
            each
            for each in cloud.call("DescribeVolumes")["Volumes"]
            if any(tag["Key"] == "Name" and tag["Value"] == "saved" for tag in each["Tags"])
        ]
        assert (doc["State"], doc["Encrypted"], doc["Size"]) == ("available", True, 10)
        cloud.call("ModifyVolume", {"VolumeId": doc["VolumeId"], "Size": 20})
        drifted = folder.orch("drift", "all.yml", "--rehearse")
        assert drifted.code == 10
        assert "size: registered 10, found 20" in drifted.out
    finally:
        said = folder.orch("down", "all.yml", "--rehearse", "--yes", timeout=300)
    assert said.code == 0, said.err
    assert cloud.everything() == {}
    assert folder.orch("volume", "--rehearse", "--json").json["volumes"] == []
