"""What who is logged in to a bastion may do there."""

from __future__ import annotations

import pytest
from kit.clouds import aws_cases, cloudconfig, gcp_cases
from kit.clouds.aws_cases import Case

from orch.components.aws.plan import NewNetwork

CASES = {"aws": (aws_cases.Case, "p5"), "gcp": (gcp_cases.Case, "a3-mega")}


@pytest.mark.parametrize("cloud", CASES)
def test_sshd_of_a_bastion_passes_ssh_on_and_nothing_else(cloud: str) -> None:
    case, name = CASES[cloud]
    files = cloudconfig.files(case.of(name).plan().bastion_init)
    lines = files["/etc/ssh/sshd_config.d/10-orch.conf"].content.splitlines()
    says = dict(line.split(" ", 1) for line in lines if not line.startswith("#"))
    assert says["PermitOpen"] == "*:22"
    assert says["PermitListen"] == "none"
    assert says["AllowTcpForwarding"] == "local"
    assert {says[each] for each in ("PermitTunnel", "AllowStreamLocalForwarding", "PermitTTY")} == {"no"}


def test_its_packet_filter_lets_them_reach_the_nodes_network_alone() -> None:
    plan = Case.of("p5").plan()
    assert isinstance(plan.network, NewNetwork)
    script = cloudconfig.files(plan.bastion_init)["/usr/local/sbin/orch-forwards"].content
    accepted = [line for line in script.splitlines() if line.endswith("ACCEPT")]
    assert accepted == [
        f"iptables -w 30 -A ORCH-FORWARDS -d {plan.network.nodes_cidr} -p tcp --dport 22 -j ACCEPT"
    ]
