"""Security groups and their rules. Sources: rehearsal/README.md, "Security groups"."""

from __future__ import annotations

import ipaddress
from typing import Any

from orch.rehearsal.aws.api.actions import Request, action, page, path, public, select
from orch.rehearsal.aws.api.errors import AwsError, missing
from orch.rehearsal.store import Doc

PEERS = {"CidrIpv4": "CidrIp", "CidrIpv6": "CidrIpv6", "PrefixListId": "PrefixListId"}
"""Kinds of peer that a rule may name, and their names in IpPermissions."""


def make_group(
    request: Request,
    name: str,
    description: str,
    vpc_id: str,
    tags: list[Doc],
    *,
    egress: bool,
    default: bool = False,
) -> Doc:
    group_id = request.cloud.new_id("sg")
    group: Doc = {
        "GroupId": group_id,
        "GroupName": name,
        "Description": description,
        "VpcId": vpc_id,
        "OwnerId": request.owner,
        "SecurityGroupArn": request.arn(f"security-group/{group_id}"),
        "Tags": tags,
        "_default": default,
    }
    request.add(group_id, "security-group", group, f"{vpc_id} {name}")
    if name != "default":
        request.store.refer(group_id, vpc_id, "group")
    if egress:
        # A new group allows everything out (VPC guide, "Default security group").
        rule(request, group, egress=True, protocol="-1", peer=("CidrIpv4", "0.0.0.0/0"))
    return group


def rule(
    request: Request,
    group: Doc,
    *,
    egress: bool,
    protocol: str,
    ports: tuple[int, int] = (-1, -1),
    peer: tuple[str, str],
    description: str | None = None,
    tags: list[Doc] | None = None,
) -> Doc:
    """Add one rule, as the API stores rules. `peer`: the field of its one peer, `GroupId` for a group, and
    the value."""
    referenced = peer[1] if peer[0] == "GroupId" else None
    doc: Doc = {
        "GroupId": group["GroupId"],
        "GroupOwnerId": request.owner,
        "IsEgress": egress,
        "IpProtocol": protocol,
        "FromPort": ports[0],
        "ToPort": ports[1],
        "Tags": tags or [],
    }
    if referenced:
        doc["ReferencedGroupInfo"] = {
            "GroupId": referenced,
            "UserId": request.owner,
            "VpcId": group["VpcId"],
        }
    else:
        doc[peer[0]] = peer[1]
    if description:
        doc["Description"] = description
    existing = rules_of(request, group["GroupId"])
    if any(_same(doc, one) for one in existing):
        raise AwsError("InvalidPermission.Duplicate", f'the specified rule "{_words(doc)}" already exists')
    if sum(one["IsEgress"] == egress for one in existing) >= request.cloud.quota("L-0EA8095F"):
        raise AwsError(
            "RulesPerSecurityGroupLimitExceeded",
            "The maximum number of rules per security group has been reached.",
        )
    rule_id = request.cloud.new_id("sgr")
    doc |= {
        "SecurityGroupRuleId": rule_id,
        "SecurityGroupRuleArn": request.arn(f"security-group-rule/{rule_id}"),
    }
    request.add(rule_id, "security-group-rule", doc)
    request.store.refer(rule_id, group["GroupId"], "rule")
    if referenced and referenced != group["GroupId"]:
        request.store.refer(rule_id, referenced, "peer")
    return doc


def rules_of(request: Request, group_id: str) -> list[Doc]:
    rules = [request.store.get(source) for source, _ in request.store.referrers(group_id, "rule")]
    return [one for one in rules if one]


_IDENTITY = ("IsEgress", "IpProtocol", "FromPort", "ToPort", "CidrIpv4", "CidrIpv6", "PrefixListId")


def _same(one: Doc, other: Doc) -> bool:
    return all(one.get(key) == other.get(key) for key in _IDENTITY) and (
        (one.get("ReferencedGroupInfo") or {}).get("GroupId")
        == (other.get("ReferencedGroupInfo") or {}).get("GroupId")
    )


def _words(one: Doc) -> str:
    peer = next((one[key] for key in PEERS if one.get(key)), None) or one["ReferencedGroupInfo"]["GroupId"]
    if one["IpProtocol"] == "-1":
        return f"peer: {peer}, ALL, ALLOW"
    protocol = one["IpProtocol"].upper()
    return f"peer: {peer}, {protocol}, from port: {one['FromPort']}, to port: {one['ToPort']}, ALLOW"


