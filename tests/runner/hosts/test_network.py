"""The network of a cluster: the one all hosts have, or an error that names them."""

from __future__ import annotations

import pytest

from orch.runner.hosts.host_facts import HostInterface
from orch.runner.hosts.network import (
    ClusterNetwork,
    NetworkMember,
    NetworkProblem,
    duplicate_machine_ids,
    find_network,
)


def link(
    name: str,
    *addresses: str,
    kind: str = "physical",
    mtu: int = 1500,
    speed: int | None = None,
    rdma: bool = False,
) -> HostInterface:
    return HostInterface(
        name=name,
        kind=kind,  # type: ignore[arg-type]
        mtu=mtu,
        speed_mbps=speed,
        addresses=addresses,
        rdma=("mlx5_0",) if rdma else (),
    )


DOCKER = link("docker0", "172.17.0.1/16", kind="bridge")
LOOPBACK = link("lo", "127.0.0.1/8", kind="loopback", mtu=65536)


def members(
    *interfaces_of_each: list[HostInterface], ips: tuple[str | None, ...] = ()
) -> list[NetworkMember]:
    return [
        NetworkMember(f"gpu{at}", (DOCKER, LOOPBACK, *found), ips[at - 1] if ips else None)
        for at, found in enumerate(interfaces_of_each, 1)
    ]


def chosen(*args: object, **options: object) -> ClusterNetwork:
    network, problems = find_network(*args, **options)  # type: ignore[arg-type]
    assert problems == ()
    assert network is not None
    return network


def refused(*args: object, **options: object) -> tuple[NetworkProblem, ...]:
    network, problems = find_network(*args, **options)  # type: ignore[arg-type]
    assert network is None
    assert problems
    return problems


def test_the_one_private_network_all_hosts_have_is_taken() -> None:
    network = chosen(
        members(
            [link("eth0", "203.0.113.4/24"), link("eth1", "10.0.0.4/24")],
            [link("ens1", "10.0.0.5/24"), link("ens2", "192.168.9.5/24")],
        )
    )
    assert network.cidr == "10.0.0.0/24"
    assert [(place.name, place.address, place.interface) for place in network.addresses] == [
        ("gpu1", "10.0.0.4", "eth1"),
        ("gpu2", "10.0.0.5", "ens1"),
    ]


def test_the_bridges_that_docker_and_pods_have_on_every_host_are_no_network() -> None:
    plumbing = [
        link("br-0123456789ab", "172.18.0.1/16", kind="bridge"),
        link("cni0", "10.244.0.1/24", kind="bridge"),
        link("flannel.1", "10.244.0.0/16", kind="virtual"),
        link("virbr0", "192.168.122.1/24", kind="bridge"),
        link("tunl0", "10.233.0.1/24", kind="virtual"),
    ]
    (problem,) = refused(members(plumbing, plumbing))
    assert problem.code == "ORCH362"
    assert "gpu1: none" in problem.detail


def test_a_bridge_with_a_cable_in_it_is_a_network() -> None:
    network = chosen(members([link("vmbr0", "192.168.7.1/24")], [link("vmbr0", "192.168.7.2/24")]))
    assert network.cidr == "192.168.7.0/24"


def test_the_same_address_on_two_hosts_is_not_one_network() -> None:
    twice = [link("eth1", "10.1.1.1/24")]
    assert refused(members(twice, twice))[0].code == "ORCH362"


@pytest.mark.parametrize(
    ("front", "back", "better"),
    [
        (link("a", "10.1.0.1/24", speed=400_000), link("b", "10.2.0.1/24", rdma=True), "10.2.0.0/24"),
        (link("a", "10.1.0.1/24", speed=10_000), link("b", "10.2.0.1/24", speed=100_000), "10.2.0.0/24"),
        (link("a", "10.1.0.1/24", mtu=9000), link("b", "10.2.0.1/24"), "10.1.0.0/24"),
        (link("a", "10.1.0.1/24", speed=25_000), link("b", "10.2.0.1/24", mtu=9000), "10.1.0.0/24"),
        (link("a", "10.1.0.1/24", "fd00:1::1/64"), link("b", "203.0.113.1/24"), "10.1.0.0/24"),
    ],
    ids=["RDMA before speed", "speed", "MTU", "speed before MTU", "IPv4 of one link's two"],
)
def test_of_several_networks_the_better_one_is_taken(
    front: HostInterface, back: HostInterface, better: str
) -> None:
    def other(interface: HostInterface) -> HostInterface:
        moved = tuple(a.replace(".1/", ".2/").replace("::1/", "::2/") for a in interface.addresses)
        return interface.model_copy(update={"addresses": moved})

    assert chosen(members([front, back], [other(front), other(back)])).cidr == better


def test_a_network_is_as_good_as_on_its_weakest_host() -> None:
    network = chosen(
        members(
            [link("a", "10.1.0.1/24", speed=400_000), link("b", "10.2.0.1/24", speed=100_000)],
            [link("a", "10.1.0.2/24", speed=10_000), link("b", "10.2.0.2/24", speed=100_000)],
        )
    )
    assert network.cidr == "10.2.0.0/24"


