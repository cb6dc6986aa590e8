"""File systems of AWS: EFS and FSx for Lustre."""

from __future__ import annotations

from orch.rehearsal.aws.api.actions import Request

GONE = "file systems that are gone"
"""Addresses of file systems whose folders on this machine are to be removed."""


def note_gone(request: Request, address: str) -> None:
    """Report a file system that was deleted, for the folder that stands for it."""
    if request.cloud.knobs_now().nodes is not None:
        request.store.put_meta(GONE, [*(request.store.meta(GONE) or ()), address])
