"""Questions to an account, answered by the simulated cloud through boto3: what is there, and what is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.planning import request_of

from orch.components.aws.account import gather_facts
from orch.components.aws.account.client_errors import CloudRefused
from orch.components.aws.backend import AwsBackend
from orch.components.request import NO_CONSENT, Approvals, PriorState
from orch.rehearsal.aws import client_hook
from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.aws.api.actions import ACCOUNT
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.aws import AwsSettings

P_QUOTA = "L-417A185B"


@dataclass(frozen=True)
class Account:
    """A simulated account with room for P instances."""

    cloud: Cloud
    session: Any

    def ec2(self, region: str = "us-east-1") -> Any:
        return self.session.client("ec2", region_name=region)

    def compiled(
        self,
        previous: PriorState | None = None,
        settings: AwsSettings | None = None,
        consent: Approvals = NO_CONSENT,
        **fleet: Any,
    ) -> Any:
        base = {"type": "fleet", "name": "p5", "backends": ["aws"], "nodes": "2", "placement": "cluster"}
        model = Fleet.model_validate(
            {**base, "instance_types": ["p5.48xlarge"], "regions": ["us-east-1"], **fleet}
        )
        settings, previous = settings or AwsSettings(), previous or PriorState()
        request = request_of(model, settings, previous=previous, session=self.session, consent=consent)
        return AwsBackend().deployment(request, AwsBackend().candidates(request)[0])

    def wrong(self, **fleet: Any) -> list[tuple[str, str]]:
        with pytest.raises(PlanErrors) as error:
            self.compiled(**fleet)
        return [(each.code, each.path) for each in error.value.findings if each.severity.value == "error"]

    def network(
        self, cidr: str = "10.7.0.0/24", *, nat: bool = True, region: str = "us-east-1"
    ) -> tuple[str, str]:
        """A VPC called `research` with one subnet, behind a NAT gateway or with no way out: their ids."""
        ec2 = self.ec2(region)
        named = [{"ResourceType": "vpc", "Tags": [{"Key": "Name", "Value": "research"}]}]
        vpc = ec2.create_vpc(CidrBlock="10.7.0.0/16", TagSpecifications=named)["Vpc"]["VpcId"]
        zone = (
            "use1-az1"
            if region == "us-east-1"
            else ec2.describe_availability_zones()["AvailabilityZones"][0]["ZoneId"]
        )
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=cidr, AvailabilityZoneId=zone)["Subnet"]["SubnetId"]
        if nat:
            edge = ec2.create_subnet(VpcId=vpc, CidrBlock="10.7.99.0/24", AvailabilityZoneId=zone)["Subnet"][
                "SubnetId"
            ]
            gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
            ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
            address = ec2.allocate_address(Domain="vpc")["AllocationId"]
            outer = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
            ec2.create_route(RouteTableId=outer, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
            ec2.associate_route_table(RouteTableId=outer, SubnetId=edge)
            made = ec2.create_nat_gateway(SubnetId=edge, AllocationId=address)["NatGateway"]["NatGatewayId"]
            inner = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
            ec2.create_route(RouteTableId=inner, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=made)
            ec2.associate_route_table(RouteTableId=inner, SubnetId=subnet)
        return vpc, subnet

    def reservation(self, count: int, instance_type: str = "p5.48xlarge") -> str:
        made = self.ec2().create_capacity_reservation(
            InstanceType=instance_type,
            InstancePlatform="Linux/UNIX",
            AvailabilityZone=self.zone_name("use1-az4"),
            InstanceCount=count,
        )
        return made["CapacityReservation"]["CapacityReservationId"]

    def zone_name(self, zone: str) -> str:
        return next(
            each.name
            for each in gather_facts.zones(self.session, ["us-east-1"])["us-east-1"]
            if each.id == zone
        )


class Clouds(Cloud):
    """Sends each call to the account of the test under way: clients, which take a while to make, are made
    once for all of them."""

    def __init__(self) -> None:
        self.now: Cloud | None = None

    def call(self, *words: Any, **more: Any) -> Any:
        assert self.now is not None
        return self.now.call(*words, **more)


@pytest.fixture(scope="module")
def clouds() -> tuple[Clouds, Any]:
    clouds = Clouds()
    return clouds, client_hook.session(clouds)


@pytest.fixture
def account(tmp_path: Path, clouds: tuple[Clouds, Any]) -> Iterator[Account]:
    cloud = Cloud.create(tmp_path / "cloud")
    cloud.turn(quotas={P_QUOTA: 2000})
    here, session = clouds
    here.now = cloud
    yield Account(cloud, session)
    here.now = None
    gather_facts.enabled.cache_clear()  # what is kept of this account


@pytest.mark.parametrize(
    "name",
    [
        "p4d.24xlarge", "p4de.24xlarge", "p5.4xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge",
        "p6-b200.48xlarge", "p6-b300.48xlarge", "g5.48xlarge", "g5.xlarge", "g6.48xlarge", "g6e.24xlarge",
        "g6e.48xlarge", "c7i.8xlarge", "m7i.4xlarge",
    ],
)  # fmt: skip
def test_catalogue_and_cloud_tell_the_same_of_a_type(account: Account, name: str) -> None:
    account.cloud.turn(quotas={P_QUOTA: 2000, "L-DB2E81BA": 2000})
    made = account.compiled(instance_types=[name], regions=[])
    assert [each for each in made.plan.warnings if each.code == "ORCH209"] == []
    assert made.plan.zone_name.startswith(made.plan.region)
    assert made.plan.image.startswith("ami-0")


def test_a_quota_of_0_is_told_before_anything_is_made(account: Account) -> None:
    account.cloud.turn(quotas={P_QUOTA: 0})
    assert account.wrong() == [("ORCH310", "nodes")]
    assert not account.ec2().describe_instances()["Reservations"]


def test_a_given_network_is_found_by_id_and_by_name(account: Account) -> None:
    vpc, subnet = account.network()
    for given in (vpc, "research"):
        network = account.compiled(
            network={"vpc": given, "subnets": [subnet]}, zones=["use1-az1"]
        ).plan.network
        assert (getattr(network, "vpc", None), getattr(network, "subnet", None)) == (vpc, subnet)


def test_sixty_five_nodes_do_not_fit_a_26(account: Account) -> None:
    account.cloud.turn(quotas={P_QUOTA: 20_000})
    _, subnet = account.network("10.7.0.0/26")
    fleet = {"network": {"subnets": [subnet]}, "zones": ["use1-az1"]}
    assert account.wrong(nodes="65", **fleet) == [("ORCH220", "network.subnets")]
    assert account.compiled(nodes="59", **fleet).plan.nodes[-1].index == 58


def test_a_subnet_without_a_way_out_is_told(account: Account) -> None:
    _, subnet = account.network(nat=False)
    made = account.compiled(network={"subnets": [subnet]}, zones=["use1-az1"])
    assert [each.code for each in made.plan.warnings] == ["ORCH226"]


def test_a_network_of_another_region_is_told_with_its_region(account: Account) -> None:
    vpc, _ = account.network(region="eu-west-1", nat=False)
    with pytest.raises(PlanErrors) as error:
        account.compiled(network={"vpc": vpc})
    (finding,) = error.value.findings
    assert (finding.code, finding.path) == ("ORCH225", "network.vpc")
    assert "eu-west-1" in finding.summary


def test_a_given_group_must_let_its_members_in(account: Account) -> None:
    vpc, subnet = account.network()
    ec2 = account.ec2()
    group = ec2.create_security_group(GroupName="training", Description="given", VpcId=vpc)["GroupId"]
    given = {"network": {"subnets": [subnet], "security_groups": [group]}, "zones": ["use1-az1"]}
    assert account.wrong(**given) == [("ORCH226", "network.security_groups")]
    itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself)
    ec2.authorize_security_group_egress(GroupId=group, IpPermissions=itself)
    assert account.compiled(**given).plan.groups.given == (group,)


def test_a_reservation_is_looked_up_and_decides_the_zone(account: Account) -> None:
    reserved = account.reservation(4)
    plan = account.compiled(reservation=reserved, nodes="4").plan
    assert (plan.zone, plan.capacity.id, plan.capacity.reserved_nodes) == ("use1-az4", reserved, None)


def test_a_reservation_of_four_does_not_hold_eight(account: Account) -> None:
    assert account.wrong(reservation=account.reservation(4), nodes="8") == [("ORCH321", "reservation")]


def test_a_reservation_of_another_type_or_of_nobody_is_told(account: Account) -> None:
    assert account.wrong(reservation=account.reservation(1, "p4d.24xlarge")) == [("ORCH323", "reservation")]
    assert account.wrong(reservation="cr-0123456789abcdef0") == [("ORCH322", "reservation")]


def test_elastic_ips_over_the_quota_are_an_error(account: Account) -> None:
    public = {"public_ips": True, "ssh_cidrs": ["192.0.2.0/24"]}
    assert account.wrong(nodes="8", network=public) == [("ORCH221", "network.public_ips")]
    assert [each.code for each in account.compiled(nodes="2", network=public).plan.warnings] == ["ORCH221"]


def test_zone_names_are_those_of_the_account(account: Account) -> None:
    name = account.zone_name("use1-az6")
    assert account.compiled(availability_zones=[name]).plan.zone == "use1-az6"


def test_an_image_stays_pinned_when_a_newer_one_comes(account: Account) -> None:
    first = account.compiled()
    older = first.plan.pins["bastion_image"]
    assert account.compiled(PriorState({**first.plan.pins, "image": older})).plan.image == older
    moved = PriorState({**first.plan.pins, "image": older, "image_of": "else"})
    assert account.compiled(moved).plan.image != older


def test_a_pinned_image_that_is_gone_is_told(account: Account) -> None:
    pins = {**account.compiled().plan.pins, "image": "ami-0" + "1" * 16}
    with pytest.raises(PlanErrors) as error:
        account.compiled(PriorState(pins))
    assert error.value.hint == "`orch up --upgrade` takes the newest"


def test_an_image_by_its_id_or_one_that_is_not_there(account: Account) -> None:
    image = account.compiled().plan.image
    assert account.compiled(os_image=image).plan.image == image
    assert account.wrong(os_image="ami-00000000000000000") == [("ORCH213", "os_image")]


def test_a_forbidden_question_names_the_action(account: Account) -> None:
    account.cloud.turn(denied=["DescribeAvailabilityZones"])
    with pytest.raises(CloudRefused) as error:
        account.compiled()
    assert error.value.code == "ORCH304"
    assert "DescribeAvailabilityZones" in (error.value.detail or "")


def test_the_same_account_and_file_give_the_same_plan(account: Account) -> None:
    assert account.compiled().plan == account.compiled().plan


def test_a_name_that_two_networks_have_is_refused_with_both_ids(account: Account) -> None:
    ids = sorted(account.network()[0] for _ in range(2))
    with pytest.raises(PlanErrors) as error:
        account.compiled(network={"vpc": "research"})
    (finding,) = error.value.findings
    assert (finding.code, finding.path) == ("ORCH226", "network.vpc")
    assert ", ".join(ids) in finding.summary


def test_a_name_of_a_subnet_is_one_of_the_given_network(account: Account) -> None:
    (vpc, subnet), (other, elsewhere) = account.network(), account.network()
    for each in (subnet, elsewhere):
        account.ec2().create_tags(Resources=[each], Tags=[{"Key": "Name", "Value": "nodes"}])
    fleet: dict[str, Any] = {"zones": ["use1-az1"]}
    assert account.wrong(network={"subnets": ["nodes"]}, **fleet) == [("ORCH226", "network.subnets")]
    for network, own in ((vpc, subnet), (other, elsewhere)):
        made = account.compiled(network={"vpc": network, "subnets": ["nodes"]}, **fleet)
        assert made.plan.network.subnet == own


def test_a_name_of_two_security_groups_is_refused(account: Account) -> None:
    vpc, subnet = account.network()
    ec2 = account.ec2()
    for number in range(2):
        group = ec2.create_security_group(GroupName=f"g{number}", Description="given", VpcId=vpc)["GroupId"]
        ec2.create_tags(Resources=[group], Tags=[{"Key": "Name", "Value": "training"}])
        itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself)
        ec2.authorize_security_group_egress(GroupId=group, IpPermissions=itself)
    given = {"subnets": [subnet], "security_groups": ["training"]}
    assert account.wrong(network=given, zones=["use1-az1"]) == [("ORCH226", "network.security_groups")]


def test_subnets_of_two_networks_are_refused(account: Account) -> None:
    (vpc, subnet), (_, elsewhere) = account.network(), account.network()
    fleet: dict[str, Any] = {"zones": ["use1-az1"]}
    assert account.wrong(network={"subnets": [subnet, elsewhere]}, **fleet) == [
        ("ORCH226", "network.subnets")
    ]
    assert account.wrong(network={"vpc": vpc, "subnets": [elsewhere]}, **fleet) == [
        ("ORCH226", "network.subnets")
    ]


def run(account: Account, count: int, kind: str, **tags: str) -> None:
    """Instances of this account that run already, of somebody else unless `tags` say otherwise."""
    ec2 = account.ec2()
    image = account.compiled().plan.bastion.image
    zone = {"AvailabilityZone": account.zone_name("use1-az4")}
    named = [{"Key": key.replace("_", ":"), "Value": value} for key, value in tags.items()]
    marks = {"TagSpecifications": [{"ResourceType": "instance", "Tags": named}]} if named else {}
    disk = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100}}]
    ec2.run_instances(
        InstanceType=kind, ImageId=image, MinCount=count, MaxCount=count, Placement=zone,
        BlockDeviceMappings=disk, **marks,
    )  # fmt: skip


def test_a_quota_that_others_use_is_told_before_anything_is_made(account: Account) -> None:
    account.cloud.turn(quotas={P_QUOTA: 4 * 192})
    run(account, 2, "p5.48xlarge")
    assert account.compiled(nodes="2").plan.nodes
    with pytest.raises(PlanErrors) as error:
        account.compiled(nodes="3")
    (finding,) = [each for each in error.value.findings if each.severity.value == "error"]
    assert (finding.code, finding.path) == ("ORCH310", "nodes")
    assert finding.summary.endswith("3 x p5.48xlarge need 576 vCPUs, the account's quota is 768, 384 in use")


def test_only_what_counts_against_the_same_quota_is_counted(account: Account) -> None:
    account.cloud.turn(quotas={P_QUOTA: 4 * 192, "L-DB2E81BA": 2000})
    run(account, 2, "g5.48xlarge")
    run(account, 3, "c7i.8xlarge")
    assert account.compiled(nodes="4").plan.nodes
    ended = account.ec2().describe_instances()["Reservations"][0]["Instances"]
    account.ec2().terminate_instances(InstanceIds=[each["InstanceId"] for each in ended])
    # A reservation counts whole, what runs in it not again.
    account.reservation(2)
    run(account, 1, "p5.48xlarge")
    assert account.compiled(nodes="2").plan.nodes
    assert account.wrong(nodes="3") == [("ORCH310", "nodes")]


def test_what_the_fleet_itself_has_is_not_counted_against_it(account: Account) -> None:
    account.cloud.turn(quotas={P_QUOTA: 4 * 192})
    run(account, 3, "p5.48xlarge", orch_stack="tests/p5/abc123")
    assert account.compiled(nodes="4").plan.nodes
    run(account, 1, "p5.48xlarge", orch_stack="tests/other/abc123")
    assert account.wrong(nodes="4") == [("ORCH310", "nodes")]


def test_interfaces_that_others_have_are_counted(account: Account) -> None:
    account.cloud.turn(quotas={P_QUOTA: 2000, "L-DF5E4CA3": 67})
    assert account.compiled(nodes="2").plan.nodes
    run(account, 4, "m7i.4xlarge")
    assert account.wrong(nodes="2") == [("ORCH312", "nodes")]


def test_who_may_not_look_at_instances_plans_without_what_is_used(account: Account) -> None:
    account.cloud.turn(quotas={P_QUOTA: 2 * 192})
    run(account, 1, "p5.48xlarge")
    account.cloud.turn(quotas={P_QUOTA: 2 * 192}, denied=["DescribeInstances"])
    assert account.compiled(nodes="2").plan.nodes


def test_a_preview_tells_that_host_keys_may_not_be_read(account: Account) -> None:
    """A warning: AWS may allow it by tags that only the fleet's own instances will have."""
    assert "ORCH304" not in [each.code for each in account.compiled(nodes="2").plan.warnings]
    account.cloud.turn(denied=["GetConsoleOutput"])
    (finding,) = [each for each in account.compiled(nodes="2").plan.warnings if each.code == "ORCH304"]
    assert finding.summary.startswith("nobody could log in to the 2 new nodes")
    assert finding.hint == "these credentials need `ec2:GetConsoleOutput`"


