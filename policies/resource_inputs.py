"""Reads what resources of clouds say about themselves from their inputs, by type token.

Tokens and property names are those of pulumi-aws 7 and pulumi-gcp 10; those of Nebius, Crusoe, Lambda and
RunPod are orch's own. What is absent or known only later is read as None, or left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orch.policies.rule import Resource, at, rows_of, texts_of, truth

Inputs = Mapping[str, Any]

WORLD = frozenset({"0.0.0.0/0", "::/0"})

AWS_INSTANCE = "aws:ec2/instance:Instance"
AWS_TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
GCP_DISK = "gcp:compute/disk:Disk"
GCP_INSTANCE = "gcp:compute/instance:Instance"
GCP_FROM_TEMPLATE = "gcp:compute/instanceFromTemplate:InstanceFromTemplate"
GCP_INSTANCES = frozenset(
    {
        GCP_INSTANCE,
        GCP_FROM_TEMPLATE,
        "gcp:compute/instanceTemplate:InstanceTemplate",
        "gcp:compute/regionInstanceTemplate:RegionInstanceTemplate",
    }
)

NEBIUS_INSTANCE = "orch-nebius:index:Instance"
RUNPOD_PODS = frozenset({"orch-runpod:index:Pod", "orch-runpod:index:Cluster"})
CRUSOE_INSTANCE = "orch-crusoe:index:Instance"
LAMBDA_INSTANCE = "orch-lambda:index:Instance"


# Open ports


def open_peers(resource: Resource, port: int) -> Iterator[str]:
    """Yield the networks without bounds that a resource lets in at a TCP port: once for each of its rules."""
    rules = _SOURCES.get(resource.type)
    for sources in rules(resource.inputs, port) if rules is not None else ():
        yield from sorted({each for row in sources for each in texts_of(row)} & WORLD)


Sources = Iterator[tuple[object, ...]]
"""Lists of networks, for each rule that covers a port."""


def _aws_group(inputs: Inputs, port: int) -> Sources:
    for row in rows_of(inputs.get("ingress")):
        if _covers(row, port, "protocol", "fromPort", "toPort"):
            yield row.get("cidrBlocks"), row.get("ipv6CidrBlocks")


def _aws_group_rule(inputs: Inputs, port: int) -> Sources:
    if at(inputs, "type") == "ingress" and _covers(inputs, port, "protocol", "fromPort", "toPort"):
        yield inputs.get("cidrBlocks"), inputs.get("ipv6CidrBlocks")


def _aws_ingress_rule(inputs: Inputs, port: int) -> Sources:
    if _covers(inputs, port, "ipProtocol", "fromPort", "toPort"):
        yield ([inputs.get("cidrIpv4"), inputs.get("cidrIpv6")],)


def _gcp_firewall(inputs: Inputs, port: int) -> Sources:
    """A firewall of GCP; one without a direction is for what comes in."""
    incoming = at(inputs, "direction") in (None, "INGRESS")
    covered = any(_gcp_covers(row, port) for row in rows_of(inputs.get("allows")))
    if incoming and covered and truth(inputs.get("disabled")) is not True:
        yield (inputs.get("sourceRanges"),)


def _nebius_rule(inputs: Inputs, port: int) -> Sources:
    """A rule of Nebius: without ports it is for all of them, without a source for any.

    Source: nebius/api vpc/v1/security_rule.proto.
    """
    spec = at(inputs, "spec")
    ingress = at(spec, "ingress")
    lets_in = at(spec, "access") == "ALLOW" and at(spec, "protocol") in ("TCP", "ANY")
    if not lets_in or not isinstance(ingress, Mapping) or "source_security_group_id" in ingress:
        return
    ports = at(ingress, "destination_ports")
    if not ports or port in {int(each) for each in ports}:
        yield (at(ingress, "source_cidrs") if "source_cidrs" in ingress else ["0.0.0.0/0"],)


def _crusoe_rule(inputs: Inputs, port: int) -> Sources:
    """A rule of Crusoe. Source: crusoecloud/client-go swagger.json."""
    spec = at(inputs, "spec")
    lets_in = at(spec, "action") == "allow" and at(spec, "direction") == "ingress"
    if lets_in and "tcp" in (at(spec, "protocols") or ()) and _in_ranges(at(spec, "destination_ports"), port):
        yield ([each["cidr"] for each in rows_of(at(spec, "sources")) if each.get("cidr")],)


def _lambda_rules(inputs: Inputs, port: int) -> Sources:
    rules = rows_of(at(inputs, "spec", "rules"))
    yield ([each["source_network"] for each in rules if _lambda_covers(each, port)],)


_SOURCES: Mapping[str, Callable[[Inputs, int], Sources]] = {
    "aws:ec2/securityGroup:SecurityGroup": _aws_group,
    "aws:ec2/securityGroupRule:SecurityGroupRule": _aws_group_rule,
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": _aws_ingress_rule,
    "gcp:compute/firewall:Firewall": _gcp_firewall,
    "orch-nebius:index:SecurityRule": _nebius_rule,
    "orch-crusoe:index:FirewallRule": _crusoe_rule,
    "orch-lambda:index:FirewallRules": _lambda_rules,
}


def _lambda_covers(rule: Mapping[str, object], port: int) -> bool:
    """Return True if a rule of Lambda is about a TCP port. Source: Lambda Cloud API 1.10, FirewallRule."""
    ports = rule.get("port_range")
    first, last = ports if isinstance(ports, list | tuple) and len(ports) == 2 else (1, 65535)
    return rule.get("protocol") in ("tcp", "all") and int(first) <= port <= int(last)


def _in_ranges(ranges: object, port: int) -> bool:
    """Return True if a port is in ranges like `22` or `3000-8080`; without any it is."""
    texts = texts_of(ranges)
    pairs = [text.partition("-") for text in texts]
    return not pairs or any(int(first) <= port <= int(last or first) for first, _, last in pairs)


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


def disks_of(resource: Resource) -> Iterator[tuple[str, Mapping[str, Any], bool | None]]:
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


def lacks_own_key(resource: Resource) -> bool:
    """Return True if a disk of GCP has no key of the user's own."""
    inputs = resource.inputs
    if resource.type == GCP_DISK:
        return "diskEncryptionKey" not in inputs
    if resource.type not in GCP_INSTANCES or resource.type == GCP_FROM_TEMPLATE:
        return False
    if resource.type == GCP_INSTANCE:
        return not all("kmsKeySelfLink" in row for row in rows_of(inputs.get("bootDisk")))
    return not all("diskEncryptionKey" in row for row in rows_of(inputs.get("disks")))


