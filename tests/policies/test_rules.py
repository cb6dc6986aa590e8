"""Each rule on resources and plans that it must find, and on those that it must leave alone."""

from __future__ import annotations

from typing import Any

import pytest

from orch.policies.plan_rules import Loss, NodePrice, PlanFacts
from orch.policies.rule import UNKNOWN, Resource
from orch.policies.settings import Settings
from orch.spec.models import Task
from orch.spec.models.project import Policy

LATER = UNKNOWN[0]
SECRET = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "ciphertext": "x"}
GROUP = "aws:ec2/securityGroup:SecurityGroup"
INSTANCE = "aws:ec2/instance:Instance"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
VOLUME = "aws:ebs/volume:Volume"
FIREWALL = "gcp:compute/firewall:Firewall"
NEBIUS = "orch-nebius:index:Instance"
CRUSOE, CRUSOE_RULE = "orch-crusoe:index:Instance", "orch-crusoe:index:FirewallRule"
OPEN = "0.0.0.0/0 lets the whole world knock at SSH"
LAMBDA, LAMBDA_RULES = "orch-lambda:index:Instance", "orch-lambda:index:FirewallRules"
POD = "orch-runpod:index:Pod"
CLUSTER = "orch-runpod:index:Cluster"
QUEUE = "kubernetes:kueue.x-k8s.io/v1beta2:ClusterQueue"
GCP_TEMPLATE = "gcp:compute/instanceTemplate:InstanceTemplate"


def lambdas(first: int, last: int, protocol: str = "tcp", source: object = "0.0.0.0/0") -> dict[str, Any]:
    """Firewall rules that a fleet adds to those of a Lambda account."""
    rules = [{"protocol": protocol, "port_range": [first, last], "source_network": source}]
    return {"spec": {"rules": rules}}


def rule(port: int = 22, **more: Any) -> dict[str, Any]:
    return {"ingress": [{"protocol": "tcp", "fromPort": port, "toPort": port, **more}]}


def opens(**more: Any) -> dict[str, Any]:
    return {"allows": [{"protocol": "tcp", "ports": ["22"]}], "sourceRanges": ["0.0.0.0/0"], **more}


def allows(ports: list[str], **changes: Any) -> dict[str, Any]:
    """A firewall rule of Crusoe that lets the world in at these ports, with these changes."""
    plain = {"action": "allow", "direction": "ingress", "protocols": ["tcp"], "destination_ports": ports}
    return {"spec": {**plain, "sources": [{"cidr": "0.0.0.0/0"}], **changes}}


def lets_in(**ingress: Any) -> dict[str, Any]:
    return {"spec": {"access": "ALLOW", "protocol": "TCP", "ingress": ingress}}


def disk(**ebs: Any) -> dict[str, Any]:
    return {"blockDeviceMappings": [{"deviceName": "/dev/sda1", "ebs": ebs}]}


def machine(platform: Any, preset: str) -> dict[str, Any]:
    return {"spec": {"resources": {"platform": platform, "preset": preset}}}


def pod(*centers: str) -> dict[str, Any]:
    spec = {"gpu": {"id": "NVIDIA L4", "count": 1}}
    return {"spec": {**spec, "dataCenterIds": [*centers]} if centers else spec}


def metadata(**options: Any) -> dict[str, Any]:
    return {"metadataOptions": options}


