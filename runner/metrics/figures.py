"""What was used between two looks at nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orch.runner.metrics.reading import Device, Reading, Target, Traffic
from orch.runner.node_api.connector import NodeResult

NO_JOB = "its job does not run there"


@dataclass(frozen=True)
class Rate:
    """Bytes a second that came in and went out."""

    received: float
    sent: float


@dataclass(frozen=True)
class Figures:
    """What a node, or the job of a rank on it, used between two looks; None for what is not known.

    `problem`: why there is nothing else. `network` and `fabric` are the node's, which jobs share. `devices`
    are those of the job. `simulated`: how many accelerators the node counts that are not there.
    """

    node: str
    rank: int | None
    problem: str | None = None
    cores: float | None = None
    cores_total: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    network: Rate | None = None
    fabric: Rate | None = None
    devices: tuple[Device, ...] | None = None
    simulated: int = 0

    @property
    def silent(self) -> bool:
        """Whether the node did not answer."""
        return self.problem is not None and self.problem != NO_JOB

    @property
    def cpu_percent(self) -> float | None:
        """Of all cores that it may use."""
        return 100 * self.cores / self.cores_total if self.cores is not None and self.cores_total else None

    @property
    def device_percent(self) -> float | None:
        """The mean over its accelerators."""
        known = [each.percent for each in self.devices or () if each.percent is not None]
        return sum(known) / len(known) if known else None


def figures(
    targets: Sequence[Target],
    before: Sequence[NodeResult[Reading]],
    after: Sequence[NodeResult[Reading]],
) -> tuple[Figures, ...]:
    """The figures of each target; without rates where the earlier look failed."""
    return tuple(
        _figures(target, first.value, last)
        for target, first, last in zip(targets, before, after, strict=True)
    )


def _figures(target: Target, before: Reading | None, result: NodeResult[Reading]) -> Figures:
    name, simulated = target.node.name, target.node.gpus.count if target.simulated else 0
    after = result.value
    if after is None:
        error = result.error
        return Figures(name, target.rank, (error.detail or error.summary) if error else "no answer")
    of_job = target.rank is not None
    now = after.job if of_job else after.node
    if now is None:
        return Figures(name, target.rank, NO_JOB, simulated=simulated)
    past = (before.job if of_job else before.node) if before else None
    # A node that has started anew counts from zero.
    seconds = after.at_s - before.at_s if before else 0.0
    used_s = now.cpu_s - past.cpu_s if past and past.cpu_s is not None and now.cpu_s is not None else None
    return Figures(
        name,
        target.rank,
        None,
        used_s / seconds if used_s is not None and used_s >= 0 and seconds > 0 else None,
        target.usable_cores(after),
        now.memory_bytes,
        target.usable_memory(now),
        _rate(before.interfaces, after.interfaces, seconds) if before else None,
        _rate(before.fabric, after.fabric, seconds) if before and after.fabric else None,
        after.devices,
        simulated,
    )


def _rate(before: Mapping[str, Traffic], after: Mapping[str, Traffic], seconds: float) -> Rate | None:
    both = [(before[name], after[name]) for name in after if name in before]
    received = sum(now[0] - past[0] for past, now in both)
    sent = sum(now[1] - past[1] for past, now in both)
    if not both or seconds <= 0 or min(received, sent) < 0:
        return None
    return Rate(received / seconds, sent / seconds)
