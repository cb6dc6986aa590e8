"""The plan of a changed fleet, as `orch preview` prints it, on a simulated account."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.clouds.rehearsals import Rehearsed


def lines(there: Rehearsed, *words: str) -> list[str]:
    said = there.orch("preview", "p5.yml", "--rehearse", *words)
    assert said.code == 0, said.err
    return said.out.splitlines()


@pytest.mark.timeout(600)
def test_a_plan_keeps_drift_and_change_apart_and_says_what_it_does_to_the_nodes(tmp_path: Path) -> None:
    there = Rehearsed.make(tmp_path)
    there.fleet(2)
    assert there.up().code == 0

    # The file alone changes: nothing has drifted.
    there.fleet(3)
    said = there.preview()
    assert [each["name"] for each in said.json["changes"] if each["op"] == "create"] == ["p5-2"]
    assert said.json["drift"] == []
    assert {leaf["drift"] for change in said.json["changes"] for leaf in change["diff"]} == {None}

    there.fleet(2, resources={"disk": "500GB"})
    told = lines(there)
    assert told[1] == (
        "  p5-[0-1]: 2 running nodes are destroyed and made anew: root disk 100 GB -> 500 GB; "
        "what is on their disks is lost, /scratch too"
    )
    assert "orch:layout" not in "\n".join(told)
    assert "drift" not in "\n".join(told)

    # A stack of a version before, which recorded nothing of what its nodes are.
    state = json.loads(there.checkpoint().read_text())
    for resource in state["checkpoint"]["latest"]["resources"]:
        if resource["type"] == "pulumi:pulumi:Stack":
            del resource["outputs"]["traits"]
    there.checkpoint().write_text(json.dumps(state))
    told = lines(there, "-v")
    assert told[1].startswith("  p5-[0-1]: 2 running nodes are destroyed and made anew: root disk 100")
    assert "orch:layout" in "\n".join(told)
    there.fleet(2)
    assert "plan: no changes" in lines(there, "--exit-code")[-1]

    # The world alone changes: the plan tells what `orch drift` tells, apart from what it does about it.
    (node, *_) = sorted(there.nodes())
    there.cloud.call("CreateTags", {"Resources": [node], "Tags": [{"Key": "orch:fleet", "Value": "hand"}]})
    drift = there.orch("drift", "p5", "--rehearse", "--json")
    assert drift.code == 10
    (found,) = drift.json["drift"]
    assert (found["path"], found["registered"], found["observed"]) == ("tags.orch:fleet", "p5", "hand")
    assert there.preview().json["drift"] == [found]
    told = lines(there)
    assert told[1:3] == [
        "  drift, changed outside orch since the last `up`:",
        f"    instance {found['name']}: tags.orch:fleet: registered p5, found hand",
    ]
    assert told[4].strip() == "tags.orch:fleet: hand -> p5 (drift: changed outside orch)"

    assert there.up().code == 0
    assert there.orch("drift", "p5", "--rehearse").code == 0
    assert there.down().code == 0
    assert there.cloud.everything() == {}
