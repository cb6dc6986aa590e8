"""Saved plans of a state in a bucket: exactly what was approved is applied, and once."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from kit.engine.remote_state import KIND, PLAN, Shared, bucket, kill_tree, objects_in, recorded_instances
from kit.support import until

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def state(engine: None) -> Iterator[str]:
    with bucket() as url:
        yield url


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, state: str) -> Shared:
    """A fleet of one node that was never up, previewed and then with a saved plan."""
    there = Shared.begin(tmp_path_factory.mktemp("remote") / "planned", state, 1)
    there.go()
    said = there.does("preview")
    assert said.code == 0, said.err
    assert not [each for each in objects_in(state) if "p5" in each]
    said = there.does("save")
    assert said.code == 0, said.err
    assert not [each for each in objects_in(state) if "p5" in each and each.endswith(".lock")]
    return there


def nodes(there: Shared) -> list[str]:
    return there.names(KIND)


def grown(there: Shared) -> None:
    """A plan of one node more, where there is one."""
    there.fleet(
        2, instance_types=[KIND], placement="any", resources={"gpu": "L4:1"}, network={"bastion": False}
    )
    said = there.does("save")
    assert said.code == 0, said.err


def test_what_was_never_up_is_applied_as_approved_and_once(planned: Shared) -> None:
    saved = json.loads((planned.path / PLAN).read_text())
    assert saved["stacks"][0]["states"]["p5"] == {"serial": 0, "resources": {}, "pending": []}
    there = planned
    said = there.does("apply")
    assert said.code == 0, said.err
    assert nodes(there) == ["p5-0"]
    assert len(recorded_instances(there)) == 1
    said = there.does("apply")
    assert (said.code, "was applied already" in said.err) == (9, True), said.err


@pytest.mark.soak
def test_a_state_that_moved_two_at_once_and_one_that_was_killed(planned: Shared) -> None:
    there = planned
    if not nodes(there):
        assert there.does("apply").code == 0
    grown(there)
    plan = (there.path / PLAN).read_bytes()
    # Somebody brings a tag more up from an older file.
    file = (there.path / "p5.yml").read_text()
    there.fleet(
        1,
        instance_types=[KIND],
        placement="any",
        resources={"gpu": "L4:1"},
        network={"bastion": False},
        tags={"owner": "ada"},
    )
    assert there.does("up").code == 0
    (there.path / "p5.yml").write_text(file)
    said = there.does("apply")
    assert (said.code, "ORCH393" in said.err) == (9, True), said.err
    assert "state of p5: serial " in said.err
    assert "recorded otherwise" in said.err
    assert nodes(there) == ["p5-0"]
    # A new plan, killed while it makes the node.
    grown(there)
    assert (there.path / PLAN).read_bytes() != plan
    (there.path / "go").unlink()
    made = len(there.calls_made())
    caller = there.caller("apply")
    until(lambda: len(there.calls_made()) > made, 300, "the node is being made")
    kill_tree(caller)
    there.go()
    said = there.does("apply")
    assert (said.code, "was begun, and has not ended" in said.err) == (9, True), said.err
    # What is left is planned and approved anew, once the lock that the killed call left is broken.
    assert there.does("unlock").code == 0
    grown(there)
    both = [there.caller("apply") for _ in range(2)]
    said_by = [(each.communicate(timeout=500), each.returncode) for each in both]
    assert sorted(code for _, code in said_by) == [0, 9], said_by
    assert nodes(there) == ["p5-0", "p5-1"]
    assert len(recorded_instances(there)) == 2
