"""What a fleet of existing hosts becomes: a resource per host that is fit. Pure: the hosts were asked before.

A host that is not fit, or not reached, is kept out and told by name; one that is registered already stays as
it was, for what became of it is drift. What a host was registered as (its facts, its key, its place in the
network) is decided once and kept until the user accepts another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orch.catalog.records import arch_of
from orch.components import init_steps
from orch.components.request import NewHostKey, NodeProblem, NodeWarning, PlanRequest
from orch.components.scratch import folder_scratch
from orch.components.ssh.facts import SshFacts
from orch.components.ssh.problems import KeysUnaccepted, Unfit, judge_host, new_keys_of
from orch.runner.hosts.checks.types import HostReport
from orch.runner.hosts.host_facts import HostFacts
from orch.runner.preparation.init_steps import Step, steps
from orch.runner.preparation.mounts import fleet_mounts
from orch.runner.ssh.naming import hop_names, names, pins
from orch.runner.ssh.targets import SshTarget
from orch.spec.findings import PlanError
from orch.spec.grammar.blocks import blocks_of
from orch.spec.grammar.values import Problem
from orch.spec.models import Fleet
from orch.spec.models.ssh import Host
from orch.spec.state import FleetMount, Gpus, NodeState, without_commands
from orch.spec.suggest import counted

Registered = dict[str, Any]
"""What a host was taken as, flat: `gpu_count`, `cpus`, … of `HostFacts.registered()`."""


@dataclass(frozen=True)
class SshHostPlan:
    """One host: the node it is, what it is registered as, and its tags."""

    node: NodeState
    registered: Registered
    tags: dict[str, str]


@dataclass(frozen=True)
class SshPlan:
    """A whole fleet of hosts. `problems` are told and end with exit code 7; the rest is registered."""

    fleet: str
    scope: str
    placement: str
    interconnect: str
    image: str | None
    env: dict[str, str]
    mounts: tuple[FleetMount, ...]
    protect: bool
    authorized_keys: tuple[str, ...]
    init: tuple[Step, ...]
    network: str | None
    hosts: tuple[SshHostPlan, ...]
    problems: tuple[NodeProblem, ...]
    warnings: tuple[NodeWarning, ...]
    new_keys: tuple[NewHostKey, ...]
    reasons: tuple[str, ...]

    @property
    def nodes(self) -> tuple[NodeState, ...]:
        return tuple(host.node for host in self.hosts)

    @property
    def hourly(self) -> float:
        """The hosts are there already."""
        return 0.0

    @property
    def pins(self) -> dict[str, str]:
        kept = {host.node.name: host.registered for host in self.hosts}
        pins = {"scope": self.scope, "registered": json.dumps(kept, sort_keys=True)}
        pins |= init_steps.pinned(self.init)
        return {**pins, "network": self.network} if self.network else pins


@dataclass(frozen=True)
class _Machine:
    """One host of the file, folded names unfolded: `path` is its place there, `host` what it says of it."""

    name: str
    path: str
    host: Host


def plan(request: PlanRequest, facts: SshFacts, scripts: Mapping[str, str] | None = None) -> SshPlan:
    """The hosts of the order's fleet that are or become its nodes. `scripts`: the text of `init[].file`.

    Raises PlanError for what concerns the fleet as a whole (ORCH147 blocks, ORCH361 and ORCH362 its network),
    Unfit when not one host can be taken and none was before.
    """
    fleet, previous = request.fleet, request.previous
    config = fleet.ssh_config
    if config is None:
        raise TypeError("a fleet without hosts")
    machines = _machines(fleet)
    _refuse_network(fleet, facts, machines)
    registered_nodes = {node.name: node for node in previous.nodes}
    known_pins = pins(previous.nodes)
    records: dict[str, Registered] = json.loads(previous.pins.get("registered", "{}"))
    reports = {report.name: report for report in facts.survey.hosts}
    indices = _indices([machine.name for machine in machines], registered_nodes)
    hosts: list[SshHostPlan] = []
    problems: list[NodeProblem] = []
    warnings: list[NodeWarning] = []
    new_keys: list[NewHostKey] = []
    for machine in machines:
        name, report = machine.name, reports[machine.name]
        host_problems, host_warnings = judge_host(report, config.preflight)
        problems += host_problems
        warnings += host_warnings
        host = _host_plan(
            request,
            facts,
            machine,
            index=indices[name],
            former=registered_nodes.get(name),
            record=records.get(name),
            unfit=bool(host_problems),
        )
        if host is not None:
            hosts.append(host)
            target = facts.targets.get(name)
            fresh = _new_keys(target, known_pins) if target and report.facts is not None else []
            new_keys += [new for new in fresh if new not in new_keys]
    if not hosts and new_keys_of(problems):
        raise KeysUnaccepted(fleet.name, problems)
    if not hosts:
        raise Unfit(
            "ORCH360",
            f"not one of the {len(machines)} hosts of {fleet.name} can be taken"
            if len(machines) > 1
            else f"the only host of {fleet.name} cannot be taken",
            path="ssh_config.hosts",
            detail="\n".join(problem.text() for problem in problems),
            hint="`orch check FILE` shows every check of every host",
        )
    network, init = facts.survey.network, steps(fleet, scripts or {})
    kept = sum(host.node.name in registered_nodes for host in hosts)
    return SshPlan(
        fleet=fleet.name,
        scope=previous.pins.get("scope", request.scope),
        placement=fleet.placement,
        interconnect=_interconnect(fleet, reports.values()),
        image=fleet.image,
        env={key: value for key, value in fleet.env.items() if value is not None},
        mounts=fleet_mounts(fleet.mounts),
        protect=fleet.protect,
        authorized_keys=fleet.authorized_keys,
        init=init,
        network=network.cidr if network else previous.pins.get("network"),
        hosts=tuple(sorted(hosts, key=lambda host: host.node.index)),
        problems=tuple(problems),
        warnings=tuple(warnings),
        new_keys=tuple(new_keys),
        reasons=(
            *_reasons(facts, hosts, machines),
            *init_steps.reasons(init, previous.pins, kept, "host"),
        ),
    )


def host_names(fleet: Fleet) -> tuple[str, ...]:
    """The names of a fleet's hosts and jump hosts, as `--accept-host-key` takes them."""
    if fleet.ssh_config is None:
        return ()
    return tuple(dict.fromkeys((*names(fleet.ssh_config), *hop_names(fleet.ssh_config))))