@action("CreateSecurityGroup")
def create_security_group(request: Request) -> Doc:
    vpc = request.thing("vpc", request["VpcId"])
    name = request["GroupName"]
    if name.startswith("sg-"):
        raise AwsError(
            "InvalidParameterValue",
            f"Value ({name}) for parameter groupName is invalid. Group names may not be in the format sg-*",
        )
    if request.store.find("security-group", f"{vpc['VpcId']} {name}"):
        code = "InvalidGroup.Reserved" if name == "default" else "InvalidGroup.Duplicate"
        raise AwsError(code, f"The security group '{name}' already exists for VPC '{vpc['VpcId']}'")
    if request.store.tally("security-group", request.region) >= request.cloud.quota("L-E79EC296"):
        raise AwsError(
            "SecurityGroupLimitExceeded", "The maximum number of security groups has been reached."
        )
    group = make_group(
        request, name, request["Description"], vpc["VpcId"], request.tags_for("security-group"), egress=True
    )
    return {"GroupId": group["GroupId"], "Tags": group["Tags"], "SecurityGroupArn": group["SecurityGroupArn"]}


def permissions(rules: list[Doc], *, egress: bool) -> list[Doc]:
    """Rules as IpPermissions: one entry has all peers of a protocol and port range."""
    entries: dict[tuple[Any, ...], Doc] = {}
    for one in rules:
        if one["IsEgress"] != egress:
            continue
        key = (one["IpProtocol"], one["FromPort"], one["ToPort"])
        entry = entries.setdefault(
            key,
            {
                "IpProtocol": one["IpProtocol"],
                **(
                    {}
                    if one["IpProtocol"] == "-1"
                    else {"FromPort": one["FromPort"], "ToPort": one["ToPort"]}
                ),
                "IpRanges": [],
                "Ipv6Ranges": [],
                "PrefixListIds": [],
                "UserIdGroupPairs": [],
            },
        )
        described = {"Description": one["Description"]} if one.get("Description") else {}
        if one.get("CidrIpv4"):
            entry["IpRanges"].append({"CidrIp": one["CidrIpv4"], **described})
        if one.get("CidrIpv6"):
            entry["Ipv6Ranges"].append({"CidrIpv6": one["CidrIpv6"], **described})
        if one.get("PrefixListId"):
            entry["PrefixListIds"].append({"PrefixListId": one["PrefixListId"], **described})
        if one.get("ReferencedGroupInfo"):
            pair = one["ReferencedGroupInfo"]
            entry["UserIdGroupPairs"].append(
                {"GroupId": pair["GroupId"], "UserId": pair["UserId"], **described}
            )
    return [entries[key] for key in sorted(entries, key=str)]


@action("DescribeSecurityGroups")
def describe_security_groups(request: Request) -> Doc:
    fields = {
        "group-id": path("GroupId"),
        "group-name": path("GroupName"),
        "vpc-id": path("VpcId"),
        "description": path("Description"),
        "owner-id": path("OwnerId"),
        "ip-permission.group-id": path("IpPermissions", "UserIdGroupPairs", "GroupId"),
        "ip-permission.cidr": path("IpPermissions", "IpRanges", "CidrIp"),
    }
    ids: list[str] = list(request.get("GroupIds") or ())
    for name in request.get("GroupNames") or ():
        group_id = request.store.find("security-group", name)
        if group_id is None:
            raise missing("security-group", name)
        ids.append(group_id)
    if ids:
        docs = [request.thing("security-group", group) for group in ids]
    else:
        docs = [doc for _, doc in request.store.each("security-group", request.region)]
    for doc in docs:
        rules = rules_of(request, doc["GroupId"])
        doc["IpPermissions"] = permissions(rules, egress=False)
        doc["IpPermissionsEgress"] = permissions(rules, egress=True)
    return page(request, "SecurityGroups", select(request, "security-group", fields, docs=docs))


@action("DescribeSecurityGroupRules")
def describe_security_group_rules(request: Request) -> Doc:
    fields = {"group-id": path("GroupId"), "security-group-rule-id": path("SecurityGroupRuleId")}
    matches = select(request, "security-group-rule", fields, ids=request.get("SecurityGroupRuleIds") or ())
    return page(request, "SecurityGroupRules", matches)


def _requested_rules(request: Request, group: Doc, *, egress: bool) -> list[dict[str, Any]]:
    """The single rules that IpPermissions, or the short form, describe."""
    entries = list(request.get("IpPermissions") or ())
    if not entries and request.get("IpProtocol"):
        entries = [
            {
                "IpProtocol": request["IpProtocol"],
                "FromPort": request.get("FromPort"),
                "ToPort": request.get("ToPort"),
                "IpRanges": [{"CidrIp": request["CidrIp"]}] if request.get("CidrIp") else [],
            }
        ]
    rules: list[dict[str, Any]] = []
    for entry in entries:
        protocol = str(entry["IpProtocol"])
        ports = (
            (-1, -1) if protocol == "-1" else (int(entry.get("FromPort", -1)), int(entry.get("ToPort", -1)))
        )
        common = {"egress": egress, "protocol": protocol, "ports": ports}
        for lists, key, name in (
            ("IpRanges", "CidrIp", "CidrIpv4"),
            ("Ipv6Ranges", "CidrIpv6", "CidrIpv6"),
            ("PrefixListIds", "PrefixListId", "PrefixListId"),
        ):
            for one in entry.get(lists) or ():
                _check_cidr(one[key], name)
                rules.append({**common, "peer": (name, one[key]), "description": one.get("Description")})
        for pair in entry.get("UserIdGroupPairs") or ():
            other = request.thing("security-group", pair["GroupId"])
            if other["VpcId"] != group["VpcId"]:
                raise AwsError(
                    "InvalidGroup.NotFound",
                    f"You have specified two resources that belong to different networks: {pair['GroupId']}",
                )
            rules.append(
                {**common, "peer": ("GroupId", pair["GroupId"]), "description": pair.get("Description")}
            )
    if not rules:
        raise AwsError(
            "InvalidParameterValue",
            "Either 'ipPermissions' or the parameters of one rule should be provided.",
        )
    return rules


