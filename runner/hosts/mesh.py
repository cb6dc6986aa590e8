"""Each host of a cluster to each other one: a TCP connection to a free port, then large packets.

Two commands per host however many there are: listen, then try all others. What listens ends by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orch.runner.hosts.checks.machine import told
from orch.runner.hosts.checks.types import MeshView
from orch.runner.hosts.network import ClusterNetwork, Place
from orch.runner.node.commands import Command
from orch.runner.node.connector import FAN_OUT, Connector, fan_out
from orch.spec.errors import OrchError
from orch.spec.state import NodeState
from orch.templates import render

AT_ONCE = 32
"""Peers that one host tries at once."""

ANSWERING = ("python3", "perl")
"""Listeners that acknowledge what they were sent."""

_PEER_S = 20.0
"""What one batch of peers may take: a connection, then packets, each to its own deadline."""

_HEADERS = {4: 28, 6: 48}
"""IP and ICMP headers, which an MTU includes and a ping's size does not."""


@dataclass(frozen=True)
class Listener:
    """Where a host can be connected to. Without a `program` of its own it is sshd's port."""

    port: int
    program: str | None = None
    pid: int | None = None


@dataclass(frozen=True)
class Reach:
    """What one host found of one peer. `size`: whether large packets arrive."""

    ok: bool
    why: str = ""
    size: Literal["ok", "no", "unknown"] = "unknown"
    size_why: str = ""


def try_mesh(
    nodes: Sequence[NodeState], network: ClusterNetwork, connector: Connector, *, parallel: int = FAN_OUT
) -> Mapping[str, MeshView]:
    """What each node finds of each other one over `network`, by name; a node that fails has `trouble`."""
    places = {place.name: place for place in network.places}
    taking_part = [node for node in nodes if node.name in places]
    lives_s = 30 + int(_allowed_s(len(taking_part)))

    def listen(node: NodeState) -> Listener:
        text = render("host-listen.sh.j2", address=places[node.name].address, lives_s=lives_s)
        done = connector.run(node, Command(text, "listen for the other hosts", timeout_s=15.0))
        return read_listener(done.stdout, connector.address(node).port or 0)

    listening = fan_out(taking_part, listen, at_once=parallel)
    listeners = {each.node.name: each.value for each in listening if each.value is not None}
    troubles = {each.node.name: each.error for each in listening if each.error is not None}

    def reach(node: NodeState) -> Mapping[str, Reach]:
        peers = [place for place in network.places if place.name in listeners and place.name != node.name]
        lines = (_line(at, places[node.name], peer, listeners[peer.name]) for at, peer in enumerate(peers))
        command = Command(
            render("host-reach.sh.j2", at_once=AT_ONCE),
            "reach the other hosts",
            stdin="".join(lines).encode(),
            timeout_s=15.0 + _allowed_s(len(peers)),
        )
        return read_reaches(connector.run(node, command).stdout, [peer.name for peer in peers])

    trying = fan_out([node for node in taking_part if node.name in listeners], reach, at_once=parallel)
    found = {each.node.name: each.value for each in trying if each.value is not None}
    troubles |= {each.node.name: each.error for each in trying if each.error is not None}
    _stop(taking_part, listeners, connector, parallel)
    return views(found, listeners, troubles)


def views(
    found: Mapping[str, Mapping[str, Reach]],
    listeners: Mapping[str, Listener],
    troubles: Mapping[str, OrchError],
) -> dict[str, MeshView]:
    """Both sides of every pair, seen from each host. Pure."""
    unheard: dict[str, list[tuple[str, str]]] = {}
    for name, reaches in found.items():
        for peer, reach in reaches.items():
            if not reach.ok:
                unheard.setdefault(peer, []).append((name, reach.why))
    made = {
        name: MeshView(
            peers=len(reaches),
            unreached=tuple((peer, reach.why) for peer, reach in reaches.items() if not reach.ok),
            unheard=tuple(unheard.get(name, ())),
            narrow=tuple(
                (peer, reach.size_why) for peer, reach in reaches.items() if reach.ok and reach.size == "no"
            ),
            guessed=tuple(
                peer for peer, reach in reaches.items() if reach.ok and not listeners[peer].program
            ),
            unmeasured=tuple(peer for peer, reach in reaches.items() if reach.ok and reach.size == "unknown"),
        )
        for name, reaches in found.items()
    }
    made.update({name: MeshView(peers=0, trouble=told(error)) for name, error in troubles.items()})
    return made


def read_listener(text: str, fallback: int) -> Listener:
    """What the listening script said; sshd's port when nothing could listen."""
    if match := re.search(r"^listen ([0-9]{1,5}) (\w+) ([0-9]{1,9})$", text, re.MULTILINE):
        return Listener(int(match.group(1)), match.group(2), int(match.group(3)))
    match = re.search(r"^sshd ([0-9]{1,5})$", text, re.MULTILINE)
    return Listener(int(match.group(1)) if match else fallback)


def read_reaches(text: str, peers: Sequence[str]) -> dict[str, Reach]:
    """What the script found, by peer; a peer it said nothing of was not reached."""
    if text.startswith("cannot "):
        return {peer: Reach(False, text.strip().partition(" ")[2]) for peer in peers}
    reached = {int(i): (ok == "ok", why) for i, ok, why in _REACH.findall(text)}
    sizes = {int(i): (size, why) for i, size, why in _SIZE.findall(text)}
    found: dict[str, Reach] = {}
    for at, peer in enumerate(peers):
        ok, why = reached.get(at, (False, "it was not tried to the end"))
        size, size_why = sizes.get(at, ("unknown", ""))
        found[peer] = Reach(ok, why, size, size_why)
    return found


_REACH = re.compile(r"^reach ([0-9]{1,9}) (ok|no) ?(.*)$", re.MULTILINE)
_SIZE = re.compile(r"^size ([0-9]{1,9}) (ok|no|unknown) ?(.*)$", re.MULTILINE)


def _line(at: int, here: Place, peer: Place, listener: Listener) -> str:
    size = min(here.mtu, peer.mtu) - _HEADERS[6 if ":" in peer.address else 4]
    return f"{at} {peer.address} {listener.port} {int(listener.program in ANSWERING)} {size}\n"


def _allowed_s(peers: int) -> float:
    return _PEER_S * -(-max(peers, 1) // AT_ONCE)


def _stop(
    nodes: Sequence[NodeState], listeners: Mapping[str, Listener], connector: Connector, parallel: int
) -> None:
    """End what listens; where that fails it ends by itself soon after."""

    def stop(node: NodeState) -> None:
        pid = listeners[node.name].pid
        # The number may be another process's by now.
        text = f"case $(cat /proc/{pid}/comm 2>/dev/null) in python3*|perl|timeout) kill {pid};; esac"
        connector.run(node, Command(text, "stop listening", timeout_s=10.0))

    listening = [node for node in nodes if node.name in listeners and listeners[node.name].pid]
    fan_out(listening, stop, at_once=parallel)