def test_a_given_reservation_counts_against_the_quota_already(account: Account) -> None:
    reserved = account.reservation(4)
    account.cloud.turn(quotas={P_QUOTA: 4 * 192})
    assert account.compiled(reservation=reserved, nodes="4").plan.nodes


def test_a_reservation_for_dedicated_tenancy_is_told_and_would_fail_at_the_launch(account: Account) -> None:
    made = account.ec2().create_capacity_reservation(
        InstanceType="p5.48xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=account.zone_name("use1-az4"),
        InstanceCount=2,
        Tenancy="dedicated",
    )["CapacityReservation"]["CapacityReservationId"]
    assert account.wrong(reservation=made) == [("ORCH323", "reservation")]
    target = {"CapacityReservationTarget": {"CapacityReservationId": made}}
    with pytest.raises(Exception, match="ReservationCapacityExceeded"):
        account.ec2().run_instances(
            InstanceType="p5.48xlarge",
            ImageId=account.compiled().plan.bastion.image,
            MinCount=1,
            MaxCount=1,
            Placement={"AvailabilityZone": account.zone_name("use1-az4")},
            CapacityReservationSpecification=target,
        )


G_QUOTA = "L-DB2E81BA"
POOL: dict[str, Any] = {"name": "pool", "placement": "any", "instance_types": ["g6.xlarge", "g6.2xlarge"]}