def _check_cidr(text: str, name: str) -> None:
    if name == "PrefixListId":
        return
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise AwsError("InvalidParameterValue", f"CIDR block {text} is malformed") from None


def _authorize(request: Request, *, egress: bool) -> Doc:
    group = request.thing("security-group", request["GroupId"])
    tags = request.tags_for("security-group-rule")
    rules = [
        rule(request, group, **one, tags=tags) for one in _requested_rules(request, group, egress=egress)
    ]
    return {"Return": True, "SecurityGroupRules": [public(one) for one in rules]}


def _revoke(request: Request, *, egress: bool) -> Doc:
    group = request.thing("security-group", request["GroupId"])
    if request.get("SecurityGroupRuleIds"):
        for rule_id in request["SecurityGroupRuleIds"]:
            doc = request.thing("security-group-rule", rule_id)
            if doc["GroupId"] != group["GroupId"] or doc["IsEgress"] != egress:
                raise missing("security-group-rule", rule_id)
            request.store.remove(rule_id)
        return {"Return": True}
    existing = rules_of(request, group["GroupId"])
    for one in _requested_rules(request, group, egress=egress):
        criteria: Doc = {
            "IsEgress": egress,
            "IpProtocol": one["protocol"],
            "FromPort": one["ports"][0],
            "ToPort": one["ports"][1],
        }
        name, value = one["peer"]
        criteria |= {"ReferencedGroupInfo": {"GroupId": value}} if name == "GroupId" else {name: value}
        doc = next((have for have in existing if _same(criteria, have)), None)
        if doc is None:
            raise AwsError(
                "InvalidPermission.NotFound", "The specified rule does not exist in this security group."
            )
        request.store.remove(doc["SecurityGroupRuleId"])
    return {"Return": True}


@action("AuthorizeSecurityGroupIngress")
def authorize_ingress(request: Request) -> Doc:
    return _authorize(request, egress=False)


@action("AuthorizeSecurityGroupEgress")
def authorize_egress(request: Request) -> Doc:
    return _authorize(request, egress=True)


@action("RevokeSecurityGroupIngress")
def revoke_ingress(request: Request) -> Doc:
    return _revoke(request, egress=False)


@action("RevokeSecurityGroupEgress")
def revoke_egress(request: Request) -> Doc:
    return _revoke(request, egress=True)


@action("ModifySecurityGroupRules")
def modify_security_group_rules(request: Request) -> Doc:
    for change in request["SecurityGroupRules"]:
        doc = request.thing("security-group-rule", change["SecurityGroupRuleId"])
        new = change["SecurityGroupRule"]
        for key in (
            "IpProtocol",
            "FromPort",
            "ToPort",
            "CidrIpv4",
            "CidrIpv6",
            "PrefixListId",
            "Description",
        ):
            if key in new:
                doc[key] = new[key]
        if new.get("ReferencedGroupId"):
            doc["ReferencedGroupInfo"] = {
                **doc.get("ReferencedGroupInfo", {}),
                "GroupId": new["ReferencedGroupId"],
            }
        request.add(doc["SecurityGroupRuleId"], "security-group-rule", doc)
    return {"Return": True}


@action("DeleteSecurityGroup")
def delete_security_group(request: Request) -> Doc:
    group = request.thing("security-group", request["GroupId"])
    group_id = group["GroupId"]
    if group["GroupName"] == "default":
        raise AwsError(
            "CannotDelete", f'the specified group: "{group_id}" name: "default" cannot be deleted by a user'
        )
    if request.store.referrers(group_id, "group") or request.store.referrers(group_id, "peer"):
        raise AwsError("DependencyViolation", f"resource {group_id} has a dependent object")
    for one in rules_of(request, group_id):
        request.store.remove(one["SecurityGroupRuleId"])
    request.store.remove(group_id)
    return {"Return": True, "GroupId": group_id}


def group_named(request: Request, ids: list[str]) -> list[Doc]:
    """GroupIdentifiers of group ids. Raises for an unknown id, and for too many."""
    if len(ids) > request.cloud.quota("L-2AFB9258"):
        raise AwsError(
            "SecurityGroupsPerInterfaceLimitExceeded",
            "The maximum number of security groups per interface has been reached.",
        )
    groups = [request.thing("security-group", group) for group in ids]
    return [{"GroupId": group["GroupId"], "GroupName": group["GroupName"]} for group in groups]
