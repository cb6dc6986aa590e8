"""How many network interfaces a machine type takes, of which types, in which networks."""

from __future__ import annotations

from typing import Any

import pytest


def gvnics(subnets: list[str]) -> list[dict[str, Any]]:
    return [{"subnetwork": one, "nicType": "GVNIC"} for one in subnets]


@pytest.mark.parametrize(
    ("machine", "most"),
    [
        ("a3-megagpu-8g", 9),
        ("a3-highgpu-8g", 5),
        ("a3-edgegpu-8g", 5),
        ("e2-medium", 2),
        ("a3-highgpu-1g", 1),
    ],
)
def test_a_type_takes_so_many_interfaces_and_no_more(
    bare: Any, refused: Any, machine: str, most: int
) -> None:
    subnets = bare.nets(most + 1)
    bare.launch("fits", machine, gvnics(subnets[:most]))
    error = refused(bare.launch, "more", machine, gvnics(subnets))
    assert (error.status, error.code) == (400, "invalid")
    assert (
        f"Too many network interfaces. The maximum number allowed for machine type {machine} is {most}."
        in (error.message)
    )


def test_each_interface_is_in_a_network_of_its_own(bare: Any, refused: Any) -> None:
    network = bare.network()
    subnets = [bare.subnet(f"s{n}", network, f"10.0.{n}.0/24") for n in range(2)]
    error = refused(bare.launch, "one", "a3-megagpu-8g", gvnics(subnets))
    assert error.message == "Networks must be distinct for NICs attached to a VM."
    assert error.code.isupper(), "the operation says so, not the call"


def test_ranges_of_an_instance_do_not_overlap(bare: Any, refused: Any) -> None:
    subnets = [
        bare.subnet(f"s{n}", bare.network(f"n{n}"), cidr)
        for n, cidr in enumerate(["10.0.0.0/16", "10.0.4.0/24"])
    ]
    error = refused(bare.launch, "one", "a3-megagpu-8g", gvnics(subnets))
    assert error.code == "invalid"
    assert "overlaps" in error.message


def test_a3_ultra_has_two_host_interfaces_and_eight_in_one_rdma_network(bare: Any) -> None:
    path = bare.launch("one", "a3-ultragpu-8g", bare.ultra(bare.nets(2), bare.roce()))
    found = bare.call("GET", path.removeprefix("projects/orch-rehearsal/"))["networkInterfaces"]
    assert [one["nicType"] for one in found] == ["GVNIC"] * 2 + ["MRDMA"] * 8
    assert [one["name"] for one in found] == [f"nic{n}" for n in range(10)]
    assert found[0]["networkIP"] == "10.0.0.2"
    assert found[9]["networkIP"] == "192.168.7.2"


def test_rdma_interfaces_are_in_one_network(bare: Any, refused: Any) -> None:
    rdma = [*bare.roce(count=4), *bare.roce(count=4, name="other")]
    error = refused(bare.launch, "one", "a3-ultragpu-8g", bare.ultra(bare.nets(2), rdma))
    assert (error.code, "must be in one network" in error.message) == ("invalid", True)


def test_rdma_interfaces_need_a_profile_and_a_profile_needs_rdma_interfaces(bare: Any, refused: Any) -> None:
    hosts, rdma = bare.nets(3), bare.roce()
    error = refused(bare.launch, "one", "a3-ultragpu-8g", bare.ultra(hosts[:2], hosts[2:]))
    assert "need a network with an RDMA network profile" in error.message
    error = refused(bare.launch, "one", "a3-ultragpu-8g", [*bare.ultra(hosts[:1], []), *gvnics(rdma[:1])])
    assert "supports MRDMA interfaces only" in error.message
    assert refused(bare.launch, "one", "a3-megagpu-8g", bare.ultra(hosts[:1], rdma)).code == "invalid"


