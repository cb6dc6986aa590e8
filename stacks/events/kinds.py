"""Resource kinds in words of the field: `launch template` from a Pulumi type. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache

# Types whose own name is not what people call them; all others are their name, word by word.
_WORDS = {
    "orch:index:Keys": "key set",
    "orch:local:Volume": "volume",
    "orch:network:Gcp": "network set",
    "aws:ec2/eip:Eip": "elastic IP",
    "aws:ec2/eipAssociation:EipAssociation": "elastic IP association",
    "aws:efs/fileSystem:FileSystem": "EFS file system",
    "aws:fsx/lustreFileSystem:LustreFileSystem": "Lustre file system",
    "gcp:filestore/instance:Instance": "Filestore instance",
    "gcp:compute/instanceFromTemplate:InstanceFromTemplate": "instance",
    "gcp:compute/instanceGroupManager:InstanceGroupManager": "instance group",
    "gcp:compute/routerNat:RouterNat": "cloud NAT",
    "gcp:compute/firewall:Firewall": "firewall rule",
}
_ACRONYMS = {
    "gpu": "GPU",
    "ib": "InfiniBand",
    "vpc": "VPC",
    "nat": "NAT",
    "ip": "IP",
    "dhcp": "DHCP",
    "iam": "IAM",
    "ssh": "SSH",
}
_PLURALS = {"policy": "policies", "address": "addresses"}

MAX_KINDS = 6
"""How many kinds a summary names; it counts the others together."""


@cache
def kind_of(type_: str) -> str:
    """`security group` of `aws:ec2/securityGroup:SecurityGroup`."""
    if known := _WORDS.get(type_):
        return known
    if type_.startswith("orch:fleet:"):
        return "fleet"
    words: list[str] = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", type_.rpartition(":")[2])
    return " ".join(_ACRONYMS.get(word, word) for word in map(str.lower, words)) or type_


def several(kind: str, number: int) -> str:
    """`1 security group`, `8 security groups`."""
    if number == 1:
        return f"1 {kind}"
    first, _, last = kind.rpartition(" ")
    plural = _PLURALS.get(last, f"{last}s")
    return f"{number} {first} {plural}" if first else f"{number} {plural}"


def counted_kinds(types: Iterable[str]) -> str:
    """`4 instances, 1 key set, …` of resources by their types, the most frequent first."""
    counts = Counter(map(kind_of, types)).most_common()
    if len(counts) > MAX_KINDS:
        others = sum(number for _, number in counts[MAX_KINDS - 1 :])
        named = [several(kind, number) for kind, number in counts[: MAX_KINDS - 1]]
        return ", ".join([*named, f"{others} others"])
    return ", ".join(several(kind, number) for kind, number in counts)