# Rule, parameters, type, inputs; what is found, or None.
RESOURCES: list[tuple[str, dict[str, Any], str, dict[str, Any], str | None]] = [
    (
        "ssh-open-to-world",
        {},
        GROUP,
        rule(cidrBlocks=["0.0.0.0/0"]),
        "0.0.0.0/0 lets the whole world knock at SSH",
    ),
    ("ssh-open-to-world", {}, GROUP, rule(ipv6CidrBlocks=["::/0"]), "::/0 lets the whole world knock at SSH"),
    ("ssh-open-to-world", {}, GROUP, rule(443, cidrBlocks=["0.0.0.0/0"]), None),
    ("ssh-open-to-world", {}, GROUP, rule(cidrBlocks=["10.0.0.0/8"]), None),
    ("ssh-open-to-world", {}, GROUP, rule(cidrBlocks=[LATER]), None),
    ("ssh-open-to-world", {}, GROUP, {"ingress": LATER}, None),
    ("ssh-open-to-world", {}, GROUP, {"egress": [{"protocol": "-1", "cidrBlocks": ["0.0.0.0/0"]}]}, None),
    (
        "ssh-open-to-world",
        {},
        GROUP,
        {"ingress": [{"protocol": "-1", "fromPort": 0, "toPort": 0, "cidrBlocks": ["0.0.0.0/0"]}]},
        "0.0.0.0/0 lets the whole world knock at SSH",
    ),
    (
        "ssh-open-to-world",
        {"port": "2222"},
        "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
        {"ipProtocol": "tcp", "fromPort": 2000, "toPort": 3000, "cidrIpv4": "0.0.0.0/0"},
        "0.0.0.0/0 lets the whole world knock at port 2222",
    ),
    (
        "ssh-open-to-world",
        {},
        "aws:ec2/securityGroupRule:SecurityGroupRule",
        {"type": "egress", "protocol": "tcp", "fromPort": 22, "toPort": 22, "cidrBlocks": ["0.0.0.0/0"]},
        None,
    ),
    ("ssh-open-to-world", {}, FIREWALL, opens(), "0.0.0.0/0 lets the whole world knock at SSH"),
    ("ssh-open-to-world", {}, FIREWALL, opens(direction="EGRESS"), None),
    ("ssh-open-to-world", {}, FIREWALL, opens(disabled=True), None),
    ("ssh-open-to-world", {}, FIREWALL, opens(sourceRanges=["10.0.0.0/8"]), None),
    ("ssh-open-to-world", {}, FIREWALL, opens(allows=[{"protocol": "tcp", "ports": ["80-90"]}]), None),
    ("ssh-open-to-world", {}, FIREWALL, opens(allows=[{"protocol": "udp"}]), None),
    (
        "ssh-open-to-world",
        {},
        FIREWALL,
        opens(allows=[{"protocol": "tcp"}]),
        "0.0.0.0/0 lets the whole world knock at SSH",
    ),
    (
        "ssh-open-to-world",
        {},
        FIREWALL,
        opens(allows=[{"protocol": "tcp", "ports": ["20-30"]}]),
        "0.0.0.0/0 lets the whole world knock at SSH",
    ),
    (
        "ssh-open-to-world",
        {},
        "orch-nebius:index:SecurityRule",
        lets_in(source_cidrs=["0.0.0.0/0"], destination_ports=[22]),
        "0.0.0.0/0 lets the whole world knock at SSH",
    ),
    (
        "ssh-open-to-world",
        {},
        "orch-nebius:index:SecurityRule",
        lets_in(),
        "0.0.0.0/0 lets the whole world knock at SSH",
    ),
    ("ssh-open-to-world", {}, "orch-nebius:index:SecurityRule", lets_in(destination_ports=[443]), None),
    (
        "ssh-open-to-world",
        {},
        "orch-nebius:index:SecurityRule",
        lets_in(source_security_group_id=LATER),
        None,
    ),
    ("ssh-open-to-world", {}, "orch-nebius:index:SecurityRule", lets_in(source_cidrs=["10.0.0.0/8"]), None),
    ("ssh-open-to-world", {}, "orch-nebius:index:SecurityRule", lets_in(source_cidrs=LATER), None),
    ("ssh-open-to-world", {}, "orch-nebius:index:SecurityRule", {"spec": LATER}, None),
    ("ssh-open-to-world", {}, CRUSOE_RULE, allows(["22"]), "0.0.0.0/0 lets the whole world knock at SSH"),
    ("ssh-open-to-world", {}, CRUSOE_RULE, allows(["20-30"]), "0.0.0.0/0 lets the whole world knock at SSH"),
    ("ssh-open-to-world", {}, CRUSOE_RULE, allows(["443"]), None),
    ("ssh-open-to-world", {}, CRUSOE_RULE, allows(["22"], direction="egress"), None),
    ("ssh-open-to-world", {}, CRUSOE_RULE, allows(["22"], sources=[{"resource_id": LATER}]), None),
    ("ssh-open-to-world", {}, CRUSOE_RULE, {"spec": LATER}, None),
    ("ssh-open-to-world", {}, LAMBDA_RULES, lambdas(22, 22), OPEN),
    (
        "ssh-open-to-world",
        {},
        LAMBDA_RULES,
        lambdas(1, 99, "all"),
        OPEN,
    ),
    ("ssh-open-to-world", {}, LAMBDA_RULES, lambdas(443, 443), None),
    ("ssh-open-to-world", {}, LAMBDA_RULES, lambdas(22, 22, "udp"), None),
    ("ssh-open-to-world", {}, LAMBDA_RULES, lambdas(22, 22, source="198.51.100.0/24"), None),
    ("ssh-open-to-world", {}, LAMBDA_RULES, lambdas(22, 22, source=LATER), None),
    ("ssh-open-to-world", {}, LAMBDA_RULES, {"spec": LATER}, None),
    ("public-node", {}, LAMBDA, {"spec": LATER}, "it gives a node a public address"),
    (
        "type-not-allowed",
        {"types": ["gpu_8x_*"]},
        LAMBDA,
        {"spec": {"instance_type_name": "gpu_1x_a10"}},
        "the type gpu_1x_a10 is none of gpu_8x_*",
    ),
    (
        "public-node",
        {},
        CRUSOE,
        {"spec": {"network_interfaces": [{"subnet": LATER, "ips": [{"public_ipv4": {"type": "dynamic"}}]}]}},
        "it gives a node a public address",
    ),
    (
        "type-not-allowed",
        {"types": ["h100-*"]},
        CRUSOE,
        {"spec": {"type": "c1a.2x"}},
        "the type c1a.2x is none of h100-*",
    ),
    (
        "public-node",
        {},
        NEBIUS,
        {"spec": {"network_interfaces": [{"ip_address": {}, "public_ip_address": {}}]}},
        "it gives a node a public address",
    ),
    (
        "public-node",
        {},
        NEBIUS,
        {"spec": {"network_interfaces": [{"ip_address": {}}]}},
        None,
    ),
    ("unencrypted-disk", {}, VOLUME, {"size": 8}, "the volume does not say that it is encrypted"),
    ("unencrypted-disk", {}, VOLUME, {"encrypted": False}, "the volume is not encrypted"),
    ("unencrypted-disk", {}, VOLUME, {"encrypted": True}, None),
    ("unencrypted-disk", {}, VOLUME, {"encrypted": LATER}, None),
    ("unencrypted-disk", {}, VOLUME, {"snapshotId": "snap-1"}, None),
    (
        "unencrypted-disk",
        {"customer_key": "true"},
        VOLUME,
        {"encrypted": True},
        "the volume has no key of your own",
    ),
    ("unencrypted-disk", {"customer_key": "true"}, VOLUME, {"encrypted": True, "kmsKeyId": LATER}, None),
    ("unencrypted-disk", {}, TEMPLATE, disk(encrypted="false"), "the disk /dev/sda1 is not encrypted"),
    (
        "unencrypted-disk",
        {},
        TEMPLATE,
        disk(volumeSize=8),
        "the disk /dev/sda1 does not say that it is encrypted",
    ),
    ("unencrypted-disk", {}, TEMPLATE, disk(encrypted="true"), None),
    ("unencrypted-disk", {}, TEMPLATE, {}, None),
    ("unencrypted-disk", {}, INSTANCE, {"launchTemplate": {"id": LATER}}, None),
    ("unencrypted-disk", {}, INSTANCE, {"ami": "x"}, "the root disk does not say that it is encrypted"),
    ("unencrypted-disk", {}, INSTANCE, {"rootBlockDevice": {"encrypted": True}}, None),
    ("unencrypted-disk", {}, GCP_TEMPLATE, {"disks": [{"boot": True}]}, None),
    (
        "unencrypted-disk",
        {"customer_key": "true"},
        GCP_TEMPLATE,
        {"disks": [{}]},
        "a disk has no key of your own",
    ),
    ("imdsv1", {}, TEMPLATE, {}, "it does not ask for tokens of metadata requests (IMDSv2)"),
    ("imdsv1", {}, TEMPLATE, metadata(httpTokens="required"), None),
    ("imdsv1", {}, TEMPLATE, metadata(httpTokens=LATER), None),
    (
        "imdsv1",
        {},
        INSTANCE,
        metadata(httpTokens="optional"),
        "it answers metadata requests without a token (IMDSv1)",
    ),
    ("imdsv1", {}, INSTANCE, metadata(httpEndpoint="disabled"), None),
    ("imdsv1", {}, INSTANCE, {"launchTemplate": {"id": LATER}}, None),
    ("imdsv1", {}, INSTANCE, {}, "it does not ask for tokens of metadata requests (IMDSv2)"),
    ("missing-tags", {"tags": ["team"]}, INSTANCE, {}, "the tags team are missing"),
    (
        "missing-tags",
        {"tags": ["team", "cost"]},
        INSTANCE,
        {"tags": {"team": "x"}},
        "the tags cost are missing",
    ),
    ("missing-tags", {"tags": ["team"]}, INSTANCE, {"tags": {"team": LATER}}, None),
    ("missing-tags", {"tags": ["team"]}, INSTANCE, {"tags": SECRET}, None),
    ("missing-tags", {"tags": "team"}, INSTANCE, {"tags": {}, "tagsAll": {"team": "x"}}, None),
    ("missing-tags", {"tags": ["Cost Centre"]}, GCP_TEMPLATE, {"labels": {"cost_centre": "1"}}, None),
    ("missing-tags", {"tags": ["team"]}, GCP_TEMPLATE, {"labels": {}}, "the labels team are missing"),
    ("missing-tags", {"tags": ["team"]}, QUEUE, {"metadata": {"labels": {"team": "x"}}}, None),
    ("missing-tags", {"tags": ["team"]}, QUEUE, {"metadata": LATER}, None),
    ("missing-tags", {"tags": ["team"]}, "pulumi:providers:kubernetes", {"context": "x"}, None),
    (
        "missing-tags",
        {"tags": ["team"]},
        QUEUE,
        {"metadata": {"labels": {"orch.dev/fleet": "a"}}},
        "the labels team are missing",
    ),
    ("missing-tags", {"tags": ["team"]}, "aws:ec2/route:Route", {}, None),
    ("missing-tags", {}, INSTANCE, {}, None),
    (
        "missing-tags",
        {"tags": ["team", "cost"]},
        NEBIUS,
        {"labels": {"team": "x"}},
        "the labels cost are missing",
    ),
    ("missing-tags", {"tags": ["team"]}, NEBIUS, {"labels": LATER}, None),
    ("missing-tags", {"tags": ["team"]}, "orch-nebius:index:Gang", {"instances": {}}, None),
    ("missing-tags", {"tags": ["team"]}, POD, pod(), None),
    (
        "region-not-allowed",
        {"regions": ["eu-*"]},
        INSTANCE,
        {"availabilityZone": "us-east-1a"},
        "the region us-east-1 is none of eu-*",
    ),
    ("region-not-allowed", {"regions": ["us-*"]}, INSTANCE, {"availabilityZone": "us-east-1a"}, None),
    (
        "region-not-allowed",
        {"denied": ["us-central1"]},
        GCP_TEMPLATE,
        {"region": "us-central1"},
        "the region us-central1 is denied",
    ),
    ("region-not-allowed", {"regions": ["eu-*"]}, GCP_TEMPLATE, {}, None),
    ("region-not-allowed", {"regions": ["eu-*"]}, NEBIUS, {}, None),
    (
        "region-not-allowed",
        {"regions": ["RO", "FR"]},
        POD,
        pod("US-KS-2"),
        "the data center US-KS-2 is none of RO, FR",
    ),
    ("region-not-allowed", {"regions": ["RO"]}, POD, pod("EU-RO-1"), None),
    ("region-not-allowed", {"regions": ["EU-*"]}, CLUSTER, pod("EU-RO-1"), None),
    ("region-not-allowed", {"denied": ["US"]}, CLUSTER, pod("US-KS-2"), "the data center US-KS-2 is denied"),
    ("region-not-allowed", {"denied": ["US"]}, POD, pod(), "RunPod chooses the data center"),
    ("region-not-allowed", {"regions": ["*"]}, POD, {"spec": LATER}, None),
    (
        "type-not-allowed",
        {"types": ["p5.*"]},
        TEMPLATE,
        {"instanceType": "g6.xlarge"},
        "the type g6.xlarge is none of p5.*",
    ),
    ("type-not-allowed", {"types": ["p5.*"]}, INSTANCE, {"instanceType": "p5.48xlarge"}, None),
    (
        "type-not-allowed",
        {"denied": ["a3-*"]},
        GCP_TEMPLATE,
        {"machineType": "zones/z/machineTypes/a3-highgpu-8g"},
        "the type a3-highgpu-8g is denied",
    ),
    (
        "type-not-allowed",
        {"types": ["gpu-h100-*"]},
        NEBIUS,
        machine("gpu-h200-sxm", "8gpu-128vcpu-1600gb"),
        "the type gpu-h200-sxm_8gpu-128vcpu-1600gb is none of gpu-h100-*",
    ),
    ("type-not-allowed", {"denied": ["*"]}, NEBIUS, machine(LATER, "8gpu-128vcpu-1600gb"), None),
    ("type-not-allowed", {"denied": ["*"]}, "orch-nebius:index:Gang", {"instances": {}}, None),
    (
        "type-not-allowed",
        {"types": ["8x_*"]},
        POD,
        pod("US-KS-2"),
        "the type 1x_L4_SECURE is none of 8x_*",
    ),
    ("type-not-allowed", {"types": ["1x_L4_*"]}, POD, pod("US-KS-2"), None),
    (
        "type-not-allowed",
        {"denied": ["8x_H100-SXM_SECURE"]},
        CLUSTER,
        {"spec": {"compute": {"gpuTypeId": "NVIDIA H100 80GB HBM3", "gpuCountPerPod": 8, "podCount": 2}}},
        "the type 8x_H100-SXM_SECURE is denied",
    ),
    ("type-not-allowed", {"denied": ["*"]}, CLUSTER, {"spec": LATER}, None),
    ("public-node", {}, INSTANCE, {"associatePublicIpAddress": True}, "it gives a node a public address"),
    ("public-node", {}, INSTANCE, {"associatePublicIpAddress": False}, None),
    ("public-node", {}, INSTANCE, {}, None),
    (
        "public-node",
        {},
        TEMPLATE,
        {"networkInterfaces": [{"associatePublicIpAddress": "true"}]},
        "it gives a node a public address",
    ),
    ("public-node", {}, "aws:ec2/eip:Eip", {"domain": "vpc"}, None),
    ("public-node", {}, "aws:ec2/eip:Eip", {"networkInterface": LATER}, "it gives a node a public address"),
    (
        "public-node",
        {},
        GCP_TEMPLATE,
        {"networkInterfaces": [{"accessConfigs": [{}]}]},
        "it gives a node a public address",
    ),
    ("public-node", {}, GCP_TEMPLATE, {"networkInterfaces": [{"subnetwork": "x"}]}, None),
]


