"""A folder of 30 fleets previewed in one go, against 30 previews of one each, on a simulated account."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.measure import BIN, Figure

FLEETS = 30
AIM_S = 60.0

_FLEET = """type: fleet
name: team{index:02}
backends: [aws]
regions: [us-east-1]
instance_types: [p5.48xlarge]
placement: cluster
nodes: {nodes}
"""


@dataclass(frozen=True)
class Cost:
    """Seconds of a command, and the most memory that it and its children had at a time, each page once."""

    seconds: float
    memory_mib: float


def figures() -> Iterator[Figure | str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "orch.yml").write_text("project: bench-folder\n")
        for index in range(FLEETS):
            text = _FLEET.format(index=index, nodes=2 + index % 7)
            (folder / f"team{index:02}.yml").write_text(text)
        orch = str(BIN / "orch")
        # Makes the stacks, the account and the compiled files: what is measured is the same each time.
        _measured([orch, "preview", ".", "--rehearse", "--markdown", "--out", "before.md"], folder)
        whole = _measured([orch, "preview", ".", "--rehearse", "--markdown", "--out", "after.md"], folder)
        single = [
            _measured([orch, "preview", f"team{index:02}.yml", "--rehearse"], folder)
            for index in range(FLEETS)
        ]
        if (folder / "before.md").read_bytes() != (folder / "after.md").read_bytes():
            sys.exit("two reviews of the same folder differ")
    alone = sum(each.seconds for each in single)
    yield Figure(
        f"a folder of {FLEETS} fleets", (whole.seconds,), (alone,), f"{FLEETS} previews one by one", 0.6
    )
    reached = "reached" if whole.seconds <= AIM_S else "MISSED"
    yield (
        f"a folder of {FLEETS} fleets: {whole.seconds:.1f} s (aim {AIM_S:g} s: {reached}), at most "
        f"{whole.memory_mib:.0f} MiB at a time; one preview alone at most "
        f"{max(each.memory_mib for each in single):.0f} MiB"
    )


def _measured(words: list[str], folder: Path) -> Cost:
    start = time.perf_counter()
    process = subprocess.Popen(
        words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    peak = 0
    ended = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not ended.wait(0.25):
            peak = max(peak, sum(map(_pss_kib, _descendants(process.pid))))

    sampler = threading.Thread(target=sample)
    sampler.start()
    out, err = process.communicate()
    ended.set()
    sampler.join()
    if process.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{out}{err}")
    return Cost(time.perf_counter() - start, peak / 1024)


def _descendants(pid: int) -> list[int]:
    """A process and all below it."""
    found, seen = [pid], {pid}
    for each in found:
        try:
            tasks = list(Path(f"/proc/{each}/task").iterdir())
            children = {int(child) for task in tasks for child in (task / "children").read_text().split()}
        except OSError:
            continue
        found += sorted(children - seen)
        seen |= children
    return found


def _pss_kib(pid: int) -> int:
    """Its proportional share of memory: what it shares with others counts in parts."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
