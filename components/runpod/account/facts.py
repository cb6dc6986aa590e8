"""What was asked of a RunPod account before a plan is made: frozen, small enough to write down in a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orch.components.runpod.account.client import Money

Stock = Mapping[tuple[str, str], str]
"""(GPU, data center) -> LOW, MEDIUM or HIGH, of what has so many GPUs on one machine."""


@dataclass(frozen=True)
class RunpodFacts:
    """The answers. `there`: the names of the pods and clusters that the account has, asked where the stack
    records some."""

    money: Money | None = None
    there: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()
    """Why quotas are not known that were asked for."""
