"""Checks of a machine: the login, root, system, disk, clock and Docker; the network it shares with others,
the way to each of them, and what outsiders reach. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from orch.runner.hosts.checks.types import (
    MeshView,
    Observed,
    Outcome,
    Result,
    Wanted,
    failed,
    passed,
    skipped,
    warned,
)
from orch.runner.hosts.host_facts import HostFacts
from orch.spec.errors import OrchError


def connect(observed: Observed) -> Outcome:
    """The one check that is judged without facts."""
    if observed.error is not None:
        error = observed.error
        return Outcome(Result.FAIL, told(error), error.hint, error.code)
    took = f"the login took {observed.connected_s or 0:.1f} s"
    if observed.trusted is not None:
        return passed(f"{took}; its host key {observed.trusted} is as the host says, and not pinned yet")
    return passed(took)


def told(error: OrchError) -> str:
    """An error in one line: what, why and where."""
    parts = [error.summary, *([error.detail] if error.detail and error.detail not in error.summary else [])]
    line = "; ".join(" ".join(part.split()) for part in parts)
    return f"{line} ({error.where})" if error.where else line


def forwarding(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    if facts.forwarding is None:
        if facts.root == "no":
            return skipped("needs sudo.nopasswd: sshd's settings are root's to read")
        return skipped("`sshd -T` could not be run on it")
    told = f"AllowTcpForwarding {facts.forwarding}"
    # What jobs' ports and hosts behind this one need is `local`, in sshd's word.
    return passed(told) if facts.forwarding in ("yes", "local") else failed(told)


def sudo(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    if facts.root == "root":
        return passed("the login is root")
    if facts.root == "sudo":
        return passed("sudo asks for no password")
    return failed(facts.root_trouble or "sudo gives no root")


def system(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    named = f"{facts.os} {facts.arch}, {facts.distribution or 'unknown distribution'}, kernel {facts.kernel}"
    if facts.os != "Linux" or facts.arch not in ("x86_64", "aarch64"):
        return failed(f"{named}: Linux on x86_64 or aarch64 is needed")
    return passed(named)


def unique(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    if facts.machine_id is None:
        if not wanted.machine_ids:
            return skipped("nodes in containers have no machine id")
        return failed("/etc/machine-id is empty or missing", "sudo systemd-machine-id-setup")
    if observed.twins:
        return failed(f"the same machine id as {', '.join(observed.twins)}: {facts.machine_id}")
    return passed(f"machine id {facts.machine_id}")


def disk(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    if facts.docker is None or facts.docker.free_mib is None:
        return skipped("the free space could not be read")
    free = facts.docker.free_mib / 1024
    where = facts.docker.root or "/var/lib/docker"
    told = f"{free:.1f} GB free in {where}"
    hint = "free some (`sudo docker system prune`), or move it: `data-root` in /etc/docker/daemon.json"
    if free < wanted.disk_min_gib:
        return failed(f"{told}, {wanted.disk_min_gib:g} GB are needed", hint)
    if free < wanted.disk_warn_gib:
        return warned(f"{told}, images and checkpoints may need {wanted.disk_warn_gib:g} GB", hint)
    return passed(told)


def clock(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    offset = facts.clock_offset_s
    if offset is None:
        return skipped("the host's clock could not be read")
    if abs(offset) > wanted.clock_s:
        return warned(f"{_duration(abs(offset))} {'ahead of' if offset > 0 else 'behind'} this machine")
    return passed("the same time as here, as far as can be told" if not offset else f"{offset:+.1f} s")


def docker(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    found = facts.docker
    if found is not None and found.version:
        return passed(f"Docker {found.version}")
    trouble = found.trouble if found and found.trouble else "there is no docker command"
    if "no docker command" in trouble:
        return failed(trouble, "install Docker: https://docs.docker.com/engine/install/")
    if facts.root == "no" and "permission denied" in trouble.lower():
        return skipped("needs sudo.nopasswd: this login may not talk to Docker")
    return failed(trouble)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


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
