"""What EC2 refuses at RunInstances, with the code that EC2 gives."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from orch.components.aws.account.gather_facts import host_key_of


def test_an_instance_is_pending_first_and_then_runs(account: Any) -> None:
    made = account.call(
        "RunInstances",
        InstanceType="m7i.large",
        ImageId=account.image,
        MinCount=1,
        MaxCount=1,
        SubnetId=account.subnet,
    )["Instances"][0]
    assert made["State"]["Name"] == "pending"
    assert len(made["InstanceId"]) == 2 + 17
    found = account.call("DescribeInstances")["Reservations"][0]["Instances"][0]
    assert found["State"]["Name"] == "running"


def test_p5_takes_the_33_interfaces_of_the_guide_and_one_address(account: Any) -> None:
    (instance,) = account.launch("p5.48xlarge", NetworkInterfaces=account.p5_nics())
    doc = account.cloud.instances()[instance]
    assert len(doc["NetworkInterfaces"]) == 33
    free = account.call("DescribeSubnets", SubnetIds=[account.subnet])["Subnets"][0][
        "AvailableIpAddressCount"
    ]
    assert free == 256 - 5 - 1


CASES = {
    "a public address with several interfaces": (
        "p5.48xlarge",
        [{"AssociatePublicIpAddress": True}, {"card": 1, "kind": "efa-only"}],
        "InvalidParameterCombination",
        "multiple network interfaces",
    ),
    "a card the type does not have": (
        "p4d.24xlarge",
        [{}, {"card": 4, "device": 1, "kind": "efa-only"}],
        "InvalidParameterValue",
        "4 network cards",
    ),
    "more interfaces than a card holds": (
        "p5.48xlarge",
        [{}, {"device": 1, "kind": "efa-only"}, {"device": 2}],
        "AttachmentLimitExceeded",
        "limit 2",
    ),
    "two EFA on one card": (
        "p5en.48xlarge",
        [{}, {"device": 1, "kind": "efa-only"}, {"device": 2, "kind": "efa-only"}],
        "AttachmentLimitExceeded",
        "EFA interface count 2",
    ),
    "EFA on the card of p6-b300 that carries none": (
        "p6-b300.48xlarge",
        [{}, {"device": 1, "kind": "efa-only"}],
        "AttachmentLimitExceeded",
        "Network Card 0 limit 0",
    ),
    "EFA on a type without": (
        "m7i.large",
        [{"kind": "efa"}],
        "UnsupportedOperation",
        "EFA interfaces are not supported on m7i.large",
    ),
    "EFA alone as the first interface": (
        "p5.48xlarge",
        [{"kind": "efa-only"}],
        "InvalidParameterCombination",
        "primary",
    ),
    "two interfaces at one place": ("p5.48xlarge", [{}, {}], "InvalidParameterValue", "unique device index"),
    "no first interface": (
        "p5.48xlarge",
        [{"card": 1, "device": 1}],
        "InvalidParameterCombination",
        "primary network interface",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_interfaces_are_refused(account: Any, refused: Any, name: str) -> None:
    kind, nics, code, words = CASES[name]
    error = refused(account.launch, kind, NetworkInterfaces=[account.nic(**nic) for nic in nics])
    assert (error.code, words in error.message) == (code, True), str(error)
    assert not account.cloud.instances()


def test_b300_takes_efa_on_all_cards_but_the_first(account: Any) -> None:
    nics = [account.nic(), *(account.nic(card, 0, "efa-only") for card in range(1, 17))]
    assert account.launch("p6-b300.48xlarge", NetworkInterfaces=nics)


def test_interfaces_and_a_subnet_of_the_instance_exclude_each_other(account: Any, refused: Any) -> None:
    error = refused(account.launch, "m7i.large", NetworkInterfaces=[account.nic()], SubnetId=account.subnet)
    assert error.code == "InvalidParameterCombination"
    assert "instance-level subnet ID" in error.message


def test_a_templates_interfaces_and_a_requests_subnet_exclude_each_other(account: Any, refused: Any) -> None:
    account.call(
        "CreateLaunchTemplate",
        LaunchTemplateName="nodes",
        LaunchTemplateData={
            "ImageId": account.image,
            "InstanceType": "m7i.large",
            "NetworkInterfaces": [account.nic()],
        },
    )
    template = {"LaunchTemplateName": "nodes"}
    error = refused(
        account.call, "RunInstances", LaunchTemplate=template, SubnetId=account.subnet, MinCount=1
    )
    assert error.code == "InvalidParameterCombination"


def test_a_request_overrides_its_template_and_tags_of_both_are_there(account: Any) -> None:
    made = account.call(
        "CreateLaunchTemplate",
        LaunchTemplateName="nodes",
        LaunchTemplateData={
            "ImageId": account.image,
            "InstanceType": "m7i.large",
            "NetworkInterfaces": [account.nic()],
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [{"Key": "from", "Value": "template"}]}
            ],
        },
    )["LaunchTemplate"]
    (instance,) = account.launch(
        "m7i.xlarge",
        LaunchTemplate={"LaunchTemplateId": made["LaunchTemplateId"], "Version": "$Latest"},
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "n"}]}],
    )
    doc = account.cloud.instances()[instance]
    assert doc["InstanceType"] == "m7i.xlarge"
    assert {tag["Key"]: tag["Value"] for tag in doc["Tags"]} == {
        "Name": "n",
        "from": "template",
        "aws:ec2launchtemplate:id": made["LaunchTemplateId"],
        "aws:ec2launchtemplate:version": "1",
    }


def test_an_unknown_type_is_refused_in_two_ways(account: Any, refused: Any) -> None:
    assert refused(account.launch, "p9.48xlarge").code == "InvalidParameterValue"
    assert (
        refused(account.call, "DescribeInstanceTypes", InstanceTypes=["p9.48xlarge"]).code
        == "InvalidInstanceType"
    )


def test_a_type_that_the_zone_does_not_have_is_unsupported(account: Any, refused: Any) -> None:
    account.cloud.turn(offered={"m7i.large": ["us-east-1b", "us-east-1c"]})
    error = refused(account.launch, "m7i.large")
    assert error.code == "Unsupported"
    assert "choosing us-east-1b, us-east-1c" in error.message


def test_an_image_of_another_architecture_is_refused(account: Any, refused: Any) -> None:
    assert refused(account.launch, "t4g.small").code == "InvalidParameterValue"


def test_an_unknown_image_key_and_profile_are_refused(account: Any, refused: Any) -> None:
    assert refused(account.launch, ImageId="ami-00000000000000000").code == "InvalidAMIID.NotFound"
    assert refused(account.launch, KeyName="none").code == "InvalidKeyPair.NotFound"
    error = refused(account.launch, IamInstanceProfile={"Name": "none"})
    assert error.code == "InvalidParameterValue"
    assert "Invalid IAM Instance Profile" in error.message


def test_user_data_has_a_limit_and_a_form(account: Any, refused: Any) -> None:
    account.launch(UserData=base64.b64encode(b"x" * 16384).decode())
    error = refused(account.launch, UserData=base64.b64encode(b"x" * 16385).decode())
    assert (error.code, error.message) == ("InvalidParameterValue", "User data is limited to 16384 bytes")
    assert refused(account.launch, UserData="not base64").code == "InvalidParameterValue"


def test_a_root_disk_smaller_than_the_image_is_refused(account: Any, refused: Any) -> None:
    disk = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 20}}]
    error = refused(account.launch, BlockDeviceMappings=disk)
    assert error.code == "InvalidBlockDeviceMapping"
    assert "expect size >= 35GB" in error.message


def test_a_subnet_without_addresses_refuses_and_launches_nothing(account: Any, refused: Any) -> None:
    account.subnet = account.add_subnet("10.0.1.0/28", "us-east-1a")
    account.launch(count=11)
    assert refused(account.launch).code == "InsufficientFreeAddressesInSubnet"
    assert len(account.cloud.instances()) == 11


def test_65_nodes_with_an_address_for_each_efa_do_not_fit_a_26(account: Any, refused: Any) -> None:
    account.subnet = account.add_subnet("10.0.1.0/26", "us-east-1a")
    assert refused(account.launch, count=65).code == "InsufficientFreeAddressesInSubnet"
    assert not account.cloud.instances()


def test_the_same_client_token_launches_once(account: Any, refused: Any) -> None:
    first = account.launch(ClientToken="once")
    assert account.launch(ClientToken="once") == first
    assert len(account.cloud.instances()) == 1
    assert refused(account.launch, count=2, ClientToken="once").code == "IdempotentParameterMismatch"
    account.call("TerminateInstances", InstanceIds=first)
    assert refused(account.launch, ClientToken="once").code == "IdempotentInstanceTerminated"


def test_an_address_is_given_by_the_subnets_habit_to_a_single_interface_only(account: Any) -> None:
    account.call("ModifySubnetAttribute", SubnetId=account.subnet, MapPublicIpOnLaunch={"Value": True})
    (one,) = account.launch()
    (several,) = account.launch("p5.48xlarge", NetworkInterfaces=account.p5_nics())
    docs = account.cloud.instances()
    assert "PublicIpAddress" in docs[one]
    assert "PublicIpAddress" not in docs[several]


def test_a_group_of_another_network_is_refused(account: Any, refused: Any) -> None:
    other = account.call("CreateVpc", CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    group = account.call("CreateSecurityGroup", GroupName="x", Description="x", VpcId=other)["GroupId"]
    assert refused(account.launch, SecurityGroupIds=[group]).code == "InvalidParameter"


def test_a_terminated_instance_is_listed_but_holds_nothing(account: Any) -> None:
    (instance,) = account.launch()
    change = account.call("TerminateInstances", InstanceIds=[instance])["TerminatingInstances"][0]
    assert change["CurrentState"]["Name"] == "shutting-down"
    found = account.call("DescribeInstances", InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    assert found["State"]["Name"] == "terminated"
    assert "PrivateIpAddress" not in found
    assert not account.cloud.instances()
    account.call("DeleteSecurityGroup", GroupId=account.group)
    account.call("DeleteSubnet", SubnetId=account.subnet)


def test_a_protected_instance_is_not_terminated(account: Any, refused: Any) -> None:
    (instance,) = account.launch(DisableApiTermination=True)
    assert refused(account.call, "TerminateInstances", InstanceIds=[instance]).code == "OperationNotPermitted"
    account.call("ModifyInstanceAttribute", InstanceId=instance, DisableApiTermination={"Value": False})
    account.call("TerminateInstances", InstanceIds=[instance])


def test_unknown_and_malformed_ids_are_told_apart(account: Any, refused: Any) -> None:
    lost = refused(account.call, "DescribeInstances", InstanceIds=["i-00000000000000000"])
    wrong = refused(account.call, "DescribeInstances", InstanceIds=["i-xyz"])
    assert (lost.code, wrong.code) == ("InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed")


def test_user_data_changes_only_while_the_instance_is_stopped(account: Any, refused: Any) -> None:
    (instance,) = account.launch()
    change = {"InstanceId": instance, "UserData": {"Value": "eA=="}}
    assert refused(account.call, "ModifyInstanceAttribute", **change).code == "IncorrectInstanceState"
    account.call("StopInstances", InstanceIds=[instance])
    account.call("ModifyInstanceAttribute", **change)
    account.call("StartInstances", InstanceIds=[instance])
    found = account.call("DescribeInstanceAttribute", InstanceId=instance, Attribute="userData")
    assert found["UserData"]["Value"] == "eA=="


KEY_CONFIG = "#cloud-config\nssh_genkeytypes: [ed25519]\nusers: [{name: root, ssh_authorized_keys: [a]}]\n"


def console(account: Any, instance: str) -> str:
    said = account.call("GetConsoleOutput", InstanceId=instance, Latest=True)["Output"]
    return base64.b64decode(said).decode()


def test_a_console_shows_the_host_key_that_the_instance_made_once_it_boots(account: Any) -> None:
    account.cloud.turn(clock=1000.0, pending_s=60.0)
    data = base64.b64encode(KEY_CONFIG.encode()).decode()
    (one,) = account.launch(UserData=data)
    (other,) = account.launch(UserData=data)
    assert console(account, one) == ""
    account.cloud.turn(clock=1061.0)
    assert host_key_of(console(account, one)) not in (None, host_key_of(console(account, other)))
    assert console(account, one) == console(account, one)


@pytest.mark.parametrize(
    "data",
    [
        "#!/bin/sh\n",
        KEY_CONFIG + "ssh: {emit_keys_to_console: false}\n",
        KEY_CONFIG + "ssh_keys: {ed25519_private: given}\n",
    ],
)
def test_a_console_shows_no_key_that_cloud_init_does_not_show(account: Any, data: str) -> None:
    (instance,) = account.launch(UserData=base64.b64encode(data.encode()).decode())
    assert host_key_of(console(account, instance)) is None


def test_tags_that_an_instance_reads_have_keys_that_fit_a_path(account: Any, refused: Any) -> None:
    asked = {"MetadataOptions": {"InstanceMetadataTags": "enabled"}}
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "cost center", "Value": "7"}]}]
    assert refused(account.launch, TagSpecifications=tags, **asked).code == "InvalidParameterValue"
    account.launch(TagSpecifications=tags)
