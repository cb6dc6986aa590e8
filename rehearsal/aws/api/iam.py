"""Roles and instance profiles. IAM is global to the account. Sources: rehearsal/README.md, "IAM"."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from orch.rehearsal.aws.api.actions import Request, action, public, stamp, tag_list, tag_map
from orch.rehearsal.aws.api.errors import AwsError
from orch.rehearsal.store import Doc

MANAGED = frozenset(
    f"arn:aws:iam::aws:policy/{name}"
    for name in (
        "AmazonSSMManagedInstanceCore",
        "AmazonEC2ContainerRegistryReadOnly",
        "AmazonS3ReadOnlyAccess",
        "AmazonS3FullAccess",
        "CloudWatchAgentServerPolicy",
    )
)
"""AWS managed policies of this account; add a line for each further one."""


def _arn(owner: str, kind: str, path: str, name: str) -> str:
    return f"arn:aws:iam::{owner}:{kind}{path}{name}"


def _get(request: Request, kind: str, name: str) -> Doc:
    doc = request.store.get(f"{kind}/{name}", kind)
    if doc is None:
        label = {"role": "role with name", "instance-profile": "Instance Profile"}[kind]
        raise AwsError("NoSuchEntity", f"The {label} {name} cannot be found.")
    return doc


def _put(request: Request, kind: str, name: str, doc: Doc) -> Doc:
    return request.add(f"{kind}/{name}", kind, doc, name)


def _fresh(request: Request, kind: str, name: str) -> None:
    if request.store.get(f"{kind}/{name}", kind):
        label = {"role": "Role with name", "instance-profile": "Instance Profile"}[kind]
        raise AwsError("EntityAlreadyExists", f"{label} {name} already exists.")


def _policy(text: str) -> str:
    try:
        parsed: Any = json.loads(text)
    except ValueError:
        raise AwsError("MalformedPolicyDocument", "Syntax errors in policy.") from None
    if not isinstance(parsed, dict) or "Statement" not in parsed:
        raise AwsError("MalformedPolicyDocument", "Syntax errors in policy.")
    return text


@action("CreateRole", "iam")
def create_role(request: Request) -> Doc:
    name = request["RoleName"]
    _fresh(request, "role", name)
    path = request.get("Path", "/")
    doc: Doc = {
        "RoleName": name,
        "RoleId": "AROA" + request.cloud.new_id("x")[3:].upper()[:17],
        "Path": path,
        "Arn": _arn(request.owner, "role", path, name),
        "CreateDate": stamp(request.cloud.now()),
        "AssumeRolePolicyDocument": _policy(request["AssumeRolePolicyDocument"]),
        "Description": request.get("Description", ""),
        "MaxSessionDuration": request.get("MaxSessionDuration", 3600),
        "Tags": tag_list({tag["Key"]: tag.get("Value", "") for tag in request.get("Tags") or ()}),
        "_attached": [],
        "_inline": {},
    }
    return {"Role": _description(_put(request, "role", name, doc))}


def _description(role: Doc) -> Doc:
    """The description of a role, with its policy document in URL encoding."""
    return public({**role, "AssumeRolePolicyDocument": quote(role["AssumeRolePolicyDocument"])})


@action("GetRole", "iam")
def get_role(request: Request) -> Doc:
    return {"Role": _description(_get(request, "role", request["RoleName"]))}


@action("ListRoles", "iam")
def list_roles(request: Request) -> Doc:
    return {"Roles": [_description(doc) for _, doc in request.store.each("role")], "IsTruncated": False}


@action("UpdateAssumeRolePolicy", "iam")
def update_assume_role_policy(request: Request) -> Doc:
    role = _get(request, "role", request["RoleName"])
    role["AssumeRolePolicyDocument"] = _policy(request["PolicyDocument"])
    _put(request, "role", role["RoleName"], role)
    return {}


@action("UpdateRole", "iam")
def update_role(request: Request) -> Doc:
    role = _get(request, "role", request["RoleName"])
    for key in ("Description", "MaxSessionDuration"):
        if request.get(key) is not None:
            role[key] = request[key]
    _put(request, "role", role["RoleName"], role)
    return {}


@action("DeleteRole", "iam")
def delete_role(request: Request) -> Doc:
    role = _get(request, "role", request["RoleName"])
    if role["_attached"]:
        raise AwsError("DeleteConflict", "Cannot delete entity, must detach all policies first.")
    if role["_inline"]:
        raise AwsError("DeleteConflict", "Cannot delete entity, must delete policies first.")
    if _profiles(request, role["RoleName"]):
        raise AwsError(
            "DeleteConflict", "Cannot delete entity, must remove roles from instance profile first."
        )
    request.store.remove(f"role/{role['RoleName']}")
    return {}


@action("AttachRolePolicy", "iam")
def attach_role_policy(request: Request) -> Doc:
    role, policy = _get(request, "role", request["RoleName"]), request["PolicyArn"]
    if policy not in MANAGED:
        raise AwsError("NoSuchEntity", f"Policy {policy} does not exist or is not attachable.")
    role["_attached"] = sorted({*role["_attached"], policy})
    _put(request, "role", role["RoleName"], role)
    return {}


@action("DetachRolePolicy", "iam")
def detach_role_policy(request: Request) -> Doc:
    role, policy = _get(request, "role", request["RoleName"]), request["PolicyArn"]
    if policy not in role["_attached"]:
        raise AwsError("NoSuchEntity", f"Policy {policy} was not found.")
    role["_attached"].remove(policy)
    _put(request, "role", role["RoleName"], role)
    return {}


@action("ListAttachedRolePolicies", "iam")
def list_attached_role_policies(request: Request) -> Doc:
    role = _get(request, "role", request["RoleName"])
    policies = [{"PolicyName": arn.rpartition("/")[2], "PolicyArn": arn} for arn in role["_attached"]]
    return {"AttachedPolicies": policies, "IsTruncated": False}


@action("PutRolePolicy", "iam")
def put_role_policy(request: Request) -> Doc:
    role = _get(request, "role", request["RoleName"])
    role["_inline"][request["PolicyName"]] = _policy(request["PolicyDocument"])
    _put(request, "role", role["RoleName"], role)
    return {}


@action("GetRolePolicy", "iam")
def get_role_policy(request: Request) -> Doc:
    role, name = _get(request, "role", request["RoleName"]), request["PolicyName"]
    if name not in role["_inline"]:
        raise AwsError("NoSuchEntity", f"The role policy with name {name} cannot be found.")
    return {"RoleName": role["RoleName"], "PolicyName": name, "PolicyDocument": quote(role["_inline"][name])}


@action("ListRolePolicies", "iam")
def list_role_policies(request: Request) -> Doc:
    role = _get(request, "role", request["RoleName"])
    return {"PolicyNames": sorted(role["_inline"]), "IsTruncated": False}


@action("DeleteRolePolicy", "iam")
def delete_role_policy(request: Request) -> Doc:
    role, name = _get(request, "role", request["RoleName"]), request["PolicyName"]
    if role["_inline"].pop(name, None) is None:
        raise AwsError("NoSuchEntity", f"The role policy with name {name} cannot be found.")
    _put(request, "role", role["RoleName"], role)
    return {}


# -- instance profiles -------------------------------------------------------------------------------------


def _profiles(request: Request, role: str) -> list[Doc]:
    return [doc for _, doc in request.store.each("instance-profile") if role in doc["Roles"]]


def _profile(request: Request, doc: Doc) -> Doc:
    roles = [_description(_get(request, "role", role)) for role in doc["Roles"]]
    return public({**doc, "Roles": roles})


@action("CreateInstanceProfile", "iam")
def create_instance_profile(request: Request) -> Doc:
    name = request["InstanceProfileName"]
    _fresh(request, "instance-profile", name)
    path = request.get("Path", "/")
    doc: Doc = {
        "InstanceProfileName": name,
        "InstanceProfileId": "AIPA" + request.cloud.new_id("x")[3:].upper()[:17],
        "Path": path,
        "Arn": _arn(request.owner, "instance-profile", path, name),
        "CreateDate": stamp(request.cloud.now()),
        "Roles": [],
        "Tags": tag_list({tag["Key"]: tag.get("Value", "") for tag in request.get("Tags") or ()}),
    }
    return {"InstanceProfile": _profile(request, _put(request, "instance-profile", name, doc))}


@action("GetInstanceProfile", "iam")
def get_instance_profile(request: Request) -> Doc:
    return {
        "InstanceProfile": _profile(
            request, _get(request, "instance-profile", request["InstanceProfileName"])
        )
    }


@action("ListInstanceProfilesForRole", "iam")
def list_instance_profiles_for_role(request: Request) -> Doc:
    profiles = [_profile(request, doc) for doc in _profiles(request, request["RoleName"])]
    return {"InstanceProfiles": profiles, "IsTruncated": False}


@action("AddRoleToInstanceProfile", "iam")
def add_role_to_instance_profile(request: Request) -> Doc:
    doc = _get(request, "instance-profile", request["InstanceProfileName"])
    role = _get(request, "role", request["RoleName"])
    if doc["Roles"]:
        raise AwsError("LimitExceeded", "Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1")
    doc["Roles"] = [role["RoleName"]]
    _put(request, "instance-profile", doc["InstanceProfileName"], doc)
    return {}


@action("RemoveRoleFromInstanceProfile", "iam")
def remove_role_from_instance_profile(request: Request) -> Doc:
    doc = _get(request, "instance-profile", request["InstanceProfileName"])
    if request["RoleName"] not in doc["Roles"]:
        raise AwsError("NoSuchEntity", f"Role {request['RoleName']} is not in the instance profile.")
    doc["Roles"] = []
    _put(request, "instance-profile", doc["InstanceProfileName"], doc)
    return {}


@action("DeleteInstanceProfile", "iam")
def delete_instance_profile(request: Request) -> Doc:
    doc = _get(request, "instance-profile", request["InstanceProfileName"])
    if doc["Roles"]:
        raise AwsError(
            "DeleteConflict", "Cannot delete entity, must remove roles from instance profile first."
        )
    request.store.remove(f"instance-profile/{doc['InstanceProfileName']}")
    return {}


def _tagging(kind: str, key: str) -> None:
    name = "".join(part.capitalize() for part in kind.split("-"))

    @action(f"Tag{name}", "iam")
    def tag(request: Request) -> Doc:
        doc = _get(request, kind, request[key])
        doc["Tags"] = tag_list({**tag_map(doc), **{t["Key"]: t.get("Value", "") for t in request["Tags"]}})
        _put(request, kind, request[key], doc)
        return {}

    @action(f"Untag{name}", "iam")
    def untag(request: Request) -> Doc:
        doc = _get(request, kind, request[key])
        doc["Tags"] = tag_list({k: v for k, v in tag_map(doc).items() if k not in request["TagKeys"]})
        _put(request, kind, request[key], doc)
        return {}


_tagging("role", "RoleName")
_tagging("instance-profile", "InstanceProfileName")
