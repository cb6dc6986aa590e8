"""What a plan may do to file systems that are recorded. Pure."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from orch.components.deployment import Deployment
from orch.components.file_systems import NETWORK_PIN, FileSystem, check, recorded
from orch.components.gcp.network import DATAS, HOSTS, RDMA, filestore_range
from orch.components.request import PriorState
from orch.runner.preparation.mounts import created_name
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet

URN = "urn:pulumi:train::tests::aws:fsx/lustreFileSystem:LustreFileSystem::train-" + created_name("/fast")
LUSTRE = {"type": "aws:fsx/lustreFileSystem:LustreFileSystem", "urn": URN, "id": "fs-0123"}
PINS = {"file_system:/fast": "fsx-lustre 1200 125", NETWORK_PIN: "vpc-1"}


def fleet(size: str = "1200GB", **more: Any) -> Fleet:
    mount = {"type": "fsx-lustre", "path": "/fast", "create": {"size": size}}
    base: dict[str, Any] = {"type": "fleet", "name": "train", "backends": ["aws"], "mounts": [mount]}
    return Fleet.model_validate({**base, **more})


def deployment(network: str = "vpc-1", *, moves: bool = False) -> Deployment:
    def register() -> Any:
        raise AssertionError("nothing is registered")

    return Deployment((), {NETWORK_PIN: network}, 0.0, register, moves=moves)


def prior(size: int = 1200, *, unfinished: bool = False, gone: bool = False) -> PriorState:
    resources = [] if gone else [{**LUSTRE, "outputs": {"storageCapacity": float(size)}}]
    pins = {"unfinished": PINS} if unfinished else {"pins": PINS}
    return PriorState(**pins, file_systems=recorded(resources, PINS))  # type: ignore[arg-type]


def errors(
    wanted: Fleet, previous: PriorState, compiled: Deployment, *lose_data: str
) -> list[tuple[str, str | None]]:
    with pytest.raises(PlanErrors) as caught:
        check(wanted, previous, compiled, lose_data)
    return [(each.code, each.path) for each in caught.value.findings]


@pytest.mark.parametrize("unfinished", [False, True])
def test_nothing_is_told_of_a_fleet_that_stays_as_it_is(unfinished: bool) -> None:
    assert check(fleet(), prior(unfinished=unfinished), deployment(), ()).findings == ()


@pytest.mark.parametrize("unfinished", [False, True])
def test_a_move_and_another_network_are_refused(unfinished: bool) -> None:
    before = prior(unfinished=unfinished)
    assert errors(fleet(), before, deployment(moves=True), "/fast") == [("ORCH275", "mounts[0]")]
    assert errors(fleet(), before, deployment("vpc-2"), "/fast") == [("ORCH275", "network")]


def test_the_recorded_size_counts_where_an_up_grew_it_and_failed() -> None:
    assert errors(fleet(), prior(2400), deployment()) == [("ORCH264", "mounts[0].create.size")]
    assert check(fleet("2400GB"), prior(2400), deployment(), ()).findings == ()


def test_a_line_that_is_removed_needs_the_path_and_a_fleet_without_protection() -> None:
    without = fleet(mounts=[])
    assert errors(without, prior(), deployment()) == [("ORCH275", "mounts")]
    assert errors(without, prior(), deployment(), "/other") == [("ORCH275", "mounts")]
    assert errors(fleet(mounts=[], protect=True), prior(), deployment(), "/fast") == [("ORCH348", "mounts")]
    (told,) = check(without, prior(), deployment(), ("/fast",)).findings
    assert told.summary == (
        "the file system at /fast (FSx for Lustre of 1200 GiB fs-0123) is deleted, and all data on it"
    )


def test_one_that_is_recorded_no_more_is_made_anew_by_the_users_word_alone() -> None:
    assert errors(fleet(), prior(gone=True), deployment()) == [("ORCH275", "mounts[0]")]
    (told,) = check(fleet(), prior(gone=True), deployment(), ("/fast",)).findings
    assert "a new, empty one is made" in told.summary


def test_a_filestore_stays_in_its_range() -> None:
    token = "gcp:filestore/instance:Instance"
    urn = f"urn:pulumi:train::tests::{token}::train-{created_name('/shared')}"
    outputs = {"fileShares": {"capacityGb": 9984.0, "name": "share"}}
    pins = {"file_system:/shared": "filestore 9984 0"}
    known = recorded([{"type": token, "urn": urn, "id": "projects/p/x", "outputs": outputs}], pins)
    mount = {"type": "filestore", "path": "/shared", "create": {"size": "10TB"}}
    wanted = fleet(backends=["gcp"], mounts=[mount])
    assert errors(wanted, PriorState(pins, file_systems=known), deployment()) == [
        ("ORCH274", "mounts[0].create.size")
    ]


def test_made_networks_have_addresses_for_filestores_beside_all_subnets() -> None:
    small, large = (
        FileSystem("fs-shared-0000", "/shared", "filestore", size, None) for size in (1024, 10_240)
    )
    first, second = (ip_network(filestore_range("orch-train-abc123", each)) for each in (small, large))
    assert (first.prefixlen, second.prefixlen) == (26, 24)
    assert first.network_address == second.network_address
    for subnets in (HOSTS, DATAS, RDMA):
        assert not second.overlaps(ip_network(subnets))
    assert filestore_range("orch-other-abc123", small) != str(first)
