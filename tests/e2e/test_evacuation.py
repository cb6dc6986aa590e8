"""Nodes of rehearsed clouds leave a zone, are drained and replaced, with faults before, meanwhile and after.
The simulated account's own list is the judge."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.rehearsals import KILL_ALL, L4, Rehearsed, RehearsedGcp
from kit.nodes.stocked import stocked
from kit.support import Said

from orch.rehearsal.project import rehearse
from orch.rehearsal.scenario import NodeScenario
from orch.runner.ledger.changes import Change, Step
from orch.runner.ledger.ledger import open_ledger
from orch.stacks.project.project import find

pytestmark = [pytest.mark.timeout(2400), pytest.mark.usefixtures("engine")]

SMALL = "m7i.large"
PLAIN: dict[str, Any] = {"bastion": False, "interconnect": "ethernet"}


def lab(path: Path, placement: str = "any", **room: int) -> Rehearsed:
    """Two nodes on AWS that run as containers, with room for so many in each zone."""
    machines = NodeScenario(image=stocked("mpi"), placeholders=False)
    there: Rehearsed = Rehearsed.make(path, capacity=capacity(**room), nodes=machines)
    written(there, placement)
    return there


def written(there: Rehearsed, placement: str = "any", **more: Any) -> None:
    zones = [f"us-east-1{letter}" for letter in "abc"]
    common = {"instance_types": [SMALL], "network": PLAIN, "availability_zones": zones}
    there.fleet(2, placement=placement, **common, **more)


def capacity(**room: int) -> dict[str, int]:
    return {f"{SMALL}@us-east-1{zone}": count for zone, count in room.items()}


def evacuate(there: Rehearsed, zone: str, *words: str) -> Said:
    return there.orch(
        "fleet", "evacuate", there.called, "--zone", zone, "--yes", "--rehearse", *words, timeout=900
    )


def latest(there: Rehearsed) -> tuple[Change, tuple[Step, ...]]:
    """The last maintenance, and its journal."""
    project = rehearse(find(there.path)).project
    with closing(open_ledger(project.ledger_url)) as ledger:
        change = ledger.changes.listed("tests", verbs=("fleet evacuate", "node"))[0]
        return change, ledger.changes.steps(change.id)


def statuses(there: Rehearsed) -> set[str]:
    listed = there.orch("fleet", "list", "--json", "--rehearse").json["fleets"][0]["nodes"]
    return {each["status"] for each in listed}


def test_nodes_leave_a_zone_of_aws_though_calls_find_no_room_and_are_killed(tmp_path: Path) -> None:
    there = lab(tmp_path, a=2, b=0, c=0)
    assert there.up().code == 0
    before = there.nodes(SMALL)
    assert set(before.values()) == {"a"}

    # Before: a zone that is none, and no room in any other.
    unknown = evacuate(there, "us-east-1z")
    assert unknown.code == 2
    assert "ORCH428" in unknown.err
    words = ("us-east-1a", "--serial", "100%")
    full = evacuate(there, *words)
    assert full.code == 7, full.err
    assert "ORCH325" in full.err
    assert there.nodes(SMALL) == before
    assert there.unrecorded() == {}
    assert statuses(there) == {"idle"}
    # With room for one of them, that one goes, and the other stays.
    there.cloud.turn(capacity=capacity(a=2, b=0, c=1))
    half = evacuate(there, *words)
    assert half.code == 7, half.err
    assert sorted(there.nodes(SMALL).values()) == ["a", "c"]
    assert there.names(SMALL) == ["p5-0", "p5-1"]
    assert there.unrecorded() == {}
    assert statuses(there) == {"idle"}
    noted = there.preview("p5.yml", "--exit-code")
    assert noted.code == 0, noted.out
    assert "ORCH425" in noted.out + noted.err
    undone = evacuate(there, "us-east-1a", "--undo")
    assert undone.code == 0, undone.err
    assert "is given up" in undone.out
    assert "ORCH425" not in there.preview().out

    # In the middle: killed when the first machine in the other zone is there, and gone on with.
    there.cloud.turn(capacity=capacity(a=2, b=0, c=9))
    there.killed_at(
        {"action": "RunInstances", "when": "after"}, "fleet", "evacuate", "p5", "--zone", "us-east-1a"
    )
    interrupted, _ = latest(there)
    assert interrupted.shown_status == "interrupted"
    other = evacuate(there, "us-east-1a", "--whole")
    assert (other.code, "was begun without `--whole`" in other.err) == (2, True), other.err
    # What the file says else meanwhile does not come with the nodes that move.
    written(there, resources={"disk": "300GB.."})
    said = evacuate(there, "us-east-1a")
    assert (said.code, "ORCH406" in said.err) == (7, True), said.err
    assert list(there.nodes(SMALL).values()).count("a") >= 1
    written(there)
    said = evacuate(there, "us-east-1a", "--report", "moved.md")
    assert said.code == 0, said.err
    change, steps = latest(there)
    assert (change.id, change.status, change.calls) == (interrupted.id, "done", 3)
    (moved,) = [each.name for each in steps if each.name.startswith("move ")]
    after = there.nodes(SMALL)
    assert list(after.values()) == ["c", "c"]
    assert there.names(SMALL) == ["p5-0", "p5-1"]
    assert there.unrecorded() == {}
    assert statuses(there) == {"idle"}
    assert moved in (tmp_path / "moved.md").read_text()

    # After: nothing to do, and what is lost is made outside the zone too.
    assert there.preview("p5.yml", "--exit-code").code == 0
    there.cloud.call("TerminateInstances", {"InstanceIds": [min(after)]})
    again = there.up()
    assert again.code == 0, again.err
    assert list(there.nodes(SMALL).values()) == ["c", "c"]
    nothing = evacuate(there, "us-east-1a", "--plan-only")
    assert nothing.code == 0, nothing.err
    assert "no node of p5 is in use1-az2" in nothing.out
    assert there.down().code == 0
    assert there.cloud.everything() == {}


@pytest.mark.soak
def test_a_cluster_leaves_a_zone_of_aws_as_a_whole_where_there_is_room_for_all(tmp_path: Path) -> None:
    there = lab(tmp_path, placement="cluster", a=2, b=1, c=0)
    assert there.up().code == 0
    before = there.nodes(SMALL)
    assert set(before.values()) == {"a"}
    full = evacuate(there, "us-east-1a")
    assert full.code == 5, full.err
    assert "ORCH325" in full.err
    assert there.nodes(SMALL) == before
    assert statuses(there) == {"idle"}

    # Killed when the old nodes are gone, and gone on with.
    there.cloud.turn(capacity=capacity(a=2, b=2, c=0))
    there.killed_at({"action": "DeleteVpc"}, "fleet", "evacuate", "p5", "--zone", "us-east-1a")
    assert there.nodes(SMALL) == {}
    said = evacuate(there, "us-east-1a")
    assert said.code == 0, said.err
    assert sorted(there.nodes(SMALL).values()) == ["b", "b"]
    assert there.names(SMALL) == ["p5-0", "p5-1"]
    assert there.unrecorded() == {}
    assert statuses(there) == {"idle"}
    assert there.preview("p5.yml", "--exit-code").code == 0
    reserved = there.cloud.things("capacity-reservation").values()
    assert [doc["AvailabilityZone"] for doc in reserved if doc["State"] == "active"] == ["us-east-1b"]
    assert there.down().code == 0


def test_nodes_of_gcp_are_drained_replaced_and_leave_a_zone(tmp_path: Path) -> None:
    room = {f"{L4}@us-central1-{zone}": 2 for zone in "abc"}
    machines = NodeScenario(image=stocked("mpi"), placeholders=False)
    there = RehearsedGcp.make(tmp_path, capacity=room, nodes=machines)
    zones = [f"us-central1-{letter}" for letter in "ab"]
    there.fleet(2, placement="any", availability_zones=zones, network=PLAIN)
    said = there.up()
    assert said.code == 0, said.err
    before = there.nodes()
    assert set(before.values()) == {"a"}

    drained = there.orch("node", "drain", "lab-1", "--yes", "--rehearse")
    assert drained.code == 0, drained.err
    assert statuses(there) == {"idle", "cordoned"}
    assert there.orch("node", "drain", "lab-1", "--undo", "--rehearse").code == 0
    # Replaced though the call is killed when the old machine is gone; its place is the same.
    there.killed_at({"action": "compute.instances.delete", "when": "after"}, "node", "replace", "lab-1")
    replaced = there.orch("node", "replace", "lab-1", "--yes", "--rehearse", timeout=900)
    assert replaced.code == 0, replaced.err
    assert latest(there)[0].calls == 2
    assert set(there.nodes().values()) == {"a"}
    assert there.names() == ["lab-0", "lab-1"]
    assert there.unrecorded() == {}
    assert statuses(there) == {"idle"}

    said = evacuate(there, "us-central1-a", "--serial", "100%")
    assert said.code == 0, said.err
    assert set(there.nodes().values()) == {"b"}
    assert there.names() == ["lab-0", "lab-1"]
    assert there.unrecorded() == {}
    assert statuses(there) == {"idle"}
    assert there.preview("lab.yml", "--exit-code").code == 0
    # The file has no third zone.
    last = evacuate(there, "us-central1-b")
    assert last.code == 3, last.err
    assert "ORCH426" in last.err
    assert "lab.yml:" in last.err
    assert set(there.nodes().values()) == {"b"}
    assert there.down().code == 0


@pytest.mark.soak
def test_the_runbook_of_a_full_zone_leaves_it_though_calls_find_no_room_and_are_killed(
    tmp_path: Path,
) -> None:
    there: Rehearsed = lab(tmp_path, a=2, b=0, c=0)
    assert there.up().code == 0
    before = there.nodes(SMALL)
    words = ("full-zone", "fleet=p5", "file=p5.yml", "zone=us-east-1a", "decision=leave")

    code, waiting, err = in_runbook(there, "run", *words, "--yes")
    assert (code, waiting["status"]) == (10, "waits"), err
    number = str(waiting["id"])
    # Before: no room anywhere.
    code, failed, err = in_runbook(there, "resume", number, "--approve")
    assert code == 6, err
    assert {each["name"]: each["status"] for each in failed["steps"]}["evacuate"] == "failed"
    assert there.nodes(SMALL) == before
    # In the middle: the first machine in the other zone is there.
    there.cloud.turn(
        capacity=capacity(a=2, b=0, c=9),
        hooks=[{"action": "RunInstances", "when": "after", "command": KILL_ALL}],
    )
    code, killed, err = in_runbook(there, "resume", number)
    assert code == 6, err
    there.cloud.turn(hooks=[])
    code, done, err = in_runbook(there, "resume", number)
    assert (code, done["status"], done["id"]) == (0, "done", killed["id"]), err
    # After: all are in the other zone, once, and stay there.
    assert list(there.nodes(SMALL).values()) == ["c", "c"]
    assert there.names(SMALL) == ["p5-0", "p5-1"]
    assert there.unrecorded() == {}
    assert there.preview("p5.yml", "--exit-code").code == 0
    assert there.down().code == 0


def in_runbook(there: Rehearsed, *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the run as data, and what was told."""
    said = there.orch("runbook", *words, "--json", "--rehearse", timeout=900)
    return said.code, said.json["run"] if said.out.startswith("{") else {}, said.err
