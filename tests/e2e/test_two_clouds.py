"""A fleet that may go to several clouds: the next one is tried when the first has no room."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.support import Folder

FLEET = """type: fleet
name: hop
nodes: 1
placement: cluster
instance_types: [p5.48xlarge, a3-megagpu-8g]
availability_zones: [use1-az1, us-central1-a]
"""


@pytest.mark.timeout(600)
def test_a_fleet_that_finds_no_room_on_one_cloud_goes_to_the_other_and_stays_there(tmp_path: Path) -> None:
    there = Folder(tmp_path)
    there.write("orch.yml", "project: tests\nbackends: [{type: aws}, {type: gcp}]\n")
    there.write("fleet.yml", FLEET)
    (tmp_path / ".orch" / "rehearsal").mkdir(parents=True)
    there.write(".orch/rehearsal/knobs.yml", "capacity: {p5.48xlarge: 0}\nnodes: null\n")
    said = there.orch("up", "fleet.yml", "--rehearse", "--yes")
    assert said.code == 0, said.err
    tried = [line for line in said.err.splitlines() if line.startswith("trying ")]
    assert [line.split()[1] for line in tried] == ["p5.48xlarge", "a3-megagpu-8g"]
    assert "no room there: InsufficientInstanceCapacity" in said.err
    (fleet,) = there.orch("fleet", "show", "hop", "--rehearse", "--json").json["fleets"]
    assert fleet["backend"] == "gcp"
    # A new fleet would try the cheaper cloud first; one that is up is not moved.
    said = there.orch("preview", "fleet.yml", "--rehearse", "--exit-code", "-v")
    assert said.code == 0, said.out
    assert "it stays where it is" in said.out
    said = there.orch("down", "hop", "--rehearse", "--yes")
    assert said.code == 0, said.err