def in_two_groups(first: str, second: str) -> PriorState:
    """A fleet that is up as nodes 0-3 of g6.xlarge, where there was no more room, and 4-5 of g6.2xlarge."""
    own = {"spot": "false", "layout": "x"}
    groups = [{"number": "1", "zone": "use1-az2", "instance_type": second, "indices": "4-5", **own}]
    pins = {"backend": "aws", "region": "us-east-1", "zone": "use1-az4", "instance_type": first, **own}
    return PriorState(
        {**pins, "scope": "abc123", "indices": "0-5", "spreads": "true", "groups": json.dumps(groups)}
    )


def test_groups_keep_their_images_until_an_upgrade_and_then_all_have_the_newest(account: Account) -> None:
    account.cloud.turn(quotas={G_QUOTA: 999})
    made = account.compiled(in_two_groups("g6.xlarge", "g6.2xlarge"), nodes="6", **POOL).plan
    (newest,) = {group.image for group in made.node_groups}
    older = made.pins["bastion_image"]
    (row,) = json.loads(made.pins["groups"])
    for first, second in ((newest, older), (older, newest), (older, older)):
        groups = json.dumps([{**row, "image": second}])
        before = PriorState({**made.pins, "image": first, "groups": groups})
        kept = account.compiled(before, nodes="6", **POOL).plan
        assert [group.image for group in kept.node_groups] == [first, second]
        renewed = account.compiled(before, consent=Approvals(upgrade=True), nodes="6", **POOL).plan
        assert [group.image for group in renewed.node_groups] == [newest, newest]
        # What the groups are beside that stays.
        assert [len(group.nodes) for group in renewed.node_groups] == [4, 2]
        assert {**renewed.pins, "layout": "", "groups": ""} == {**made.pins, "layout": "", "groups": ""}