# Tags


_TAGGED = re.compile(
    r"aws:(ec2/(instance|launchTemplate|vpc|subnet|securityGroup|eip|natGateway|internetGateway|routeTable"
    r"|placementGroup|capacityReservation|networkInterface)|ebs/volume|efs/fileSystem|fsx/\w+|iam/(role"
    r"|instanceProfile)):"
)
_LABELLED = re.compile(
    r"gcp:(compute/(instance|instanceTemplate|instanceFromTemplate|disk)|filestore/instance):"
)


@dataclass(frozen=True)
class Tags:
    """Tags or labels of a resource. `keys`: None where they are not known yet; `spelled`: a key as the cloud
    spells it."""

    keys: frozenset[str] | None
    word: Literal["tag", "label"] = "label"
    spelled: Callable[[str], str] = str


def tags_of(resource: Resource) -> Tags | None:
    """Return the tags of a resource; None for one that takes none."""
    cloud, inputs = resource.type.partition(":")[0], resource.inputs
    if cloud == "aws" and ("tags" in inputs or _TAGGED.match(resource.type)):
        return Tags(_keys(inputs, "tags", "tagsAll"), "tag")
    if cloud == "gcp" and ("labels" in inputs or _LABELLED.match(resource.type)):
        return Tags(_keys(inputs, "labels", "effectiveLabels"), spelled=_label)
    if cloud == "orch-nebius" and "labels" in inputs:  # what waits for machines is nothing of the cloud's
        return Tags(_keys(inputs, "labels"))
    if cloud == "kubernetes":
        metadata = at(inputs, "metadata")
        # Without metadata it is a provider, or not known yet.
        return Tags(_keys(metadata, "labels")) if isinstance(metadata, Mapping) else None
    return None


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


