"""Rules over the inputs of Pulumi resources. What these are called in each cloud is in `resource_inputs.py`.

What is absent or known only later is no violation, unless the cloud's own default is the bad value: then the
rule says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from orch.policies.resource_inputs import (
    AWS_INSTANCE,
    AWS_TEMPLATE,
    CRUSOE_INSTANCE,
    LAMBDA_INSTANCE,
    RUNPOD_PODS,
    disks_of,
    gives_public_address,
    lacks_own_key,
    machine_type_of,
    open_peers,
    region_of,
    tags_of,
)
from orch.policies.rule import (
    FLAG,
    PORT,
    TEXTS,
    Breach,
    Parameter,
    Parameters,
    Resource,
    Rule,
    at,
    is_bastion,
    matches,
    rows_of,
    texts_of,
    truth,
)
from orch.spec.suggest import few

Check = Callable[[Resource, Parameters], Iterator[Breach]]

SSH_PORT = 22

_BASTIONS = Parameter("bastions", FLAG, "Whether bastions are judged too: `FLEET-bastion`.", False)


def _breach(resource: Resource, text: str, path: str = "", advice: str = "") -> Breach:
    return Breach(text, path, resource.name, resource.urn, advice)


# SSH

SSH_OPEN = Rule(
    "ssh-open-to-world",
    "resource",
    "critical",
    "advisory",
    "No security group or firewall lets the whole world in at the ports of SSH.",
    "name your own networks in `network.ssh_cidrs`, or remove it",
    (Parameter("port", PORT, "The port of SSH.", SSH_PORT),),
    "CIS AWS Foundations 3.0, 5.2 and 5.3; CIS Google Cloud 3.0, 3.6",
    "https://docs.aws.amazon.com/securityhub/latest/userguide/ec2-controls.html#ec2-53",
    code="ORCH224",
)


def ssh_open(resource: Resource, parameters: Parameters) -> Iterator[Breach]:
    port = int(parameters["port"])
    door = "SSH" if port == SSH_PORT else f"port {port}"
    for peer in open_peers(resource, port):
        yield _breach(resource, f"{peer} lets the whole world knock at {door}", "network.ssh_cidrs")


# Disks

UNENCRYPTED = Rule(
    "unencrypted-disk",
    "resource",
    "high",
    "advisory",
    "Disks and file systems are encrypted. A disk of AWS that does not say so counts as not encrypted: EBS's "
    "own default is off, and only the account knows of another. GCP encrypts all disks.",
    "set `encrypted: true`; disks that orch makes are encrypted",
    (Parameter("customer_key", FLAG, "Whether the key must be one of your own (KMS).", False),),
    "CIS AWS Foundations 3.0, 2.2.1 and 2.4.1",
    "https://docs.aws.amazon.com/securityhub/latest/userguide/ec2-controls.html#ec2-3",
)


def unencrypted(resource: Resource, parameters: Parameters) -> Iterator[Breach]:
    own_key = bool(parameters["customer_key"])
    for what, disk, default in disks_of(resource):
        encrypted = truth(disk.get("encrypted"))
        if encrypted is None and "encrypted" not in disk:
            encrypted = default
        if encrypted is False:
            said = "is not encrypted" if "encrypted" in disk else "does not say that it is encrypted"
            yield _breach(resource, f"{what} {said}", "resources.disk")
        elif own_key and "kmsKeyId" not in disk:
            yield _breach(resource, f"{what} has no key of your own", "resources.disk")
    if own_key and lacks_own_key(resource):
        yield _breach(resource, "a disk has no key of your own", "resources.disk")


# Metadata

IMDSV1 = Rule(
    "imdsv1",
    "resource",
    "high",
    "advisory",
    "Instances of AWS answer metadata requests with a token only (IMDSv2). One that does not say so counts "
    "as answering without: that is EC2's default, unless its image or account says otherwise.",
    "set `metadataOptions.httpTokens: required`; instances that orch makes have it",
    (),
    "CIS AWS Foundations 3.0, 5.6",
    "https://docs.aws.amazon.com/securityhub/latest/userguide/ec2-controls.html#ec2-8",
)


def imdsv1(resource: Resource, parameters: Parameters) -> Iterator[Breach]:
    inputs = resource.inputs
    if resource.type not in (AWS_INSTANCE, AWS_TEMPLATE):
        return
    if "metadataOptions" not in inputs:
        if resource.type == AWS_TEMPLATE or "launchTemplate" not in inputs:
            yield _breach(resource, "it does not ask for tokens of metadata requests (IMDSv2)")
        return
    for options in rows_of(inputs["metadataOptions"]):
        absent = "httpTokens" not in options
        if at(options, "httpEndpoint") == "disabled":
            continue
        if absent or at(options, "httpTokens") == "optional":
            yield _breach(resource, "it answers metadata requests without a token (IMDSv1)")


# Tags

TAGS = Rule(
    "missing-tags",
    "resource",
    "medium",
    "mandatory",
    "Resources have these tags; on GCP labels, in its spelling, on Nebius and Kubernetes labels. "
    "RunPod's have neither.",
    "write them under `tags` of the fleet, or of `orch.yml` for all of them",
    (Parameter("tags", TEXTS, "Keys that every resource which takes tags has."),),
    needs=("tags",),
)


def missing_tags(resource: Resource, parameters: Parameters) -> Iterator[Breach]:
    tags = tags_of(resource)
    if tags is None or tags.keys is None:
        return
    if absent := [key for key in parameters["tags"] or () if tags.spelled(key) not in tags.keys]:
        yield _breach(resource, f"the {tags.word}s {', '.join(absent)} are missing", "tags")


# Places and types

REGIONS = Rule(
    "region-not-allowed",
    "resource",
    "high",
    "mandatory",
    "Resources are in these regions only. RunPod's are its countries, or data centers.",
    "write one of them under `regions`",
    (
        Parameter("regions", TEXTS, "Regions that are allowed; `*` stands for any characters."),
        Parameter("denied", TEXTS, "Regions that are not, whatever `regions` has."),
    ),
    needs=("regions", "denied"),
)


def region(resource: Resource, parameters: Parameters) -> Iterator[Breach]:
    if resource.type in RUNPOD_PODS:
        yield from _data_centers(resource, parameters["regions"], parameters["denied"])
        return
    name = region_of(resource)
    if name is not None and (why := _outside(name, parameters["regions"], parameters["denied"])):
        yield _breach(resource, f"the region {name} {why}", "regions")


def _data_centers(
    resource: Resource, allowed: tuple[str, ...] | None, denied: tuple[str, ...] | None
) -> Iterator[Breach]:
    """Yield breaches by RunPod's choice of places: a pattern is for a data center (`US-KS-2`) or its country
    (`US`)."""
    from orch.catalog.runpod.prices import country

    spec = at(resource.inputs, "spec")
    if not isinstance(spec, Mapping):
        return
    if "dataCenterIds" not in spec:
        yield _breach(resource, "RunPod chooses the data center", "regions")
    for center in texts_of(at(spec, "dataCenterIds")):
        names = (center, country(center))
        if denied and any(matches(each, denied) for each in names):
            yield _breach(resource, f"the data center {center} is denied", "regions")
        elif allowed and not any(matches(each, allowed) for each in names):
            yield _breach(resource, f"the data center {center} is none of {few(allowed)}", "regions")


TYPES = Rule(
    "type-not-allowed",
    "resource",
    "high",
    "mandatory",
    "Machines are of these types only.",
    "write one of them under `instance_types`",
    (
        Parameter(
            "types",
            TEXTS,
            "Types that are allowed: `p5.*`, `a3-highgpu-8g`, `gpu-h200-*`, `8x_H100-*`.",
        ),
        Parameter("denied", TEXTS, "Types that are not, whatever `types` has."),
        _BASTIONS,
    ),
    needs=("types", "denied"),
)


def machine_type(resource: Resource, parameters: Parameters) -> Iterator[Breach]:
    if is_bastion(resource.name) and not parameters["bastions"]:
        return
    name = machine_type_of(resource)
    if name is not None and (why := _outside(name, parameters["types"], parameters["denied"])):
        yield _breach(resource, f"the type {name} {why}", "instance_types")


def _outside(name: str, allowed: tuple[str, ...] | None, denied: tuple[str, ...] | None) -> str | None:
    if denied and matches(name, denied):
        return "is denied"
    if allowed and not matches(name, allowed):
        return f"is none of {few(allowed)}"
    return None


# Addresses

PUBLIC = Rule(
    "public-node",
    "resource",
    "medium",
    "advisory",
    "Nodes have no public address.",
    "write `network.public_ips: false`: nodes are reached through a bastion or the cloud's own tunnel",
    (_BASTIONS,),
    "CIS Google Cloud 3.0, 4.9",
    "https://docs.aws.amazon.com/securityhub/latest/userguide/ec2-controls.html#ec2-9",
)


_NEEDED = {
    CRUSOE_INSTANCE: "each VM of Crusoe has one; the firewall of the fleet's network lets nobody in but "
    "at SSH",
    LAMBDA_INSTANCE: "each instance of Lambda has one; firewall rules of the account say who comes in",
}
"""Advice for clouds whose nodes always have a public address."""


def public(resource: Resource, parameters: Parameters) -> Iterator[Breach]:
    if is_bastion(resource.name) and not parameters["bastions"]:
        return
    if gives_public_address(resource):
        advice = _NEEDED.get(resource.type, "")
        yield _breach(resource, "it gives a node a public address", "network.public_ips", advice)


CHECKS: tuple[tuple[Rule, Check], ...] = (
    (SSH_OPEN, ssh_open),
    (UNENCRYPTED, unencrypted),
    (IMDSV1, imdsv1),
    (TAGS, missing_tags),
    (REGIONS, region),
    (TYPES, machine_type),
    (PUBLIC, public),
)