def test_given_subnets_must_be_of_one_kind_where_a_fleet_has_nodes_in_both(account: Account) -> None:
    account.cloud.turn(quotas={G_QUOTA: 999})
    vpc, private = account.network()
    ec2 = account.ec2()

    def beside(cidr: str, leads: dict[str, str]) -> str:
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=cidr, AvailabilityZoneId="use1-az2")["Subnet"]
        table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
        ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", **leads)
        ec2.associate_route_table(RouteTableId=table, SubnetId=subnet["SubnetId"])
        return subnet["SubnetId"]

    before = in_two_groups("g6.xlarge", "g6.2xlarge")
    before = replace(before, pins={**before.pins, "zone": "use1-az1"})
    nat = ec2.describe_nat_gateways()["NatGateways"][0]["NatGatewayId"]
    alike = [private, beside("10.7.2.0/24", {"NatGatewayId": nat})]
    made = account.compiled(before, nodes="6", **POOL, network={"subnets": alike}).plan
    assert [group.network.subnet for group in made.node_groups] == alike
    here = [{"Name": "attachment.vpc-id", "Values": [vpc]}]
    (door,) = ec2.describe_internet_gateways(Filters=here)["InternetGateways"]
    unlike = [private, beside("10.7.3.0/24", {"GatewayId": door["InternetGatewayId"]})]
    with pytest.raises(PlanErrors) as error:
        account.compiled(before, nodes="6", **POOL, network={"subnets": unlike})
    (finding,) = error.value.findings
    assert (finding.code, finding.path) == ("ORCH227", "network")
    assert "use1-az2 are not reached as those in use1-az1 are" in finding.summary