def region_of(resource: Resource) -> str | None:
    """Return the region of a resource: by its own inputs, else by those of its provider."""
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


def machine_type_of(resource: Resource) -> str | None:
    """Return the type of the machines that a resource is, or makes."""
    if resource.type.startswith("aws:ec2/"):
        value = at(resource.inputs, "instanceType")
    else:
        read = _TYPES.get(resource.type)
        value = read(resource.inputs) if read is not None else None
    return value.rpartition("/")[2] if isinstance(value, str) else None


def _nebius_type(inputs: Inputs) -> str | None:
    asked = [at(inputs, "spec", "resources", each) for each in ("platform", "preset")]
    return "_".join(asked) if all(isinstance(each, str) for each in asked) else None


def _pod_type(inputs: Inputs) -> str | None:
    """The type of pods of RunPod: `8x_H100-SXM_SECURE`, with the GPU's id where the catalogue has no name."""
    from orch.catalog.runpod.prices import gpu_ids

    spec = at(inputs, "spec")
    gpu = at(spec, "gpu", "id") or at(spec, "compute", "gpuTypeId")
    count = at(spec, "gpu", "count") or at(spec, "compute", "gpuCountPerPod")
    names = {each: name for name, each in gpu_ids().items()}
    return None if gpu is None or count is None else f"{int(count)}x_{names.get(gpu, gpu)}_SECURE"


_TYPES: Mapping[str, Callable[[Inputs], object]] = {
    **dict.fromkeys(GCP_INSTANCES, lambda inputs: at(inputs, "machineType")),
    **dict.fromkeys(RUNPOD_PODS, _pod_type),
    NEBIUS_INSTANCE: _nebius_type,
    CRUSOE_INSTANCE: lambda inputs: at(inputs, "spec", "type"),
    LAMBDA_INSTANCE: lambda inputs: at(inputs, "spec", "instance_type_name"),
}


# Addresses


def gives_public_address(resource: Resource) -> bool:
    """Return True if a resource gives a node a public address."""
    gives = _PUBLIC.get(resource.type)
    return gives is not None and gives(resource.inputs)


def _any_public(nics: object) -> bool:
    return any(truth(each.get("associatePublicIpAddress")) is True for each in rows_of(nics))


def _crusoe_public(inputs: Inputs) -> bool:
    addresses = [rows_of(each.get("ips")) for each in rows_of(at(inputs, "spec", "network_interfaces"))]
    return any("public_ipv4" in address for each in addresses for address in each)


_PUBLIC: Mapping[str, Callable[[Inputs], bool]] = {
    AWS_INSTANCE: lambda inputs: truth(inputs.get("associatePublicIpAddress")) is True,
    AWS_TEMPLATE: lambda inputs: _any_public(inputs.get("networkInterfaces")),
    # Those of a NAT gateway name neither.
    "aws:ec2/eip:Eip": lambda inputs: "instance" in inputs or "networkInterface" in inputs,
    **dict.fromkeys(
        GCP_INSTANCES,
        lambda inputs: any("accessConfigs" in each for each in rows_of(inputs.get("networkInterfaces"))),
    ),
    NEBIUS_INSTANCE: lambda inputs: any(
        "public_ip_address" in each for each in rows_of(at(inputs, "spec", "network_interfaces"))
    ),
    CRUSOE_INSTANCE: _crusoe_public,
    LAMBDA_INSTANCE: lambda _: True,
}
