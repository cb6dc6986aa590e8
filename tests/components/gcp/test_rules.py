"""Rules of their own: candidates, networks in order of interfaces, labels, errors, images."""

from __future__ import annotations

import ipaddress
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.clouds.gcp_cases import Case
from kit.clouds.plan_cases import CATALOG

from orch.catalog.gcp.machines import gcp_codes, shapes
from orch.components import cloud_errors
from orch.components.gcp.account import errors
from orch.components.gcp.account.labels import label, labels
from orch.components.gcp.account.lookups import ImageLookup, image_lookup
from orch.components.gcp.candidates import candidates
from orch.components.request import PriorState
from orch.spec.codes import CODES
from orch.spec.diagnostics import Severity
from orch.spec.findings import PlanErrors
from orch.spec.loader.load import InvalidConfiguration, load_paths
from orch.spec.models import Fleet
from orch.spec.models.backends.gcp import GcpSettings

PLANNED = Case.planned()
STAYED = {"region": "us-west1", "zone": "us-west1-b", "instance_type": "a3-megagpu-8g", "spot": "false"}


def fleet(**more: Any) -> Fleet:
    base = {"type": "fleet", "name": "mega", "backends": ["gcp"], "nodes": "2", "placement": "cluster"}
    return Fleet.model_validate({**base, "instance_types": ["a3-megagpu-8g"], **more})


def places(pins: dict[str, str] | None = None, **more: Any) -> list[str]:
    found = candidates(fleet(**more), GcpSettings(), CATALOG, previous=PriorState(pins or {}))
    return [each.zone for each in found]


# Candidates


def test_the_cheapest_come_first_and_each_zone_once() -> None:
    found = candidates(fleet(), GcpSettings(), CATALOG)
    prices = [each.price for each in found if each.price is not None]
    assert all(one <= other for one, other in pairwise(prices))
    assert len({each.zone for each in found}) == len(found) > 20


def test_a_running_cluster_is_not_moved_by_prices() -> None:
    assert places(STAYED, max_price="1") == ["us-west1-b"]
    assert places(STAYED, availability_zones=["us-east4-a"]) == ["us-east4-a"]


def test_regions_of_the_backend_narrow_them() -> None:
    found = candidates(fleet(), GcpSettings.model_validate({"type": "gcp", "regions": ["us-west4"]}), CATALOG)
    assert [each.zone for each in found] == ["us-west4-a"]


def test_arm_hosts_are_taken_when_they_are_named() -> None:
    assert places(instance_types=["a4x-highgpu-4g"]) == ["us-central1-a"]


# Networks


@pytest.mark.parametrize("name", PLANNED)
def test_interfaces_that_are_no_rdma_interfaces_have_a_network_each(name: str) -> None:
    plain = [each.vpc for each in Case.of(name).plan().interfaces if each.kind != "MRDMA"]
    assert len(set(plain)) == len(plain)


@pytest.mark.parametrize("name", PLANNED)
def test_no_ranges_of_a_node_overlap(name: str) -> None:
    vpcs = Case.of(name).plan().networks.vpcs
    ranges = [ipaddress.ip_network(each.cidr) for vpc in vpcs for each in vpc.subnets if each.cidr]
    assert not [pair for pair in combinations(ranges, 2) if pair[0].overlaps(pair[1])]


@pytest.mark.parametrize(
    ("name", "hosts", "datas", "rdmas"),
    [
        ("a3-high", 1, 4, 0),
        ("a3-edge", 1, 4, 0),
        ("a3-mega", 1, 8, 0),
        ("a3-ultra", 2, 0, 8),
        ("a4", 2, 0, 8),
        ("a4x", 2, 0, 4),
        ("a4x-max", 2, 0, 8),
        ("g2", 1, 0, 0),
    ],
)
def test_each_shape_has_the_interfaces_of_its_kind(name: str, hosts: int, datas: int, rdmas: int) -> None:
    plan = Case.of(name).plan()
    roles = {vpc.name: vpc.role for vpc in plan.networks.vpcs}
    count = [roles[each.vpc] for each in plan.interfaces]
    assert (count.count("host"), count.count("data"), count.count("rdma")) == (hosts, datas, rdmas)


