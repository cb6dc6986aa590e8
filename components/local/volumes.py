"""Volumes of the backend `local`: folders of this machine's Docker that all local nodes have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from orch.components.volumes import FolderVolumes, VolumePlan, VolumeRequest, in_words, state_of
from orch.spec.models.backends import entry_of
from orch.spec.models.backends.local import LocalSettings
from orch.spec.volume_state import VolumeState

if TYPE_CHECKING:
    import pulumi


class LocalVolumes(FolderVolumes):
    fixed: ClassVar[Mapping[str, str]] = {"backend": "backend", "volume_id": "volume_id"}

    def plan(self, request: VolumeRequest) -> VolumePlan:
        from orch.images.build import resolve

        volume, previous = request.volume, request.previous
        known = previous.volume_id if previous is not None and not previous.external else None
        folder = volume.volume_id or known or f"{volume.name}-{request.scope}"
        image = resolve(entry_of(request.account.settings, LocalSettings).node_image or "orch/node")
        state = state_of(
            volume,
            "local",
            region=None,
            volume_id=folder,
            external=volume.volume_id is not None,
            size_mib=volume.size_mib,
            monthly=0.0,
        )
        reasons = (
            f"a folder of this machine's Docker, {folder}, which all local nodes share",
            *(
                [f"nothing keeps it below {in_words(volume.size_mib)}: it takes what the disk has"]
                if volume.size_mib is not None
                else []
            ),
        )
        return VolumePlan(state, reasons, partial(_register, state, image), (image,))

    def folder(self, volume: VolumeState) -> str:
        from orch.images.volume_folders import MOUNT

        return f"{MOUNT}/{volume.volume_id}"


def _register(state: VolumeState, image: str) -> pulumi.Output[str]:
    import pulumi

    props: dict[str, Any] = {
        "name": state.volume_id,
        "image": image,
        "external": state.external,
        "size_mib": state.size_mib,
    }
    opts = pulumi.ResourceOptions(protect=state.protect and not state.external)
    return pulumi.CustomResource("orch:local:Volume", state.name, props, opts).id
