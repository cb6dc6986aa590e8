"""Timing two commands side by side, and saying the ratio."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Figure:
    """Ours against theirs, both in seconds; `aim` is the ratio that is wanted at most."""

    name: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    against: str
    aim: float

    @property
    def ratio(self) -> float:
        return statistics.median(self.ours) / statistics.median(self.theirs)

    def __str__(self) -> str:
        verdict = "reached" if self.ratio <= self.aim else "MISSED"
        return (
            f"{self.name}: {_said(self.ours)} against {_said(self.theirs)} of {self.against}: "
            f"ratio {self.ratio:.2f} (aim {self.aim:g}: {verdict})"
        )


def side_by_side(
    ours: Callable[[], float], theirs: Callable[[], float], runs: int
) -> tuple[list[float], list[float]]:
    """Both measured `runs` times in turn, after one round that does not count (caches, compiled files)."""
    first, second = in_turn((ours, theirs), runs)
    return list(first), list(second)


def in_turn(measures: Sequence[Callable[[], float]], runs: int) -> tuple[tuple[float, ...], ...]:
    """The same for any number of them."""
    for measure in measures:
        measure()
    rounds = [[measure() for measure in measures] for _ in range(runs)]
    return tuple(zip(*rounds, strict=True))


def timed(words: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> float:
    """Seconds of a command that must succeed."""
    start = time.perf_counter()
    done = subprocess.run(
        words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return seconds


def _said(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"
