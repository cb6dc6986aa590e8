"""Each backend's words for what its nodes are: whatever makes nodes anew has one."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from kit.clouds import aws_cases, gcp_cases

from orch.components.aws import explain as aws
from orch.components.explain import Explained, known
from orch.components.gcp import explain as gcp
from orch.components.gcp.account.lookups import shape_of
from orch.components.gcp.planner import node_os
from orch.components.gcp.userdata import node_scratch
from orch.components.local import backend as local
from orch.components.ssh import backend as ssh

BACKENDS: dict[str, Explained] = {
    "aws": aws.EXPLAINED,
    "gcp": gcp.EXPLAINED,
    "local": local.EXPLAINED,
    "ssh": ssh.EXPLAINED,
}

AWS: dict[str, dict[str, Any]] = {
    "disk": {"resources": {"disk": "500GB"}},
    "spot": {"spot_policy": "spot"},
    "placement": {"placement": "any"},
    "Ethernet": {"network": {"interconnect": "ethernet"}},
    "type": {"instance_types": ["p5en.48xlarge"]},
    "scratch elsewhere": {"scratch": {"path": "/data"}},
    "another file system": {"scratch": {"fs": "ext4"}},
    "scratch is required": {"scratch": {"required": True}},
    "no scratch": {"scratch": False},
}
GCP: dict[str, dict[str, Any]] = {
    **{key: AWS[key] for key in ("disk", "spot", "placement", "scratch elsewhere", "no scratch")},
    "Ethernet": {"network": {"interconnect": "ethernet"}},
    "flex": {"backend_options": [{"type": "gcp", "provisioning": "flex-start", "run_duration": "2d"}]},
}


def told_aws(**more: Any) -> tuple[str, dict[str, str]]:
    """The mark of what only new nodes can have, and the traits."""
    case = aws_cases.Case.of("p5")
    case = replace(case, data={**case.data, "fleet": {**case.data["fleet"], **more}})
    made = case.plan()
    return made.layout, aws.traits(case.fleet, made)


def told_gcp(**more: Any) -> tuple[str, dict[str, str]]:
    case = gcp_cases.Case.of("a3-mega")
    case = replace(case, data={**case.data, "fleet": {**case.data["fleet"], **more}})
    made, chosen = case.plan(), case.candidates()[0]
    scratch = node_scratch(case.fleet, shape_of(case.fleet, chosen), node_os(case.fleet, chosen))
    return made.layout, gcp.traits(made, scratch)


@pytest.mark.parametrize("what", AWS)
def test_what_makes_aws_nodes_anew_has_a_word(what: str) -> None:
    (before, old), (after, new) = told_aws(), told_aws(**AWS[what])
    assert before != after
    assert [key for key in aws.EXPLAINED.new_nodes if old[key] != new[key]]


@pytest.mark.parametrize("what", GCP)
def test_what_makes_gcp_nodes_anew_has_a_word(what: str) -> None:
    (before, old), (after, new) = told_gcp(), told_gcp(**GCP[what])
    assert before != after
    assert [key for key in gcp.EXPLAINED.new_nodes if old[key] != new[key]]


def test_the_traits_of_a_plan_are_those_that_are_told() -> None:
    assert set(told_aws()[1]) == set(aws.EXPLAINED.traits)
    assert set(told_gcp()[1]) == set(gcp.EXPLAINED.traits)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_row_belongs_to_a_trait_or_only_follows(backend: str) -> None:
    explained = BACKENDS[backend]
    assert explained.new_nodes <= set(explained.traits)
    for row in explained.rows:
        assert row.trait is None or row.trait in {*explained.traits, "nodes"}, row
        re.compile(row.type)
        re.compile(row.path)


def test_a_stack_without_traits_has_those_of_its_pins() -> None:
    pins = {"region": "r", "zone": "z", "image": "projects/p/global/images/i", "scope": "abc"}
    assert known({"pins": pins}) == {"region": "r", "zone": "z", "image": "i"}
    assert known({"pins": pins, "traits": {"disk": "1 GB", "zone": "y"}}) == {
        "region": "r",
        "zone": "y",
        "image": "i",
        "disk": "1 GB",
    }
    assert known({}) == {}


def test_no_secret_is_among_what_is_recorded() -> None:
    """What a fleet's environment holds is nobody's to read in a state."""
    _, told = told_aws(env={"HF_TOKEN": "hf_canary"})
    assert "canary" not in str(told)
