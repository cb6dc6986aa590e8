"""Serves a simulated account to the Pulumi engine under the real token `gcp`: the executable
`pulumi-resource-gcp`.

It is on PATH inside a rehearsal only, and refuses to configure without one: ORCH_REHEARSAL_GCP names the
account's file. Credentials are not looked at.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from orch.providers.orch.serving import serve
from orch.rehearsal.account import SimulationError
from orch.rehearsal.gcp.account import GcpCloud
from orch.rehearsal.gcp.resources.resource import GcpResources, Settings
from orch.rehearsal.pulumi.serving import CloudProvider

STATE = "ORCH_REHEARSAL_GCP"

PROJECT = ("GOOGLE_PROJECT", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
REGION = ("GOOGLE_REGION", "GCLOUD_REGION", "CLOUDSDK_COMPUTE_REGION")
ZONE = ("GOOGLE_ZONE", "GCLOUD_ZONE", "CLOUDSDK_COMPUTE_ZONE")
"""Where the real provider looks, too."""


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
