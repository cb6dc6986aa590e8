"""Each type of the golden plans through the real engine on the simulated account: up, as it was, and down."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kit.clouds.aws_cases import Case
from kit.clouds.aws_engine import Stack, stack

# One of each layout of cards; the others differ in names and counts only, which the golden plans hold.
TYPES = [
    *("p4d", "p5", "p6-b300", "cpu"),
    *(
        pytest.param(name, marks=pytest.mark.soak)
        for name in ("p4de", "p5.4xl", "p5e", "p5en", "p6-b200", "g5", "g6", "g6e", "trn1", "trn2")
    ),
]
NODES = 2
# vCPUs of the families.
QUOTAS = {"L-417A185B": 20_000, "L-DB2E81BA": 20_000, "L-2C3B7624": 20_000, "L-1216C47A": 20_000}

pytestmark = pytest.mark.usefixtures("forked_providers")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    return stack(tmp_path_factory.mktemp("types"), quotas=QUOTAS)


@pytest.mark.parametrize("name", TYPES)
def test_a_cluster_of_the_type_comes_up_as_planned_stays_and_goes(lab: Stack, name: str) -> None:
    case = Case.of(name)
    fleet = replace(case, data={**case.data, "fleet": {**case.data["fleet"], "nodes": NODES}}).fleet
    there = Stack(lab.folder, lab.project, fleet.name, lab.cloud)
    golden = Case.goldens().outcome(name)
    kind, region = golden["instance_type"], golden["region"]

    assert {change.op for change in there.up(fleet)} == {"create"}
    nodes = there.live(region, kind)
    assert len(nodes) == NODES
    for node in nodes:
        cards = [
            f"card {each['Attachment'].get('NetworkCardIndex', 0)} "
            f"device {each['Attachment']['DeviceIndex']} {each['InterfaceType']}"
            for each in node["NetworkInterfaces"]
        ]
        assert sorted(cards) == sorted(golden["interfaces"])
    again = there.plan(fleet)
    assert {change.op for change in again.changes} == {"same"}
    assert (again.drift, again.delta) == ((), 0)
    assert again.hourly > 0
    there.down()
    assert lab.cloud.everything() == {}
