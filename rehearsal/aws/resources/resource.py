"""The types of the package `aws` on an account: tags, regions and errors as the real provider has them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from orch.providers.orch.values import UNKNOWN
from orch.rehearsal.account import SimulationError
from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.aws.resources.kinds import Api, ApiFailure, Kind, Props
from orch.rehearsal.pulumi.differences import PropertyDifference, same
from orch.rehearsal.pulumi.resources import SimulatedResources, types_of
from orch.rehearsal.pulumi.schema import Schema, load

MAPS = frozenset({"tags", "tagsAll", "volumeTags"})


@cache
def types() -> Mapping[str, Kind]:
    """Token -> the type, of every module of this package."""
    return types_of("orch.rehearsal.aws.resources")


def schemas() -> Mapping[str, Schema]:
    return load("orch.rehearsal.aws.resources", MAPS, frozenset({"region"}))


class AwsResources(SimulatedResources):
    """Resource types on one account."""

    refusal = ApiFailure

    def __init__(self, account: Cloud, region: str, default_tags: Mapping[str, str]) -> None:
        super().__init__(account, schemas(), types(), {"region": region})
        self._cloud = account
        self._default_tags = default_tags

    def api(self, properties: Props) -> Api:
        return Api(self._cloud, str(self.place("region", properties)))

    def label(self, token: str) -> str:
        return types()[token].label

    def error(self, failure: ApiFailure, activity: str) -> SimulationError:
        return SimulationError(f"1 error occurred:\n\t* {failure.text(activity)}\n")

    # -- tags ------------------------------------------------------------------------------------------------

    def tags(self, schema: Schema, inputs: Props, state: Props | None) -> Props:
        if not _has_tags(schema):
            return {}
        tags = inputs.get("tags")
        if tags is UNKNOWN or any(value is UNKNOWN for value in (tags or {}).values()):
            return {"tagsAll": UNKNOWN}
        return {"tagsAll": {**self._default_tags, **(tags or {})}}

    def tag_changes(
        self, schema: Schema, state: Props, inputs: Props, changed: frozenset[str]
    ) -> list[PropertyDifference]:
        if not _has_tags(schema) or "tags" in changed:
            return []
        tags = self.tags(schema, inputs, state)["tagsAll"]
        if tags is UNKNOWN or same(state.get("tagsAll") or {}, tags):
            return []
        return [PropertyDifference("tagsAll", "update", False)]

    def tags_read(self, schema: Schema, known: Props, observed: Props) -> Props:
        tags = observed.pop("Tags", None)
        observed.pop("TagsOf", None)
        if tags is None or not _has_tags(schema):
            return {}
        own = set((known.get("tags") or {}).keys())
        defaults = self._default_tags
        return {
            "tagsAll": tags,
            "tags": {k: v for k, v in tags.items() if k in own or defaults.get(k) != v},
        }

    # -- operations ------------------------------------------------------------------------------------------

    def create_with_tags(self, token: str, api: Api, properties: Props) -> str:
        tags = self.tags(self.schema(token), properties, None)
        return types()[token].create(api, properties, tags.get("tagsAll", {}))

    def update_with_tags(
        self,
        token: str,
        api: Api,
        resource_id: str,
        state: Props,
        properties: Props,
        *,
        changed: frozenset[str],
    ) -> None:
        tags = self.tags(self.schema(token), properties, state)
        if tags:
            self._retag(api, token, resource_id, state, tags["tagsAll"])
        if others := changed - {"tags", "tagsAll"}:
            types()[token].update(api, resource_id, state, properties, others)

    def _retag(self, api: Api, token: str, resource_id: str, state: Props, tags: Mapping[str, str]) -> None:
        have: Mapping[str, str] = state.get("tagsAll") or {}
        removed = sorted(set(have) - set(tags))
        new = [{"Key": k, "Value": v} for k, v in sorted(tags.items()) if have.get(k) != v]
        if token.startswith("aws:iam/"):
            kind, key = (
                ("Role", "RoleName")
                if token.endswith(":Role")
                else ("InstanceProfile", "InstanceProfileName")
            )
            if removed:
                api.iam(f"Untag{kind}", **{key: resource_id}, TagKeys=removed)
            if new:
                api.iam(f"Tag{kind}", **{key: resource_id}, Tags=new)
            return
        if token.startswith(("aws:efs/", "aws:fsx/")):
            service = token[4:7]
            target = {"ResourceId": resource_id} if service == "efs" else {"ResourceARN": state.get("arn")}
            if removed:
                api("UntagResource", service=service, **target, TagKeys=removed)
            if new:
                api("TagResource", service=service, **target, Tags=new)
            return
        target = state.get("placementGroupId") if token.endswith(":PlacementGroup") else None
        target = state.get("keyPairId") if token.endswith(":KeyPair") else target or resource_id
        if removed:
            api("DeleteTags", Resources=[target], Tags=[{"Key": key} for key in removed])
        if new:
            api("CreateTags", Resources=[target], Tags=new)


def _has_tags(schema: Schema) -> bool:
    return "tagsAll" in schema.outputs
