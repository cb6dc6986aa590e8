"""The present status of a node, as a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orch.runner.node_api.claims import Claim
from orch.runner.node_api.cordon import Cordon
from orch.runner.node_api.verdict import Verdict

StatusWord = Literal["provisioning", "idle", "busy", "cordoned", "unreachable", "terminated", "failure"]


@dataclass(frozen=True)
class NodeStatus:
    """One node: `provisioning` (its first boot is not at its end), `idle`, `busy` (some blocks or all),
    `cordoned` (takes no new jobs), `unreachable`, `terminated` (it ended itself), or `failure` (it can run
    nothing).

    `unfit`: why its preparation failed, which keeps it out until that is mended. `health`: what its last
    examination came to; one that is a failure keeps it out, too.
    """

    status: StatusWord
    reason: str | None = None
    busy_blocks: int = 0
    claims: tuple[Claim, ...] = ()
    cordon: Cordon | None = None
    unfit: str | None = None
    health: Verdict | None = None

    @property
    def unhealthy(self) -> str | None:
        """Why it gets no new job, where that is its health."""
        return self.health.reason if self.health is not None and self.health.status == "failure" else None

    def has_passed(self, gate: str) -> bool:
        """Whether it was examined as deep as a fleet's gate asks, in its present boot."""
        return self.health is not None and self.health.passed(gate)

    def in_words(self, part: str = "") -> str:
        """`idle`, `idle (warning)`, `busy 3/8 (failure)`: its status with its health, without reasons.
        `part`: what follows the word."""
        well = self.health is None or self.health.status == "healthy"
        return f"{self.status}{part}" + ("" if well or self.health is None else f" ({self.health.status})")
