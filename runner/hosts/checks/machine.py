"""Checks of a machine: login, root, system, disk, clock and Docker; its network, its connections to the other
hosts, and the ports open to the outside. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from orch.runner.hosts.checks.types import (
    CheckOptions,
    HostObservation,
    MeshView,
    Outcome,
    Result,
    failed,
    passed,
    skipped,
    warned,
)
from orch.runner.hosts.host_facts import HostFacts
from orch.spec.errors import OrchError


def connect(observation: HostObservation) -> Outcome:
    """The only check that needs no facts."""
    if observation.error is not None:
        error = observation.error
        return Outcome(Result.FAIL, error_line(error), error.hint, error.code)
    login_time = f"the login took {observation.connected_s or 0:.1f} s"
    if observation.unverified_key is not None:
        return passed(
            f"{login_time}; its host key {observation.unverified_key} is as the host says, and not pinned yet"
        )
    return passed(login_time)


def error_line(error: OrchError) -> str:
    """An error in one line: what, why and where."""
    parts = [error.summary, *([error.detail] if error.detail and error.detail not in error.summary else [])]
    line = "; ".join(" ".join(part.split()) for part in parts)
    return f"{line} ({error.where})" if error.where else line


def forwarding(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    if facts.forwarding is None:
        if facts.root == "no":
            return skipped("needs sudo.nopasswd: sshd's settings are root's to read")
        return skipped("`sshd -T` could not be run on it")
    detail = f"AllowTcpForwarding {facts.forwarding}"
    # What jobs' ports and hosts behind this one need is `local`, in sshd's word.
    return passed(detail) if facts.forwarding in ("yes", "local") else failed(detail)


def sudo(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    if facts.root == "root":
        return passed("the login is root")
    if facts.root == "sudo":
        return passed("sudo asks for no password")
    return failed(facts.root_trouble or "sudo gives no root")


def system(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    detail = f"{facts.os} {facts.arch}, {facts.distribution or 'unknown distribution'}, kernel {facts.kernel}"
    if facts.os != "Linux" or facts.arch not in ("x86_64", "aarch64"):
        return failed(f"{detail}: Linux on x86_64 or aarch64 is needed")
    return passed(detail)


def unique(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    if facts.machine_id is None:
        if not options.machine_ids:
            return skipped("nodes in containers have no machine id")
        return failed("/etc/machine-id is empty or missing", "sudo systemd-machine-id-setup")
    if observation.same_machine_id:
        return failed(f"the same machine id as {', '.join(observation.same_machine_id)}: {facts.machine_id}")
    return passed(f"machine id {facts.machine_id}")


def disk(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    if facts.docker is None or facts.docker.free_mib is None:
        return skipped("the free space could not be read")
    free = facts.docker.free_mib / 1024
    where = facts.docker.root or "/var/lib/docker"
    detail = f"{free:.1f} GB free in {where}"
    hint = "free some (`sudo docker system prune`), or move it: `data-root` in /etc/docker/daemon.json"
    if free < options.disk_min_gib:
        return failed(f"{detail}, {options.disk_min_gib:g} GB are needed", hint)
    if free < options.disk_warn_gib:
        return warned(f"{detail}, images and checkpoints may need {options.disk_warn_gib:g} GB", hint)
    return passed(detail)


def clock(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    offset = facts.clock_offset_s
    if offset is None:
        return skipped("the host's clock could not be read")
    if abs(offset) > options.clock_s:
        return warned(f"{_duration(abs(offset))} {'ahead of' if offset > 0 else 'behind'} this machine")
    return passed("the same time as here, as far as can be told" if not offset else f"{offset:+.1f} s")


def docker(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    engine = facts.docker
    if engine is not None and engine.version:
        return passed(f"Docker {engine.version}")
    trouble = engine.trouble if engine and engine.trouble else "there is no docker command"
    if "no docker command" in trouble:
        return failed(trouble, "install Docker: https://docs.docker.com/engine/install/")
    if facts.root == "no" and "permission denied" in trouble.lower():
        return skipped("needs sudo.nopasswd: this login may not talk to Docker")
    return failed(trouble)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def external(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    if observation.open_ports is None:
        return skipped(observation.skip_reason or "it was not tried")
    if observation.open_ports:
        ports = ", ".join(map(str, observation.open_ports))
        return warned(f"reached from here: port {ports}")
    return passed(f"not reached from here: {', '.join(map(str, options.external_ports))}")


def internal(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    worse = failed if options.cluster else warned
    for problem in observation.problems:
        if observation.name in problem.hosts and problem.code in ("ORCH361", "ORCH362"):
            return worse(f"{problem.summary} ({problem.code}): {problem.detail}", problem.hint)
    network = observation.network
    address = network.address_of(observation.name) if network else None
    if network is None or address is None:
        if observation.problems and options.cluster:
            return skipped("the network could not be told, for another host's sake")
        return skipped("the hosts share no private network, and only clusters need one")
    detail = f"{address.address} on {address.interface}, MTU {address.mtu}"
    detail += f", {address.speed_mbps / 1000:g} Gb/s" if address.speed_mbps else ""
    duplicates = [
        each.name
        for each in network.addresses
        if each.address == address.address and each.name != address.name
    ]
    if duplicates:
        return worse(
            f"{detail}: {some(duplicates)} has the same address", "give each host an address of its own"
        )
    mtus = network.mtus
    if len(mtus) > 1:
        values = "; ".join(f"{mtu} on {some(names)}" for mtu, names in sorted(mtus.items(), reverse=True))
        return worse(
            f"{detail}: the hosts' MTUs differ ({values})",
            f"set one MTU on all: `sudo ip link set {address.interface} mtu {max(mtus)}`, "
            "and in their netplan",
        )
    return passed(detail)


def mesh(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    if not options.cluster:
        return skipped("only clusters need it")
    if observation.host_count < 2:
        return skipped("there is only one host")
    view = observation.mesh
    if view is None:
        return skipped("needs net.internal" if observation.network is None else "it was not tried")
    if view.failure is not None:
        return failed(view.failure)
    failures = [*_failed_connections(observation.name, view), *_lost_packets(view)]
    if failures:
        return failed("; ".join(failures))
    warnings: list[str] = []
    if view.sshd_port_only:
        warnings.append(
            f"of {some(view.sshd_port_only)} only sshd's port was tried: no program to listen with"
        )
    if view.unmeasured_mtu:
        warnings.append(f"the packet size to {some(view.unmeasured_mtu)} could not be tried")
    reached = f"{view.peers} of {view.peers} hosts reached, and by them"
    if warnings:
        return warned(f"{reached}; {'; '.join(warnings)}", "sudo apt-get install -y python3 iputils-ping")
    return passed(reached)


def _failed_connections(name: str, view: MeshView) -> list[str]:
    """The connections that fail, in both directions or in one."""
    out, back = dict(view.unreached), dict(view.unreached_by)
    both_ways = [peer for peer in out if peer in back]
    failures: list[str] = []
    if both_ways:
        failures.append(f"{name} and {some(both_ways)} do not reach each other ({out[both_ways[0]]})")
    for peers, words in ((out, f"{name} -> {{}} fails"), (back, f"{{}} -> {name} fails")):
        one_way = [peer for peer in peers if peer not in both_ways]
        if one_way:
            why = peers[one_way[0]]
            failures.append(f"{words.format(some(one_way))} ({why}), the other way is open")
    return failures


def _lost_packets(view: MeshView) -> list[str]:
    if not view.lost_large_packets:
        return []
    peers = [peer for peer, _ in view.lost_large_packets]
    return [f"large packets to {some(peers)} are lost ({view.lost_large_packets[0][1]})"]


def some(names: Sequence[str]) -> str:
    """Names in a sentence, folded when they are many."""
    if len(names) <= 4:
        return ", ".join(names)
    from orch.spec.grammar.hosts import fold

    folded = fold(names)
    return folded if len(folded) <= 100 else f"{names[0]} and {len(names) - 1} more"
