"""`orch gc`: what bears this project's marks and no state knows. The simulated account is the judge."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kit.clouds.rehearsals import Rehearsed, RehearsedGcp
from kit.nodes.labmachine import docker
from kit.nodes.stocked import stocked
from kit.support import Folder

pytestmark = pytest.mark.timeout(600)


def run_more(there: Rehearsed, tags: dict[str, str]) -> str:
    """An instance with a node's subnet and image, and these tags in the place of its own."""
    doc = next(iter(there.cloud.instances().values()))
    own = {tag["Key"]: tag["Value"] for tag in doc["Tags"]} | tags
    made = there.cloud.call(
        "RunInstances",
        {
            **{key: doc[key] for key in ("ImageId", "SubnetId")},
            "InstanceType": "g6.xlarge",
            "MinCount": 1,
            "MaxCount": 1,
            "TagSpecifications": [
                {
                    "ResourceType": "instance",
                    "Tags": [{"Key": key, "Value": value} for key, value in own.items()],
                }
            ],
        },
    )
    return str(made["Instances"][0]["InstanceId"])


def ids(rows: list[dict[str, Any]]) -> set[str]:
    return {row["id"] for row in rows}


def test_what_a_stack_does_not_record_goes_what_is_of_others_is_shown_and_data_stays(tmp_path: Path) -> None:
    there: Rehearsed = Rehearsed.make(tmp_path)
    shared = there.cloud.call("CreateFileSystem", {"CreationToken": "shared"}, service="efs")["FileSystemId"]
    mounts = [{"type": "efs", "id": shared, "path": "/shared"}]
    file = there.fleet(
        1, instance_types=["g6.xlarge"], placement="any", network={"bastion": False}, mounts=mounts
    )
    said = there.up()
    assert said.code == 0, said.err
    (tmp_path / file).unlink()  # what it mounts is recorded
    before = there.cloud.everything()
    (tag,) = {
        one["Value"]
        for doc in there.cloud.instances().values()
        for one in doc["Tags"]
        if one["Key"] == "orch:stack"
    }
    lost, foreign = tag[:-6] + "ffffff", "another" + tag[len("tests") :]
    stray = run_more(there, {})
    colleague = run_more(there, {"orch:stack": lost})
    strangers = run_more(there, {"orch:stack": foreign})
    disk = there.cloud.call(
        "CreateVolume",
        {
            "AvailabilityZone": "us-east-1a",
            "Size": 8,
            "TagSpecifications": [
                {
                    "ResourceType": "volume",
                    "Tags": [
                        {"Key": "orch:stack", "Value": lost},
                        {"Key": "orch:urn", "Value": "aws:ebs/volume:Volume::data"},
                    ],
                }
            ],
        },
    )["VolumeId"]

    tags = [
        {"Key": "orch:stack", "Value": lost},
        {"Key": "orch:urn", "Value": "aws:efs/fileSystem:FileSystem::old"},
    ]
    there.cloud.call("TagResource", {"ResourceId": shared, "Tags": tags}, service="efs")
    said = there.orch("gc", "--rehearse", "--yes", "--stack", lost)
    assert (said.code, f"efs {shared} is mounted by the fleet p5" in said.err) == (9, True), said.err
    assert colleague in there.cloud.instances()
    there.cloud.call("DeleteFileSystem", {"FileSystemId": shared}, service="efs")

    there.write_state_later()
    said = there.orch("gc", "--rehearse", "--json")
    assert said.code == 2, said.err
    assert "`orch gc --yes --rehearse`" in said.err
    told = json.loads(said.out)
    assert (ids(told["orphans"]), ids(told["unknown"]), ids(told["data"])) == ({stray}, {colleague}, {disk})
    assert (told["other_projects"], told["held"], told["unseen"]) == (1, [], [])
    (row,) = told["orphans"]
    assert (row["mark"], row["kind"], row["region"]) == (tag, "instance", "us-east-1")
    assert row["price_hourly"] > 0
    assert row["created_at"]
    assert there.cloud.everything().keys() - before.keys() == {stray, colleague, strangers}

    said = there.orch("gc", "--rehearse", "--yes")
    assert said.code == 0, said.err
    assert f"({stray})" in said.out
    assert there.cloud.everything().keys() - before.keys() == {colleague, strangers}
    assert disk in there.cloud.things("volume")

    said = there.orch("gc", "--rehearse", "--yes", "--stack", foreign)
    assert said.code == 2, said.err
    there.cloud.turn(denied=["DeleteVolume"])
    said = there.orch("gc", "--rehearse", "--yes", "--stack", lost)
    assert said.code == 5, said.err
    assert f"({colleague})" in said.out
    assert f"not deleted, or not seen to go: volume data ({disk})" in said.err
    there.cloud.turn(denied=[])
    said = there.orch("gc", "--rehearse", "--yes", "--stack", lost)
    assert said.code == 0, said.err
    assert there.cloud.everything().keys() - before.keys() == {strangers}
    assert disk not in there.cloud.things("volume")

    # A state that is lost: all of the fleet is of no stack, and its mark alone removes it.
    shutil.rmtree(there.stacks)
    (tmp_path / "orch.yml").write_text("project: tests\nbackends: [{type: aws, regions: [us-east-1]}]\n")
    said = there.orch("gc", "--rehearse", "--yes", "--json")
    assert said.code == 0, said.err
    assert (said.json["orphans"], said.json["deleted"]) == ([], [])
    assert {row["mark"] for row in said.json["unknown"]} == {tag}
    there.cloud.call("TerminateInstances", {"InstanceIds": [strangers]})
    said = there.orch("gc", "--rehearse", "--yes", "--stack", tag)
    assert said.code == 0, said.err
    assert there.cloud.everything() == {}


