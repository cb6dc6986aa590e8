"""The types of the package `aws` on an account: tags, regions and errors as the real provider has them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from orch.providers.orch.values import UNKNOWN
from orch.rehearsal.account import SimulationError
from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.aws.resources.kinds import Api, ApiFailure, Kind, Props
from orch.rehearsal.pulumi.differences import PropertyChange, same
from orch.rehearsal.pulumi.resources import SimulatedResources, kept, types_of, without_defaults
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

    def __init__(self, account: Cloud, region: str, default_tags: Mapping[str, str]) -> None:
        super().__init__(account, schemas(), types(), {"region": region})
        self._cloud = account
        self._default_tags = default_tags

    def _of(self, token: str) -> tuple[Schema, Kind]:
        return self.schema(token), types()[token]

    def api(self, properties: Props) -> Api:
        return Api(self._cloud, str(self.place("region", properties)))

    # -- tags ------------------------------------------------------------------------------------------------

    def _all_tags(self, schema: Schema, inputs: Props) -> dict[str, str]:
        return self.marks(schema, inputs, None).get("tagsAll", {})

    def marks(self, schema: Schema, inputs: Props, state: Props | None) -> Props:
        if not _tagged(schema):
            return {}
        tags = inputs.get("tags")
        if tags is UNKNOWN or any(value is UNKNOWN for value in (tags or {}).values()):
            return {"tagsAll": UNKNOWN}
        return {"tagsAll": {**self._default_tags, **(tags or {})}}

    def marks_changed(
        self, schema: Schema, state: Props, inputs: Props, told: frozenset[str]
    ) -> list[PropertyChange]:
        if not _tagged(schema) or "tags" in told:
            return []
        wanted = self.marks(schema, inputs, state)["tagsAll"]
        if wanted is UNKNOWN or same(state.get("tagsAll") or {}, wanted):
            return []
        return [PropertyChange("tagsAll", "update", False)]

    def as_marked(self, schema: Schema, known: Props, found: Props) -> Props:
        tags = found.pop("Tags", None)
        found.pop("TagsOf", None)
        if tags is None or not _tagged(schema):
            return {}
        own = set((known.get("tags") or {}).keys())
        defaults = self._default_tags
        shown = {k: v for k, v in tags.items() if k in own or defaults.get(k) != v}
        return {"tagsAll": tags, "tags": shown}

    # -- doing -----------------------------------------------------------------------------------------------

    def create(self, token: str, inputs: Props) -> tuple[str, Props]:
        schema, kind = self._of(token)
        wanted = without_defaults(inputs)
        api = self.api(wanted)
        try:
            resource_id = kind.create(api, wanted, self._all_tags(schema, wanted))
            found = kind.read(api, resource_id, wanted)
        except ApiFailure as failure:
            raise _told(failure, f"creating {kind.label}") from failure
        return resource_id, self.outputs(schema, wanted, found or {})

    def read(self, token: str, resource_id: str, state: Props) -> Props | None:
        schema, kind = self._of(token)
        try:
            found = kind.read(self.api(state), resource_id, state)
        except ApiFailure as failure:
            raise _told(failure, f"reading {kind.label} ({resource_id})") from failure
        return None if found is None else self.outputs(schema, state, found)

    def update(self, token: str, resource_id: str, state: Props, inputs: Props) -> Props:
        schema, kind = self._of(token)
        wanted = without_defaults(inputs)
        api = self.api({**wanted, "region": wanted.get("region") or state.get("region")})
        changes, _ = self.diff(token, state, inputs)
        changed = frozenset(change.top for change in changes)
        try:
            if _tagged(schema):
                self._retag(api, token, resource_id, state, self._all_tags(schema, wanted))
            rest = changed - {"tags", "tagsAll"}
            if rest:
                kind.update(api, resource_id, state, wanted, rest)
            found = kind.read(api, resource_id, {**kept(schema, state, wanted), **wanted})
        except ApiFailure as failure:
            raise _told(failure, f"updating {kind.label} ({resource_id})") from failure
        if found is None:
            raise SimulationError(f"{kind.label} ({resource_id}) is gone", hint="refresh, then try again")
        return self.outputs(schema, wanted, found)

    def _retag(self, api: Api, token: str, resource_id: str, state: Props, wanted: Mapping[str, str]) -> None:
        have: Mapping[str, str] = state.get("tagsAll") or {}
        gone = sorted(set(have) - set(wanted))
        new = [{"Key": k, "Value": v} for k, v in sorted(wanted.items()) if have.get(k) != v]
        if token.startswith("aws:iam/"):
            kind, key = (
                ("Role", "RoleName")
                if token.endswith(":Role")
                else ("InstanceProfile", "InstanceProfileName")
            )
            if gone:
                api.iam(f"Untag{kind}", **{key: resource_id}, TagKeys=gone)
            if new:
                api.iam(f"Tag{kind}", **{key: resource_id}, Tags=new)
            return
        target = state.get("placementGroupId") if token.endswith(":PlacementGroup") else None
        target = state.get("keyPairId") if token.endswith(":KeyPair") else target or resource_id
        if gone:
            api("DeleteTags", Resources=[target], Tags=[{"Key": key} for key in gone])
        if new:
            api("CreateTags", Resources=[target], Tags=new)

    def delete(self, token: str, resource_id: str, state: Props) -> None:
        _, kind = self._of(token)
        try:
            kind.delete(self.api(state), resource_id, state)
        except ApiFailure as failure:
            raise _told(failure, f"deleting {kind.label} ({resource_id})") from failure


def _tagged(schema: Schema) -> bool:
    return "tagsAll" in schema.outputs


def _told(failure: ApiFailure, doing: str) -> SimulationError:
    return SimulationError(f"1 error occurred:\n\t* {failure.told(doing)}\n")
