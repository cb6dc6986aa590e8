"""One look at the health of nodes: a script, and the report that its output comes to."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal

from orch.runner.health.findings import HealthReport
from orch.runner.node.commands import Command
from orch.runner.node.connector import Connector, NodeResult, fan_out
from orch.spec.state import NodeState

Depth = Literal["light", "dcgm"]
"""`light`: what tools and the kernel tell at once. `dcgm`: `dcgmi diag -r 2` besides, which takes minutes and
wants idle GPUs."""

LOOK_S = 10.0


def command(node: NodeState, *, depth: Depth, simulated: bool = False) -> Command:
    """Asks a node how it is; `read` reads the answer. `simulated`: its accelerators are a number alone."""
    raise NotImplementedError


def read(node: NodeState, text: str) -> HealthReport:
    """The health of a node by what `command` printed there. Raises RunnerError where that is no answer."""
    raise NotImplementedError


def examine(
    nodes: Sequence[NodeState],
    connector: Connector,
    depth: Depth = "light",
    *,
    simulated: bool = False,
    deadline_s: float = LOOK_S,
    until: threading.Event | None = None,
) -> tuple[NodeResult[HealthReport], ...]:
    """Look at each node at once. A node that does not answer is an error in its place.

    `deadline_s`, `until`: as in `Connector.run`.
    """

    def look(node: NodeState) -> HealthReport:
        asked = command(node, depth=depth, simulated=simulated)
        done = connector.run(node, asked, deadline_s=deadline_s, until=until)
        return read(node, done.stdout)

    return fan_out(nodes, look)
