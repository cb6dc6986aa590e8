"""Connections between the hosts of a fleet, tried from each to each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orch.runner.hosts.checks.machine import error_line
from orch.runner.hosts.checks.types import MeshView
from orch.runner.hosts.network import ClusterAddress, ClusterNetwork
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import FAN_OUT, Connector, fan_out
from orch.spec.errors import OrchError
from orch.spec.state import NodeState
from orch.templates import render

AT_ONCE = 32
"""Number of peers that one host tries at the same time."""

ANSWERING = ("python3", "perl")
"""Listeners that acknowledge received bytes."""

_PEER_S = 20.0
"""Time limit of one batch of peers: a connection, then packets, each with its own deadline."""

_HEADERS = {4: 28, 6: 48}
"""Bytes of IP and ICMP headers: part of an MTU, not of a ping's size."""


@dataclass(frozen=True)
class Listener:
    """The port on which peers connect to a host; sshd's port without a `program` that listens."""

    port: int
    program: str | None = None
    pid: int | None = None


@dataclass(frozen=True)
class PeerConnectivity:
    """The result of connecting from one host to one peer. `size`: whether packets of the MTU arrive."""

    ok: bool
    why: str = ""
    size: Literal["ok", "no", "unknown"] = "unknown"
    size_why: str = ""


def try_mesh(
    nodes: Sequence[NodeState],
    network: ClusterNetwork,
    connector: Connector,
    *,
    parallel: int = FAN_OUT,
    listening_only: bool = False,
) -> Mapping[str, MeshView]:
    """Node name -> its connections to all others over `network`; a node that fails has `failure`.

    `listening_only`: peers without a program to listen with are not tried, for sshd may be closed to others.
    """
    addresses = {place.name: place for place in network.addresses}
    participants = [node for node in nodes if node.name in addresses]
    listen_s = 30 + int(_allowed_s(len(participants)))

    def listen(node: NodeState) -> Listener:
        text = render("host-listen.sh.j2", address=addresses[node.name].address, lives_s=listen_s)
        done = connector.run(node, Command(text, "listen for the other hosts", timeout_s=15.0))
        return read_listener(done.stdout, connector.address(node).port or 0)

    listen_results = fan_out(participants, listen, at_once=parallel)
    listeners = {
        each.node.name: each.value
        for each in listen_results
        if each.value is not None and (each.value.program or not listening_only)
    }
    errors = {each.node.name: each.error for each in listen_results if each.error is not None}

    def reach(node: NodeState) -> Mapping[str, PeerConnectivity]:
        peers = [place for place in network.addresses if place.name in listeners and place.name != node.name]
        lines = (_line(at, addresses[node.name], peer, listeners[peer.name]) for at, peer in enumerate(peers))
        command = Command(
            render("host-reach.sh.j2", at_once=AT_ONCE),
            "reach the other hosts",
            stdin="".join(lines).encode(),
            timeout_s=15.0 + _allowed_s(len(peers)),
        )
        return read_connectivity(connector.run(node, command).stdout, [peer.name for peer in peers])

    trial_results = fan_out(
        [node for node in participants if node.name in listeners], reach, at_once=parallel
    )
    reached = {each.node.name: each.value for each in trial_results if each.value is not None}
    errors |= {each.node.name: each.error for each in trial_results if each.error is not None}
    _stop(participants, listeners, connector, parallel)
    return views(reached, listeners, errors)


def views(
    reached: Mapping[str, Mapping[str, PeerConnectivity]],
    listeners: Mapping[str, Listener],
    errors: Mapping[str, OrchError],
) -> dict[str, MeshView]:
    """Host name -> its connections to and from every peer. Pure."""
    failed_from: dict[str, list[tuple[str, str]]] = {}
    for name, connectivity in reached.items():
        for peer, reach in connectivity.items():
            if not reach.ok:
                failed_from.setdefault(peer, []).append((name, reach.why))
    result = {
        name: MeshView(
            peers=len(connectivity),
            unreached=tuple((peer, reach.why) for peer, reach in connectivity.items() if not reach.ok),
            unreached_by=tuple(failed_from.get(name, ())),
            lost_large_packets=tuple(
                (peer, reach.size_why)
                for peer, reach in connectivity.items()
                if reach.ok and reach.size == "no"
            ),
            sshd_port_only=tuple(
                peer for peer, reach in connectivity.items() if reach.ok and not listeners[peer].program
            ),
            unmeasured_mtu=tuple(
                peer for peer, reach in connectivity.items() if reach.ok and reach.size == "unknown"
            ),
        )
        for name, connectivity in reached.items()
    }
    result.update({name: MeshView(peers=0, failure=error_line(error)) for name, error in errors.items()})
    return result


def read_listener(text: str, fallback: int) -> Listener:
    """The listener in the script's output; sshd's port when nothing could listen."""
    if match := re.search(r"^listen ([0-9]{1,5}) (\w+) ([0-9]{1,9})$", text, re.MULTILINE):
        return Listener(int(match.group(1)), match.group(2), int(match.group(3)))
    match = re.search(r"^sshd ([0-9]{1,5})$", text, re.MULTILINE)
    return Listener(int(match.group(1)) if match else fallback)


def read_connectivity(text: str, peers: Sequence[str]) -> dict[str, PeerConnectivity]:
    """Peer -> connectivity from the script's output; a peer without a line was not reached."""
    if text.startswith("cannot "):
        return {peer: PeerConnectivity(False, text.strip().partition(" ")[2]) for peer in peers}
    reached = {int(i): (ok == "ok", why) for i, ok, why in _REACH.findall(text)}
    sizes = {int(i): (size, why) for i, size, why in _SIZE.findall(text)}
    connectivity: dict[str, PeerConnectivity] = {}
    for index, peer in enumerate(peers):
        ok, why = reached.get(index, (False, "it was not tried to the end"))
        size, size_why = sizes.get(index, ("unknown", ""))
        connectivity[peer] = PeerConnectivity(ok, why, size, size_why)
    return connectivity


_REACH = re.compile(r"^reach ([0-9]{1,9}) (ok|no) ?(.*)$", re.MULTILINE)
_SIZE = re.compile(r"^size ([0-9]{1,9}) (ok|no|unknown) ?(.*)$", re.MULTILINE)


def _line(index: int, own: ClusterAddress, peer: ClusterAddress, listener: Listener) -> str:
    size = min(own.mtu, peer.mtu) - _HEADERS[6 if ":" in peer.address else 4]
    return f"{index} {peer.address} {listener.port} {int(listener.program in ANSWERING)} {size}\n"


def _allowed_s(peers: int) -> float:
    return _PEER_S * -(-max(peers, 1) // AT_ONCE)


def _stop(
    nodes: Sequence[NodeState], listeners: Mapping[str, Listener], connector: Connector, parallel: int
) -> None:
    """Stop the listeners; one that cannot be stopped ends by itself soon after."""

    def stop(node: NodeState) -> None:
        pid = listeners[node.name].pid
        # The number may be another process's by now.
        text = f"case $(cat /proc/{pid}/comm 2>/dev/null) in python3*|perl|timeout) kill {pid};; esac"
        connector.run(node, Command(text, "stop listening", timeout_s=10.0))

    listening = [node for node in nodes if node.name in listeners and listeners[node.name].pid]
    fan_out(listening, stop, at_once=parallel)
