"""How `cpu` and `gpu` read: tokens joined with colons, in any order.

`gpu: nvidia:H100:80GB:8` names a vendor, a model, memory per GPU and a count; each may be left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orch.spec.grammar.values import (
    Problem,
    is_range,
    parse_int,
    parse_range,
    parse_size,
    part_of,
    render_size,
    shown,
)

MAX_GPUS = 32
VENDORS = {
    "nvidia": "nvidia",
    "amd": "amd",
    "google": "google",
    "tpu": "google",
    "intel": "intel",
    "tenstorrent": "tenstorrent",
    "tt": "tenstorrent",
}
IntRange = tuple[int | None, int | None]

# Memory sizes that cards are sold with: a count of 80 most likely meant an 80 GB card.
_CARD_GB = frozenset({6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180, 192, 256, 288})


@dataclass(frozen=True)
class GpuRequest:
    """What a GPU text asks for. A count that is not written is `1..`."""

    vendor: str | None = None
    names: tuple[str, ...] = ()
    memory_mib: IntRange | None = None
    count: IntRange = (1, None)


def parse_cpu(text: str) -> tuple[str | None, IntRange]:
    """Architecture and count of `4`, `4..8`, `arm:4..`. One number is a minimum."""
    arch, colon, rest = text.partition(":")
    if not colon:
        arch, rest = "", text
    arch = arch.strip().lower()
    if colon and arch not in ("x86", "arm"):
        raise Problem(
            "ORCH121", f"{shown(arch)} is not a CPU architecture", hint="use `x86` or `arm`, such as `arm:4`"
        )
    return arch or None, parse_cpu_count(rest.strip())


def parse_cpu_count(text: str) -> IntRange:
    """`4` is at least 4 (write `4..4` for exactly 4)."""
    low, high = parse_range(text, lambda end: parse_int(end, low=0, high=4096, what="a number of CPUs"))
    return (low, None) if not is_range(text) else (low, high)


def parse_gpu(text: str) -> GpuRequest:
    """`8`, `H100:8`, `A100:80GB:8`, `24GB`, `40GB..80GB:1..8`, `nvidia:1..8`, `A100,H100:8`.

    Raises Problem ORCH121 naming the token that does not fit, ORCH120 for a unit, ORCH122 for a backwards
    range.
    """
    vendor: str | None = None
    names: tuple[str, ...] | None = None
    memory: IntRange | None = None
    count: IntRange | None = None
    for token in (part.strip() for part in text.split(":")):
        if not token:
            raise Problem("ORCH121", "two colons with nothing between them", hint="such as `H100:80GB:8`")
        if token.lower() in VENDORS:
            _once(vendor, "a vendor", text)
            vendor = VENDORS[token.lower()]
        elif re.fullmatch(r"[0-9]*\s*\.\.\s*[0-9]*|[0-9]+", token):
            _once(count, "a count", text)
            count = parse_gpu_count(token, text)
        elif token[0].isdigit() or token.startswith(".."):
            _once(memory, "memory", text)
            memory = part_of(text, token, parse_gpu_memories)
        else:
            _once(names, "a model", text)
            names = tuple(check_gpu_name(name.strip()) for name in token.split(","))
    return GpuRequest(vendor, names or (), memory, count or (1, None))


def parse_gpu_memories(text: str) -> IntRange:
    """Memory of each GPU, `80GB` or `40GB..80GB`."""
    return parse_range(text, parse_gpu_memory, render_size)


def parse_gpu_count(text: str, whole: str = "") -> IntRange:
    """A count is exact, at most 32 on one node."""
    low, high = parse_range(text, lambda end: parse_int(end, low=0, what="a number of GPUs"))
    most = max(low or 0, high or 0)
    if most <= MAX_GPUS:
        return low, high
    summary = f"this asks for {most} GPUs on one node (limit {MAX_GPUS})"
    fixed = re.sub(rf"(?<![0-9]){most}(?![0-9])", f"{most}GB", whole, count=1)
    if most in _CARD_GB and fixed != whole and not is_range(text):
        raise Problem(
            "ORCH121", summary, hint=f"for {most} GB cards write `{fixed}`; for more GPUs use several nodes"
        )
    raise Problem("ORCH121", summary, hint="use several nodes")


def parse_gpu_memory(text: str) -> int:
    """A size with a unit: a bare number in a GPU text is a count."""
    if re.fullmatch(r"[0-9.]+", text):
        raise Problem(
            "ORCH120",
            f"{shown(text)} has no unit",
            hint=f"write `{text}GB` for memory",
            replacement=f"{text}GB",
        )
    return parse_size(text)


def check_gpu_name(text: str) -> str:
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_\-. ]{0,39}", text):
        return text
    raise Problem(
        "ORCH121", f"{shown(text)} is not the name of a GPU", hint="such as `H100`, or `A100,H100` for either"
    )


def _once(already: object, what: str, text: str) -> None:
    if already is not None:
        raise Problem("ORCH121", f"{shown(text)} names {what} twice", hint="such as `nvidia:H100:80GB:8`")
