"""Check, diff, create, read, update and delete of any type, on plain dictionaries."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orch.providers.simulated.bridge.differences import MAPS, Change, covers, differences, same
from orch.providers.simulated.bridge.kinds import Api, ApiFailure, Kind, Props
from orch.providers.simulated.bridge.registry import KINDS
from orch.providers.simulated.bridge.schema import Schema, schemas
from orch.providers.simulated.core import Cloud, SimulationError
from orch.providers.values import UNKNOWN

DEFAULTS = "__defaults"
"""The input that names what was filled in, as in the real provider's states."""


@dataclass(frozen=True)
class Settings:
    """How the provider was configured."""

    region: str
    default_tags: Mapping[str, str]


class Resources:
    """All resource types on one account."""

    def __init__(self, cloud: Cloud, settings: Settings) -> None:
        self.cloud = cloud
        self.settings = settings

    def _of(self, token: str) -> tuple[Schema, Kind]:
        if token not in KINDS:
            raise SimulationError(
                f"the simulated cloud has no resource type {token}",
                hint="a rehearsal knows those in resources.yml",
            )
        return schemas()[token], KINDS[token]

    def _api(self, properties: Props) -> Api:
        return Api(self.cloud, str(properties.get("region") or self.settings.region))

    # -- before anything is done --------------------------------------------------------------------------

    def check(self, token: str, urn: str, old: Props, new: Props) -> tuple[Props, list[tuple[str, str]]]:
        """What is added to the inputs, and what is wrong with them."""
        schema, _ = self._of(token)
        failures = [
            (name, f"Invalid or unknown key. Check `pulumi config get {name}`.")
            for name in new
            if name not in schema.inputs and not name.startswith("__")
        ]
        failures += [(name, "Missing required argument") for name in schema.required if new.get(name) is None]
        added: Props = {name: value for name, value in schema.defaults.items() if new.get(name) is None}
        if schema.name and new.get(schema.name) is None:
            prefix = new.get(f"{schema.name}Prefix")
            kept = old.get(schema.name) if schema.name in (old.get(DEFAULTS) or ()) else None
            added[schema.name] = kept or self._name(urn, prefix)
        if added:
            added[DEFAULTS] = sorted(added)
        return added, failures

    def _name(self, urn: str, prefix: Any) -> str:
        """A name of its own, the same at each preview, and not one that is there."""
        base = str(prefix) if isinstance(prefix, str) else f"{urn.rsplit('::', 1)[-1]}-"
        number = 0
        while True:
            name = base + hashlib.sha256(f"{self.cloud.seed} {urn} {number}".encode()).hexdigest()[:7]
            with self.cloud.store.transaction():
                if not self.cloud.store.is_named(name):
                    return name
            number += 1

    def diff(self, token: str, state: Props, inputs: Props) -> tuple[list[Change], bool]:
        """The changes, and whether the old one must go before the new one is made."""
        schema, _ = self._of(token)
        found = differences(schema, state, inputs)
        if schema.regional and state.get("region"):
            wanted = inputs.get("region") or self.settings.region
            if wanted is not UNKNOWN and wanted != state["region"]:
                found.append(Change("region", "update", True))
        before = self._all_tags(schema, inputs)
        if schema.tagged and before is not UNKNOWN and not any(change.top == "tags" for change in found):
            old = state.get("tagsAll") or {}
            if not same(old, before):
                found.append(Change("tagsAll", "update", False))
        named = schema.name is not None and schema.name not in (inputs.get(DEFAULTS) or ())
        stays = named and not any(change.top == schema.name for change in found)
        return found, stays and any(change.replaces for change in found)

    def _all_tags(self, schema: Schema, inputs: Props) -> Any:
        tags = inputs.get("tags")
        if tags is UNKNOWN or any(value is UNKNOWN for value in (tags or {}).values()):
            return UNKNOWN
        return {**self.settings.default_tags, **(tags or {})}

    def planned(self, token: str, inputs: Props, state: Props | None = None) -> Props:
        """The outputs beyond the inputs as a preview knows them; without `state` for one that is not yet
        made."""
        schema, _ = self._of(token)
        if state is None:
            unknown = {*schema.outputs, *(name for name in schema.computed if "." not in name)} - set(inputs)
            found: Props = dict.fromkeys(unknown, UNKNOWN)
        else:
            found = {name: value for name, value in state.items() if name not in inputs}
            for name in set(schema.inputs) - set(inputs) - schema.computed:
                found.pop(name, None)
            found |= dict.fromkeys(schema.stale - set(inputs), UNKNOWN)
        if schema.tagged:
            found["tagsAll"] = self._all_tags(schema, inputs)
        if schema.regional:
            found["region"] = inputs.get("region") or self.settings.region
        return found

    # -- doing ----------------------------------------------------------------------------------------------

    def create(self, token: str, inputs: Props) -> tuple[str, Props]:
        schema, kind = self._of(token)
        wanted = {key: value for key, value in inputs.items() if key != DEFAULTS}
        api = self._api(wanted)
        try:
            resource_id = kind.create(api, wanted, self._all_tags(schema, wanted) if schema.tagged else {})
            found = kind.read(api, resource_id, wanted)
        except ApiFailure as failure:
            raise _told(failure, f"creating {kind.label}") from failure
        return resource_id, self._outputs(schema, api, wanted, found or {})

    def read(self, token: str, resource_id: str, state: Props) -> Props | None:
        schema, kind = self._of(token)
        api = self._api(state)
        try:
            found = kind.read(api, resource_id, state)
        except ApiFailure as failure:
            raise _told(failure, f"reading {kind.label} ({resource_id})") from failure
        return None if found is None else self._outputs(schema, api, state, found)

    def _outputs(self, schema: Schema, api: Api, known: Props, found: Props) -> Props:
        """What was found, in the words of the program where it means the same."""
        tags = found.pop("Tags", None)
        found.pop("TagsOf", None)
        outputs = {key: value for key, value in known.items() if key != DEFAULTS}
        for name, value in found.items():
            old = outputs.get(name)
            listed = isinstance(old, list) and name in schema.sets and covers(value, old)
            if name not in outputs or not (listed or same(old, value)):
                outputs[name] = value
        for name, value in schema.defaults.items():
            if outputs.get(name) is None and name not in found:
                outputs[name] = value
        if tags is not None and schema.tagged:
            own = set((known.get("tags") or {}).keys())
            defaults = self.settings.default_tags
            outputs["tagsAll"] = tags
            outputs["tags"] = {k: v for k, v in tags.items() if k in own or defaults.get(k) != v}
        if schema.regional:
            outputs["region"] = api.region
        return outputs

    def inputs_as_found(self, token: str, inputs: Props, outputs: Props) -> Props:
        """A program's inputs after a read: what differs as it is now; all that is known after an import."""
        schema, _ = self._of(token)
        if not inputs:
            empty = (None, "", [], {}, False, 0)
            return {
                name: outputs[name]
                for name in schema.inputs
                if outputs.get(name) not in empty and name not in schema.defaults
            }
        changed = {change.top for change in differences(schema, outputs, inputs)}
        kept = dict(inputs)
        for name in changed & set(inputs):
            value = outputs.get(name)
            if isinstance(value, dict) and isinstance(inputs[name], dict) and name not in MAPS:
                value = {key: item for key, item in value.items() if key in inputs[name]}
            if value is None:
                kept.pop(name)
            else:
                kept[name] = value
        return kept

    def update(self, token: str, resource_id: str, state: Props, inputs: Props) -> Props:
        schema, kind = self._of(token)
        wanted = {key: value for key, value in inputs.items() if key != DEFAULTS}
        api = self._api({**wanted, "region": wanted.get("region") or state.get("region")})
        changes, _ = self.diff(token, state, inputs)
        changed = frozenset(change.top for change in changes)
        try:
            if schema.tagged:
                self._retag(api, token, resource_id, state, self._all_tags(schema, wanted))
            rest = changed - {"tags", "tagsAll"}
            if rest:
                kind.update(api, resource_id, state, wanted, rest)
            # What the cloud fills in stays known; what the program let go does not.
            kept = {
                name: value
                for name, value in state.items()
                if name not in schema.inputs or name in schema.computed or name in wanted
            }
            found = kind.read(api, resource_id, {**kept, **wanted})
        except ApiFailure as failure:
            raise _told(failure, f"updating {kind.label} ({resource_id})") from failure
        if found is None:
            raise SimulationError(f"{kind.label} ({resource_id}) is gone", hint="refresh, then try again")
        return self._outputs(schema, api, wanted, found)

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
            kind.delete(self._api(state), resource_id, state)
        except ApiFailure as failure:
            raise _told(failure, f"deleting {kind.label} ({resource_id})") from failure


def _told(failure: ApiFailure, doing: str) -> SimulationError:
    return SimulationError(f"1 error occurred:\n\t* {failure.told(doing)}\n")
