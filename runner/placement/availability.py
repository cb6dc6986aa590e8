"""What placement knows of a node at this moment."""

from __future__ import annotations

from dataclasses import dataclass

from orch.runner.node_api.status import NodeStatus


@dataclass(frozen=True)
class NodeAvailability:
    """A node at this moment: its blocks in use, whether it can run jobs, whether its first boot has finished.

    `cordon`, `unfit` (its preparation failed) and `unhealthy` say why it gets no jobs. `failed`: how much
    speaks against it because the run that is placed failed there before.
    `holders`: the names of the runs that have blocks of it. `silent`: it does not answer.
    """

    busy: int = 0
    usable: bool = True
    ready: bool = True
    cordon: str | None = None
    unfit: str | None = None
    unhealthy: str | None = None
    failed: int = 0
    holders: tuple[str, ...] = ()
    silent: bool = False

    @classmethod
    def of(cls, status: NodeStatus) -> NodeAvailability:
        """What a node says of itself."""
        silent = status.status in ("unreachable", "terminated")
        return cls(
            busy=status.busy_blocks,
            usable=not silent and status.status != "failure",
            ready=status.status != "provisioning",
            cordon=(status.cordon.reason or str(status.cordon)) if status.cordon else None,
            unfit=status.unfit,
            unhealthy=status.unhealthy,
            holders=tuple(claim.holder for claim in status.claims),
            silent=silent,
        )

    @property
    def takes_jobs(self) -> bool:
        """Whether it gets jobs while it has room for them."""
        return self.usable and self.cordon is None and self.unfit is None and self.unhealthy is None


IDLE = NodeAvailability()
