"""The types of the package `gcp` on an account: labels, places and errors as the real provider has them."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from orch.providers.orch.values import UNKNOWN
from orch.rehearsal.account import SimulationError
from orch.rehearsal.gcp.account import GcpCloud
from orch.rehearsal.gcp.resources.calls import Api, CallFailed
from orch.rehearsal.gcp.resources.kinds import Kind, Props
from orch.rehearsal.pulumi.differences import PropertyChange, same
from orch.rehearsal.pulumi.resources import SimulatedResources, kept, types_of, without_defaults
from orch.rehearsal.pulumi.schema import Schema, load

MAPS = frozenset({"labels", "effectiveLabels", "pulumiLabels", "metadata"})
PLACES = frozenset({"project", "region", "zone"})

ATTRIBUTION = "goog-pulumi-provisioned"
"""The label that the real provider adds to what it makes."""


@cache
def types() -> Mapping[str, Kind]:
    """Token -> the type, of every module of this package."""
    return types_of("orch.rehearsal.gcp.resources")


def schemas() -> Mapping[str, Schema]:
    return load("orch.rehearsal.gcp.resources", MAPS, PLACES)


@dataclass(frozen=True)
class Settings:
    """How the provider was configured."""

    project: str
    region: str | None = None
    zone: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    attribution: bool = True


class GcpResources(SimulatedResources):
    """Resource types on one account."""

    def __init__(self, account: GcpCloud, settings: Settings) -> None:
        places = {"project": settings.project, "region": settings.region, "zone": settings.zone}
        super().__init__(account, schemas(), types(), places)
        self._cloud = account
        self._settings = settings

    def _of(self, token: str) -> tuple[Schema, Kind]:
        return self.schema(token), types()[token]

    def _api(self, properties: Props) -> Api:
        project, region, zone = (self.place(name, properties) for name in ("project", "region", "zone"))
        return Api(self._cloud, str(project), region, zone)

    def diff(self, token: str, state: Props, inputs: Props) -> tuple[list[PropertyChange], bool]:
        """A range that grows is changed in place; one that does not needs another subnet."""
        found, first = super().diff(token, state, inputs)
        if token != "gcp:compute/subnetwork:Subnetwork":
            return found, first
        grows = _grows(state.get("ipCidrRange"), inputs.get("ipCidrRange"))
        return [
            replace(change, replaces=change.replaces or not grows) if change.top == "ipCidrRange" else change
            for change in found
        ], first

    # -- labels ----------------------------------------------------------------------------------------------

    def marks(self, schema: Schema, inputs: Props, state: Props | None) -> Props:
        """`pulumiLabels` are those of the program and the provider; `effectiveLabels` are those and what
        others have put there."""
        if not _labelled(schema):
            return {}
        labels = inputs.get("labels") or {}
        if labels is UNKNOWN or any(value is UNKNOWN for value in labels.values()):
            return {"pulumiLabels": UNKNOWN, "effectiveLabels": UNKNOWN}
        before: Mapping[str, str] = (state or {}).get("pulumiLabels") or {}
        wanted = {**self._settings.labels, **labels}
        # It is added when a thing is made, and not later.
        if ATTRIBUTION in before or (state is None and self._settings.attribution):
            wanted[ATTRIBUTION] = "true"
        held = (state or {}).get("effectiveLabels") or {}
        others = {key: value for key, value in held.items() if key not in before}
        return {"pulumiLabels": wanted, "effectiveLabels": {**others, **wanted}}

    def marks_changed(
        self, schema: Schema, state: Props, inputs: Props, told: frozenset[str]
    ) -> list[PropertyChange]:
        if not _labelled(schema) or "labels" in told:
            return []
        wanted = self.marks(schema, inputs, state)["pulumiLabels"]
        if wanted is UNKNOWN or same(state.get("pulumiLabels") or {}, wanted):
            return []
        return [PropertyChange("pulumiLabels", "update", schema.replaces("labels"))]

    def as_marked(self, schema: Schema, known: Props, found: Props) -> Props:
        held: Mapping[str, str] = found.pop("Labels", {})
        if not _labelled(schema):
            return {}
        own = set(known.get("labels") or {})
        named = own | set(self._settings.labels) | ({ATTRIBUTION} & set(held))
        return {
            "labels": {key: value for key, value in held.items() if key in own},
            "pulumiLabels": {key: value for key, value in held.items() if key in named},
            "effectiveLabels": dict(held),
        }

    # -- doing -----------------------------------------------------------------------------------------------

    def create(self, token: str, inputs: Props) -> tuple[str, Props]:
        schema, kind = self._of(token)
        wanted = without_defaults(inputs)
        api = self._api(wanted)
        try:
            resource_id = kind.create(api, wanted | self.marks(schema, wanted, None))
            found = kind.read(api, resource_id, wanted)
        except CallFailed as failure:
            raise _told(failure) from failure
        if found is None:
            raise SimulationError(f"{token} ({resource_id}) is gone as soon as it is there")
        return resource_id, self.outputs(schema, wanted, found)

    def read(self, token: str, resource_id: str, state: Props) -> Props | None:
        schema, kind = self._of(token)
        try:
            found = kind.read(self._api(state), resource_id, state)
        except CallFailed as failure:
            raise _told(failure) from failure
        return None if found is None else self.outputs(schema, state, found)

    def update(self, token: str, resource_id: str, state: Props, inputs: Props) -> Props:
        schema, kind = self._of(token)
        wanted = without_defaults(inputs)
        api = self._api({**{name: state.get(name) for name in PLACES}, **wanted})
        changes, _ = self.diff(token, state, inputs)
        changed = frozenset(change.top for change in changes)
        known = {**kept(schema, state, wanted), **wanted}
        try:
            kind.update(api, resource_id, state, known | self.marks(schema, wanted, state), changed)
            found = kind.read(api, resource_id, known)
        except CallFailed as failure:
            raise _told(failure) from failure
        if found is None:
            raise SimulationError(f"{token} ({resource_id}) is gone", hint="refresh, then try again")
        return self.outputs(schema, wanted, found)

    def delete(self, token: str, resource_id: str, state: Props) -> None:
        _, kind = self._of(token)
        policy = state.get("deletionPolicy")
        if policy == "ABANDON":
            return
        try:
            if policy == "PREVENT":
                raise CallFailed(
                    f'cannot destroy {token} ({resource_id}) without setting deletion_policy="DELETE" and '
                    "running `pulumi up`"
                )
            kind.delete(self._api(state), resource_id, state)
        except CallFailed as failure:
            raise _told(failure) from failure


def _grows(old: object, new: object) -> bool:
    """Whether a range holds all of the old one."""
    if not isinstance(old, str) or not isinstance(new, str):
        return True
    one, other = ipaddress.ip_network(old), ipaddress.ip_network(new)
    return one.version == other.version and one.subnet_of(other)  # type: ignore[arg-type]


def _labelled(schema: Schema) -> bool:
    return "effectiveLabels" in schema.outputs


def _told(failure: CallFailed) -> SimulationError:
    return SimulationError(f"1 error occurred:\n\t* {failure}\n\n")
