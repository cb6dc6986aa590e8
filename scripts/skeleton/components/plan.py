"""A planned Newcloud fleet: the frozen record that `resources.py` registers one to one."""

from __future__ import annotations

from dataclasses import dataclass

from orch.components.cloud.plan import NeocloudPlan

IMAGE = "gpu-ubuntu"
"""The machine image if the file names none: Ubuntu with NVIDIA's driver and Docker."""

MOST_USER_DATA = 65_536
"""Bytes of user data that Newcloud takes. Cite the source."""


@dataclass(frozen=True, kw_only=True)
class NewcloudPlan(NeocloudPlan):
    """A fleet of single machines. `ssh_from`: the networks that may reach SSH; `disk_gib`: of each node."""

    ssh_from: tuple[str, ...]
    disk_gib: int
