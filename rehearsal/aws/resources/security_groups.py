"""Security groups and their rules as Pulumi resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orch.rehearsal.aws.resources.kinds import Api, Kind, Listed, Props, specification
from orch.rehearsal.store import Doc


def _permission(rule: Props) -> Doc:
    """An inline rule as IpPermissions names it."""

    def described(**peer: str) -> Doc:
        return {**peer, **({"Description": rule["description"]} if rule.get("description") else {})}

    protocol = str(rule["protocol"])
    entry: Doc = {
        "IpProtocol": "-1" if protocol == "all" else protocol,
        "IpRanges": [described(CidrIp=cidr) for cidr in rule.get("cidrBlocks") or ()],
        "Ipv6Ranges": [described(CidrIpv6=cidr) for cidr in rule.get("ipv6CidrBlocks") or ()],
        "PrefixListIds": [described(PrefixListId=one) for one in rule.get("prefixListIds") or ()],
        "UserIdGroupPairs": [described(GroupId=one) for one in rule.get("securityGroups") or ()],
    }
    if entry["IpProtocol"] != "-1":
        entry |= {"FromPort": rule["fromPort"], "ToPort": rule["toPort"]}
    return entry


def _permissions(rules: list[Props] | None, group: str) -> list[Doc]:
    permissions = []
    for rule in rules or ():
        groups = [*(rule.get("securityGroups") or ()), *([group] if rule.get("self") else [])]
        permissions.append(_permission({**rule, "securityGroups": groups}))
    return permissions


def _single(permissions: list[Doc]) -> dict[tuple[Any, ...], Doc]:
    """IpPermissions with one peer each, by what they are."""
    by_peer: dict[tuple[Any, ...], Doc] = {}
    for one in permissions:
        head = {key: one[key] for key in ("IpProtocol", "FromPort", "ToPort") if key in one}
        for peers, key in (
            ("IpRanges", "CidrIp"),
            ("Ipv6Ranges", "CidrIpv6"),
            ("PrefixListIds", "PrefixListId"),
            ("UserIdGroupPairs", "GroupId"),
        ):
            for peer in one.get(peers) or ():
                fields = {name: peer[name] for name in (key, "Description") if name in peer}
                by_peer[(*head.values(), key, peer[key], peer.get("Description"))] = {**head, peers: [fields]}
    return by_peer


def _inline(permissions: list[Doc], group: str) -> list[Props]:
    """IpPermissions as inline rules, one for each protocol, port range and description."""
    rules: dict[tuple[Any, ...], Props] = {}
    for one in _single(permissions).values():
        protocol = one["IpProtocol"]
        ports = (one.get("FromPort", 0), one.get("ToPort", 0))
        peers, key = next((name, value[0]) for name, value in one.items() if isinstance(value, list))
        rule = rules.setdefault(
            (protocol, *ports, key.get("Description")),
            {
                "protocol": protocol,
                "fromPort": ports[0],
                "toPort": ports[1],
                "description": key.get("Description", ""),
                "cidrBlocks": [],
                "ipv6CidrBlocks": [],
                "prefixListIds": [],
                "securityGroups": [],
                "self": False,
            },
        )
        name = {
            "IpRanges": "cidrBlocks",
            "Ipv6Ranges": "ipv6CidrBlocks",
            "PrefixListIds": "prefixListIds",
            "UserIdGroupPairs": "securityGroups",
        }[peers]
        peer = next(value for label, value in key.items() if label != "Description")
        if name == "securityGroups" and peer == group:
            rule["self"] = True
        else:
            rule[name].append(peer)
    return list(rules.values())


class SecurityGroup(Listed):
    label = "EC2 Security Group"
    name = "SecurityGroup"
    id_name = "GroupId"
    gone = ("InvalidGroup.NotFound",)

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        vpc = inputs.get("vpcId")
        if not vpc:
            vpc = api("DescribeVpcs", Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"][0][
                "VpcId"
            ]
        response = api(
            "CreateSecurityGroup",
            GroupName=inputs["name"],
            Description=inputs["description"],
            VpcId=vpc,
            TagSpecifications=specification("security-group", tags),
        )
        group = response["GroupId"]
        # The provider takes away the rule that lets everything out, so that the program's rules are all
        # there are.
        everything = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        api("RevokeSecurityGroupEgress", GroupId=group, IpPermissions=[everything])
        for key, action in _ACTIONS.items():
            rules = _permissions(inputs.get(key), group)
            if rules:
                api(f"AuthorizeSecurityGroup{action}", GroupId=group, IpPermissions=rules)
        return group

    def properties(self, api: Api, resource_id: str, doc: Doc) -> Props:
        return {
            "arn": doc["SecurityGroupArn"],
            "ownerId": doc["OwnerId"],
            "name": doc["GroupName"],
            "namePrefix": "",
            "description": doc["Description"],
            "vpcId": doc["VpcId"],
            "ingress": _inline(doc["IpPermissions"], resource_id),
            "egress": _inline(doc["IpPermissionsEgress"], resource_id),
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        doc = self.find(api, resource_id) or {}
        for key, action in _ACTIONS.items():
            if key not in changed:
                continue
            have = _single(doc.get("IpPermissions" if key == "ingress" else "IpPermissionsEgress") or [])
            want = _single(_permissions(inputs.get(key), resource_id))
            extra = [one for name, one in have.items() if name not in want]
            missing = [one for name, one in want.items() if name not in have]
            if extra:
                api(f"RevokeSecurityGroup{action}", GroupId=resource_id, IpPermissions=extra)
            if missing:
                api(f"AuthorizeSecurityGroup{action}", GroupId=resource_id, IpPermissions=missing)


_ACTIONS = {"ingress": "Ingress", "egress": "Egress"}


class SecurityGroupRule(Listed):
    """An ingress or an egress rule of its own."""

    label = "VPC Security Group Rule"
    name = "SecurityGroupRule"
    id_name = "SecurityGroupRuleId"
    gone = ("InvalidSecurityGroupRuleId.NotFound",)

    def __init__(self, action: str) -> None:
        self._action = action

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        rule: Props = {
            "protocol": inputs["ipProtocol"],
            "fromPort": inputs.get("fromPort"),
            "toPort": inputs.get("toPort"),
            "description": inputs.get("description"),
            "cidrBlocks": [inputs["cidrIpv4"]] if inputs.get("cidrIpv4") else [],
            "ipv6CidrBlocks": [inputs["cidrIpv6"]] if inputs.get("cidrIpv6") else [],
            "prefixListIds": [inputs["prefixListId"]] if inputs.get("prefixListId") else [],
            "securityGroups": [inputs["referencedSecurityGroupId"]]
            if inputs.get("referencedSecurityGroupId")
            else [],
        }
        response = api(
            f"AuthorizeSecurityGroup{self._action}",
            GroupId=inputs["securityGroupId"],
            IpPermissions=[_permission(rule)],
            TagSpecifications=specification("security-group-rule", tags),
        )
        return response["SecurityGroupRules"][0]["SecurityGroupRuleId"]

    def properties(self, api: Api, resource_id: str, doc: Doc) -> Props:
        ports = {} if doc["IpProtocol"] == "-1" else {"fromPort": doc["FromPort"], "toPort": doc["ToPort"]}
        return {
            "arn": doc["SecurityGroupRuleArn"],
            "securityGroupRuleId": resource_id,
            "securityGroupId": doc["GroupId"],
            "ipProtocol": doc["IpProtocol"],
            **ports,
            "cidrIpv4": doc.get("CidrIpv4"),
            "cidrIpv6": doc.get("CidrIpv6"),
            "prefixListId": doc.get("PrefixListId"),
            "referencedSecurityGroupId": (doc.get("ReferencedGroupInfo") or {}).get("GroupId"),
            "description": doc.get("Description"),
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        every = inputs["ipProtocol"] == "-1"
        new = {
            "IpProtocol": inputs["ipProtocol"],
            "FromPort": -1 if every else inputs.get("fromPort"),
            "ToPort": -1 if every else inputs.get("toPort"),
            "CidrIpv4": inputs.get("cidrIpv4"),
            "CidrIpv6": inputs.get("cidrIpv6"),
            "PrefixListId": inputs.get("prefixListId"),
            "ReferencedGroupId": inputs.get("referencedSecurityGroupId"),
            "Description": inputs.get("description"),
        }
        rule = {key: value for key, value in new.items() if value is not None}
        change = {"SecurityGroupRuleId": resource_id, "SecurityGroupRule": rule}
        api("ModifySecurityGroupRules", GroupId=inputs["securityGroupId"], SecurityGroupRules=[change])

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        api.removed(
            f"RevokeSecurityGroup{self._action}",
            (*self.gone, "InvalidGroup.NotFound"),
            GroupId=state["securityGroupId"],
            SecurityGroupRuleIds=[resource_id],
        )


TYPES: Mapping[str, Kind] = {
    "aws:ec2/securityGroup:SecurityGroup": SecurityGroup(),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": SecurityGroupRule("Ingress"),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": SecurityGroupRule("Egress"),
}
