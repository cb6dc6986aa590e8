"""boto3's own clients on a simulated account: serializers, parsers, paginators, retries are the real ones."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ParamValidationError

from orch.rehearsal.aws.api.actions import all_actions
from orch.rehearsal.aws.client_hook import SERVICES, session
from orch.rehearsal.aws.data.tables import types


@pytest.fixture
def aws(account: Any) -> boto3.Session:
    return session(account.cloud)


def test_nested_parameters_and_results_survive_the_wire(account: Any, aws: Any) -> None:
    ec2 = aws.client("ec2")
    made = ec2.create_launch_template(
        LaunchTemplateName="nodes",
        LaunchTemplateData={
            "ImageId": account.image,
            "InstanceType": "p5.48xlarge",
            "NetworkInterfaces": account.p5_nics(),
            "Placement": {"GroupName": "x"},
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [{"Key": "a&b", "Value": "<c> \u00e9"}]}
            ],
        },
    )["LaunchTemplate"]
    found = ec2.describe_launch_template_versions(
        LaunchTemplateId=made["LaunchTemplateId"], Versions=["$Latest"]
    )
    data = found["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert [one["NetworkCardIndex"] for one in data["NetworkInterfaces"]] == [0, *range(32)]
    assert data["NetworkInterfaces"][1]["Groups"] == [account.group]
    assert data["TagSpecifications"][0]["Tags"] == [{"Key": "a&b", "Value": "<c> \u00e9"}]
    assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 2


def test_what_the_rules_see_is_what_was_sent(account: Any, aws: Any) -> None:
    ec2 = aws.client("ec2")
    entry = {
        "IpProtocol": "tcp",
        "FromPort": 22,
        "ToPort": 22,
        "IpRanges": [{"CidrIp": "10.0.0.0/8", "Description": "inside"}],
        "UserIdGroupPairs": [{"GroupId": account.group}],
    }
    ec2.authorize_security_group_ingress(GroupId=account.group, IpPermissions=[entry])
    assert account.cloud.calls[-1].params == {"GroupId": account.group, "IpPermissions": [entry]}
    found = ec2.describe_security_groups(GroupIds=[account.group])["SecurityGroups"][0]["IpPermissions"][0]
    assert found["IpRanges"] == entry["IpRanges"]


def test_errors_are_clients_errors_with_code_and_status(account: Any, aws: Any) -> None:
    with pytest.raises(ClientError) as caught:
        aws.client("ec2").describe_instances(InstanceIds=["i-00000000000000000"])
    assert caught.value.response["Error"]["Code"] == "InvalidInstanceID.NotFound"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    with pytest.raises(ClientError, match="NoSuchEntity"):
        aws.client("iam").get_role(RoleName="none")
    with pytest.raises(aws.client("ssm").exceptions.ParameterNotFound):
        aws.client("ssm").get_parameter(Name="/none")
    with pytest.raises(ParamValidationError):
        aws.client("ec2").describe_instances(InstanceIds="no list")


def test_throttled_calls_are_repeated_by_boto3_itself(account: Any, aws: Any) -> None:
    now = len(account.cloud.calls)
    account.cloud.turn(failures=[{"code": "RequestLimitExceeded", "at": now + 1}])
    client = aws.client("ec2", config=Config(retries={"mode": "standard"}))
    assert client.describe_vpcs()["Vpcs"]
    assert [call.error for call in account.cloud.calls[now:]] == ["RequestLimitExceeded", None]


def test_pages_follow_each_other(account: Any, aws: Any) -> None:
    account.launch(count=7)
    account.launch(count=5)
    pages = aws.client("ec2").get_paginator("describe_instances").paginate(PaginationConfig={"PageSize": 5})
    found = [
        [one["InstanceId"] for group in page["Reservations"] for one in group["Instances"]] for page in pages
    ]
    assert [len(page) for page in found] == [5, 5, 2]
    assert {one for page in found for one in page} == set(account.cloud.instances())


def test_the_region_of_a_client_is_the_region_of_the_call(account: Any, aws: Any) -> None:
    there = aws.client("ec2", region_name="eu-west-1")
    zones = there.describe_availability_zones()["AvailabilityZones"]
    assert [zone["ZoneName"] for zone in zones] == ["eu-west-1a", "eu-west-1b", "eu-west-1c"]
    assert {zone["ZoneId"] for zone in zones} == {"euw1-az1", "euw1-az2", "euw1-az3"}
    with pytest.raises(ClientError, match=r"InvalidVpcID\.NotFound"):
        there.describe_vpcs(VpcIds=[account.vpc])


def test_facts_that_a_planner_asks_for(account: Any, aws: Any) -> None:
    ec2, quotas = aws.client("ec2"), aws.client("service-quotas")
    assert quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-417A185B")["Quota"]["Value"] > 0
    account.cloud.turn(quotas={"L-417A185B": 0})
    assert quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-417A185B")["Quota"]["Value"] == 0
    with pytest.raises(quotas.exceptions.NoSuchResourceException):
        quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-00000000")
    name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    image = aws.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    assert ec2.describe_images(ImageIds=[image])["Images"][0]["Architecture"] == "x86_64"
    info = ec2.describe_instance_types(InstanceTypes=["p5.48xlarge"])["InstanceTypes"][0]
    network = info["NetworkInfo"]
    assert (network["MaximumNetworkCards"], network["EfaInfo"]["MaximumEfaInterfaces"]) == (32, 32)
    offered = ec2.describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["p5.48xlarge"]}]
    )
    assert len(offered["InstanceTypeOfferings"]) == 6
    assert aws.client("sts").get_caller_identity()["Account"] == "111122223333"


def test_iam_says_when_something_still_hangs_on_a_role(account: Any, aws: Any) -> None:
    iam = aws.client("iam")
    iam.create_role(RoleName="node", AssumeRolePolicyDocument='{"Statement": []}')
    iam.attach_role_policy(RoleName="node", PolicyArn="arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore")
    iam.create_instance_profile(InstanceProfileName="node")
    with pytest.raises(ClientError, match="has no associated IAM Roles"):
        aws.client("ec2").run_instances(
            ImageId=account.image,
            InstanceType="m7i.large",
            MinCount=1,
            MaxCount=1,
            SubnetId=account.subnet,
            IamInstanceProfile={"Name": "node"},
        )
    iam.add_role_to_instance_profile(InstanceProfileName="node", RoleName="node")
    assert iam.get_role(RoleName="node")["Role"]["AssumeRolePolicyDocument"] == {"Statement": []}
    for words in ("must detach all policies first", "must remove roles from instance profile first"):
        with pytest.raises(iam.exceptions.DeleteConflictException, match=words):
            iam.delete_role(RoleName="node")
        if "policies" in words:
            policy = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
            iam.detach_role_policy(RoleName="node", PolicyArn=policy)
    iam.remove_role_from_instance_profile(InstanceProfileName="node", RoleName="node")
    iam.delete_role(RoleName="node")


def test_a_service_that_is_not_simulated_is_not_called(aws: Any) -> None:
    with pytest.raises(RuntimeError, match="not simulated"):
        aws.client("s3").list_buckets()


def test_every_action_is_one_of_botocores_and_every_type_describes_itself(account: Any, aws: Any) -> None:
    for service in SERVICES:
        known = set(aws.client(service).meta.service_model.operation_names)
        assert {action for name, action in all_actions() if name == service} <= known
    pages = (
        aws.client("ec2").get_paginator("describe_instance_types").paginate(PaginationConfig={"PageSize": 30})
    )
    assert {one["InstanceType"] for page in pages for one in page["InstanceTypes"]} == set(types())