def test_another_zone_is_another_rdma_network() -> None:
    case = Case.of("a3-ultra")
    here = case.plan().networks.vpcs[-1]
    there = Case("x", {**case.data, "fleet": {**case.data["fleet"], "zones": ["us-east4-b"]}})
    assert (here.profile, there.plan().networks.vpcs[-1].profile) == (
        "us-central1-b-vpc-roce",
        "us-east4-b-vpc-roce",
    )


def test_missing_networks_are_counted_at_their_place(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yml"
    file.write_text(
        "type: fleet\nname: narrow\nbackends: [gcp]\nnodes: 2\nplacement: cluster\n"
        "instance_types: [a3-megagpu-8g]\nnetwork:\n  extra_vpcs: [a, b, c, d, e, f, g]\n"
    )
    (document,) = load_paths([file]).require().documents
    with pytest.raises(PlanErrors) as caught:
        Case.of("bad-7-extra-vpcs").plan()
    placed = caught.value.placed(document)
    assert isinstance(placed, InvalidConfiguration)
    (found,) = placed.diagnostics
    assert (found.code, found.span.line, found.span.column) == ("ORCH222", 8, 15)
    assert found.summary == "a3-megagpu-8g needs 8 extra VPCs, 7 are listed: 1 is missing"


# Changes


def test_running_nodes_keep_their_template_when_only_scripts_change() -> None:
    case = Case.of("a3-mega")
    first = case.plan()
    pins = dict(first.pins)
    changed = {
        **case.data,
        "fleet": {**case.data["fleet"], "init": ["apt-get install -y htop"]},
        "pins": pins,
    }
    second = Case("x", changed).plan()
    assert second.layout_unchanged
    assert (second.layout, second.template == first.template) == (first.layout, False)


def test_the_same_pins_give_the_same_plan_elsewhere() -> None:
    case = Case.of("a3-mega")
    first = case.plan()
    again = Case("x", {**case.data, "pins": dict(first.pins)}).plan()
    assert (again.pins, again.template, again.networks) == (first.pins, first.template, first.networks)


# Labels


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("research", "research"),
        ("Cost Center", "cost_center"),
        ("gcp:compute/network::a", "gcp_compute_network__a"),
    ],
)
def test_labels_have_the_letters_that_gcp_takes(text: str, made: str) -> None:
    assert label(text) == made


def test_long_labels_stay_apart() -> None:
    one, other = label("a" * 70 + "1"), label("a" * 70 + "2")
    assert one != other
    assert len(one) == 63
    assert labels({"1st": "x"}) == {"l1st": "x"}


# Images


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("my-image", ImageLookup(None, name="my-image")),
        ("projects/p/global/images/one", ImageLookup("p", name="one")),
        ("projects/p/global/images/family/f", ImageLookup("p", family="f")),
        ("p/one", ImageLookup("p", name="one")),
    ],
)
def test_images_are_written_as_gcp_writes_them(written: str, wanted: ImageLookup) -> None:
    (first, *_) = candidates(fleet(os_image=written), GcpSettings(), CATALOG)
    assert image_lookup(fleet(os_image=written), GcpSettings(), first) == wanted


# Errors


