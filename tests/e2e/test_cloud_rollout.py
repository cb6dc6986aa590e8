"""A rollout on rehearsed clouds whose nodes are launched from a template: what the template says comes to the
nodes, wave by wave. The simulated account's disks are the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.clouds.rehearsals import Rehearsed, RehearsedGcp
from kit.nodes.stocked import stocked

from orch.rehearsal.scenario import NodeScenario

pytestmark = [pytest.mark.timeout(2400), pytest.mark.usefixtures("engine")]

SMALL = "m7i.large"
PLAIN: dict[str, Any] = {"bastion": False, "interconnect": "ethernet"}


def sizes(there: Rehearsed) -> list[int]:
    """Sizes of the disks that nodes have, in GB."""
    kind, size = ("disk", "sizeGb") if there.backend == "gcp" else ("volume", "Size")
    return sorted(int(doc[size]) for doc in there.cloud.things(kind).values())


def machines_of(there: Rehearsed) -> set[str]:
    """What tells machines apart; on GCP one that is made anew has the path of the former."""
    return {str(doc.get("id", each)) for each, doc in there.cloud.instances().items()}


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_new_nodes_are_launched_from_what_the_file_says_now_though_the_call_is_killed(
    tmp_path: Path, cloud: str
) -> None:
    machines = NodeScenario(image=stocked("mpi"), placeholders=False)
    there: Rehearsed = (RehearsedGcp if cloud == "gcp" else Rehearsed).make(tmp_path, nodes=machines)
    common: dict[str, Any] = {"placement": "any", "network": PLAIN}
    common |= {"instance_types": [SMALL]} if cloud == "aws" else {}
    gpu = {"gpu": "L4:1"} if cloud == "gcp" else {}
    there.fleet(2, **common, resources={**gpu, "disk": "100GB.."})
    said = there.up()
    assert said.code == 0, said.err
    assert sizes(there) == [100, 100]
    before = machines_of(there)

    file = there.fleet(2, **common, resources={**gpu, "disk": "200GB.."})
    words = ("rollout", file, "--rehearse", "--serial", "1")
    said = there.orch(*words, "--plan-only")
    assert (said.code, "after the last wave: nothing else" in said.out) == (0, True), said.out + said.err
    # The template is there, and the first machine of it.
    launched = "RunInstances" if cloud == "aws" else "compute.instances.insert"
    there.killed_at({"action": launched, "when": "after"}, "rollout", file, "--serial", "1")
    assert 100 in sizes(there), "the other node is not touched before its wave"
    said = there.orch(*words, "--yes", timeout=900)
    assert (said.code, "going on with change" in said.err) == (0, True), said.err
    assert sizes(there) == [200, 200]
    assert not before & machines_of(there)
    assert there.unrecorded() == {}
    assert there.preview(file, "--exit-code").code == 0

    # What only new nodes start with makes no node anew, and is not taken for done.
    there.fleet(2, **common, resources={**gpu, "disk": "200GB.."}, init=["true"])
    said = there.orch(*words, "--yes")
    assert (said.code, "ORCH409" in said.err, "orch node replace" in said.err) == (2, True, True), said.err
    assert there.down().code == 0
    assert there.cloud.everything() == {}
