"""Networks, subnetworks, firewall rules and routers: what Compute Engine takes and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

PROJECT = "projects/orch-rehearsal"
PROFILE = f"{PROJECT}/global/networkProfiles/us-central1-b-vpc-roce"
METAL = f"{PROFILE}-metal"


@pytest.mark.parametrize("name", ["Net", "1net", "net-", "n" * 64, "net_1"])
def test_names_are_those_of_rfc_1035(bare: Any, refused: Any, name: str) -> None:
    error = refused(bare.network, name)
    assert (error.status, error.code) == (400, "invalid")
    assert error.message.startswith(
        f"Invalid value for field 'resource.name': '{name}'. Must be a match of regex"
    )


def test_a_name_is_taken_once(bare: Any, refused: Any) -> None:
    path = bare.network()
    error = refused(bare.network)
    assert (error.status, error.code, error.message) == (
        409,
        "alreadyExists",
        f"The resource '{path}' already exists",
    )


def test_what_is_not_there_is_told_by_its_path(bare: Any, refused: Any) -> None:
    error = refused(bare.call, "GET", "global/networks/none")
    assert (error.status, error.code) == (404, "notFound")
    assert error.message == f"The resource '{PROJECT}/global/networks/none' was not found"


@pytest.mark.parametrize(
    ("mtu", "bound"), [(1299, "greater than or equal to 1300"), (8897, "less than or equal to 8896")]
)
def test_an_mtu_has_bounds(bare: Any, refused: Any, mtu: int, bound: str) -> None:
    error = refused(bare.network, mtu=mtu)
    assert (error.code, bound in error.message) == ("invalid", True)
    for good in (1300, 8896):
        bare.network(f"net{good}", mtu=good)


def test_a_network_without_an_mtu_has_the_usual_one(bare: Any) -> None:
    bare.network()
    assert bare.call("GET", "global/networks/net")["mtu"] == 1460


def test_a_profile_fixes_the_mtu_and_is_there_in_its_zones_only(bare: Any, refused: Any) -> None:
    bare.network("rdma", networkProfile=PROFILE)
    assert bare.call("GET", "global/networks/rdma")["mtu"] == 8896
    assert refused(bare.network, "other", networkProfile=PROFILE, mtu=1500).code == "invalid"
    error = refused(bare.network, "other", networkProfile=PROFILE.replace("central1-b", "central1-f"))
    assert (error.status, error.code) == (404, "notFound")


def test_profiles_are_listed(bare: Any) -> None:
    names = {one["name"] for one in bare.call("GET", "global/networkProfiles")["items"]}
    assert {"us-central1-b-vpc-roce", "us-central1-b-vpc-roce-metal", "europe-west1-b-vpc-roce"} <= names
    assert "us-central1-f-vpc-roce" not in names


def test_an_rdma_network_takes_no_firewall_rules_and_no_router(bare: Any, refused: Any) -> None:
    network = bare.network("rdma", networkProfile=PROFILE)
    rule = {"name": "in", "network": network, "allowed": [{"IPProtocol": "tcp"}]}
    assert refused(bare.call, "POST", "global/firewalls", rule).code == "invalidUsage"
    router = {"name": "r", "network": network}
    assert refused(bare.call, "POST", "regions/us-central1/routers", router).code == "invalidUsage"


def test_subnetworks_of_an_rdma_network_are_in_the_region_of_its_zone(bare: Any, refused: Any) -> None:
    network = bare.network("rdma", networkProfile=PROFILE)
    bare.subnet("one", network, "10.0.0.0/24")
    assert refused(bare.subnet, "two", network, "10.0.1.0/24", "us-east4").code == "invalid"


def test_a_metal_profile_makes_its_subnetwork_and_takes_no_other(bare: Any, refused: Any) -> None:
    network = bare.network("metal", networkProfile=METAL)
    (found,) = bare.call("GET", "regions/us-central1/subnetworks")["items"]
    assert (found["name"], found["stackType"]) == ("default-subnet-1-metal", "IPV6_ONLY")
    assert refused(bare.subnet, "mine", network, "10.0.0.0/24").code == "invalidUsage"
    bare.call("DELETE", "global/networks/metal")
    assert not bare.cloud.everything()


def test_ranges_of_a_network_do_not_overlap(bare: Any, refused: Any) -> None:
    network = bare.network()
    bare.subnet("one", network, "10.0.0.0/16")
    error = refused(bare.subnet, "two", network, "10.0.5.0/24", "us-east4")
    assert error.code == "invalid"
    assert "conflicts with existing subnetwork 'one' in region 'us-central1'" in error.message
    bare.subnet("three", bare.network("other"), "10.0.0.0/16")


@pytest.mark.parametrize("cidr", ["10.0.0.1/24", "10.0.0.0/30", "ten"])
def test_a_range_is_a_range_and_not_too_small(bare: Any, refused: Any, cidr: str) -> None:
    assert refused(bare.subnet, "one", bare.network(), cidr).code == "invalid"


def test_ipv6_inside_needs_a_network_with_such_a_range(bare: Any, refused: Any) -> None:
    more = {"stackType": "IPV4_IPV6", "ipv6AccessType": "INTERNAL"}
    assert refused(bare.subnet, "one", bare.network(), "10.0.0.0/24", **more).code == "invalid"
    bare.subnet("two", bare.network("six", enableUlaInternalIpv6=True), "10.0.0.0/24", **more)


def test_firewall_rules_are_checked_and_let_in_all_when_no_source_is_named(bare: Any, refused: Any) -> None:
    network = bare.network()
    rule = {"name": "in", "network": network, "allowed": [{"IPProtocol": "tcp", "ports": ["22", "80-90"]}]}
    bare.call("POST", "global/firewalls", rule)
    found = bare.call("GET", "global/firewalls/in")
    assert (found["sourceRanges"], found["direction"], found["priority"]) == (["0.0.0.0/0"], "INGRESS", 1000)
    bad = [
        {"allowed": []},
        {"allowed": [{"IPProtocol": "icmp", "ports": ["1"]}]},
        {"allowed": [{"IPProtocol": "tcp", "ports": ["90-80"]}]},
        {"allowed": [{"IPProtocol": "sand"}]},
        {"sourceRanges": ["10.0.0.0/99"]},
        {"targetTags": ["Not A Tag"]},
    ]
    for change in bad:
        assert (
            refused(bare.call, "POST", "global/firewalls", {**rule, "name": "b", **change}).code == "invalid"
        )
    gone = {**rule, "name": "c", "network": f"{PROJECT}/global/networks/none"}
    assert refused(bare.call, "POST", "global/firewalls", gone).code == "notFound"


def test_a_router_has_its_nats_by_patch(bare: Any, refused: Any) -> None:
    where = "regions/us-central1/routers"
    bare.call("POST", where, {"name": "r", "network": bare.network()})
    nat = {
        "name": "nat",
        "natIpAllocateOption": "AUTO_ONLY",
        "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
    }
    bare.call("PATCH", f"{where}/r", {"nats": [nat]})
    assert bare.call("GET", f"{where}/r")["nats"] == [nat]
    assert (
        refused(bare.call, "PATCH", f"{where}/r", {"nats": [nat, {**nat, "name": "second"}]}).code
        == "invalid"
    )
    error = refused(bare.call, "PATCH", f"{where}/r", {"nats": [{"name": "nat"}]})
    assert (error.status, error.code) == (400, "required")


def test_a_network_has_five_routers_in_a_region(bare: Any, refused: Any) -> None:
    network = bare.network()
    for number in range(5):
        bare.call("POST", "regions/us-central1/routers", {"name": f"r{number}", "network": network})
    error = refused(bare.call, "POST", "regions/us-central1/routers", {"name": "r5", "network": network})
    assert (error.status, error.code) == (403, "quotaExceeded")
    bare.call("POST", "regions/us-east4/routers", {"name": "r5", "network": network})


def test_what_is_in_use_stays(project: Any, refused: Any) -> None:
    project.launch("one")
    main = "regions/us-central1/subnetworks/main"
    error = refused(project.call, "DELETE", main)
    assert (error.status, error.code) == (400, "resourceInUseByAnotherResource")
    assert error.message == (
        f"The subnetwork resource '{PROJECT}/{main}' is already being used by "
        f"'{PROJECT}/zones/us-central1-b/instances/one'"
    )
    error = refused(project.call, "DELETE", "global/networks/main")
    assert error.code == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
    project.call("DELETE", "zones/us-central1-b/instances/one")
    project.call("DELETE", main)
    project.call("DELETE", "global/networks/main")
    assert not project.cloud.everything()


def test_a_project_has_so_many_networks(bare: Any, refused: Any) -> None:
    bare.cloud.turn(quotas={"NETWORKS": 2})
    bare.network("one")
    bare.network("two")
    error = refused(bare.network, "three")
    assert (error.status, error.code) == (403, "QUOTA_EXCEEDED")
    assert error.message == "Quota 'NETWORKS' exceeded.  Limit: 2.0 globally."
    quotas = {one["metric"]: one for one in bare.call("GET", "")["quotas"]}
    assert quotas["NETWORKS"] == {"metric": "NETWORKS", "limit": 2.0, "usage": 2.0}
