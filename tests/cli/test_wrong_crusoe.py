"""Wrong inputs of fleets on Crusoe: what is said, where, and that nothing is made.

A file has as many mistakes as are told together, for each call of the command line takes seconds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.clouds.rehearsals import H200, RehearsedCrusoe

HEAD = "type: fleet\nname: lab\nnodes: 2\nplacement: cluster\nbackends: [crusoe]\n"
OF_H200 = f'{HEAD}instance_types: [{H200}]\nresources: {{gpu: "H200:8"}}\n'
OPEN = "network: {ssh_cidrs: [198.51.100.0/24], "

# File -> what is said of it.
WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    "what the language has and Crusoe has not": (
        f"""{OF_H200}availability_zones: [us-east1-a]
scratch: true
tags: {{team: a}}
network: {{name: shared}}
""",
        (
            "lab.yml:8:1: error ORCH118: `availability_zones` is not supported by this version",
            "Crusoe's locations are regions",
            "lab.yml:9:1: error ORCH118: `scratch` is not supported by this version",
            "lab.yml:10:1: error ORCH118: `tags` is not supported by this version",
            "lab.yml:11:11: error ORCH118: `network.name` is not supported by this version",
        ),
    ),
    "what its API cannot do": (
        f"{OF_H200}spot_policy: spot\n{OPEN}public_ips: false, security_groups: [g]}}\n",
        (
            "lab.yml:8:14: error ORCH237: Crusoe's API makes no spot machines",
            "lab.yml:9:53: error ORCH237: Crusoe gives each VM a public address",
            "lab.yml:9:78: error ORCH237: Crusoe has no security groups",
        ),
    ),
    "a network of another location": (
        f"{OF_H200}regions: [us-east1-a]\n{OPEN}fabric: h200-eu-iceland1-1}}\n",
        ("lab.yml:9:49: error ORCH205: the InfiniBand network h200-eu-iceland1-1 is in eu-iceland1-a, not",),
    ),
    "a network of another type": (
        f"{OF_H200}{OPEN}fabric: h100-us-east1-1}}\n",
        ("lab.yml:8:49: error ORCH205: the InfiniBand network h100-us-east1-1 is of h100-80gb-sxm-ib.8x",),
    ),
    "a network that is not there": (
        f"{OF_H200}{OPEN}fabric: h200-us-east1-7}}\n",
        ("lab.yml:8:49: error ORCH205: the project has no InfiniBand network h200-us-east1-7",),
    ),
    "a location without the type": (
        f"{OF_H200}regions: [us-southcentral1-a]\n{OPEN[:-2]}}}\n",
        (
            f"lab.yml:8:10: error ORCH205: Crusoe has no {H200} in us-southcentral1-a for this project",
            "hint: it has some in eu-iceland1-a, us-east1-a",
        ),
    ),
    "a type": (
        f'{HEAD}instance_types: [h200-141gb-sxm.8x]\nresources: {{gpu: "H200:8"}}\n',
        ("lab.yml:6:18: error ORCH202: the catalogue has no Crusoe type 'h200-141gb-sxm.8x'",),
    ),
    "an interconnect that the type has not": (
        f'{HEAD}instance_types: [l40s-48gb.8x]\nresources: {{gpu: "L40S:8"}}\n'
        f"{OPEN}interconnect: required}}\n",
        ("lab.yml:8:55: error ORCH223: a fast interconnect is required, and l40s-48gb.8x has Ethernet only",),
    ),
    "what the project has not, and nobody who comes in": (
        f"{OF_H200}os_image: mine:1\nblocks: 1\nbudget: {{hourly: 50}}\n"
        "network: {bastion: false, subnets: [gone]}\n",
        (
            "lab.yml:8:11: error ORCH213: Crusoe has no machine image mine:1",
            "lab.yml:10:18: error ORCH281: 2 nodes at $34.32 an hour make $68.64, over the budget of $50.00",
            "lab.yml:11:20: error ORCH235: nobody could log in to the nodes",
            "lab.yml:11:37: error ORCH226: the project 11111111-2222-4333-8444-555555555555 has no gone",
        ),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_pointed_at_and_nothing_is_made(tmp_path: Path, case: str) -> None:
    text, said = WRONG[case]
    there = RehearsedCrusoe.make(tmp_path)
    there.write("lab.yml", text)
    told = there.orch("preview", "lab.yml", "--rehearse")
    assert told.code == 3, told.err
    for each in said:
        assert each in told.err
    assert "local nodes" not in told.err
    assert there.cloud.everything() == {}


@pytest.mark.usefixtures("engine")
def test_a_type_that_is_sold_with_a_reservation_only_is_told_where_it_is_written(tmp_path: Path) -> None:
    there = RehearsedCrusoe.make(tmp_path)
    text = f'{HEAD}instance_types: [h100-80gb-sxm-ib.8x]\nresources: {{gpu: "H100:8"}}\n{OPEN[:-2]}}}\n'
    there.write("lab.yml", text)
    told = there.orch("preview", "lab.yml", "--rehearse")
    assert told.code == 0, told.err
    assert "lab.yml:6:17: warning ORCH238: h100-80gb-sxm-ib.8x is sold with a reservation only" in told.err
    there.write("lab.yml", f"{text}reservation: r-1\n")
    told = there.orch("preview", "lab.yml", "--rehearse")
    assert told.code == 3, told.err
    assert "lab.yml:9:14: error ORCH322: the organization of the project has no reservation r-1" in told.err
    there.cloud.add_reservation("r-1", "h100-80gb-sxm-ib.8x", "us-east1-a", 2)
    told = there.orch("preview", "lab.yml", "--rehearse")
    assert told.code == 0, told.err
    assert "ORCH238" not in told.err
    assert "capacity: from the reservation r-1 alone" in told.out
