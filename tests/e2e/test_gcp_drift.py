"""GCP fleets whose resources are changed behind orch's back: told, and mended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kit.clouds.rehearsals import RehearsedGcp


def asked(there: RehearsedGcp, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    status, answer = there.cloud.request(method, path, {}, body, caller="test")
    assert status == 200, answer
    return answer


def test_a_lost_node_a_changed_label_and_an_opened_rule_are_told_and_mended(tmp_path: Path) -> None:
    there = RehearsedGcp.make(tmp_path)
    there.fleet(2)
    assert there.up().code == 0
    first, second = sorted(there.nodes())
    number = there.cloud.instances()[first]["id"]

    asked(there, "DELETE", second)
    held = asked(there, "GET", first)
    labels = {
        "labels": {**held["labels"], "orch-fleet": "other"},
        "labelFingerprint": held["labelFingerprint"],
    }
    asked(there, "POST", f"{first}/setLabels", labels)
    rule = next(each for each in there.cloud.things("firewall") if each.endswith("-ssh"))
    asked(there, "PATCH", rule, {"sourceRanges": ["0.0.0.0/0"]})

    told = there.orch("drift", "lab", "--rehearse", "--json").json["drift"]
    gone = [each["name"] for each in told if each["observed"] == "(gone)"]
    assert gone == ["lab-1"]
    paths = {(each["name"], each["path"].partition("[")[0]) for each in told if each["path"]}
    assert ("lab-0", "labels.orch-fleet") in paths
    assert {path for name, path in paths if name.endswith("-ssh")} == {"sourceRanges"}

    mends = {each["name"]: each["op"] for each in there.preview().json["changes"] if each["op"] != "same"}
    assert mends == {"lab-0": "update", "lab-1": "create", rule.rpartition("/")[2]: "update"}
    assert there.up().code == 0
    assert there.preview(None, "--exit-code").code == 0
    assert there.orch("drift", "lab", "--rehearse", "--json").json["drift"] == []
    assert there.cloud.instances()[first]["id"] == number
    assert there.cloud.things("firewall")[rule]["sourceRanges"] != ["0.0.0.0/0"]
    assert there.down().code == 0
    assert there.cloud.everything() == {}