def settings(name: str, parameters: dict[str, Any]) -> Settings:
    return Settings({name: Policy(level="mandatory", parameters=parameters)})


@pytest.mark.parametrize("case", RESOURCES, ids=lambda case: f"{case[0]}-{str(case[3])[:50]}")
def test_a_rule_over_resources(case: tuple[str, dict[str, Any], str, dict[str, Any], str | None]) -> None:
    name, parameters, kind, inputs, text = case
    resource = Resource(kind, "lab-0", "urn:lab-0", inputs)
    found = [
        each.text
        for setting, each in settings(name, parameters).of_resource(resource)
        if setting.rule.name == name
    ]
    assert found == ([] if text is None else [text])


@pytest.mark.parametrize("kind", [INSTANCE, NEBIUS])
def test_the_region_of_a_resource_is_that_of_its_provider_where_it_says_none(kind: str) -> None:
    resource = Resource(kind, "lab-0", "urn", {}, {"region": "us-west-2"})
    found = [
        each.text
        for setting, each in settings("region-not-allowed", {"regions": ["eu-*"]}).of_resource(resource)
        if setting.rule.name == "region-not-allowed"
    ]
    assert found == ["the region us-west-2 is none of eu-*"]


@pytest.mark.parametrize(
    ("name", "key"), [("public-node", "associatePublicIpAddress"), ("type-not-allowed", "")]
)
def test_a_bastion_is_judged_only_where_that_is_wanted(name: str, key: str) -> None:
    resource = Resource(
        INSTANCE, "lab-bastion", "urn", {"associatePublicIpAddress": True, "instanceType": "t4g.nano"}
    )
    own = {"types": ["p5.*"]} if name == "type-not-allowed" else {}

    def found(**more: Any) -> int:
        return sum(
            setting.rule.name == name for setting, _ in settings(name, {**own, **more}).of_resource(resource)
        )

    assert (found(), found(bastions="true")) == (0, 1)


