"""One look at what nodes, and the jobs of a run on them, have used until now: a script and its answer.

The output of a node is untrusted: what is not a line of the expected form is left out.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from orch.runner.errors import RunnerError
from orch.runner.node.runtime import JobRuntime
from orch.runner.node_api.accelerators import device_access
from orch.runner.node_api.commands import NODE_HOME, Command, as_root
from orch.runner.node_api.connector import Connector, NodeResult, fan_out
from orch.runner.placement.block_resources import share_of
from orch.runner.plan.run_plan import RunPlan
from orch.spec.state import FleetState, NodeState
from orch.templates import ShellText, render

LOOK_S = 10.0
_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,9})?")


@dataclass(frozen=True)
class Target:
    """A node to look at, and the job of a run on it where that is what is asked for.

    `contained`: the node is a container, whose kernel's figures are those of the machine it is on.
    `simulated`: its accelerators are a number alone. `cores`, `memory_bytes`: what the job, or the node, may
    use at most; None where that is not recorded. `per_block`: of a job that has a part of its node, the
    devices of a block. `job`: shell text that prints the number of a process of the job.
    """

    node: NodeState
    contained: bool = False
    simulated: bool = False
    rank: int | None = None
    container: str = ""
    job: str = ""
    cores: float | None = None
    memory_bytes: int | None = None
    per_block: int | None = None

    @property
    def limited(self) -> bool:
        """Whether it may use less than the machine that the kernel tells of."""
        return self.contained or self.rank is not None

    def usable_cores(self, reading: Reading) -> float:
        return (self.cores if self.limited else None) or reading.cores

    def usable_memory(self, use: Use) -> int | None:
        own = self.memory_bytes if self.limited else None
        return min((each for each in (use.limit_bytes, own) if each), default=None)


@dataclass(frozen=True)
class Use:
    """CPU time that was used in all, in seconds, and memory in bytes now; None for what is not known."""

    cpu_s: float | None = None
    memory_bytes: int | None = None
    limit_bytes: int | None = None


@dataclass(frozen=True)
class Device:
    """An accelerator: the percent of time that it was at work lately, and its memory."""

    index: int
    percent: float | None
    memory_bytes: int | None
    memory_total_bytes: int | None


Traffic = tuple[int, int]
"""Bytes that came in and went out until now."""


@dataclass(frozen=True)
class Reading:
    """What one look at a node told. `at_s` is by its own clock, from its start.

    `job` is None where the job of the target does not run. `interfaces` and `fabric` (InfiniBand, EFA, which
    the kernel's network does not see) are by name. `devices` is None where their use cannot be read, or was
    not asked for.
    """

    at_s: float
    cores: float
    node: Use
    job: Use | None
    interfaces: dict[str, Traffic]
    fabric: dict[str, Traffic]
    devices: tuple[Device, ...] | None


def fleet_targets(fleet: FleetState) -> tuple[Target, ...]:
    contained = fleet.simulated or fleet.backend == "local"
    return tuple(
        Target(
            node,
            contained or node.is_pod,
            fleet.simulated,
            cores=node.cpus,
            memory_bytes=_bytes(node.memory_mib),
        )
        for node in fleet.nodes
    )


def run_targets(plan: RunPlan, runtimes: Sequence[JobRuntime]) -> tuple[Target, ...]:
    """The ranks of a run; `runtimes` are those of their nodes."""
    return tuple(
        Target(
            rank.node,
            plan.on_containers or rank.node.is_pod,
            plan.simulated,
            rank.rank,
            plan.container(rank.rank),
            runtime.job_process(plan, rank.rank),
            _least(share.cpus, rank.max_cpus),
            _bytes(_least(share.memory_mib, rank.max_memory_mib)),
            None if rank.whole else share_of(rank.node, 1).gpus,
        )
        for rank, runtime in zip(plan.ranks, runtimes, strict=True)
        for share in (share_of(rank.node, rank.blocks),)
    )


def look(
    targets: Sequence[Target],
    connector: Connector,
    *,
    devices: bool = True,
    deadline_s: float = LOOK_S,
    until: threading.Event | None = None,
) -> tuple[NodeResult[Reading], ...]:
    """Look at each target at once. A node that does not answer is an error in its place.

    `deadline_s`, `until`: as in `Connector.run`."""
    by_node = {target.node.name: target for target in targets}

    def read(node: NodeState) -> Reading:
        target = by_node[node.name]
        asked = command(target, devices=devices)
        done = connector.run(node, asked, deadline_s=deadline_s, until=until)
        return reading(target, done.stdout)

    return fan_out([target.node for target in targets], read)


def command(target: Target, *, devices: bool = True) -> Command:
    """Asks a node what it and the job use."""
    return Command(as_root(script(target, devices=devices)), "ask what is used", timeout_s=20.0)


def script(target: Target, *, devices: bool = True) -> str:
    """What a node is asked, as root; `reading` reads the answer."""
    access = device_access(target.node.gpus) if devices and not target.simulated else None
    return render(
        "node-metrics.sh.j2",
        home=NODE_HOME,
        contained=target.contained,
        job=ShellText(target.job),
        name=target.container,
        devices=access.use if access is not None else None,
    )


def reading(target: Target, text: str) -> Reading:
    """The answer of a node. Raises RunnerError when it tells no time."""
    lines = [line.split() for line in text.splitlines()]
    told = {tuple(words[:-1]): words[-1] for words in lines if words}
    at_s = _number(told.get(("at",)))
    if at_s is None:
        raise RunnerError(
            f"node {target.node.name} does not tell what it uses",
            where=target.node.name,
            detail=text.strip().partition("\n")[0][:200] or "it answers nothing",
        )
    cores = _number(told.get(("cores",))) or 1.0
    total = _kib(told.get(("MemTotal",)))
    available = _kib(told.get(("MemAvailable",)))
    if target.contained:
        node = _use("node", told, total)
    else:
        ticks = _number(told.get(("ticks",))) or 100.0
        stat = next((words[1:] for words in lines if words[:1] == ["stat"]), [])
        busy = [_number(word) or 0.0 for at, word in enumerate(stat[:8]) if at not in (3, 4)]  # idle, iowait
        used = total - available if total is not None and available is not None else None
        node = Use(sum(busy) / ticks if busy else None, used, total)
    blocks = {_number(words[1]) for words in lines if len(words) == 2 and words[0] == "block"}
    return Reading(
        at_s,
        cores,
        node,
        _use("job", told, total) if ("job", "alive") in told else None,
        _interfaces(lines),
        {words[2]: traffic for words in lines if (traffic := _traffic(words, "fabric"))},
        None if target.simulated else _devices(lines, target.per_block, blocks),
    )


def _use(of: str, told: dict[tuple[str, ...], str], total: int | None) -> Use:
    ns, us = _number(told.get((of, "cpu_ns"))), _number(told.get((of, "cpu_us")))
    memory, cache = _number(told.get((of, "memory"))), _number(told.get((of, "cache"))) or 0
    limit = _number(told.get((of, "limit")))  # "max", or more than there is, where there is none
    return Use(
        ns / 1e9 if ns is not None else us / 1e6 if us is not None else None,
        # What was read from files and is not in use goes when memory is short: Docker leaves it out too.
        None if memory is None else max(0, int(memory - cache)),
        int(limit) if limit is not None and (total is None or limit < total) else total,
    )


def _interfaces(lines: Iterable[Sequence[str]]) -> dict[str, Traffic]:
    """Those that are devices; of a node without any (a container), the virtual ones."""
    found: dict[str, dict[str, Traffic]] = {"device": {}, "virtual": {}}
    for words in lines:
        if (traffic := _traffic(words, "net")) and words[1] in found:
            found[words[1]][words[2]] = traffic
    return found["device"] or found["virtual"]


def _traffic(words: Sequence[str], of: str) -> Traffic | None:
    """Of a line `net KIND NAME IN OUT` or `fabric BYTES NAME IN OUT`."""
    if len(words) != 5 or words[0] != of:
        return None
    received, sent = _number(words[3]), _number(words[4])
    if received is None or sent is None:
        return None
    unit = 4 if (of, words[1]) == ("fabric", "4") else 1
    return int(received) * unit, int(sent) * unit


def _devices(
    lines: Iterable[Sequence[str]], per_block: int | None, blocks: Collection[float | None]
) -> tuple[Device, ...] | None:
    """The devices of the node, or those of the job's blocks; None where none told anything."""
    devices = list[Device]()
    for words in lines:
        cells = [cell.strip() for cell in " ".join(words[1:]).split(",")]
        if words[:1] != ["gpu"] or len(cells) != 4 or (index := _number(cells[0])) is None:
            continue
        if per_block is None or (per_block and index // per_block in blocks):
            percent, used, total = map(_number, cells[1:])
            devices.append(Device(int(index), percent, _bytes(used), _bytes(total)))
    return tuple(sorted(devices, key=lambda each: each.index)) or None


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and _NUMBER.fullmatch(text) else None


def _kib(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None else int(number) * 1024


def _bytes(mib: float | None) -> int | None:
    return None if mib is None else int(mib) << 20


def _least(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)
