"""Capacity, quotas, reservations and placement groups: what there is too little of, and who holds it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from orch.rehearsal.aws.api.errors import AwsError

P5_VCPUS = 192


def test_capacity_is_counted_per_type_and_zone(account: Any, refused: Any) -> None:
    account.cloud.turn(capacity={"m7i.large@us-east-1a": 3})
    launched = account.launch(count=3)
    error = refused(account.launch)
    assert (error.code, error.status) == ("InsufficientInstanceCapacity", 500)
    assert "us-east-1a" in error.message
    account.call("TerminateInstances", InstanceIds=launched[:1])
    account.launch()
    account.subnet = account.add_subnet("10.0.2.0/24", "us-east-1b")
    account.launch(count=5)


def test_a_launch_of_a_range_takes_what_there_is(account: Any) -> None:
    account.cloud.turn(capacity={"m7i.large": 3})
    made = account.call(
        "RunInstances",
        InstanceType="m7i.large",
        ImageId=account.image,
        SubnetId=account.subnet,
        MinCount=2,
        MaxCount=8,
    )
    assert len(made["Instances"]) == 3


def test_a_vcpu_quota_is_of_a_family_not_of_a_zone(account: Any, refused: Any) -> None:
    account.cloud.turn(quotas={"L-1216C47A": 4})
    launched = account.launch(count=2)
    error = refused(account.launch)
    assert (error.code, error.status) == ("VcpuLimitExceeded", 400)
    assert "current vCPU limit of 4" in error.message
    account.subnet = account.add_subnet("10.0.2.0/24", "us-east-1b")
    assert refused(account.launch).code == "VcpuLimitExceeded"
    account.launch("g5.xlarge")
    account.call("TerminateInstances", InstanceIds=launched)
    account.launch(count=2)


def test_a_quota_of_zero_refuses_the_first_one(account: Any, refused: Any) -> None:
    account.cloud.turn(quotas={"L-417A185B": 0})
    assert refused(account.launch, "p5.48xlarge").code == "VcpuLimitExceeded"
    assert refused(account.reserve, "p5.48xlarge", 1).code == "InstanceLimitExceeded"


def test_spot_has_a_quota_and_a_capacity_of_its_own(account: Any, refused: Any) -> None:
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
    account.cloud.turn(quotas={"L-34B43A08": 4}, spot_capacity={"m7i.large": 1})
    account.launch(**spot)
    assert refused(account.launch, **spot).code == "InsufficientInstanceCapacity"
    account.cloud.turn(spot_capacity={})
    assert refused(account.launch, count=2, **spot).code == "MaxSpotInstanceCountExceeded"
    account.launch(count=10)


# -- reservations ------------------------------------------------------------------------------------------


def test_a_reservation_is_whole_or_not_at_all(account: Any, refused: Any) -> None:
    account.cloud.turn(capacity={"p5.48xlarge@us-east-1a": 3})
    assert refused(account.reserve, "p5.48xlarge", 8).code == "InsufficientInstanceCapacity"
    assert not account.cloud.things("capacity-reservation")
    reservation = account.reserve("p5.48xlarge", 3, InstanceMatchCriteria="targeted")
    error = refused(account.launch, "p5.48xlarge", NetworkInterfaces=account.p5_nics())
    assert error.code == "InsufficientInstanceCapacity", "all three are reserved"
    account.call("CancelCapacityReservation", CapacityReservationId=reservation)
    account.reserve("p5.48xlarge", 3)


def target(reservation: str) -> dict[str, Any]:
    return {
        "CapacityReservationSpecification": {
            "CapacityReservationTarget": {"CapacityReservationId": reservation}
        }
    }


def available(account: Any, reservation: str) -> int:
    found = account.call("DescribeCapacityReservations", CapacityReservationIds=[reservation])
    return found["CapacityReservations"][0]["AvailableInstanceCount"]


def test_a_targeted_reservation_holds_four_and_refuses_the_fifth(account: Any, refused: Any) -> None:
    reservation = account.reserve("m7i.large", 4, InstanceMatchCriteria="targeted")
    account.launch(count=4, **target(reservation))
    assert available(account, reservation) == 0
    error = refused(account.launch, **target(reservation))
    assert error.code == "ReservationCapacityExceeded"
    account.launch()  # without the reservation there is room


def test_a_reservation_of_4_refuses_a_launch_of_8(account: Any, refused: Any) -> None:
    reservation = account.reserve("m7i.large", 4)
    assert refused(account.launch, count=8, **target(reservation)).code == "ReservationCapacityExceeded"
    assert not account.cloud.instances()


def test_an_open_reservation_is_used_without_being_named(account: Any) -> None:
    reservation = account.reserve("m7i.large", 2)
    (instance,) = account.launch()
    assert account.cloud.instances()[instance]["CapacityReservationId"] == reservation
    assert available(account, reservation) == 1
    account.launch(CapacityReservationSpecification={"CapacityReservationPreference": "none"})
    assert available(account, reservation) == 1


def test_instances_in_a_reservation_count_once_towards_the_quota(account: Any, refused: Any) -> None:
    account.cloud.turn(quotas={"L-1216C47A": 8})
    reservation = account.reserve("m7i.large", 4)
    account.launch(count=4)
    assert refused(account.launch).code == "VcpuLimitExceeded"
    account.call("CancelCapacityReservation", CapacityReservationId=reservation)
    assert len(account.cloud.instances()) == 4, "they run on when the reservation is cancelled"
    assert refused(account.launch).code == "VcpuLimitExceeded"


def test_a_reservation_grows_where_there_is_room_and_shrinks_to_what_runs(account: Any, refused: Any) -> None:
    account.cloud.turn(capacity={"m7i.large": 4})
    reservation = account.reserve("m7i.large", 2)
    account.launch(count=2)

    def resize(count: int) -> None:
        account.call("ModifyCapacityReservation", CapacityReservationId=reservation, InstanceCount=count)

    resize(4)
    assert available(account, reservation) == 2
    assert refused(resize, 5).code == "InsufficientInstanceCapacity"
    assert refused(resize, 1).code == "InvalidParameterValue"
    resize(2)
    assert available(account, reservation) == 0


def test_spot_into_a_reservation_is_refused(account: Any, refused: Any) -> None:
    reservation = account.reserve("m7i.large", 2)
    error = refused(account.launch, InstanceMarketOptions={"MarketType": "spot"}, **target(reservation))
    assert error.code == "InvalidParameterCombination"


# -- Capacity Blocks ---------------------------------------------------------------------------------------

BLOCK = {"InstanceMarketOptions": {"MarketType": "capacity-block"}}


def test_a_capacity_block_wants_its_market_its_start_and_no_placement_group(
    account: Any, refused: Any
) -> None:
    now = time.time()
    account.cloud.turn(clock=now)
    block = account.cloud.add_capacity_block("p5.48xlarge", "us-east-1a", 2, start=now + 60, end=now + 86400)
    nics = {"NetworkInterfaces": account.p5_nics()}

    def launch(**more: Any) -> list[str]:
        return account.launch("p5.48xlarge", **nics, **more)

    assert (
        refused(launch, **BLOCK, **target(block)).code == "InvalidCapacityReservationState.PendingActivation"
    )
    account.cloud.turn(clock=now + 120)
    assert refused(launch, **target(block)).code == "InvalidParameterCombination"
    group = account.group_of_machines()
    error = refused(launch, **BLOCK, **target(block), Placement={"GroupName": group["GroupName"]})
    assert error.code == "InvalidParameterCombination"
    launch(**BLOCK, **target(block))
    launch(**BLOCK, **target(block))
    assert refused(launch, **BLOCK, **target(block)).code == "ReservationCapacityExceeded"


def test_the_instances_of_a_block_end_half_an_hour_before_it(account: Any) -> None:
    now = time.time()
    account.cloud.turn(clock=now)
    block = account.cloud.add_capacity_block("p5.4xlarge", "us-east-1a", 1, start=now, end=now + 7200)
    (instance,) = account.launch("p5.4xlarge", **BLOCK, **target(block))

    def state() -> str:
        found = account.call("DescribeInstances", InstanceIds=[instance])
        return found["Reservations"][0]["Instances"][0]["State"]["Name"]

    assert state() == "running"
    account.cloud.turn(clock=now + 7200 - 30 * 60)
    assert state() == "terminated"


# -- placement groups --------------------------------------------------------------------------------------


def test_a_cluster_group_stays_in_one_zone(account: Any, refused: Any) -> None:
    group = account.group_of_machines()
    account.launch(Placement={"GroupName": "cluster"})
    account.subnet = account.add_subnet("10.0.2.0/24", "us-east-1b")
    error = refused(account.launch, Placement={"GroupName": "cluster"})
    assert error.code == "InvalidParameterCombination"
    there = {"PlacementGroupArn": group["GroupArn"]}
    assert (
        refused(account.reserve, "m7i.large", 1, "us-east-1b", **there).code == "InvalidParameterCombination"
    )


def test_burstable_types_do_not_go_into_a_cluster_group(account: Any, refused: Any) -> None:
    account.group_of_machines()
    error = refused(account.launch, "t3.micro", Placement={"GroupName": "cluster"})
    assert error.code == "InvalidParameterCombination"
    assert error.message == "Placement groups may not be used with instances of type 't3.micro'."


def test_a_group_in_use_is_not_deleted(account: Any, refused: Any) -> None:
    group = account.group_of_machines()
    reservation = account.reserve("m7i.large", 1, PlacementGroupArn=group["GroupArn"])
    (instance,) = account.launch(Placement={"GroupName": "cluster"})

    def delete() -> None:
        account.call("DeletePlacementGroup", GroupName="cluster")

    assert refused(delete).code == "InvalidPlacementGroup.InUse"
    account.call("TerminateInstances", InstanceIds=[instance])
    assert refused(delete).code == "InvalidPlacementGroup.InUse"
    account.call("CancelCapacityReservation", CapacityReservationId=reservation)
    delete()


def test_a_reservation_inside_a_group_is_for_launches_inside_it(account: Any, refused: Any) -> None:
    group = account.group_of_machines()
    inside = account.reserve(
        "m7i.large", 1, PlacementGroupArn=group["GroupArn"], InstanceMatchCriteria="targeted"
    )
    outside = account.reserve("m7i.large", 1, InstanceMatchCriteria="targeted")
    there = {"Placement": {"GroupName": "cluster"}}
    assert refused(account.launch, **there, **target(outside)).code == "ReservationCapacityExceeded"
    account.launch(**there, **target(inside))


def test_names_of_groups_are_taken_once_and_unknown_ones_are_told(account: Any, refused: Any) -> None:
    account.group_of_machines()
    assert refused(account.group_of_machines).code == "InvalidPlacementGroup.Duplicate"
    error = refused(account.launch, Placement={"GroupName": "other"})
    assert error.code == "InvalidPlacementGroup.Unknown"


def test_the_topology_has_three_levels_and_four_for_p6(account: Any) -> None:
    account.launch("p5.48xlarge", NetworkInterfaces=account.p5_nics())
    account.launch("p6-b200.48xlarge")
    account.launch("m7i.large")
    found = account.call("DescribeInstanceTopology")["Instances"]
    levels = {one["InstanceType"]: len(one["NetworkNodes"]) for one in found}
    assert levels == {"p5.48xlarge": 3, "p6-b200.48xlarge": 4}


@pytest.mark.parametrize("action", ["DescribeInstances", "RunInstances"])
def test_what_the_user_may_not_do_is_unauthorized(account: Any, action: str) -> None:
    account.cloud.turn(denied=[action])
    with pytest.raises(AwsError) as caught:
        account.call(action)
    assert (caught.value.code, caught.value.status) == ("UnauthorizedOperation", 403)
