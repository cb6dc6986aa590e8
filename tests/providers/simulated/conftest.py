"""A simulated account, and the shortest way to have something in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.aws.api.errors import AwsError
from orch.rehearsal.scenario import Knobs

Doc = dict[str, Any]


@dataclass
class Account:
    """An account with one VPC, a subnet in zone a and a security group; `launch` starts instances there."""

    cloud: Cloud
    vpc: str = ""
    subnet: str = ""
    group: str = ""
    image: str = ""

    def __post_init__(self) -> None:
        self.vpc = self.call("CreateVpc", CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        self.subnet = self.add_subnet("10.0.0.0/24", "us-east-1a")
        made = self.call("CreateSecurityGroup", GroupName="nodes", Description="nodes", VpcId=self.vpc)
        self.group = made["GroupId"]
        wanted = [{"Name": "name", "Values": ["Deep Learning Base OSS*Ubuntu 22.04*"]}]
        self.image = self.call("DescribeImages", Owners=["amazon"], Filters=wanted)["Images"][-1]["ImageId"]

    def call(self, action: str, **params: Any) -> Doc:
        return self.cloud.call(action, params)

    def add_subnet(self, cidr: str, zone: str) -> str:
        made = self.call("CreateSubnet", VpcId=self.vpc, CidrBlock=cidr, AvailabilityZone=zone)
        return str(made["Subnet"]["SubnetId"])

    def attach_gateway(self) -> str:
        gateway = self.call("CreateInternetGateway")["InternetGateway"]["InternetGatewayId"]
        self.call("AttachInternetGateway", InternetGatewayId=gateway, VpcId=self.vpc)
        return str(gateway)

    def nic(self, card: int = 0, device: int = 0, kind: str = "interface", **more: Any) -> Doc:
        return {
            "NetworkCardIndex": card,
            "DeviceIndex": device,
            "InterfaceType": kind,
            "SubnetId": self.subnet,
            "Groups": [self.group],
            **more,
        }

    def p5_nics(self, subnet: str | None = None) -> list[Doc]:
        """The layout that AWS's guide shows for p5.48xlarge: one ENA interface and 32 of EFA alone."""
        found = [
            self.nic(),
            self.nic(0, 1, "efa-only"),
            *(self.nic(card, 0, "efa-only") for card in range(1, 32)),
        ]
        return [{**one, "SubnetId": subnet or self.subnet} for one in found]

    def launch(self, instance_type: str = "m7i.large", count: int = 1, **more: Any) -> list[str]:
        """Start instances; their ids."""
        params: Doc = {
            "InstanceType": instance_type,
            "ImageId": self.image,
            "MinCount": count,
            "MaxCount": count,
        }
        if "NetworkInterfaces" not in more and "LaunchTemplate" not in more:
            params |= {"SubnetId": self.subnet, "SecurityGroupIds": [self.group]}
        made = self.call("RunInstances", **{**params, **more})
        return [one["InstanceId"] for one in made["Instances"]]

    def reserve(self, instance_type: str, count: int, zone: str = "us-east-1a", **more: Any) -> str:
        made = self.call(
            "CreateCapacityReservation",
            InstanceType=instance_type,
            InstancePlatform="Linux/UNIX",
            AvailabilityZone=zone,
            InstanceCount=count,
            **more,
        )
        return str(made["CapacityReservation"]["CapacityReservationId"])

    def group_of_machines(self, name: str = "cluster", strategy: str = "cluster") -> Doc:
        return self.call("CreatePlacementGroup", GroupName=name, Strategy=strategy)["PlacementGroup"]


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud.create(tmp_path / "aws.db", knobs=Knobs())


@pytest.fixture
def account(cloud: Cloud) -> Account:
    return Account(cloud)


@pytest.fixture
def refused() -> Callable[..., AwsError]:
    """What a call is refused with."""

    def call(function: Callable[..., Any], *words: Any, **more: Any) -> AwsError:
        with pytest.raises(AwsError) as caught:
            function(*words, **more)
        return caught.value

    return call
