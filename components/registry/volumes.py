"""Volumes of backends by name, and the plan of a volume as its protection allows it."""

from __future__ import annotations

from typing import cast

from orch.components.registry.planning import backend
from orch.components.volumes import (
    DiskVolumes,
    VolumeBackend,
    VolumeError,
    VolumePlan,
    VolumeRequest,
    in_words,
    replaced_property,
)
from orch.spec.findings import PlanError


def volumes_of(name: str) -> VolumeBackend:
    """The volumes of a backend. Raises VolumeError when it has none here."""
    try:
        volumes = backend(name).volumes()
    except KeyError:
        volumes = None
    if volumes is None:
        raise VolumeError(f"this version has no volumes of {name}", hint="upgrade orch on this machine")
    return cast("VolumeBackend", volumes)


def disks_of(name: str) -> DiskVolumes:
    """The volumes of a backend whose volumes are disks. Raises VolumeError."""
    volumes = volumes_of(name)
    if not isinstance(volumes, DiskVolumes):
        raise VolumeError(f"volumes of {name} are folders of its nodes: they are not attached")
    return volumes


def plan_volume(request: VolumeRequest) -> VolumePlan:
    """The plan of a volume, as its protection allows it.

    Raises PlanErrors: ORCH264 for a smaller size, ORCH348 when a protected volume would be replaced; and what
    asking the backend raises.
    """
    volumes, before = volumes_of(request.volume.backend), request.previous
    plan = volumes.plan(request)
    if before is None or before.external:
        # A disk that existed before stays as it is, whatever takes its name.
        return plan
    name, after = request.volume.name, plan.state
    replacing = replaced_property(volumes, before, after)
    if replacing is not None and before.protect:
        attribute, key = replacing
        raise PlanError(
            "ORCH348",
            f"volume {name} is protected, and another `{key}` replaces it: all that is on it would be lost",
            path=key,
            detail="the file names a disk that exists: orch deletes its own of this name"
            if attribute == "external"
            else f"`{key}` is {getattr(before, attribute)}; the file has {getattr(after, attribute)}",
            hint="keep it, name a second volume, or first `orch up` this one with `protect: false`",
        )
    # What is replaced is a new disk, of any size.
    if replacing is None and (before.size_mib or 0) > (after.size_mib or before.size_mib or 0):
        raise PlanError(
            "ORCH264",
            f"volume {name} has {in_words(before.size_mib)}, and {in_words(after.size_mib)} are less",
            path="size",
            detail="no disk shrinks",
            hint=f"write `size: {in_words(before.size_mib).replace(' ', '')}`, or copy to a smaller volume",
        )
    return plan
