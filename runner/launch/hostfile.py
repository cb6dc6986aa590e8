"""The hostfile of a run, in the dialects of the MPI families and DeepSpeed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from orch.runner.errors import HostfileIncomplete
from orch.runner.launch.environment import fold
from orch.spec.state import NodeState

Dialect = Literal["openmpi", "deepspeed", "mpich", "intel", "plain"]


def hostfile(addresses: Sequence[str], slots: Sequence[int] | None, dialect: Dialect = "openmpi") -> str:
    """One line per node in rank order, each ended by a newline.

    `slots` are the processes per node; None (no accelerators and no launcher) writes bare addresses in any
    dialect.
    """
    if slots is None or dialect == "plain":
        return "".join(f"{address}\n" for address in addresses)
    form = "{}:{}\n" if dialect in ("mpich", "intel") else "{} slots={}\n"
    return "".join(form.format(address, count) for address, count in zip(addresses, slots, strict=True))


def internal_addresses(nodes: Sequence[NodeState]) -> tuple[str, ...]:
    """The internal address of each node, in order.

    A run of one node without one uses loopback. Raises HostfileIncomplete (ORCH420) naming every node of a
    larger run that has none: a partial hostfile would hang the job instead.
    """
    missing = [node.name for node in nodes if node.internal_ip is None]
    if missing and len(nodes) > 1:
        raise HostfileIncomplete(
            f"{'node' if len(missing) == 1 else 'nodes'} {fold(missing)} "
            f"{'has' if len(missing) == 1 else 'have'} no internal address",
            where=missing[0],
            detail="ranks find each other by internal addresses; no command was started",
            hint="set `network` (or `internal_ip` on every host) in the fleet",
            code="ORCH420",
        )
    return tuple(node.internal_ip or "127.0.0.1" for node in nodes)
