"""`resources`: what one node must have, and how its `cpu` and `gpu` read as text.

One number is a minimum for CPUs and memory, exact for disk and GPU counts. A text is tokens joined with
colons, in any order: `gpu: nvidia:H100:80GB:8` names a vendor, a model, memory per GPU and a count; each may
be left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field

from orch.spec.grammar.values import (
    Problem,
    check_order,
    is_range,
    parse_int,
    parse_range,
    parse_size,
    part_of,
    render_size,
    shown,
)
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.fields.parsing import Reads
from orch.spec.models.fields.types import Size, choice, text
from orch.spec.suggest import hint_for

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
    """Request for GPUs, as a GPU text states it. A count that is not written is `1..`."""

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


Ends = tuple[int | None, int | None] | tuple[float | None, float | None]


class Range(Section):
    """From `min` to `max`, both included; None is open."""

    noun: ClassVar[str] = "a range"

    min: int | float | None = None
    max: int | float | None = None

    def __contains__(self, value: float) -> bool:
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    @classmethod
    def of(cls, ends: Ends) -> Range:
        return cls(min=ends[0], max=ends[1])


def range_of(read: Callable[[str], Ends], form: Form, render: Callable[[int], str] = str) -> Reads:
    """A range as text or as `{min, max}`. `read` reads the text form; each end of the mapping reads as a
    single value.
    """

    def write(value: Range) -> str:
        """Always with dots: one value alone is a minimum here and exact there."""
        ends = ["" if end is None else render(cast(int, end)) for end in (value.min, value.max)]
        return "..".join(ends)

    def validate(value: object) -> Range:
        if isinstance(value, Range):
            return value
        if not isinstance(value, dict):
            return Range.of(read(text(value, "a range")))
        ends: dict[str, int | None] = {}
        for key, end in cast("dict[str, object]", value).items():
            if key not in ("min", "max"):
                hint = hint_for(key, ("min", "max")) or "a range has `min` and `max`"
                raise Problem("ORCH110", f"unknown property {shown(key)} in a range", hint=hint, at=(key,))
            try:
                ends[key] = None if end is None else cast(int, read(text(end))[0])
            except Problem as problem:
                problem.at = (key,)
                raise
        low, high = ends.get("min"), ends.get("max")
        if low is None and high is None:
            raise Problem("ORCH122", "a range needs at least one end", hint="write `min`, `max` or both")
        check_order(low, high, render)
        return Range.of((low, high))

    return Reads(validate, form, write=write)


def _minimum_size(written: str) -> Ends:
    low, high = parse_range(written, parse_size, render_size)
    return (low, high) if is_range(written) else (low, None)


def _exact_size(written: str) -> Ends:
    return parse_range(written, parse_size, render_size)


def _capability(written: str) -> Ends:
    def end(part: str) -> float:
        if part.replace(".", "", 1).isascii() and part.replace(".", "", 1).isdigit() and len(part) <= 5:
            return float(part)
        raise Problem(
            "ORCH121", f"{shown(part)} is not a compute capability", hint="such as `8.0` or `9.0..`"
        )

    low, high = parse_range(written, end)
    return (low, high) if is_range(written) else (low, None)


def _disk(value: object) -> object:
    """`{size: 200GB}` as `200GB`."""
    written = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    if "size" not in written:
        return _exact.read(value)
    for key in written:
        if key != "size":
            hint = hint_for(key, ("size",)) or "`disk` has `size`"
            raise Problem("ORCH110", f"unknown property {shown(key)} in `disk`", hint=hint, at=(key,))
    try:
        return _exact.read(written["size"])
    except Problem as problem:
        problem.at = ("size", *problem.at)
        raise


_exact = range_of(_exact_size, json_schema.SIZES, render_size)
_SIZED: Form = {
    "type": "object",
    "title": "{size}",
    "additionalProperties": False,
    "required": ["size"],
    "properties": {"size": json_schema.SIZES},
}
CountRange = Annotated[Range, range_of(parse_gpu_count, json_schema.COUNTS)]
CpuCount = Annotated[Range, range_of(parse_cpu_count, json_schema.COUNTS)]
MemoryRange = Annotated[Range, range_of(_minimum_size, json_schema.SIZES, render_size)]
DiskRange = Annotated[
    Range,
    Reads(_disk, json_schema.either("size range or {size}", json_schema.SIZES, _SIZED), write=_exact.write),
]
GpuMemory = Annotated[Range, range_of(parse_gpu_memories, json_schema.SIZES, render_size)]
Capability = Annotated[Range, range_of(_capability, json_schema.CAPABILITY)]


class CpuSpec(Section):
    """`4`, `4..8`, `arm:4..` or `{arch, count}`."""

    noun: ClassVar[str] = "`cpu`"
    short: ClassVar[tuple[Form, ...]] = (json_schema.CPU,)

    arch: Annotated[Literal["x86", "arm"] | None, choice("x86", "arm")] = Field(
        default=None, description="Architecture."
    )
    count: CpuCount = Field(default=Range(min=2), description="Number of CPUs; one number is a minimum.")

    @classmethod
    def expand(cls, data: object) -> object:
        if isinstance(data, (str, int)):
            arch, count = parse_cpu(text(data))
            return {"arch": arch, "count": Range.of(count)}
        return data


def _vendor(value: object) -> str:
    word = text(value).lower()
    if word in VENDORS:
        return VENDORS[word]
    known = tuple(VENDORS)
    raise Problem(
        "ORCH111",
        f"{shown(word)} is not a GPU vendor",
        hint=hint_for(word, known) or f"use {', '.join(known)}",
    )


def _gpu_names(value: object) -> tuple[str, ...]:
    names = cast("list[object]", value) if isinstance(value, (list, tuple)) else text(value).split(",")
    return tuple(check_gpu_name(text(name).strip()) for name in names)


class GpuSpec(Section):
    """`H100:8`, `24GB`, `nvidia:40GB..80GB:1..8`, or a mapping. By default none is asked for or refused."""

    noun: ClassVar[str] = "`gpu`"
    short: ClassVar[tuple[Form, ...]] = (json_schema.GPU,)

    vendor: Annotated[str | None, Reads(_vendor, json_schema.words(*VENDORS))] = Field(
        default=None, description="Maker of the GPU."
    )
    names: Annotated[tuple[str, ...], Reads(_gpu_names, json_schema.ARGS)] = Field(
        default=(), validation_alias="name", description="Models, any of them."
    )
    count: CountRange = Field(default=Range(min=1), description="GPUs per node.")
    memory_mib: GpuMemory | None = Field(
        default=None, validation_alias="memory", description="Memory of each GPU."
    )
    total_memory_mib: GpuMemory | None = Field(
        default=None, validation_alias="total_memory", description="Memory of all GPUs of a node."
    )
    compute_capability: Capability | None = Field(
        default=None, description="CUDA compute capability; one number is a minimum."
    )

    @classmethod
    def expand(cls, data: object) -> object:
        if not isinstance(data, (str, int)):
            return data
        request = parse_gpu(text(data))
        return {
            "vendor": request.vendor,
            "name": request.names,
            "count": Range.of(request.count),
            "memory": Range.of(request.memory_mib) if request.memory_mib else None,
        }


class Resources(Section):
    """What a node must have at least, or what a container node gets."""

    noun: ClassVar[str] = "`resources`"

    cpu: CpuSpec = Field(default=CpuSpec(), description="CPUs: `4`, `4..8`, `arm:4..`.")
    memory_mib: MemoryRange = Field(
        default=Range(min=8 * 1024), validation_alias="memory", description="Memory; one size is a minimum."
    )
    disk_mib: DiskRange = Field(
        default=Range(min=100 * 1024),
        validation_alias="disk",
        description="Disk; one size is the size created. Of a task: of the disk that its nodes have.",
    )
    shm_size_mib: Size | None = Field(
        default=None, validation_alias="shm_size", description="Shared memory of a job."
    )
    gpu: GpuSpec = Field(
        default=GpuSpec(count=Range(min=0)), description="GPUs: `8`, `H100:8`, `A100:80GB:1..8`."
    )