def test_a_quota_is_judged_for_the_nodes_of_all_groups(account: Account) -> None:
    before = in_two_groups("g6.xlarge", "g6.2xlarge")
    account.cloud.turn(quotas={G_QUOTA: 4 * 4 + 2 * 8})
    assert len(account.compiled(before, nodes="6", **POOL).plan.all_nodes) == 6
    account.cloud.turn(quotas={G_QUOTA: 4 * 4 + 2 * 8 - 1})
    with pytest.raises(PlanErrors) as error:
        account.compiled(before, nodes="6", **POOL)
    (finding,) = [each for each in error.value.findings if each.severity.value == "error"]
    assert (finding.code, finding.path) == ("ORCH310", "nodes")
    assert finding.summary == (
        "2 x g6.2xlarge need 16 vCPUs beside 16 of the fleet's other nodes, the account's quota is 31"
    )


def test_a_quota_is_judged_again_where_nodes_that_are_there_are_replaced(account: Account) -> None:
    """They go before the new ones come, so that EC2's refusal would be too late."""
    cluster = {"nodes": "2", "placement": "cluster", "instance_types": ["p5.48xlarge"]}
    up = account.compiled(**cluster, network={"interconnect": "ethernet"}).plan
    there = frozenset(f"{up.fleet}-{index}" for index in range(2))
    before = PriorState({"backend": "aws", "indices": "0-1", **up.pins}, existing_nodes=there)
    account.cloud.turn(quotas={P_QUOTA: 2000, "L-DF5E4CA3": 5})
    assert account.compiled(before, **cluster, network={"interconnect": "ethernet"}).plan.layout_unchanged
    with pytest.raises(PlanErrors, match="network interfaces"):
        account.compiled(before, **cluster)