def test_gcp_tells_marks_by_labels_and_descriptions_and_a_held_stack_is_left_alone(tmp_path: Path) -> None:
    there: RehearsedGcp = RehearsedGcp.make(tmp_path)
    there.fleet(1, resources={"gpu": "L4:1"}, placement="any")
    said = there.up()
    assert said.code == 0, said.err
    node, doc = next(iter(there.cloud.instances().items()))
    zone = node.rpartition("/instances/")[0]
    template = {"sourceInstanceTemplate": next(iter(there.cloud.things("instance-template")))}
    label = doc["labels"]["orch-stack"]
    lost = f"tests/lab/{'f' * 6}"
    for name, value in (("stray", label), ("other", f"{label[:-6]}ffffff")):
        body = {"name": name, "labels": {**doc["labels"], "orch-stack": value}}
        assert there.cloud.request("POST", f"{zone}/instances", template, body)[0] == 200
    stray, other = f"{zone}/instances/stray", f"{zone}/instances/other"
    there.write_state_later()

    # Somebody else's engine is at work.
    folder = there.stacks.parent.parent / "locks" / "organization" / "tests" / "lab"
    folder.mkdir(parents=True, exist_ok=True)
    holder = {"pid": 1, "username": "bob", "hostname": "far", "timestamp": "2026-11-22T05:00:00Z"}
    (folder / "another.json").write_text(json.dumps(holder))
    said = there.orch("gc", "--rehearse", "--yes", "--json")
    assert said.code == 0, said.err
    told = said.json
    assert (ids(told["orphans"]), ids(told["held"]), ids(told["unknown"])) == (set(), {stray}, set())
    # A label alone may be of a project whose name has other letters.
    assert (ids(told["unsure"]), told["unsure"][0]["mark"]) == ({other}, lost)
    assert (told["deleted"], told["unseen"]) == ([], [])
    said = there.orch("gc", "--rehearse", "--yes", "--stack", lost)
    assert (said.code, other in there.cloud.instances()) == (2, True), said.err
    said = there.orch("gc", "--rehearse", "--yes", "--stack", told["held"][0]["mark"])
    assert (said.code, stray in there.cloud.instances()) == (9, True), said.err
    assert "somebody else changes it: process 1 of bob@far" in said.err
    (folder / "another.json").unlink()

    said = there.orch("gc", "--rehearse", "--yes")
    assert said.code == 0, said.err
    assert {stray, other} & there.cloud.instances().keys() == {other}
    assert there.cloud.request("DELETE", other)[0] == 200
    shutil.rmtree(there.stacks)
    (tmp_path / "orch.yml").write_text("project: tests\nbackends: [{type: gcp}]\n")
    own = f"tests/lab/{label[-6:]}"
    said = there.orch("gc", "--rehearse", "--yes", "--stack", own)
    assert said.code == 0, said.err
    assert there.cloud.everything() == {}


def test_containers_and_networks_of_a_local_fleet_that_no_state_has(tmp_path: Path) -> None:
    name = f"gc-{uuid4().hex[:12]}"
    (tmp_path / "orch.yml").write_text(f"project: {name}\nbackends: [{{type: local}}]\n")
    folder, mark = Folder(tmp_path), f"{name}/lab/1a2b3c"
    label = ["--label", f"orch.stack={mark}"]
    docker("network", "create", *label, f"orch-{name}")
    docker("create", *label, "--name", f"orch-{name}-0", "--network", f"orch-{name}", stocked("mpi"), "true")
    try:
        said = folder.orch("gc", "--yes", "--json")
        assert said.code == 0, said.err
        rows = [(row["kind"], row["id"], row["mark"]) for row in said.json["unknown"]]
        assert rows == [("container", f"orch-{name}-0", mark), ("network", f"orch-{name}", mark)]
        said = folder.orch("gc", "--yes", "--stack", mark)
        assert said.code == 0, said.err
        assert "2 resources deleted" in said.out
        assert folder.orch("gc").out.splitlines()[-1] == "nothing is left on local"
    finally:
        docker("rm", "-f", f"orch-{name}-0", check=False)
        docker("network", "rm", f"orch-{name}", check=False)
