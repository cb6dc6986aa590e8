"""One look at a node for monitoring, in one command: how it is, what it uses, its fabric's ports, its GPUs.

The output of a node is untrusted: what is not a line of the expected form is left out, and there is an end to
how much is taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from orch.runner.errors import RunnerError
from orch.runner.metrics.gpu_counters import TAGS, GpuCounters, read_gpus
from orch.runner.metrics.reading import Reading, Target, fleet_targets, reading, script
from orch.runner.node.runtime import JobRuntime
from orch.runner.node.runtimes import RUNTIMES
from orch.runner.node.status import read_status, script_of
from orch.runner.node_api.claims import Claim
from orch.runner.node_api.commands import NODE_HOME, Command, as_root
from orch.runner.node_api.status import NodeStatus
from orch.spec.state import FleetState, NodeState
from orch.templates import render

TOOL_S = 5
"""How long one tool of a node's devices may take, in seconds."""
MOST_LINES = 20_000
MOST_PORTS = 128
_METRICS, _DEVICES = "-- what is used", "-- devices"
_PORT = re.compile(r"port ([A-Za-z0-9_.-]{1,64})/ports/([0-9]{1,3}) [0-9]: ([A-Z_]{1,20})")


@dataclass(frozen=True)
class FabricPort:
    """A port of InfiniBand, RoCE or EFA, such as `mlx5_0/1`, and whether its link is up."""

    name: str
    up: bool


@dataclass(frozen=True)
class NodeLook:
    """What one look at a node told. `reading` is None where it told of its status alone.

    `runs`: the run that holds each block, by the block's number.
    """

    status: NodeStatus
    host: str = ""
    reading: Reading | None = None
    ports: tuple[FabricPort, ...] = ()
    gpus: tuple[GpuCounters, ...] | None = None
    runs: tuple[tuple[int, str], ...] = ()

    def run_of(self, node: NodeState, gpu: int) -> str:
        """The run that has a GPU; "" without one."""
        per_block = max(1, node.gpus.count // max(1, node.blocks))
        return dict(self.runs).get(gpu // per_block, "")


Texts = dict[tuple[object, ...], str]


def command(
    fleet: FleetState,
    node: NodeState,
    *,
    timeout_s: float,
    runtimes: Mapping[str, JobRuntime] = RUNTIMES,
    texts: Texts | None = None,
) -> Command:
    """Asks a node of a fleet; `read` reads the answer. Raises RunnerError where nobody here can ask it.

    `texts` keeps the scripts of earlier calls with these runtimes: making one takes as long as reading an
    answer.
    """
    (target,) = fleet_targets(fleet.model_copy(update={"nodes": (node,)}))
    # Nodes of one kind are asked the same.
    key = (node.runtime, target.contained, target.simulated, bool(node.gpus.count), node.gpus.vendor)
    kind = (*key, node.gpus.toolkit)
    texts = {} if texts is None else texts
    if kind not in texts:
        texts[kind] = _text(fleet, node, target, runtimes)
    return Command(texts[kind], "look at the node", timeout_s=timeout_s)


def _text(fleet: FleetState, node: NodeState, target: Target, runtimes: Mapping[str, JobRuntime]) -> str:
    nvidia = bool(node.gpus.count) and (node.gpus.vendor or "nvidia") == "nvidia" and not fleet.simulated
    devices = render(
        "node-devices.sh.j2",
        home=NODE_HOME,
        contained=target.contained,
        nvidia=nvidia,
        tags=TAGS,
        limit_s=TOOL_S,
    )
    text = (
        f"(\n{script_of(node, runtimes)})\necho '{_METRICS}'\n(\n{script(target)}\n)\n"
        f"echo '{_DEVICES}'\n(\n{devices}\n)\n"
    )
    return as_root(text)


def read(fleet: FleetState, node: NodeState, text: str) -> NodeLook:
    """The look in a node's answer."""
    (target,) = fleet_targets(fleet.model_copy(update={"nodes": (node,)}))
    status_text, _, rest = text.partition(f"{_METRICS}\n")
    used, _, devices = rest.partition(f"{_DEVICES}\n")
    status = read_status(status_text)
    try:
        found = reading(target, used)
    except RunnerError:
        found = None
    lines = devices.splitlines()[:MOST_LINES]
    names = {claim.container for claim in status.claims if not claim.after}
    host = next((line[5:].strip() for line in lines if line.startswith("host ")), "")
    gpus = read_gpus(lines) if any(line.startswith("smi ") for line in lines) else None
    ports = (_PORT.fullmatch(line) for line in lines if line.startswith("port "))
    return NodeLook(
        status,
        host,
        found,
        tuple(FabricPort(f"{each[1]}/{each[2]}", each[3] == "ACTIVE") for each in ports if each)[:MOST_PORTS],
        gpus,
        _runs(lines, names),
    )


def _runs(lines: list[str], containers: set[str]) -> tuple[tuple[int, str], ...]:
    """The blocks of jobs that go on."""
    found: dict[int, str] = {}
    for line in lines:
        if not line.startswith("block "):
            continue
        number, _, held = line[6:].partition(" ")
        if number.isascii() and number.isdigit() and len(number) <= 4:
            claim = Claim.parse(held)
            if claim.container in containers:
                found[int(number)] = claim.run
    return tuple(sorted(found.items()))