def test_interfaces_are_counted_for_the_nodes_of_all_groups(account: Account) -> None:
    before = in_two_groups("g6.xlarge", "g6.2xlarge")
    account.cloud.turn(quotas={G_QUOTA: 99, "L-DF5E4CA3": 6})
    assert account.compiled(before, nodes="6", **POOL).plan.all_nodes
    account.cloud.turn(quotas={G_QUOTA: 99, "L-DF5E4CA3": 5})
    with pytest.raises(PlanErrors, match="network interfaces need 2 beside 4"):
        account.compiled(before, nodes="6", **POOL)


@pytest.mark.parametrize("dear_first", [True, False])
def test_a_budget_is_that_of_the_nodes_of_all_groups(account: Account, *, dear_first: bool) -> None:
    account.cloud.turn(quotas={G_QUOTA: 999})
    kinds = ("g6.2xlarge", "g6.xlarge") if dear_first else ("g6.xlarge", "g6.2xlarge")
    before = in_two_groups(*kinds)
    hourly = account.compiled(before, nodes="6", **POOL).plan.hourly
    fits, over = {"hourly": f"{hourly + 0.001:.4f}"}, {"hourly": f"{hourly - 0.001:.4f}"}
    assert account.compiled(before, nodes="6", **POOL, budget=fits).plan.hourly == hourly
    with pytest.raises(PlanErrors) as error:
        account.compiled(before, nodes="6", **POOL, budget=over)
    (finding,) = [each for each in error.value.findings if each.severity.value == "error"]
    assert (finding.code, finding.path) == ("ORCH281", "budget.hourly")
    assert finding.summary.startswith("4 nodes at $")
    assert ", 2 nodes at $" in finding.summary
    # Nodes that may come later count as the dearest of them.
    with pytest.raises(PlanErrors, match="over the budget"):
        account.compiled(before, nodes={"min": "0", "target": "6", "max": "7"}, **POOL, budget=fits)


