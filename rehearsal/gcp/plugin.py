"""Serves a simulated account to the Pulumi engine under the real token `gcp`: the executable
`pulumi-resource-gcp`. It has the types of the package `gcp`, with labels, places and errors as the real
provider has them.

It is on PATH inside a rehearsal only, and refuses to configure without one: ORCH_REHEARSAL_GCP names the
account's file. Credentials are not looked at.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from orch.providers.orch.serving import serve
from orch.providers.orch.values import UNKNOWN
from orch.rehearsal.account import SimulationError
from orch.rehearsal.gcp.account import GcpCloud
from orch.rehearsal.gcp.resources.calls import Api, CallFailed
from orch.rehearsal.gcp.resources.kinds import Kind, Props
from orch.rehearsal.pulumi.differences import PropertyDifference, same
from orch.rehearsal.pulumi.resources import SimulatedResources, carried_over, types_of
from orch.rehearsal.pulumi.schema import Schema, load
from orch.rehearsal.pulumi.serving import CloudProvider

STATE = "ORCH_REHEARSAL_GCP"

PROJECT = ("GOOGLE_PROJECT", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
REGION = ("GOOGLE_REGION", "GCLOUD_REGION", "CLOUDSDK_COMPUTE_REGION")
ZONE = ("GOOGLE_ZONE", "GCLOUD_ZONE", "CLOUDSDK_COMPUTE_ZONE")
"""Where the real provider looks, too."""

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

    refusal = CallFailed

    def __init__(self, account: GcpCloud, settings: Settings) -> None:
        places = {"project": settings.project, "region": settings.region, "zone": settings.zone}
        super().__init__(account, schemas(), types(), places)
        self._cloud = account
        self._settings = settings

    def api(self, properties: Props) -> Api:
        project, region, zone = (self.place(name, properties) for name in ("project", "region", "zone"))
        return Api(self._cloud, str(project), region, zone)

    def label(self, token: str) -> str:
        return token

    def error(self, failure: CallFailed, activity: str) -> SimulationError:
        return SimulationError(f"1 error occurred:\n\t* {failure}\n\n")

    def diff(self, token: str, state: Props, inputs: Props) -> tuple[list[PropertyDifference], bool]:
        """A range that grows is changed in place; one that does not needs another subnet."""
        changes, delete_first = super().diff(token, state, inputs)
        if token != "gcp:compute/subnetwork:Subnetwork":
            return changes, delete_first
        grows = _grows(state.get("ipCidrRange"), inputs.get("ipCidrRange"))
        return [
            replace(change, replaces=change.replaces or not grows) if change.top == "ipCidrRange" else change
            for change in changes
        ], delete_first

    # -- labels ----------------------------------------------------------------------------------------------

    def tags(self, schema: Schema, inputs: Props, state: Props | None) -> Props:
        """`pulumiLabels` are those of the program and the provider; `effectiveLabels` are those and what
        others have put there."""
        if not _has_labels(schema):
            return {}
        labels = inputs.get("labels") or {}
        if labels is UNKNOWN or any(value is UNKNOWN for value in labels.values()):
            return {"pulumiLabels": UNKNOWN, "effectiveLabels": UNKNOWN}
        before: Mapping[str, str] = (state or {}).get("pulumiLabels") or {}
        own = {**self._settings.labels, **labels}
        # It is added when a thing is made, and not later.
        if ATTRIBUTION in before or (state is None and self._settings.attribution):
            own[ATTRIBUTION] = "true"
        effective = (state or {}).get("effectiveLabels") or {}
        others = {key: value for key, value in effective.items() if key not in before}
        return {"pulumiLabels": own, "effectiveLabels": {**others, **own}}

    def tag_changes(
        self, schema: Schema, state: Props, inputs: Props, changed: frozenset[str]
    ) -> list[PropertyDifference]:
        if not _has_labels(schema) or "labels" in changed:
            return []
        labels = self.tags(schema, inputs, state)["pulumiLabels"]
        if labels is UNKNOWN or same(state.get("pulumiLabels") or {}, labels):
            return []
        return [PropertyDifference("pulumiLabels", "update", schema.replaces("labels"))]

    def tags_read(self, schema: Schema, known: Props, observed: Props) -> Props:
        labels: Mapping[str, str] = observed.pop("Labels", {})
        if not _has_labels(schema):
            return {}
        own = set(known.get("labels") or {})
        managed = own | set(self._settings.labels) | ({ATTRIBUTION} & set(labels))
        return {
            "labels": {key: value for key, value in labels.items() if key in own},
            "pulumiLabels": {key: value for key, value in labels.items() if key in managed},
            "effectiveLabels": dict(labels),
        }

    # -- operations ------------------------------------------------------------------------------------------

    def create_with_tags(self, token: str, api: Api, properties: Props) -> str:
        labels = self.tags(self.schema(token), properties, None)
        return types()[token].create(api, properties | labels)

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
        schema = self.schema(token)
        labels = self.tags(schema, properties, state)
        known = carried_over(schema, state, properties)
        types()[token].update(api, resource_id, state, known | labels, changed)

    def delete(self, token: str, resource_id: str, state: Props) -> None:
        policy = state.get("deletionPolicy")
        if policy == "ABANDON":
            return
        if policy == "PREVENT":
            reason = CallFailed(
                f'cannot destroy {token} ({resource_id}) without setting deletion_policy="DELETE" and '
                "running `pulumi up`"
            )
            raise self.error(reason, "")
        super().delete(token, resource_id, state)


def _grows(old: object, new: object) -> bool:
    """Whether a range holds all of the old one."""
    if not isinstance(old, str) or not isinstance(new, str):
        return True
    one, other = ipaddress.ip_network(old), ipaddress.ip_network(new)
    return one.version == other.version and one.subnet_of(other)  # type: ignore[arg-type]


def _has_labels(schema: Schema) -> bool:
    return "effectiveLabels" in schema.outputs


class GcpProvider(CloudProvider[GcpResources]):
    """The types of the package `gcp`."""

    name, cloud, variable = "pulumi-resource-gcp", "GCP", STATE

    def configured(self, account: Path, settings: Mapping[str, Any]) -> GcpResources:
        project = _setting(settings, "project", PROJECT)
        if project is None:
            raise SimulationError(
                "project: required field is not set", hint="set `gcp:project`, or `project` of the provider"
            )
        settings_of_provider = Settings(
            project=project,
            region=_setting(settings, "region", REGION),
            zone=_setting(settings, "zone", ZONE),
            labels=_read(settings.get("defaultLabels")) or {},
            attribution=_read(settings.get("addPulumiAttributionLabel")) is not False,
        )
        return GcpResources(GcpCloud(account), settings_of_provider)


def _setting(settings: Mapping[str, Any], name: str, variables: tuple[str, ...]) -> str | None:
    candidates = [settings.get(name), *(os.environ.get(each) for each in variables)]
    return next((each for each in candidates if isinstance(each, str) and each), None)


def _read(value: Any) -> Any:
    """The engine passes what is no text as JSON."""
    return json.loads(value) if isinstance(value, str) and value else value


def main() -> None:
    """Serve until the engine ends, as the version of the SDK that is installed: the engine compares the
    two."""
    serve(GcpProvider(), GcpProvider.name, metadata.version("pulumi-gcp"))


if __name__ == "__main__":
    main()
