"""Deciding about a run of many nodes: placement, plan and environments, at 256, 1,024 and 4,096 nodes.

Nothing is started: nodes are records. The last figure compares the time at a size with four times the time
of the size before, which shows what grows faster than the number of nodes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.measure import ROOT

SIZES = (256, 1024, 4096)
ROUNDS = 3


@dataclass(frozen=True)
class Growth:
    """Seconds of one step by number of nodes."""

    what: str
    seconds: tuple[float, ...]

    def __str__(self) -> str:
        times = ", ".join(
            f"{size:,} nodes {each:.3f} s" for size, each in zip(SIZES, self.seconds, strict=True)
        )
        worst = max(
            large / (4 * small) for small, large in zip(self.seconds[:-1], self.seconds[1:], strict=True)
        )
        return f"{self.what}: {times}; at most {worst:.2f} times of linear"


def figures() -> Iterator[Growth]:
    sys.path.insert(0, str(ROOT / "tests"))
    from pureruns import fleet, node

    from orch.runner.launch.compile import RunRequest, compile_run
    from orch.runner.placement.placement import place_task
    from orch.spec.models import Task

    gpus = {"count": 8, "name": "H100", "memory_mib": 81920, "vendor": "nvidia"}
    fleets = {
        size: fleet(
            *(node(i, internal_ip=f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}", gpus=gpus) for i in range(size))
        )
        for size in SIZES
    }

    def task(size: int) -> Task:
        return Task.model_validate({"torchrun": {"program": "train.py"}, "slurm_env": True, "nodes": size})

    def compiled(size: int) -> object:
        on, wanted = fleets[size], task(size)
        seats = place_task(wanted, on)
        return compile_run(RunRequest(wanted, "job", 1, on, seats, "image", Path("/base")))

    yield Growth("place_task", tuple(_best(lambda n=n: place_task(task(n), fleets[n])) for n in SIZES))
    yield Growth("place_task and compile_run", tuple(_best(lambda n=n: compiled(n)) for n in SIZES))


def _best(work: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
