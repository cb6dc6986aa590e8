"""Rules over the inputs of Pulumi resources, by type token.

What is absent or known only later is no violation, unless the cloud's own default is the bad value: then the
rule says so. Tokens and property names are those of pulumi-aws 7 and pulumi-gcp 10; those of Nebius and
RunPod are orch's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

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

WORLD = frozenset({"0.0.0.0/0", "::/0"})

AWS_INSTANCE = "aws:ec2/instance:Instance"
AWS_TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
GCP_INSTANCES = frozenset(
    {
        "gcp:compute/instance:Instance",
        "gcp:compute/instanceTemplate:InstanceTemplate",
        "gcp:compute/regionInstanceTemplate:RegionInstanceTemplate",
        "gcp:compute/instanceFromTemplate:InstanceFromTemplate",
    }
)

NEBIUS_INSTANCE = "orch-nebius:index:Instance"
RUNPOD_PODS = frozenset({"orch-runpod:index:Pod", "orch-runpod:index:Cluster"})
CRUSOE_INSTANCE = "orch-crusoe:index:Instance"
LAMBDA_INSTANCE = "orch-lambda:index:Instance"

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
    for peer in _open_peers(resource, port):
        yield _breach(resource, f"{peer} lets the whole world knock at {door}", "network.ssh_cidrs")


def _open_peers(resource: Resource, port: int) -> Iterator[str]:
    inputs = resource.inputs
    if resource.type == "aws:ec2/securityGroup:SecurityGroup":
        for row in rows_of(inputs.get("ingress")):
            if _covers(row, port, "protocol", "fromPort", "toPort"):
                yield from _world(row.get("cidrBlocks"), row.get("ipv6CidrBlocks"))
    elif resource.type == "aws:ec2/securityGroupRule:SecurityGroupRule":
        if at(inputs, "type") == "ingress" and _covers(inputs, port, "protocol", "fromPort", "toPort"):
            yield from _world(inputs.get("cidrBlocks"), inputs.get("ipv6CidrBlocks"))
    elif resource.type == "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule":
        if _covers(inputs, port, "ipProtocol", "fromPort", "toPort"):
            yield from _world([inputs.get("cidrIpv4"), inputs.get("cidrIpv6")])
    elif resource.type == "gcp:compute/firewall:Firewall" and _lets_in(inputs, port):
        yield from _world(inputs.get("sourceRanges"))
    elif resource.type == "orch-nebius:index:SecurityRule":
        yield from _world(*_nebius_sources(at(inputs, "spec"), port))
    elif resource.type == "orch-crusoe:index:FirewallRule":
        yield from _world(*_crusoe_sources(at(inputs, "spec"), port))
    elif resource.type == "orch-lambda:index:FirewallRules":
        rules = rows_of(at(inputs, "spec", "rules"))
        yield from _world([each["source_network"] for each in rules if _lambda_covers(each, port)])


def _crusoe_sources(spec: object, port: int) -> Iterator[object]:
    """The networks that a rule of Crusoe lets in at a port. Source: crusoecloud/client-go swagger.json."""
    lets_in = at(spec, "action") == "allow" and at(spec, "direction") == "ingress"
    if lets_in and "tcp" in (at(spec, "protocols") or ()) and _in_ranges(at(spec, "destination_ports"), port):
        yield [each["cidr"] for each in rows_of(at(spec, "sources")) if each.get("cidr")]


def _lambda_covers(rule: Mapping[str, object], port: int) -> bool:
    """Whether a rule of Lambda is about a TCP port. Source: Lambda Cloud API 1.10, FirewallRule."""
    ports = rule.get("port_range")
    first, last = ports if isinstance(ports, list | tuple) and len(ports) == 2 else (1, 65535)
    return rule.get("protocol") in ("tcp", "all") and int(first) <= port <= int(last)


def _in_ranges(ranges: object, port: int) -> bool:
    """Whether a port is in ranges like `22` or `3000-8080`; without any it is."""
    texts = texts_of(ranges)
    pairs = [text.partition("-") for text in texts]
    return not pairs or any(int(first) <= port <= int(last or first) for first, _, last in pairs)


def _nebius_sources(spec: object, port: int) -> Iterator[object]:
    """The networks that a rule of Nebius lets in at a port: without ports all of them, without a source any.

    Source: nebius/api vpc/v1/security_rule.proto.
    """
    ingress = at(spec, "ingress")
    lets_in = at(spec, "access") == "ALLOW" and at(spec, "protocol") in ("TCP", "ANY")
    if not lets_in or not isinstance(ingress, Mapping) or "source_security_group_id" in ingress:
        return
    ports = at(ingress, "destination_ports")
    if not ports or port in {int(each) for each in ports}:
        yield at(ingress, "source_cidrs") if "source_cidrs" in ingress else ["0.0.0.0/0"]


def _lets_in(firewall: Mapping[str, Any], port: int) -> bool:
    """Whether a firewall of GCP lets something in at a port. One without a direction is for what comes in."""
    incoming = at(firewall, "direction") in (None, "INGRESS")
    covered = any(_gcp_covers(row, port) for row in rows_of(firewall.get("allows")))
    return incoming and covered and truth(firewall.get("disabled")) is not True


def _world(*lists: object) -> Iterator[str]:
    yield from sorted({each for row in lists for each in texts_of(row)} & WORLD)


def _covers(row: Mapping[str, Any], port: int, protocol: str, first: str, last: str) -> bool:
    word = str(at(row, protocol)).lower()
    if word in ("-1", "all"):
        return True
    low, high = at(row, first), at(row, last)
    if word not in ("tcp", "6") or low is None or high is None:
        return False
    return int(low) <= port <= int(high)


def _gcp_covers(row: Mapping[str, Any], port: int) -> bool:
    word = str(at(row, "protocol")).lower()
    if word == "all":
        return True
    if word not in ("tcp", "6"):
        return False
    ports = at(row, "ports")
    if not ports:
        return ports is not None or "ports" not in row  # without ports the rule is for all of them
    spans = [re.fullmatch(r"(\d+)(?:-(\d+))?", each) for each in texts_of(ports)]
    return any(span and int(span[1]) <= port <= int(span[2] or span[1]) for span in spans)


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
    for what, disk, default in _disks(resource):
        encrypted = truth(disk.get("encrypted"))
        if encrypted is None and "encrypted" not in disk:
            encrypted = default
        if encrypted is False:
            said = "is not encrypted" if "encrypted" in disk else "does not say that it is encrypted"
            yield _breach(resource, f"{what} {said}", "resources.disk")
        elif own_key and "kmsKeyId" not in disk:
            yield _breach(resource, f"{what} has no key of your own", "resources.disk")
    if own_key and resource.type in GCP_INSTANCES | {"gcp:compute/disk:Disk"}:
        yield from _gcp_keys(resource)


def _disks(resource: Resource) -> Iterator[tuple[str, Mapping[str, Any], bool | None]]:
    """Disks of AWS: what each is, its properties, and what holds where they say nothing of encryption.

    A disk from a snapshot is as that is. An instance with a launch template has that template's disks; one
    with neither has those of its image.
    """
    inputs = resource.inputs
    if resource.type in ("aws:ebs/volume:Volume", "aws:efs/fileSystem:FileSystem"):
        what = "the volume" if "ebs" in resource.type else "the file system"
        yield what, inputs, None if "snapshotId" in inputs else False
    elif resource.type == AWS_TEMPLATE:
        for mapping in rows_of(inputs.get("blockDeviceMappings")):
            for disk in rows_of(mapping.get("ebs")):
                name = at(mapping, "deviceName") or "?"
                yield f"the disk {name}", disk, None if "snapshotId" in disk else False
    elif resource.type == AWS_INSTANCE:
        own = "launchTemplate" not in inputs
        root = tuple(rows_of(inputs.get("rootBlockDevice")))
        for disk in root or (({},) if own else ()):
            yield "the root disk", disk, False if own else None
        for disk in rows_of(inputs.get("ebsBlockDevices")):
            yield f"the disk {at(disk, 'deviceName') or '?'}", disk, None if "snapshotId" in disk else False


def _gcp_keys(resource: Resource) -> Iterator[Breach]:
    inputs = resource.inputs
    if resource.type == "gcp:compute/disk:Disk":
        named = "diskEncryptionKey" in inputs
    elif resource.type == "gcp:compute/instanceFromTemplate:InstanceFromTemplate":
        return
    elif resource.type == "gcp:compute/instance:Instance":
        named = all("kmsKeySelfLink" in row for row in rows_of(inputs.get("bootDisk")))
    else:
        named = all("diskEncryptionKey" in row for row in rows_of(inputs.get("disks")))
    if not named:
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

_TAGGED = re.compile(
    r"aws:(ec2/(instance|launchTemplate|vpc|subnet|securityGroup|eip|natGateway|internetGateway|routeTable"
    r"|placementGroup|capacityReservation|networkInterface)|ebs/volume|efs/fileSystem|fsx/\w+|iam/(role"
    r"|instanceProfile)):"
)
_LABELLED = re.compile(
    r"gcp:(compute/(instance|instanceTemplate|instanceFromTemplate|disk)|filestore/instance):"
)


def missing_tags(resource: Resource, parameters: Parameters) -> Iterator[Breach]:
    wanted: tuple[str, ...] = parameters["tags"] or ()
    if resource.type.startswith("gcp:"):
        if "labels" not in resource.inputs and not _LABELLED.match(resource.type):
            return
        present, word = _keys(resource.inputs, "labels", "effectiveLabels"), "label"
        absent = [key for key in wanted if _label(key) not in (present or ())]
    elif resource.type.startswith("aws:"):
        if "tags" not in resource.inputs and not _TAGGED.match(resource.type):
            return
        present, word = _keys(resource.inputs, "tags", "tagsAll"), "tag"
        absent = [key for key in wanted if key not in (present or ())]
    elif resource.type.startswith("orch-nebius:"):
        if "labels" not in resource.inputs:  # what waits for machines is nothing of the cloud's
            return
        present, word = _keys(resource.inputs, "labels"), "label"
        absent = [key for key in wanted if key not in (present or ())]
    elif resource.type.startswith("kubernetes:"):
        metadata = at(resource.inputs, "metadata")
        if not isinstance(metadata, Mapping):  # a provider, or not known yet
            return
        present, word = _keys(metadata, "labels"), "label"
        absent = [key for key in wanted if key not in (present or ())]
    else:
        return
    if present is not None and absent:
        yield _breach(resource, f"the {word}s {', '.join(absent)} are missing", "tags")


def _keys(inputs: Mapping[str, Any], *names: str) -> frozenset[str] | None:
    """The keys of these mappings; None where one of them is not known."""
    keys = frozenset[str]()
    for name in names:
        if name in inputs and inputs[name] is not None:
            row = at(inputs, name)
            if not isinstance(row, Mapping):
                return None
            keys |= frozenset(map(str, row))
    return keys


def _label(key: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "_", key.lower())


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
    """Where RunPod may put pods: a pattern is for a data center (`US-KS-2`) or its country (`US`)."""
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


def region_of(resource: Resource) -> str | None:
    """Where a resource is: by its own words, else by those of its provider."""
    cloud = resource.type.partition(":")[0]
    if cloud not in ("aws", "gcp", "orch-crusoe", "orch-lambda", "orch-nebius"):
        return None
    for name in ("region", "location"):
        if isinstance(value := at(resource.inputs, name), str):
            return _region_in(cloud, value)
    for name in ("availabilityZone", "zone"):
        if isinstance(value := at(resource.inputs, name), str):
            return _region_in(cloud, value)
    value = at(resource.provider, "region")
    return value if isinstance(value, str) else None


def _region_in(cloud: str, place: str) -> str:
    """The region of a zone (`us-east-1a`, `us-central1-a`), or of a link to either."""
    place = place.rpartition("/")[2]
    zone = re.fullmatch(r"(.+\d)[a-z]" if cloud == "aws" else r"(.+\d)-[a-z]", place)
    return zone[1] if zone else place


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
    value = None
    if resource.type.startswith("aws:ec2/"):
        value = at(resource.inputs, "instanceType")
    elif resource.type in GCP_INSTANCES:
        value = at(resource.inputs, "machineType")
    elif resource.type == NEBIUS_INSTANCE:
        asked = [at(resource.inputs, "spec", "resources", each) for each in ("platform", "preset")]
        value = "_".join(asked) if all(isinstance(each, str) for each in asked) else None
    elif resource.type == CRUSOE_INSTANCE:
        value = at(resource.inputs, "spec", "type")
    elif resource.type == LAMBDA_INSTANCE:
        value = at(resource.inputs, "spec", "instance_type_name")
    elif resource.type in RUNPOD_PODS:
        value = _pod_type(at(resource.inputs, "spec"))
    if isinstance(value, str):
        name = value.rpartition("/")[2]
        if why := _outside(name, parameters["types"], parameters["denied"]):
            yield _breach(resource, f"the type {name} {why}", "instance_types")


def _pod_type(spec: object) -> str | None:
    """The type of pods of RunPod: `8x_H100-SXM_SECURE`, with the GPU's id where the catalogue has no name."""
    from orch.catalog.runpod.prices import gpu_ids

    gpu = at(spec, "gpu", "id") or at(spec, "compute", "gpuTypeId")
    count = at(spec, "gpu", "count") or at(spec, "compute", "gpuCountPerPod")
    names = {each: name for name, each in gpu_ids().items()}
    return None if gpu is None or count is None else f"{int(count)}x_{names.get(gpu, gpu)}_SECURE"


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


