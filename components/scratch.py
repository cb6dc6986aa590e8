"""Where jobs of a fleet get folders of their own: what a plan decides, and its nodes' records hold."""

from __future__ import annotations

from typing import Literal

from orch.spec.models import Fleet
from orch.spec.models.blocks import Scratch
from orch.spec.state import NodeScratch


def disk_scratch(fleet: Fleet, volume: Scratch | None) -> dict[str, str | bool] | None:
    """The record of a cloud's node whose local disks become `volume`.

    A disk that is `required` and missing keeps its node out at first boot already.
    """
    if volume is None:
        return None
    clean = not isinstance(fleet.scratch, Scratch) or fleet.scratch.clean == "job"
    return NodeScratch(path=volume.path, check="mount", clean=clean).model_dump()


def folder_scratch(fleet: Fleet, check: Literal["folder", "none"]) -> NodeScratch | None:
    """The same of a node that orch does not boot: a folder of it, only where the file asks for one."""
    volume = Scratch() if fleet.scratch is True else fleet.scratch
    if not isinstance(volume, Scratch):
        return None
    return NodeScratch(path=volume.path, check=check, clean=volume.clean == "job", required=volume.required)