def _machines(fleet: Fleet) -> tuple[_Machine, ...]:
    config = fleet.ssh_config
    if config is None:
        return ()
    places = (f"ssh_config.hosts[{i}]" for i, host in enumerate(config.hosts) for _ in host.hostnames)
    return tuple(map(_Machine, names(config), places, config.machines()))


def _refuse_network(fleet: Fleet, facts: SshFacts, machines: Iterable[_Machine]) -> None:
    """A network that cannot be decided concerns all hosts: which one is right, only the user knows."""
    config = fleet.ssh_config
    for problem in facts.survey.problems:
        concerned = next((machine for machine in machines if machine.name in problem.hosts), None)
        path = "ssh_config"
        if config is not None and config.network is not None and problem.code == "ORCH361":
            path = "ssh_config.network"
        elif concerned is not None and problem.code == "ORCH361" and concerned.host.internal_ip is not None:
            path = f"{concerned.path}.internal_ip"
        elif concerned is not None and problem.code == "ORCH368":
            path = concerned.path
        about = f"hosts: {', '.join(problem.hosts)}"
        raise PlanError(
            problem.code,
            problem.summary,
            path=path,
            detail=f"{problem.detail}\n{about}" if problem.detail else about,
            hint=problem.hint or None,
        )


def _indices(names: Iterable[str], before: Mapping[str, NodeState]) -> dict[str, int]:
    """A host keeps its index for good; a new one takes the lowest that is free."""
    names = list(names)
    used = {before[name].index for name in names if name in before}
    free = (index for index in range(len(names) + len(used) + 1) if index not in used)
    return {name: before[name].index if name in before else next(free) for name in names}


def _host_plan(
    request: PlanRequest,
    facts: SshFacts,
    machine: _Machine,
    *,
    index: int,
    former: NodeState | None,
    record: Registered | None,
    unfit: bool,
) -> SshHostPlan | None:
    """The host as it is or becomes part of the fleet; None when it is kept out.

    `former` and `record` are the node and the facts as registered before: they stay, for a GPU lost since is
    drift and not another plan, until the user accepts the drift or gives the name another machine.
    """
    config, target = request.fleet.ssh_config, facts.targets.get(machine.name)
    host_facts = next(report.facts for report in facts.survey.hosts if report.name == machine.name)
    registered = former is not None and record is not None
    if config is None or (not registered and (unfit or host_facts is None)):
        return None
    if host_facts is None or target is None:
        # Silent, but registered: as it was, with what the file alone decides.
        node = former
    else:
        node = _portable(target.node, request.folder, request.root)
        endpoint = (node.ssh.address, node.ssh.port)
        readdressed = former is not None and (former.ssh.address, former.ssh.port) != endpoint
        if not registered or readdressed or request.consent.accept_drift:
            record = host_facts.registered()
        address = facts.survey.network.address_of(machine.name) if facts.survey.network else None
        former_address = former.internal_ip if former is not None else None
        node = node.model_copy(
            update={"internal_ip": address.address if address else former_address or node.internal_ip}
        )
    if node is None or record is None:
        return None
    count = int(record.get("gpu_count") or 0)
    node = node.model_copy(
        update={
            "index": index,
            "cpus": record.get("cpus"),
            "memory_mib": record.get("memory_mib"),
            "arch": arch_of(record.get("arch")),
            "disk_mib": _disk_mib(host_facts, former),
            "scratch": folder_scratch(request.fleet, "folder"),
            "gpus": Gpus(
                count=count,
                vendor=record.get("gpu_vendor"),
                name=record.get("gpu_name"),
                memory_mib=record.get("gpu_memory_mib"),
            ),
            "blocks": _blocks(request.fleet, machine, count, int(record.get("cpus") or 1)),
            "rack": None if _in_any_order(request.fleet) else machine.host.rack,
            "env": {key: value for key, value in machine.host.env.items() if value is not None},
        }
    )
    return SshHostPlan(without_commands(node), record, {**request.fleet.tags, **machine.host.tags})


