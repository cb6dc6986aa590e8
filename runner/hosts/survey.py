"""Looking at all hosts of a fleet: connect, read, try, judge. A host that fails is a report, no error."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from orch.runner.errors import RunnerError
from orch.runner.hosts.checks.devices import active_ports
from orch.runner.hosts.checks.machine import told
from orch.runner.hosts.checks.probes import gpus_in_container, open_ports, why_not_outside
from orch.runner.hosts.checks.requirements import judge_host
from orch.runner.hosts.checks.types import CheckResult, ContainerTry, MeshView, Observed, Wanted
from orch.runner.hosts.facts import read_facts
from orch.runner.hosts.host_facts import HostFacts
from orch.runner.hosts.mesh import try_mesh
from orch.runner.hosts.network import ClusterNetwork, Member, NetworkProblem, find_network, twins
from orch.runner.node.commands import Command
from orch.runner.node.connector import FAN_OUT, Connector, fan_out
from orch.spec.state import NodeState

LOGIN_S = 15.0
"""What the first command, which does nothing, may take: a login shell may read a slow profile."""


@dataclass(frozen=True)
class Target:
    """A machine of a fleet and the way to it. `node.index` counts from 0 in the order of the file.

    `unseen_key`: the fingerprint of its key where that was taken and nobody has seen it.
    """

    node: NodeState
    unseen_key: str | None = field(default=None, kw_only=True)

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class TargetError:
    """A machine of a fleet that cannot be connected to, by its name, and why."""

    index: int
    name: str
    address: str
    error: RunnerError


@dataclass(frozen=True)
class HostReport:
    """One host and its checks; `facts` is None for one that could not be looked at."""

    target: Target | TargetError
    facts: HostFacts | None
    checks: tuple[CheckResult, ...]

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def failed(self) -> bool:
        return any(check.failed for check in self.checks)

    def check(self, check_id: str) -> CheckResult:
        return next(check for check in self.checks if check.id == check_id)


@dataclass(frozen=True)
class Survey:
    """Reports in the order of the targets, their network if they have one, and what is wrong between them."""

    hosts: tuple[HostReport, ...]
    network: ClusterNetwork | None
    problems: tuple[NetworkProblem, ...]

    @property
    def failed(self) -> bool:
        return any(host.failed for host in self.hosts)


def survey(
    targets: Sequence[Target | TargetError],
    connector: Connector,
    wanted: Wanted,
    *,
    parallel: int = FAN_OUT,
) -> Survey:
    """Look at every target and judge it. Paths of keys in the targets must be absolute (`located`)."""
    nodes = [target.node for target in targets if isinstance(target, Target)]
    looks = fan_out(nodes, lambda node: _look(node, connector, wanted), at_once=parallel)
    seen = {each.node.name: each.value or Observed(each.node.name, error=each.error) for each in looks}
    for target in targets:
        if isinstance(target, TargetError):
            seen[target.name] = Observed(target.name, error=target.error)
    answering = [node for node in nodes if seen[node.name].facts is not None]
    facts = {node.name: found for node in answering if (found := seen[node.name].facts) is not None}

    containers = _containers(answering, facts, connector, wanted, parallel)
    network, problems = find_network(
        [_member(node, facts[node.name]) for node in answering],
        network=wanted.network,
        cluster=wanted.cluster,
    )
    doubles = twins({name: found.machine_id for name, found in facts.items()})
    views: Mapping[str, MeshView] = {}
    if wanted.cluster and wanted.mesh and network is not None and len(answering) > 1:
        views = try_mesh(answering, network, connector, parallel=parallel)
    ports = Counter(active_ports(found) for found in facts.values())
    common = max(ports, key=lambda number: (ports[number], number), default=0)

    reports: list[HostReport] = []
    for target in targets:
        observed = replace(
            seen[target.name],
            trusted=_trusted(target),
            container=containers.get(target.name),
            twins=_twins(target.name, doubles),
            hosts=len(answering),
            network=network,
            problems=problems,
            mesh=views.get(target.name),
            rdma_common=common,
        )
        reports.append(HostReport(target, observed.facts, judge_host(observed, wanted)))
    return Survey(tuple(reports), network, (*problems, *doubles))


def _look(node: NodeState, connector: Connector, wanted: Wanted) -> Observed:
    began = time.monotonic()
    connector.run(node, Command(":", "log in", timeout_s=LOGIN_S))
    connected_s = time.monotonic() - began
    facts = read_facts(node, connector)
    address = connector.address(node)
    why = why_not_outside(address) if wanted.external else "it was not asked for"
    ports = open_ports(address.host or "", wanted.external_ports) if why is None else None
    return Observed(node.name, facts=facts, connected_s=connected_s, open_ports=ports, untried=why or "")


def _containers(
    nodes: Sequence[NodeState],
    facts: Mapping[str, HostFacts],
    connector: Connector,
    wanted: Wanted,
    parallel: int,
) -> dict[str, ContainerTry | None]:
    """What came of GPUs in containers, on hosts that have GPUs."""

    def attempt(node: NodeState) -> ContainerTry | None:
        return gpus_in_container(node, facts[node.name], connector, wanted)

    return {
        each.node.name: each.value if each.error is None else ContainerTry(exit_code=1, said=told(each.error))
        for each in fan_out(nodes, attempt, at_once=parallel)
    }


def _trusted(target: Target | TargetError) -> str | None:
    return target.unseen_key if isinstance(target, Target) else None


def _member(node: NodeState, facts: HostFacts) -> Member:
    return Member(node.name, facts.interfaces, node.internal_ip, facts.sees_addresses)


def _twins(name: str, doubles: Sequence[NetworkProblem]) -> tuple[str, ...]:
    return tuple(
        other for double in doubles if name in double.hosts for other in double.hosts if other != name
    )
