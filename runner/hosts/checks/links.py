"""Checks of what lies between hosts: the network they share, the way between each two, what outsiders reach.
Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orch.runner.hosts.checks.types import (
    MeshView,
    Observed,
    Outcome,
    Wanted,
    failed,
    passed,
    skipped,
    warned,
)
from orch.runner.hosts.host_facts import HostFacts


def external(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    if observed.open_ports is None:
        return skipped(observed.untried or "it was not tried")
    if observed.open_ports:
        told = ", ".join(map(str, observed.open_ports))
        return warned(f"reached from here: port {told}")
    return passed(f"not reached from here: {', '.join(map(str, wanted.external_ports))}")


def internal(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    worse = failed if wanted.cluster else warned
    for problem in observed.problems:
        if observed.name in problem.hosts and problem.code in ("ORCH361", "ORCH362"):
            return worse(f"{problem.summary} ({problem.code}): {problem.detail}", problem.hint)
    network = observed.network
    place = network.place(observed.name) if network else None
    if network is None or place is None:
        if observed.problems and wanted.cluster:
            return skipped("the network could not be told, for another host's sake")
        return skipped("the hosts share no private network, and only clusters need one")
    told = f"{place.address} on {place.interface}, MTU {place.mtu}"
    told += f", {place.speed_mbps / 1000:g} Gb/s" if place.speed_mbps else ""
    same = [each.name for each in network.places if each.address == place.address and each.name != place.name]
    if same:
        return worse(f"{told}: {some(same)} has the same address", "give each host an address of its own")
    mtus = network.mtus
    if len(mtus) > 1:
        values = "; ".join(f"{mtu} on {some(names)}" for mtu, names in sorted(mtus.items(), reverse=True))
        return worse(
            f"{told}: the hosts' MTUs differ ({values})",
            f"set one MTU on all: `sudo ip link set {place.interface} mtu {max(mtus)}`, and in their netplan",
        )
    return passed(told)


def mesh(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    if not wanted.cluster:
        return skipped("only clusters need it")
    if observed.hosts < 2:
        return skipped("there is only one host")
    view = observed.mesh
    if view is None:
        return skipped("needs net.internal" if observed.network is None else "it was not tried")
    if view.trouble is not None:
        return failed(view.trouble)
    found = [*_deaf(observed.name, view), *_narrow(view)]
    if found:
        return failed("; ".join(found))
    doubts: list[str] = []
    if view.guessed:
        doubts.append(f"of {some(view.guessed)} only sshd's port was tried: no program to listen with")
    if view.unmeasured:
        doubts.append(f"the packet size to {some(view.unmeasured)} could not be tried")
    reached = f"{view.peers} of {view.peers} hosts reached, and by them"
    if doubts:
        return warned(f"{reached}; {'; '.join(doubts)}", "sudo apt-get install -y python3 iputils-ping")
    return passed(reached)


def _deaf(name: str, view: MeshView) -> list[str]:
    """Connections that fail, with those that fail one way only named as that."""
    out, back = dict(view.unreached), dict(view.unheard)
    both = [peer for peer in out if peer in back]
    told: list[str] = []
    if both:
        told.append(f"{name} and {some(both)} do not reach each other ({out[both[0]]})")
    for peers, words in ((out, f"{name} -> {{}} fails"), (back, f"{{}} -> {name} fails")):
        one_way = [peer for peer in peers if peer not in both]
        if one_way:
            why = peers[one_way[0]]
            told.append(f"{words.format(some(one_way))} ({why}), the other way is open")
    return told


def _narrow(view: MeshView) -> list[str]:
    if not view.narrow:
        return []
    peers = [peer for peer, _ in view.narrow]
    return [f"large packets to {some(peers)} are lost ({view.narrow[0][1]})"]


def some(names: Sequence[str]) -> str:
    """Names in a sentence, folded when they are many."""
    if len(names) <= 4:
        return ", ".join(names)
    from orch.runner.launch.environment import fold

    folded = fold(names)
    return folded if len(folded) <= 100 else f"{names[0]} and {len(names) - 1} more"