def _in_any_order(fleet: Fleet) -> bool:
    """Whether the file says that racks are nothing to ranks; where it says nothing, they are neighbours."""
    return fleet.topology == "any" and "topology" in fleet.model_fields_set


def _disk_mib(facts: HostFacts | None, former: NodeState | None) -> int | None:
    """Where Docker keeps its data, as it is now; of a silent host as it was."""
    current = facts.docker.size_mib if facts is not None and facts.docker is not None else None
    return current or (former.disk_mib if former is not None else None)


def _blocks(fleet: Fleet, machine: _Machine, gpus: int, cpus: int) -> int:
    host_has_blocks = "blocks" in machine.host.model_fields_set
    try:
        return blocks_of(machine.host.blocks if host_has_blocks else fleet.blocks, gpus, cpus)
    except Problem as problem:
        path = f"{machine.path}.blocks" if host_has_blocks else "blocks"
        raise PlanError(
            problem.code, f"{machine.name}: {problem.summary}", path=path, hint=problem.hint
        ) from problem


def _portable(node: NodeState, folder: Path, root: Path) -> NodeState:
    """The node with its key files relative to the project: the state is read in other checkouts too."""

    def move(written: str | None) -> str | None:
        if written is None or written.startswith("~") or os.path.isabs(written):
            return written
        return os.path.relpath(folder / written, root)

    hops = tuple(hop.model_copy(update={"identity": move(hop.identity)}) for hop in node.ssh.jump)
    return node.reached(identity=move(node.ssh.identity), jump=hops)


def _new_keys(target: SshTarget, known_pins: Mapping[str, str]) -> list[NewHostKey]:
    """Its key and those of its jump hosts, as far as the stack has not pinned them yet."""
    hops = {key.public: key for _, key in target.hops}
    keys: list[NewHostKey] = []
    for name, public in pins((target.node,)).items():
        if known_pins.get(name) == public:
            continue
        if name == target.name:
            keys.append(NewHostKey(name, public, target.fingerprint, target.key_source))
        else:
            keys.append(NewHostKey(name, public, hops[public].fingerprint, hops[public].source))
    return keys


def _interconnect(fleet: Fleet, reports: Iterable[HostReport]) -> str:
    """InfiniBand or RoCE where every host of a cluster has an active port of it, else Ethernet."""
    layers = [
        {port.layer for port in report.facts.rdma_ports if port.state == "ACTIVE"}
        for report in reports
        if report.facts is not None
    ]
    if fleet.placement == "cluster" and layers:
        for layer, name in (("InfiniBand", "infiniband"), ("Ethernet", "roce")):
            if all(layer in each for each in layers):
                return name
    return "ethernet"


def _reasons(facts: SshFacts, hosts: Sequence[SshHostPlan], machines: Sequence[_Machine]) -> tuple[str, ...]:
    footprint = "nothing but /var/lib/orch and the keys of the fleet is put there"
    reasons = [f"{counted(len(hosts), 'existing host')}: {footprint}"]
    if len(hosts) < len(machines):
        reasons = [
            f"{len(hosts)} of {counted(len(machines), 'host')} are in the fleet; the others are kept out"
        ]
    network = facts.survey.network
    if network and network.addresses:
        interfaces = ", ".join(dict.fromkeys(place.interface for place in network.addresses))
        mtu = min(place.mtu for place in network.addresses)
        range_ = network.cidr or "of the addresses given"
        reasons.append(f"cluster network {range_} ({interfaces}, MTU {mtu})")
    return tuple(reasons)
