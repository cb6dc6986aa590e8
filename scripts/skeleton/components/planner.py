"""The plan of a fleet on Newcloud: machines, with the reasons. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from orch.components.cloud.findings import ethernet_only, missing_image, written_image
from orch.components.cloud.machines.ssh_access import AccessMethod, access_findings, ssh_reasons
from orch.components.cloud.neocloud import NeocloudPlanner
from orch.components.cloud.reasons import image_reason
from orch.components.newcloud.account.facts import NewcloudFacts
from orch.components.newcloud.candidates import NewcloudCandidate
from orch.components.newcloud.plan import IMAGE, MOST_USER_DATA, NewcloudPlan
from orch.components.request import PriorState
from orch.spec.findings import Finding
from orch.spec.models import Fleet
from orch.spec.models.backends.newcloud import NewcloudSettings

_KEYS_SIZE = 2_000
"""Bytes of a host key and the client's key, which user data gets later."""


def image_of(fleet: Fleet) -> str:
    """Return the name of the machine image of the nodes."""
    return written_image(fleet, "newcloud") or IMAGE


def pinned_image(fleet: Fleet, region: str, previous: PriorState) -> str | None:
    """Return the id that the stack, or orch.lock, has for the image in a region."""
    pins = previous.pins
    here = pins.get("image_region", pins.get("region")) == region
    return pins.get("image") if here and pins.get("image_of") == image_of(fleet) else None


class NewcloudPlanner(NeocloudPlanner[NewcloudCandidate, NewcloudFacts, NewcloudPlan, NewcloudSettings]):
    """Plan a fleet on Newcloud."""

    backend = "newcloud"
    title = "Newcloud"
    most_user_data = MOST_USER_DATA

    @cached_property
    def access(self) -> AccessMethod:
        """Straight, because each machine has a public address; over given hops if no network is named."""
        cidrs = self.settings.ssh_cidrs if self.block.ssh_cidrs is None else self.block.ssh_cidrs
        return AccessMethod("given" if self.block.proxy_jump and not cidrs else "direct", True, cidrs)

    @cached_property
    def idle(self) -> None:
        """None: a machine that powers off is billed on."""

    @cached_property
    def ending(self) -> None:
        """None, for the same reason."""

    @cached_property
    def user_data_size(self) -> int:
        return len(self.cloud_init.encode()) + _KEYS_SIZE

    @cached_property
    def layout_parts(self) -> tuple[object, ...]:
        return self.candidate.type.name, self.candidate.region, self.image.id, self.access.sources

    def findings(self) -> Iterator[Finding]:
        fleet, place = self.fleet, self.candidate
        yield from access_findings("Newcloud", self.block, self.access, all_public=True)
        if self.facts.image is None:
            yield missing_image(
                f"Newcloud has no machine image {image_of(fleet)} in {place.region}",
                "name one in `os_image`",
                written=fleet.os_image is not None,
                pinned=pinned_image(fleet, place.region, self.previous),
            )
        summary = f"{place.type.name} has no InfiniBand: Ethernet only between the nodes"
        yield from ethernet_only(fleet, summary, "take another backend")

    def own_pins(self) -> dict[str, str]:
        return {
            "image": self.image.id,
            "image_of": image_of(self.fleet),
            "image_region": self.candidate.region,
        }

    def own_reasons(self) -> Iterator[str]:
        if self.facts.room is not None:
            some = "some" if self.facts.room else "none"
            yield f"capacity: Newcloud reports {some} in {self.candidate.region} now"
        yield from ssh_reasons(self.access, None, jumps=len(self.jumps))
        yield image_reason(self.image.id, f"{self.image.name} ({self.image.id})", self.previous)

    def record(self, fields: dict[str, Any]) -> NewcloudPlan:
        return NewcloudPlan(**fields, ssh_from=self.access.sources, disk_gib=self.facts.disk_gib)