@pytest.mark.parametrize(
    "knob",
    [
        {"denied": ("GetServiceQuota",)},
        {"failures": ({"code": "RequestTimeoutException", "action": "GetServiceQuota"},)},
    ],
)
def test_a_quota_that_cannot_be_read_is_a_note(account: Account, knob: dict[str, Any]) -> None:
    account.cloud.turn(**knob)
    compiled = account.compiled(in_two_groups("g6.xlarge", "g6.2xlarge"), nodes="1", **POOL)
    notes = [each for each in compiled.findings if each.code == "ORCH314"]
    assert notes
    assert {each.severity.value for each in notes} == {"note"}
    assert "read the quota" in str(notes[0].detail)


def test_whose_credentials_make_nodes_is_told_with_account_identity_and_profile(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, whom = AwsBackend(), f"AWS account {ACCOUNT} as arn:aws:iam::{ACCOUNT}:user/rehearsal"
    assert backend.account([], lambda name: account.session).words == whom

    # Without a session of a rehearsal, the way of orch.yml or of the environment.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gather_facts, "open_session", lambda settings: account.session)
    key = {"type": "access_key", "access_key": "AKIA", "secret_key": "s"}
    keys, ours = AwsSettings.model_validate({"creds": key}), {"type": "default", "profile": "ci"}
    named = AwsSettings.model_validate({"creds": ours})

    def told(*settings: AwsSettings) -> str:
        return backend.account(settings, lambda name: None).words

    assert (told(), told(named)) == (whom, f"{whom} (profile ci)")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert (told(), told(named), told(keys)) == (f"{whom} (profile mine)", f"{whom} (profile ci)", whom)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")  # the SDK takes it before the profile
    assert (told(), told(named)) == (whom, f"{whom} (profile ci)")

    account.cloud.turn(denied=("GetCallerIdentity",))
    with pytest.raises(CloudRefused, match="log in"):
        told()
