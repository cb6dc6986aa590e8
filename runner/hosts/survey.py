"""Survey of all hosts of a fleet: connect, read facts, try connections and a container, run checks.

A failing host is a report, no error.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import select
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orch.runner.hosts.checks.devices import active_ports
from orch.runner.hosts.checks.machine import error_line
from orch.runner.hosts.checks.requirements import judge_host
from orch.runner.hosts.checks.types import CheckOptions, ContainerProbe, HostObservation, HostReport, MeshView
from orch.runner.hosts.facts import read_facts
from orch.runner.hosts.host_facts import HostFacts
from orch.runner.hosts.mesh import try_mesh
from orch.runner.hosts.network import (
    ClusterNetwork,
    NetworkMember,
    NetworkProblem,
    duplicate_machine_ids,
    find_network,
)
from orch.runner.node_api.commands import Command, as_root
from orch.runner.node_api.connector import FAN_OUT, Address, Connector, fan_out
from orch.runner.node_api.target import Target, TargetError
from orch.spec.state import NodeState
from orch.templates import render

LOGIN_S = 15.0
"""Timeout of the first, empty command: a login shell may read a slow profile."""


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
    options: CheckOptions,
    *,
    parallel: int = FAN_OUT,
) -> Survey:
    """Look at every target and judge it. Paths of keys in the targets must be absolute (`located`)."""
    nodes = [target.node for target in targets if isinstance(target, Target)]
    results = fan_out(nodes, lambda node: _look(node, connector, options), at_once=parallel)
    observations = {
        each.node.name: each.value or HostObservation(each.node.name, error=each.error) for each in results
    }
    for target in targets:
        if isinstance(target, TargetError):
            observations[target.name] = HostObservation(target.name, error=target.error)
    reachable = [node for node in nodes if observations[node.name].facts is not None]
    facts = {node.name: known for node in reachable if (known := observations[node.name].facts) is not None}

    containers = _containers(reachable, facts, connector, options, parallel)
    network, problems = find_network(
        [_member(node, facts[node.name]) for node in reachable],
        network=options.network,
        cluster=options.cluster,
    )
    duplicates = duplicate_machine_ids({name: known.machine_id for name, known in facts.items()})
    views: Mapping[str, MeshView] = {}
    if options.cluster and options.mesh and network is not None and len(reachable) > 1:
        views = try_mesh(reachable, network, connector, parallel=parallel)
    ports = Counter(active_ports(known) for known in facts.values())
    common = max(ports, key=lambda number: (ports[number], number), default=0)

    reports: list[HostReport] = []
    for target in targets:
        observation = replace(
            observations[target.name],
            unverified_key=_unverified_key(target),
            container=containers.get(target.name),
            same_machine_id=_same_machine_id(target.name, duplicates),
            host_count=len(reachable),
            network=network,
            problems=problems,
            mesh=views.get(target.name),
            rdma_common=common,
        )
        reports.append(HostReport(target, observation.facts, judge_host(observation, options)))
    return Survey(tuple(reports), network, (*problems, *duplicates))


def _look(node: NodeState, connector: Connector, options: CheckOptions) -> HostObservation:
    started = time.monotonic()
    connector.run(node, Command(":", "log in", timeout_s=LOGIN_S))
    connected_s = time.monotonic() - started
    facts = read_facts(node, connector)
    address = connector.address(node)
    skip_reason = external_skip_reason(address) if options.external else "it was not asked for"
    ports = open_ports(address.host or "", options.external_ports) if skip_reason is None else None
    return HostObservation(
        node.name, facts=facts, connected_s=connected_s, open_ports=ports, skip_reason=skip_reason or ""
    )


def _containers(
    nodes: Sequence[NodeState],
    facts: Mapping[str, HostFacts],
    connector: Connector,
    options: CheckOptions,
    parallel: int,
) -> dict[str, ContainerProbe | None]:
    """Host name -> the check of GPUs in a container; None on hosts without GPUs."""

    def attempt(node: NodeState) -> ContainerProbe | None:
        return gpus_in_container(node, facts[node.name], connector, options)

    return {
        each.node.name: each.value
        if each.error is None
        else ContainerProbe(exit_code=1, output=error_line(each.error))
        for each in fan_out(nodes, attempt, at_once=parallel)
    }


def _unverified_key(target: Target | TargetError) -> str | None:
    return target.unverified_key if isinstance(target, Target) else None


def _member(node: NodeState, facts: HostFacts) -> NetworkMember:
    return NetworkMember(node.name, facts.interfaces, node.internal_ip, facts.sees_addresses)


def _same_machine_id(name: str, duplicates: Sequence[NetworkProblem]) -> tuple[str, ...]:
    return tuple(
        other for problem in duplicates if name in problem.hosts for other in problem.hosts if other != name
    )


CONNECT_S = 2.0
CONTAINER_S = 60

# Images that hold what the tools of the host, put into a container, need: a C library.
_LIKELY = r"cuda|nvidia|pytorch|tensorflow|orch/|dstack|ubuntu|debian|rocky|almalinux|fedora"


def external_skip_reason(address: Address) -> str | None:
    """Why connections from this machine do not show what outsiders reach; None when they do."""
    if not address.direct or address.host is None:
        return "reached by way of another host, not from outside"
    try:
        addresses = {
            row[4][0] for row in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        }
    except OSError:
        return f"the name {address.host} is not known here"
    if all(ipaddress.ip_address(str(each).partition("%")[0]).is_loopback for each in addresses):
        return "reached over this machine's loopback, not from outside"
    return None


def open_ports(address: str, ports: Sequence[int], *, within_s: float = CONNECT_S) -> tuple[int, ...]:
    """Those of `ports` that accept a TCP connection from here, all tried at once."""
    waiting: dict[int, tuple[int, socket.socket]] = {}
    open_now: list[int] = []
    poll = select.poll()
    with contextlib.ExitStack() as closing:
        for port in ports:
            for family, kind, protocol, _, where in _resolved(address, port):
                sock = closing.enter_context(socket.socket(family, kind, protocol))
                sock.setblocking(False)
                with contextlib.suppress(OSError):
                    if sock.connect_ex(where) in (0, 115):  # EINPROGRESS on Linux
                        waiting[sock.fileno()] = (port, sock)
                        poll.register(sock, select.POLLOUT)
        deadline = time.monotonic() + within_s
        while waiting and (remaining_s := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(remaining_s * 1000):
                port, sock = waiting.pop(descriptor)
                poll.unregister(descriptor)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    open_now.append(port)
    return tuple(sorted(set(open_now)))


def _resolved(address: str, port: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    try:
        return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)  # type: ignore[return-value]
    except OSError:
        return []


def gpus_in_container(
    node: NodeState, facts: HostFacts, connector: Connector, options: CheckOptions
) -> ContainerProbe | None:
    """`nvidia-smi -L` in a container; None on a host without GPUs or Docker. Raises what `run` raises."""
    docker = facts.docker
    if not facts.working_count("nvidia") or docker is None or not docker.version:
        return None
    text = render(
        "host-container.sh.j2",
        image=options.image or "",
        pull=options.pull,
        likely=_LIKELY,
        limit_s=CONTAINER_S,
    )
    limit_s = 900.0 if options.pull else CONTAINER_S + 30.0
    script = as_root(text) if facts.root != "no" else text
    return read_container(
        connector.run(node, Command(script, "look for GPUs in a container", timeout_s=limit_s)).stdout,
        options.image,
    )


def read_container(text: str, image: str | None) -> ContainerProbe:
    """The result in the script's output."""
    head, _, rest = text.partition("\n")
    word, _, image_used = head.partition(" ")
    if word != "image":
        missing = f"{image} is not on the host" if image else "no image to try it with is on the host"
        return ContainerProbe(skip_reason=f"{missing}; a job brings its own")
    code = re.search(r"^exit ([0-9]{1,3})$", rest, re.MULTILINE)
    output = " ".join(line for line in rest.splitlines() if not line.startswith("exit "))
    return ContainerProbe(
        image=image_used,
        gpus=len(re.findall(r"^GPU \d+:", rest, re.MULTILINE)),
        exit_code=int(code.group(1)) if code else 1,
        output=("it took too long" if code and code.group(1) == "124" else output)[-300:],
    )