def public(resource: Resource, parameters: Parameters) -> Iterator[Breach]:
    if is_bastion(resource.name) and not parameters["bastions"]:
        return
    inputs = resource.inputs
    has, advice = False, ""
    if resource.type == AWS_INSTANCE:
        has = truth(inputs.get("associatePublicIpAddress")) is True
    elif resource.type == AWS_TEMPLATE:
        nics = rows_of(inputs.get("networkInterfaces"))
        has = any(truth(each.get("associatePublicIpAddress")) is True for each in nics)
    elif resource.type == "aws:ec2/eip:Eip":
        # Those of a NAT gateway name neither.
        has = "instance" in inputs or "networkInterface" in inputs
    elif resource.type in GCP_INSTANCES:
        has = any("accessConfigs" in each for each in rows_of(inputs.get("networkInterfaces")))
    elif resource.type == NEBIUS_INSTANCE:
        has = any("public_ip_address" in each for each in rows_of(at(inputs, "spec", "network_interfaces")))
    elif resource.type == CRUSOE_INSTANCE:
        addresses = [rows_of(each.get("ips")) for each in rows_of(at(inputs, "spec", "network_interfaces"))]
        has = any("public_ipv4" in address for each in addresses for address in each)
        advice = "each VM of Crusoe has one; the firewall of the fleet's network lets nobody in but at SSH"
    elif resource.type == LAMBDA_INSTANCE:
        has = True
        advice = "each instance of Lambda has one; firewall rules of the account say who comes in"
    if has:
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