@pytest.mark.parametrize(
    ("text", "code", "verdict"),
    [
        (
            "Error waiting for instance to create: Code: ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS, Message: "
            "The zone 'projects/p/zones/us-central1-a' does not have enough resources available",
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            "next",
        ),
        (
            "googleapi: Error 403: Quota 'NETWORKS' exceeded. Limit: 15.0 globally., quotaExceeded",
            "quotaExceeded",
            "stop",
        ),
        (
            "googleapi: Error 403: Required 'compute.networks.create' permission, forbidden",
            "forbidden",
            "stop",
        ),
        ("Code: QUOTA_EXCEEDED, Message: Quota 'GPUS' exceeded", "QUOTA_EXCEEDED", "stop"),
        ("googleapi: Error 429: slow down", "RATE_LIMIT_EXCEEDED", "again"),
        (
            "Error creating Instance: googleapi: Error 429: Quota limit 'EnterpriseStorageGibPerRegion' has "
            "been exceeded. Limit: 3072 in region us-central1.",
            "FILESTORE_QUOTA",
            "stop",
        ),
        (
            "Error waiting for Creating Instance: Error code 8, message: Quota limit "
            "'HighScaleSSDStorageGibPerRegion' has been exceeded. Limit: 0 in region us-central1.",
            "FILESTORE_QUOTA",
            "stop",
        ),
        (
            "googleapi: Error 400: The network is already being used by 'x', resourceInUseByAnotherResource",
            "resourceInUseByAnotherResource",
            "again",
        ),
    ],
)
def test_each_refusal_has_its_verdict(text: str, code: str, verdict: str) -> None:
    found = errors.read(text)
    assert found is not None
    assert (found.code, found.verdict) == (code, verdict)


def test_a_type_that_a_zone_does_not_sell_leads_to_the_next() -> None:
    found = errors.read(
        "googleapi: Error 404: Machine type with name 'a3-megagpu-8g' does not exist in zone 'us-west3-a', "
        "notFound"
    )
    assert found is not None
    assert found.verdict == "next"


def test_every_kind_has_a_code_of_ours() -> None:
    assert {row.kind for row in gcp_codes().values()} <= set(cloud_errors.VERDICTS)
    assert set(cloud_errors.CODES.values()) <= set(CODES)
    assert errors.by_code("SOMETHING_NEW").verdict == "stop"


def test_text_without_a_cloud_error_is_none() -> None:
    assert errors.read("the provider could not start") is None


def test_every_type_of_the_catalogue_has_a_shape() -> None:
    assert set(shapes()) == {name for backend, name in CATALOG.types if backend == "gcp"}


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("bad-7-extra-vpcs", "ORCH222", "  - gpu-0"),
        ("bad-two-nics-in-one-vpc", "ORCH226", "  - gpu-1"),
        ("bad-roce-of-another-zone", "ORCH225", "  - rdma"),
        ("bad-73-nodes-in-1x72", "ORCH218", "nodes: 73"),
        ("bad-mtu-1500", "ORCH226", "  - gpu-2"),
        ("bad-zone-without-a3-mega", "ORCH205", "- us-central1-f"),
        ("bad-flex-start", "ORCH230", "  run_duration: 30d"),
    ],
)
def test_what_is_refused_is_told_at_its_place_in_the_file(
    name: str, code: str, text: str, tmp_path: Path
) -> None:
    case, file = Case.of(name), tmp_path / "fleet.yml"
    data = {"type": "fleet", "backends": ["gcp"], **case.data["fleet"]}
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    (document,) = load_paths([file]).require().documents
    with pytest.raises(PlanErrors) as caught:
        case.plan()
    placed = caught.value.placed(document)
    assert isinstance(placed, InvalidConfiguration)
    errors_ = [each for each in placed.diagnostics if each.severity is Severity.ERROR]
    lines = {each.code: file.read_text().splitlines()[each.span.line - 1] for each in reversed(errors_)}
    assert lines[code].startswith(text)
    assert all(each.span.column > 1 for each in errors_)


def jumping(**network: Any) -> Case:
    """The case with given networks, whose nodes are reached over a jump host."""
    case = Case.of("given-networks")
    hop = {"hostname": "login.example.com", "user": "ubuntu"}
    case.data["fleet"]["network"] = {**case.data["fleet"]["network"], "proxy_jump": hop, **network}
    return case


def ssh_rules(case: Case) -> list[tuple[str, ...]]:
    made = case.plan()
    return [each.peers for each in made.networks.firewalls if each.port == 22]


def test_a_jump_host_in_a_given_network_is_let_in() -> None:
    case = jumping()
    (name, *_) = [each["name"] for each in case.data["facts"]["networks"]]
    first = case.plan().networks.first
    assert first.name == name
    ranges = tuple(each.cidr for each in first.subnets)
    assert ssh_rules(case) == [ranges]
    assert f"SSH: over the given jump host, from {', '.join(map(str, ranges))}" in case.plan().reasons


