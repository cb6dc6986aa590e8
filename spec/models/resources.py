"""`resources`: what one node must have. One number is a minimum for CPUs and memory, exact for disk and GPU
counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field

from orch.spec.grammar import hardware, values
from orch.spec.grammar.values import Problem, shown
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.fields.parsing import Reads
from orch.spec.models.fields.types import Size, choice, text
from orch.spec.suggest import hint_for

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
        values.check_order(low, high, render)
        return Range.of((low, high))

    return Reads(validate, form, write=write)


def _minimum_size(written: str) -> Ends:
    low, high = values.parse_range(written, values.parse_size, values.render_size)
    return (low, high) if values.is_range(written) else (low, None)


def _exact_size(written: str) -> Ends:
    return values.parse_range(written, values.parse_size, values.render_size)


def _capability(written: str) -> Ends:
    def end(part: str) -> float:
        if part.replace(".", "", 1).isascii() and part.replace(".", "", 1).isdigit() and len(part) <= 5:
            return float(part)
        raise Problem(
            "ORCH121", f"{shown(part)} is not a compute capability", hint="such as `8.0` or `9.0..`"
        )

    low, high = values.parse_range(written, end)
    return (low, high) if values.is_range(written) else (low, None)


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


_exact = range_of(_exact_size, json_schema.SIZES, values.render_size)
_SIZED: Form = {
    "type": "object",
    "title": "{size}",
    "additionalProperties": False,
    "required": ["size"],
    "properties": {"size": json_schema.SIZES},
}
CountRange = Annotated[Range, range_of(hardware.parse_gpu_count, json_schema.COUNTS)]
CpuCount = Annotated[Range, range_of(hardware.parse_cpu_count, json_schema.COUNTS)]
MemoryRange = Annotated[Range, range_of(_minimum_size, json_schema.SIZES, values.render_size)]
DiskRange = Annotated[
    Range,
    Reads(_disk, json_schema.either("size range or {size}", json_schema.SIZES, _SIZED), write=_exact.write),
]
GpuMemory = Annotated[Range, range_of(hardware.parse_gpu_memories, json_schema.SIZES, values.render_size)]
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
            arch, count = hardware.parse_cpu(text(data))
            return {"arch": arch, "count": Range.of(count)}
        return data


def _vendor(value: object) -> str:
    word = text(value).lower()
    if word in hardware.VENDORS:
        return hardware.VENDORS[word]
    known = tuple(hardware.VENDORS)
    raise Problem(
        "ORCH111",
        f"{shown(word)} is not a GPU vendor",
        hint=hint_for(word, known) or f"use {', '.join(known)}",
    )


def _gpu_names(value: object) -> tuple[str, ...]:
    names = cast("list[object]", value) if isinstance(value, (list, tuple)) else text(value).split(",")
    return tuple(hardware.check_gpu_name(text(name).strip()) for name in names)


class GpuSpec(Section):
    """`H100:8`, `24GB`, `nvidia:40GB..80GB:1..8`, or a mapping. By default none is asked for or refused."""

    noun: ClassVar[str] = "`gpu`"
    short: ClassVar[tuple[Form, ...]] = (json_schema.GPU,)

    vendor: Annotated[str | None, Reads(_vendor, json_schema.words(*hardware.VENDORS))] = Field(
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
        request = hardware.parse_gpu(text(data))
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
