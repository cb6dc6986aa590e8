"""Roles and instance profiles as Pulumi resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from orch.rehearsal.aws.resources.kinds import Api, ApiFailure, Kind, Props, tags_in
from orch.rehearsal.store import Doc

GONE = ("NoSuchEntity",)


def _tags(tags: Mapping[str, str]) -> list[Doc] | None:
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())] or None


def _get(api: Api, action: str, key: str, **names: str) -> Any:
    try:
        return api.iam(action, **names)[key]
    except ApiFailure as failure:
        if failure.code in GONE:
            return None
        raise


class Role(Kind):
    label = "IAM Role"

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        api.iam(
            "CreateRole",
            RoleName=inputs["name"],
            Path=inputs.get("path"),
            AssumeRolePolicyDocument=inputs["assumeRolePolicy"],
            Description=inputs.get("description"),
            MaxSessionDuration=inputs.get("maxSessionDuration"),
            Tags=_tags(tags),
        )
        for policy in inputs.get("managedPolicyArns") or ():
            api.iam("AttachRolePolicy", RoleName=inputs["name"], PolicyArn=policy)
        for policy in inputs.get("inlinePolicies") or ():
            if policy.get("name"):
                api.iam(
                    "PutRolePolicy",
                    RoleName=inputs["name"],
                    PolicyName=policy["name"],
                    PolicyDocument=policy["policy"],
                )
        return inputs["name"]

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        doc = _get(api, "GetRole", "Role", RoleName=resource_id)
        if doc is None:
            return None
        policies = api.iam("ListAttachedRolePolicies", RoleName=resource_id)["AttachedPolicies"]
        names = api.iam("ListRolePolicies", RoleName=resource_id)["PolicyNames"]
        inline = [
            {
                "name": name,
                "policy": unquote(
                    api.iam("GetRolePolicy", RoleName=resource_id, PolicyName=name)["PolicyDocument"]
                ),
            }
            for name in names
        ]
        return {
            "arn": doc["Arn"],
            "name": doc["RoleName"],
            "path": doc["Path"],
            "description": doc["Description"],
            "assumeRolePolicy": unquote(doc["AssumeRolePolicyDocument"]),
            "maxSessionDuration": doc["MaxSessionDuration"],
            "createDate": doc["CreateDate"],
            "uniqueId": doc["RoleId"],
            "managedPolicyArns": [one["PolicyArn"] for one in policies],
            "inlinePolicies": inline,
            "Tags": tags_in(doc),
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        if "assumeRolePolicy" in changed:
            api.iam("UpdateAssumeRolePolicy", RoleName=resource_id, PolicyDocument=inputs["assumeRolePolicy"])
        if changed & {"description", "maxSessionDuration"}:
            api.iam(
                "UpdateRole",
                RoleName=resource_id,
                Description=inputs.get("description", ""),
                MaxSessionDuration=inputs.get("maxSessionDuration"),
            )
        if "managedPolicyArns" in changed:
            before, after = (
                set(state.get("managedPolicyArns") or ()),
                set(inputs.get("managedPolicyArns") or ()),
            )
            for policy in sorted(before - after):
                api.iam("DetachRolePolicy", RoleName=resource_id, PolicyArn=policy)
            for policy in sorted(after - before):
                api.iam("AttachRolePolicy", RoleName=resource_id, PolicyArn=policy)
        if "inlinePolicies" in changed:
            before_all = {one["name"] for one in state.get("inlinePolicies") or ()}
            after_all = {
                one["name"]: one["policy"] for one in inputs.get("inlinePolicies") or () if one.get("name")
            }
            for name in sorted(before_all - after_all.keys()):
                api.iam("DeleteRolePolicy", RoleName=resource_id, PolicyName=name)
            for name, policy in sorted(after_all.items()):
                api.iam("PutRolePolicy", RoleName=resource_id, PolicyName=name, PolicyDocument=policy)

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        doc = _get(api, "GetRole", "Role", RoleName=resource_id)
        if doc is None:
            return
        forced = bool(state.get("forceDetachPolicies"))
        for one in api.iam("ListInstanceProfilesForRole", RoleName=resource_id)["InstanceProfiles"]:
            name = one["InstanceProfileName"]
            api.iam("RemoveRoleFromInstanceProfile", InstanceProfileName=name, RoleName=resource_id)
        if forced or state.get("managedPolicyArns"):
            for one in api.iam("ListAttachedRolePolicies", RoleName=resource_id)["AttachedPolicies"]:
                api.iam("DetachRolePolicy", RoleName=resource_id, PolicyArn=one["PolicyArn"])
        if forced or state.get("inlinePolicies"):
            for name in api.iam("ListRolePolicies", RoleName=resource_id)["PolicyNames"]:
                api.iam("DeleteRolePolicy", RoleName=resource_id, PolicyName=name)
        api.removed("DeleteRole", GONE, service="iam", RoleName=resource_id)


class RolePolicyAttachment(Kind):
    label = "IAM Role Policy Attachment"

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        api.iam("AttachRolePolicy", RoleName=inputs["role"], PolicyArn=inputs["policyArn"])
        return f"{inputs['role']}/{inputs['policyArn']}"

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        role, _, policy = resource_id.partition("/")
        policies = _get(api, "ListAttachedRolePolicies", "AttachedPolicies", RoleName=role)
        if not any(one["PolicyArn"] == policy for one in policies or ()):
            return None
        return {"role": role, "policyArn": policy}

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        role, policy = state["role"], state["policyArn"]
        api.removed("DetachRolePolicy", GONE, service="iam", RoleName=role, PolicyArn=policy)


class RolePolicy(Kind):
    label = "IAM Role Policy"

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        role, name = inputs["role"], inputs["name"]
        api.iam("PutRolePolicy", RoleName=role, PolicyName=name, PolicyDocument=inputs["policy"])
        return f"{role}:{name}"

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        role, _, name = resource_id.partition(":")
        policy = _get(api, "GetRolePolicy", "PolicyDocument", RoleName=role, PolicyName=name)
        return None if policy is None else {"role": role, "name": name, "policy": unquote(str(policy))}

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        self.create(api, inputs, {})

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        role, _, name = resource_id.partition(":")
        api.removed("DeleteRolePolicy", GONE, service="iam", RoleName=role, PolicyName=name)


class InstanceProfile(Kind):
    label = "IAM Instance Profile"

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        name = inputs["name"]
        api.iam("CreateInstanceProfile", InstanceProfileName=name, Path=inputs.get("path"), Tags=_tags(tags))
        if inputs.get("role"):
            api.iam("AddRoleToInstanceProfile", InstanceProfileName=name, RoleName=inputs["role"])
        return name

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        doc = _get(api, "GetInstanceProfile", "InstanceProfile", InstanceProfileName=resource_id)
        if doc is None:
            return None
        return {
            "arn": doc["Arn"],
            "name": doc["InstanceProfileName"],
            "path": doc["Path"],
            "role": next((role["RoleName"] for role in doc["Roles"]), ""),
            "createDate": doc["CreateDate"],
            "uniqueId": doc["InstanceProfileId"],
            "Tags": tags_in(doc),
        }

    def _empty(self, api: Api, name: str) -> None:
        doc = _get(api, "GetInstanceProfile", "InstanceProfile", InstanceProfileName=name)
        for role in (doc or {}).get("Roles") or ():
            api.iam("RemoveRoleFromInstanceProfile", InstanceProfileName=name, RoleName=role["RoleName"])

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        if "role" in changed:
            self._empty(api, resource_id)
            if inputs.get("role"):
                api.iam("AddRoleToInstanceProfile", InstanceProfileName=resource_id, RoleName=inputs["role"])

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        self._empty(api, resource_id)
        api.removed("DeleteInstanceProfile", GONE, service="iam", InstanceProfileName=resource_id)


TYPES: Mapping[str, Kind] = {
    "aws:iam/role:Role": Role(),
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": RolePolicyAttachment(),
    "aws:iam/rolePolicy:RolePolicy": RolePolicy(),
    "aws:iam/instanceProfile:InstanceProfile": InstanceProfile(),
}
