"""What a local fleet becomes: one network, and a container per node. Pure: no Docker, no clock, no chance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from orch.catalog.records import Arch
from orch.components import init_steps
from orch.components.local.facts import LocalFacts
from orch.components.request import PriorState
from orch.components.scratch import folder_scratch
from orch.runner.node.init_steps import Step, steps
from orch.runner.node.mounts import fleet_mounts
from orch.spec.findings import PlanError
from orch.spec.grammar.blocks import blocks_of
from orch.spec.models import Fleet
from orch.spec.state import FleetMount, NodeScratch

FIRST_ADDRESS = 10
"""Node i has the address FIRST_ADDRESS + i of its /24; the gateway has 1."""

MAX_NODES = 200
"""What fits a /24 above FIRST_ADDRESS, with room; a laptop holds fewer (34 MiB each when idle)."""


@dataclass(frozen=True)
class LocalNodePlan:
    """One container. `cpus` and `memory_mib` are limits, None = all of the machine."""

    index: int
    name: str
    container: str
    address_offset: int
    cpus: float | None
    memory_mib: int | None


@dataclass(frozen=True)
class LocalPlan:
    """A whole local fleet.

    `scope` tells this project's containers from another project's of the same fleet name.
    """

    fleet: str
    scope: str
    network: str
    image: str
    placement: str
    arch: Arch | None
    blocks: int
    job_image: str | None
    env: dict[str, str]
    mounts: tuple[FleetMount, ...]
    authorized_keys: tuple[str, ...]
    protect: bool
    init: tuple[Step, ...]
    scratch: NodeScratch | None
    nodes: tuple[LocalNodePlan, ...]
    reasons: tuple[str, ...]

    @property
    def pins(self) -> dict[str, str]:
        return {"scope": self.scope, "node_image": self.image, **init_steps.pinned(self.init)}

    @property
    def hourly(self) -> float:
        """The machine is the user's."""
        return 0.0


def plan(
    fleet: Fleet,
    facts: LocalFacts,
    previous: PriorState,
    scope: str,
    scripts: Mapping[str, str] | None = None,
) -> LocalPlan:
    """The containers and the network of `fleet`. `scripts`: the text of `init[].file`, by path.

    `scope` is used for a new stack only; afterwards the recorded one stays, also when the project's folder
    moves. CPUs and memory limit a node only where the file asks for them: the defaults guide the choice of
    cloud machines, and a laptop smaller than they are can still hold the fleet.

    Raises PlanError: ORCH210 (more than this machine has), ORCH211 (accelerators), ORCH212 (too many nodes).
    """
    if fleet.nodes is None:
        raise PlanError("ORCH141", "a local fleet needs `nodes`", path="", hint="write `nodes: 2`")
    count = fleet.nodes.target
    if count > MAX_NODES:
        raise PlanError(
            "ORCH212",
            f"{count} nodes are more than one machine's network of containers holds ({MAX_NODES})",
            path="nodes",
            hint=f"ask for at most {MAX_NODES}, or rehearse with fewer",
        )
    cpus, memory = _limits(fleet, facts)
    scope = previous.pins.get("scope", scope)
    image = previous.pins.get("node_image", facts.node_image)
    base = f"orch-{fleet.name}-{scope}"
    reasons = [
        "1 container with sshd and a Docker daemon of its own, on a bridge network"
        if count == 1
        else f"{count} containers with sshd and a Docker daemon of their own, on one bridge network",
        f"CPUs per node: {cpus:g}" if cpus else f"CPUs per node: all {facts.cpus} of this machine, shared",
        f"memory per node: {memory} MiB"
        if memory
        else f"memory per node: all {facts.memory_mib} MiB, shared",
        "interconnect: Ethernet between containers, which says nothing about a real fabric's speed",
    ]
    if image != facts.node_image:
        reasons.append(f"node image {image} stays; this orch would make new nodes from {facts.node_image}")
    scratch = folder_scratch(fleet, "none")
    if scratch is not None:
        reasons.append(f"scratch: each job has a folder of its own below {scratch.path} of its node")
    init = steps(fleet, scripts or {})
    reasons += init_steps.reasons(init, previous.pins, min(count, len(previous.nodes)), "node")
    return LocalPlan(
        fleet=fleet.name,
        scope=scope,
        network=base,
        image=image,
        placement=fleet.placement,
        arch=facts.arch,
        blocks=blocks_of(fleet.blocks, 0, cpus or facts.cpus),
        job_image=fleet.image,
        env={key: value for key, value in fleet.env.items() if value is not None},
        mounts=fleet_mounts(fleet.mounts),
        authorized_keys=fleet.authorized_keys,
        protect=fleet.protect,
        init=init,
        scratch=scratch,
        nodes=tuple(
            LocalNodePlan(i, f"{fleet.name}-{i}", f"{base}-{i}", FIRST_ADDRESS + i, cpus, memory)
            for i in range(count)
        ),
        reasons=tuple(reasons),
    )


def _limits(fleet: Fleet, facts: LocalFacts) -> tuple[float | None, int | None]:
    resources = fleet.resources
    written = resources.model_fields_set
    if "gpu" in written and 0 not in resources.gpu.count:
        raise PlanError(
            "ORCH211",
            "local nodes have no accelerators",
            path="resources.gpu",
            detail="they are containers on this machine, and this version passes no device into them",
            hint="remove `gpu` for a rehearsal without accelerators",
        )
    cpus: float | None = None
    memory: int | None = None
    count, size = resources.cpu.count, resources.memory_mib
    if "cpu" in written and (count.min or count.max):
        cpus = count.min or min(count.max or facts.cpus, facts.cpus)
        if cpus > facts.cpus:
            raise PlanError(
                "ORCH210",
                f"a node of {cpus:g} CPUs does not fit this machine, which has {facts.cpus}",
                path="resources.cpu",
                hint=f"ask for at most {facts.cpus}; nodes may share CPUs, so each may have all of them",
            )
    if "memory_mib" in written and (size.min or size.max):
        memory = math.ceil(size.min or min(size.max or facts.memory_mib, facts.memory_mib))
        if memory > facts.memory_mib:
            raise PlanError(
                "ORCH210",
                f"a node of {memory} MiB does not fit this machine, which has {facts.memory_mib} MiB",
                path="resources.memory",
                hint="ask for less",
            )
    return cpus, memory