def test_the_profile_is_of_the_instances_zone(bare: Any, refused: Any) -> None:
    rdma = bare.roce("us-central1-a")
    error = refused(bare.launch, "one", "a3-ultragpu-8g", bare.ultra(bare.nets(2), rdma))
    assert "is of zone us-central1-a, not of us-central1-b" in error.message


def test_rdma_interfaces_have_no_public_address(bare: Any, refused: Any) -> None:
    nics = bare.ultra(bare.nets(2), bare.roce())
    nics[2]["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT"}]
    assert refused(bare.launch, "one", "a3-ultragpu-8g", nics).code == "invalid"


def test_a4x_max_has_idpf_interfaces_and_the_metal_profile(bare: Any, refused: Any) -> None:
    six = {"stackType": "IPV4_IPV6", "ipv6AccessType": "INTERNAL"}
    hosts = [
        bare.subnet(
            f"s{n}", bare.network(f"n{n}", mtu=4096, enableUlaInternalIpv6=True), f"10.{n}.0.0/16", **six
        )
        for n in range(2)
    ]
    bare.network(
        "metal", networkProfile="projects/orch-rehearsal/global/networkProfiles/us-central1-b-vpc-roce-metal"
    )
    own = "projects/orch-rehearsal/regions/us-central1/subnetworks/default-subnet-1-metal"
    nics = [{"subnetwork": one, "nicType": "IDPF", "stackType": "IPV4_IPV6"} for one in hosts]
    rdma = [{"subnetwork": own, "nicType": "MRDMA"}] * 8
    bare.launch(
        "one",
        "a4x-maxgpu-4g-metal",
        [*nics, *rdma],
        guestAccelerators=[{"acceleratorType": "nvidia-gb300", "acceleratorCount": 4}],
    )
    found = bare.call("GET", "zones/us-central1-b/instances/one")["networkInterfaces"]
    assert (found[0]["nicType"], "ipv6Address" in found[0], found[0]["networkIP"]) == (
        "IDPF",
        True,
        "10.0.0.2",
    )
    assert "networkIP" not in found[2]
    assert refused(bare.launch, "two", "a4x-maxgpu-4g-metal", [*gvnics(hosts), *rdma]).code == "invalid"
    usual = [{"subnetwork": one, "nicType": "MRDMA"} for one in bare.roce()]
    assert (
        "does not support machine type"
        in refused(bare.launch, "two", "a4x-maxgpu-4g-metal", [*nics, *usual]).message
    )
    wrong = [{"acceleratorType": "nvidia-gb300", "acceleratorCount": 8}]
    assert (
        refused(bare.launch, "two", "a4x-maxgpu-4g-metal", [*nics, *rdma], guestAccelerators=wrong).code
        == "badRequest"
    )


def test_a_subnetwork_is_in_the_instances_region_and_there(bare: Any, refused: Any) -> None:
    far = bare.subnet("far", bare.network("far"), "10.0.0.0/24", "us-east4")
    assert refused(bare.launch, "one", nics=gvnics([far])).code == "invalid"
    assert refused(bare.launch, "one", nics=gvnics([far.replace("far", "none")])).code == "notFound"
    assert refused(bare.launch, "one", nics=[{"subnetwork": "what"}]).message.endswith(
        "The URL is malformed."
    )
    assert refused(bare.launch, "one", nics=[]).code == "invalid"


def test_a_subnetwork_runs_out_of_addresses(bare: Any, refused: Any) -> None:
    small = bare.subnet("small", bare.network(), "10.0.0.0/29")
    for number in range(4):
        bare.launch(f"i{number}", nics=gvnics([small]))
    assert refused(bare.launch, "i4", nics=gvnics([small])).code == "IP_SPACE_EXHAUSTED_WITH_DETAILS"
    assert len(bare.cloud.instances()) == 4
    bare.call("DELETE", "zones/us-central1-b/instances/i0")
    bare.launch("i4", nics=gvnics([small]))
