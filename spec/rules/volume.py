"""Rules between the properties of a volume."""

from __future__ import annotations

from typing import cast

from orch.spec.document.draft import Draft
from orch.spec.models import Volume
from orch.spec.rules.rule import Findings, Rule
from orch.spec.suggest import listed


def volume_is_whole(draft: Draft) -> Findings:
    volume = cast(Volume, draft.partial)
    if volume.region is None and volume.backend not in ("local", "kubernetes"):
        yield draft.diagnostic(
            "ORCH113", (), f"a volume of {volume.backend} needs `region`", hint="add `region: …`"
        )
    if volume.size_mib is None and volume.volume_id is None and volume.claim_name is None:
        yield draft.diagnostic(
            "ORCH113", (), "a volume needs `size`, or the id of an existing one", hint="add `size: 100GB`"
        )


def volume_has_driver(draft: Draft) -> Findings:
    from orch.spec.models.volume import VOLUME_BACKENDS

    backend = cast(Volume, draft.partial).backend
    if backend not in VOLUME_BACKENDS:
        yield draft.diagnostic(
            "ORCH116",
            ("backend",),
            f"there are no volumes on {backend}",
            hint="`mounts` of a fleet mounts a file system that is there already; volumes may be on "
            + listed(VOLUME_BACKENDS),
        )


RULES = (
    Rule(("backend", "region", "size", "volume_id", "claim_name"), volume_is_whole),
    Rule(("backend",), volume_has_driver),
)
