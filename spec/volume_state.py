"""VolumeState: a volume as provisioning left it. `stacks` writes it, `runner` reads it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from orch.spec.state import SCHEMA


class VolumeState(BaseModel):
    """A volume that is up. Holds no secret.

    `volume_id`: its id in the cloud; of a local volume its folder's name. `external`: it existed before, and
    orch never deletes it. `monthly`: US dollars a month, None where no price is known. `project`: of GCP.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA
    name: str
    backend: str
    volume_id: str = ""
    external: bool = False
    region: str | None = None
    zone: str | None = None
    project: str | None = None
    size_mib: int | None = None
    disk_type: str | None = None
    iops: int | None = None
    throughput: int | None = None
    kms_key: str | None = None
    read_only: bool = False
    sharing: Literal["auto", "single", "nfs", "native"] = "auto"
    protect: bool = True
    auto_cleanup_s: int | None = None
    monthly: float | None = None

    @property
    def place(self) -> str:
        """Return the place of the volume, as text."""
        return self.zone or self.region or "this machine"