EIGHT = PlanFacts(hourly=800.0, delta=400.0, nodes=(NodePrice("p5.48xlarge", 8, 100.0),), most_nodes=16)

# Rule, parameters, facts; what is found, or None.
PLANS: list[tuple[str, dict[str, Any], PlanFacts, str | None]] = [
    ("budget", {"hourly": "2000"}, EIGHT, None),
    (
        "budget",
        {"hourly": "1000"},
        EIGHT,
        "the fleet costs $1,600.00 an hour with 16 nodes, $1,000.00 are allowed",
    ),
    (
        "budget",
        {"monthly": "1000000"},
        EIGHT,
        "the fleet costs $1,168,000.00 a month with 16 nodes, $1,000,000.00 are allowed",
    ),
    (
        "budget",
        {"change_hourly": "1000"},
        EIGHT,
        "the change adds $1,200.00 an hour with 16 nodes, $1,000.00 are allowed",
    ),
    (
        "budget",
        {"project_hourly": "1700"},
        PlanFacts(hourly=1.0, others=1700.0),
        "the project costs $1,701.00 an hour, $1,700.00 are allowed",
    ),
    (
        "budget",
        {"hourly": "1"},
        PlanFacts(nodes=(NodePrice("p6", 2, None),)),
        "no price is known of 2 nodes of p6: the budget cannot be kept",
    ),
    (
        "budget",
        {"hourly": "1", "unknown_prices": ["p6*"]},
        PlanFacts(nodes=(NodePrice("p6", 2, None),)),
        None,
    ),
    ("budget", {"hourly": "1"}, PlanFacts(nodes=(NodePrice("p6", 2, None, reserved=True),)), None),
    ("budget", {}, EIGHT, None),
    (
        "endless-fleet",
        {"hourly": "100"},
        PlanFacts(hourly=100.0, endless=True),
        "it costs $100.00 an hour, and nothing ends it",
    ),
    ("endless-fleet", {"hourly": "100"}, PlanFacts(hourly=100.0), None),
    ("endless-fleet", {"hourly": "100"}, PlanFacts(hourly=99.0, endless=True), None),
    ("endless-fleet", {"hourly": "0"}, PlanFacts(endless=True), None),
    ("replaced-nodes", {"most": "1"}, PlanFacts(lost=(Loss("a", "", "delete"),)), None),
    (
        "replaced-nodes",
        {"most": "1"},
        PlanFacts(lost=(Loss("a", "", "delete"), Loss("b", "", "replace"))),
        "2 nodes are deleted or replaced at once, 1 are allowed: a, b",
    ),
    (
        "data-loss",
        {},
        PlanFacts(lost_data=(Loss("fs", "u", "replace", "the file system at /data"),)),
        "the file system at /data is replaced, and all data on it is lost",
    ),
    ("runs-on-nodes", {}, PlanFacts(runs=("run train of ada",)), "nodes go under run train of ada"),
    (
        "slow-cluster",
        {},
        PlanFacts(slow="m7i.large has no fast interconnect"),
        "m7i.large has no fast interconnect",
    ),
    ("slow-cluster", {}, PlanFacts(), None),
]


@pytest.mark.parametrize("case", PLANS, ids=lambda case: f"{case[0]}-{case[3]}")
def test_a_rule_over_plans(case: tuple[str, dict[str, Any], PlanFacts, str | None]) -> None:
    name, parameters, facts, text = case
    found = [
        each.text for setting, each in settings(name, parameters).of_plan(facts) if setting.rule.name == name
    ]
    assert found == ([] if text is None else [text])


@pytest.mark.parametrize(
    ("task", "found"),
    [
        ({"spot_policy": "spot"}, 1),
        ({"spot_policy": "auto", "max_duration": "5h"}, 1),
        ({"spot_policy": "spot", "max_duration": "1h"}, 0),
        ({"spot_policy": "spot", "checkpoint": "/ckpt"}, 0),
        ({}, 0),
        ({"spot_policy": "on-demand"}, 0),
    ],
)
def test_a_long_task_on_spot_needs_checkpoints(task: dict[str, Any], found: int) -> None:
    model = Task.model_validate({"name": "train", "commands": ["date"], **task})
    assert len(list(Settings().of_task(model))) == found
