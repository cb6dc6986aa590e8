"""Into how many parts a node is cut."""

from __future__ import annotations

from orch.spec.grammar.values import Problem


def blocks_of(setting: int | str, gpus: int, cpus: float) -> int:
    """The blocks of a node with so many GPUs and CPUs; `auto` is one per GPU, without GPUs one per CPU.

    CPUs and memory are divided rounding down. Raises Problem("ORCH147") when the GPUs do not divide.
    """
    if setting == "auto":
        return max(1, gpus or int(cpus))
    blocks = int(setting)
    if gpus % blocks:
        possible = ", ".join(map(str, divisors(gpus)))
        raise Problem(
            "ORCH147", f"{gpus} GPUs do not split into {blocks} blocks", hint=f"possible: {possible}"
        )
    return blocks


def divisors(gpus: int) -> tuple[int, ...]:
    """The blocks that so many GPUs make."""
    return tuple(n for n in range(1, gpus + 1) if gpus % n == 0)