def test_two_equal_networks_are_named_with_a_way_to_say_which() -> None:
    (problem,) = refused(
        members(
            [link("eth0", "10.1.0.1/24"), link("eth1", "10.2.0.1/24")],
            [link("eth0", "10.1.0.2/24"), link("eth1", "10.2.0.2/24")],
        )
    )
    assert problem.code == "ORCH362"
    assert problem.hosts == ("gpu1", "gpu2")
    assert problem.summary == "the hosts have 2 private networks in common, none better than the others"
    assert problem.detail == (
        "10.1.0.0/24 (eth0, speed unknown, MTU 1500); 10.2.0.0/24 (eth1, speed unknown, MTU 1500)"
    )
    assert problem.hint == "say which: `network: 10.1.0.0/24`"


def test_no_common_network_names_what_each_host_has() -> None:
    (problem,) = refused(members([link("eth0", "10.1.0.1/24")], [link("eth0", "10.2.0.1/24")]))
    assert problem.code == "ORCH362"
    assert problem.detail == "private networks: gpu1: 10.1.0.0/24; gpu2: 10.2.0.0/24"


def test_a_public_network_is_not_taken() -> None:
    found = members([link("eth0", "203.0.113.4/24")], [link("eth0", "203.0.113.5/24")])
    assert refused(found)[0].code == "ORCH362"
    assert find_network(found, cluster=False) == (None, ()), "hosts of no cluster need no network"


def test_one_host_alone_has_no_one_to_be_ambiguous_with() -> None:
    assert chosen(members([link("a", "10.1.0.1/24"), link("b", "10.2.0.1/24")])).cidr == "10.1.0.0/24"


def test_a_given_network_holds_exactly_one_address_of_each_host() -> None:
    wide = (
        [link("a", "10.1.0.1/24"), link("b", "10.2.0.1/24")],
        [link("a", "10.1.0.2/24"), link("b", "10.2.0.2/24")],
    )
    assert chosen(members(*wide), network="10.2.0.0/24").cidr == "10.2.0.0/24"
    both = refused(members(*wide), network="10.0.0.0/8")
    assert [problem.code for problem in both] == ["ORCH361", "ORCH361"]
    assert both[0].summary == "gpu1 has 2 addresses in the network 10.0.0.0/8"
    assert both[0].detail == "10.1.0.1 (a), 10.2.0.1 (b)"
    (outside,) = refused(members(wide[0], [link("a", "10.9.0.2/24")]), network="10.1.0.0/24")
    assert outside.summary == "gpu2 has no addresses in the network 10.1.0.0/24"
    assert (outside.hosts, outside.detail) == (("gpu2",), "it has 10.9.0.2 (a)")


def test_dockers_own_address_is_not_the_one_of_a_given_network() -> None:
    found = members([link("eth0", "172.16.5.1/16")], [link("eth0", "172.16.5.2/16")])
    network = chosen(found, network="172.16.0.0/12")
    assert [place.address for place in network.addresses] == ["172.16.5.1", "172.16.5.2"]


def test_a_given_address_that_no_interface_has_is_told_with_those_it_has() -> None:
    found = members([link("a", "10.1.0.1/24")], [link("a", "10.1.0.2/24")], ips=("10.1.0.1", "10.1.0.7"))
    (problem,) = refused(found)
    assert problem.code == "ORCH361"
    assert problem.summary == "no interface of gpu2 has the address 10.1.0.7"
    assert problem.detail == "it has 10.1.0.2 (a)"


def test_given_addresses_may_lie_in_networks_that_are_routed() -> None:
    found = members([link("a", "10.1.0.1/31")], [link("a", "10.1.0.3/31")], ips=("10.1.0.1", "10.1.0.3"))
    network = chosen(found)
    assert network.cidr is None
    assert [place.interface for place in network.addresses] == ["a", "a"]


def test_the_hosts_of_each_mtu_are_known() -> None:
    network = chosen(
        members(
            [link("a", "10.1.0.1/24", mtu=9000)],
            [link("a", "10.1.0.2/24")],
            [link("a", "10.1.0.3/24", mtu=9000)],
        )
    )
    assert network.mtus == {9000: ("gpu1", "gpu3"), 1500: ("gpu2",)}


def test_a_host_without_the_ip_command_is_told() -> None:
    blind = NetworkMember("old", (), sees_addresses=False)
    (problem,) = refused([*members([link("a", "10.1.0.1/24")]), blind])
    assert (problem.hosts, problem.hint) == (("old",), "install iproute2 on it")


def test_one_machine_id_under_two_names_is_an_error() -> None:
    (problem,) = duplicate_machine_ids({"a": "0123", "b": "4567", "c": "0123", "d": None, "e": None})
    assert (problem.code, problem.hosts) == ("ORCH368", ("a", "c"))
