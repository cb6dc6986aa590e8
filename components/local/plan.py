"""What a local fleet becomes: one network, and a container per node. Pure: no Docker, no clock, no chance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from orch.catalog.records import Arch
from orch.components import init_steps
from orch.components.local.facts import LocalFacts
from orch.components.local.simulated_gpus import described, placeholders, simulated_gpus
from orch.components.node_count import folded, no_node, node_indices
from orch.components.request import PriorState
from orch.components.scratch import folder_scratch
from orch.runner.preparation.init_steps import Step, steps
from orch.runner.preparation.mounts import fleet_mounts
from orch.spec.findings import PlanError
from orch.spec.grammar.blocks import blocks_of
from orch.spec.grammar.values import Problem
from orch.spec.models import Fleet
from orch.spec.models.backends.local import LocalSettings
from orch.spec.state import FleetMount, Gpus, NodeScratch

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

    `scope` tells this project's containers from another project's of the same fleet name. `gpus`: what each
    node has in number, without devices; `placeholders`: device files of such accelerators, nothing behind.
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
    gpus: Gpus
    placeholders: tuple[str, ...] = ()

    @property
    def pins(self) -> dict[str, str]:
        return {
            "scope": self.scope,
            "node_image": self.image,
            "indices": folded([node.index for node in self.nodes]),
            **init_steps.pinned(self.init),
        }

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
    *,
    settings: LocalSettings | None = None,
) -> LocalPlan:
    """The containers and the network of `fleet`. `scripts`: the text of `init[].file`, by path.

    `scope` is used for a new stack only; afterwards the recorded one stays, also when the project's folder
    moves. CPUs and memory limit a node only where the file asks for them: the defaults guide the choice of
    cloud machines, and a laptop smaller than they are can still hold the fleet.

    Raises PlanError: ORCH147 (blocks that the accelerators do not make), ORCH210 (more than this machine has,
    or than `settings` let nodes use), ORCH211 (accelerators), ORCH212 (too many nodes).
    """
    settings = settings or LocalSettings()
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
    gpus = simulated_gpus(settings.simulate_gpu, fleet.resources.gpu, fleet.blocks)
    cpus, memory = _limits(fleet, facts)
    cpus = _share("cpu", cpus, settings.cpus, count, " CPUs")
    memory_share = _share("memory", memory, settings.memory_mib, count, " MiB")
    memory = memory_share if memory_share is None else int(memory_share)
    scope = previous.pins.get("scope", scope)
    image = previous.pins.get("node_image", facts.node_image)
    base = f"orch-{fleet.name}-{scope}"
    reasons = [
        _containers(fleet, count),
        f"CPUs per node: {cpus:g}" if cpus else f"CPUs per node: all {facts.cpus} of this machine, shared",
        f"memory per node: {memory} MiB"
        if memory
        else f"memory per node: all {facts.memory_mib} MiB, shared",
        "interconnect: Ethernet between containers, which says nothing about a real fabric's speed",
    ]
    if gpus.count:
        reasons.insert(
            3, f"accelerators per node: {described(gpus)}, simulated: jobs get their number and no device"
        )
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
        blocks=_blocks(fleet, gpus, cpus or facts.cpus),
        job_image=fleet.image,
        env={key: value for key, value in fleet.env.items() if value is not None},
        mounts=fleet_mounts(fleet.mounts),
        authorized_keys=fleet.authorized_keys,
        protect=fleet.protect,
        init=init,
        scratch=scratch,
        nodes=tuple(
            LocalNodePlan(i, f"{fleet.name}-{i}", f"{base}-{i}", FIRST_ADDRESS + i, cpus, memory)
            for i in node_indices(fleet, previous)
        ),
        reasons=tuple(reasons),
        gpus=gpus,
        placeholders=placeholders(gpus),
    )


def _containers(fleet: Fleet, count: int) -> str:
    if count == 1:
        return "1 container with sshd and a Docker daemon of its own, on a bridge network"
    containers = "containers with sshd and a Docker daemon of their own, on one bridge network"
    return f"{count} {containers}" if count else f"{no_node(fleet)}: {containers}"


def _blocks(fleet: Fleet, gpus: Gpus, cpus: float) -> int:
    try:
        return blocks_of(fleet.blocks, gpus.count, cpus)
    except Problem as problem:
        raise PlanError(problem.code, problem.summary, path="blocks", hint=problem.hint) from None


def _share(resource: str, limit: float | None, total: float | None, count: int, unit: str) -> float | None:
    """A node's limit where the nodes of a fleet may use `total` together: as written, else an even part.

    Raises PlanError("ORCH210").
    """
    if total is None or not count:
        return limit
    setting = "cpus" if resource == "cpu" else resource
    if limit is not None and limit * count > total:
        raise PlanError(
            "ORCH210",
            f"{count} nodes of {limit:g}{unit} exceed the {total:g}{unit} of `{setting}` in `orch.yml`",
            path=f"resources.{resource}",
            hint=f"ask for less, or raise `{setting}` of the backend `local`",
        )
    return limit if limit is not None else total / count


def _limits(fleet: Fleet, facts: LocalFacts) -> tuple[float | None, int | None]:
    resources = fleet.resources
    written = resources.model_fields_set
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
