"""A GCP fleet in the real engine, on a simulated account.

Google's clients answer what a plan asks, so this is for processes that do not import Pulumi's provider SDK.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.clouds.cloud_engine import CloudStack

from orch.rehearsal.gcp.account import GcpCloud
from orch.rehearsal.project import rehearse
from orch.rehearsal.scenario import Knobs
from orch.stacks.project.project import find


@dataclass(frozen=True)
class Stack(CloudStack):
    """A rehearsal of one GCP fleet in a folder."""

    cloud: GcpCloud

    def live(self, machine_type: str | None = None) -> list[dict[str, Any]]:
        """Instances that are there: the account's own list."""
        return [
            each
            for each in self.cloud.instances().values()
            if machine_type in (None, each["machineType"].rpartition("/")[2])
        ]

    def instance(self, name: str) -> dict[str, Any]:
        (found,) = [each for each in self.live() if each["name"] == name]
        return found


def stack(folder: Path, name: str = "train", **knobs: Any) -> Stack:
    """A rehearsal in a folder, without machines behind the instances."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "orch.yml").write_text("project: tests\ntags: {team: research}\n")
    GcpCloud.create(folder / ".orch" / "rehearsal" / "gcp.db", knobs=Knobs(**knobs)).store.close()
    rehearsal = rehearse(find(folder), nodes=False)
    return Stack(folder, rehearsal.project, name, rehearsal.gcp)