def test_written_networks_of_a_jump_host_are_let_in_instead() -> None:
    assert ssh_rules(jumping(ssh_cidrs=["192.0.2.7/32"])) == [("192.0.2.7/32",)]


def test_a_jump_host_outside_a_network_that_is_made_is_told() -> None:
    case = Case.of("a3-mega")
    case.data["fleet"]["network"] = {"proxy_jump": {"hostname": "login.example.com", "user": "ubuntu"}}
    (warning,) = [each for each in case.plan().warnings if each.code == "ORCH226"]
    assert (warning.path, warning.severity) == ("network.proxy_jump", Severity.WARNING)


@pytest.mark.parametrize("cidrs", [["2001:db8::/32"], ["192.0.2.0/24", "2001:db8::/32"]])
def test_ipv6_networks_are_refused_where_they_stand(cidrs: list[str]) -> None:
    case = Case.of("a3-mega")
    case.data["fleet"]["network"] = {"ssh_cidrs": cidrs}
    with pytest.raises(PlanErrors) as caught:
        case.plan()
    assert [(each.code, each.path) for each in caught.value.findings] == [
        ("ORCH226", f"network.ssh_cidrs[{len(cidrs) - 1}]")
    ]


@pytest.mark.parametrize(
    ("network", "path"),
    [({"subnets": ["nodes"]}, "network.subnets"), ({"vpc": "net", "subnets": ["nodes"]}, "network.subnets")],
)
def test_subnets_that_no_given_network_has_are_refused(network: dict[str, Any], path: str) -> None:
    case = Case.of("cpu")
    case.data["fleet"]["network"] = network
    case.data.setdefault("facts", {})["networks"] = [{"name": "net", "subnets": 2}]
    with pytest.raises(PlanErrors) as caught:
        case.plan()
    errors = [each for each in caught.value.findings if each.severity is Severity.ERROR]
    assert [(each.code, each.path) for each in errors] == [("ORCH226", path)]


# Capacity


def test_a_reservation_that_cannot_be_named_is_refused() -> None:
    case = Case.of("reservation")
    case.data["facts"]["reservation"]["specific"] = False
    with pytest.raises(PlanErrors) as caught:
        case.plan()
    assert [(each.code, each.path) for each in caught.value.findings] == [("ORCH323", "reservation")]


@pytest.mark.parametrize("placement", ["cluster", "any"])
@pytest.mark.parametrize("name", ["reservation", "reservation-dense"])
def test_nodes_have_the_placement_policy_of_their_reservation(name: str, placement: str) -> None:
    case = Case.of(name)
    without = case.plan()
    policy = (
        "https://www.googleapis.com/compute/v1/projects/acme-ml/regions/us-central1/resourcePolicies/near"
    )
    case.data["facts"]["reservation"]["policy"] = policy
    case.data["fleet"]["placement"] = placement
    made = case.plan()
    assert (made.placement_policy, made.given_policy) == (None, policy)
    assert "placement: the policy of the reservation (near)" in made.reasons
    assert made.template != without.template


def test_nodes_that_a_killed_call_made_are_not_asked_for_twice() -> None:
    """Their own use is part of what the cloud tells: a quota for the fleet holds the fleet."""
    case = Case.of("a2")
    quota = {"metric": "NVIDIA_A100_GPUS", "name": "GPUs"}
    per_node = case.candidates()[0].type.gpu_count
    nodes = int(case.data["fleet"]["nodes"])
    full = {**quota, "limit": nodes * per_node, "used": nodes * per_node}
    case.data["facts"] = {**case.data.get("facts", {}), "capacity": full, "own": nodes}
    assert case.plan().nodes
    case.data["facts"]["own"] = 0
    with pytest.raises(PlanErrors) as caught:
        case.plan()
    assert [each.code for each in caught.value.findings if each.severity is Severity.ERROR] == ["ORCH313"]
