"""Reads what a verification printed. Whoever has a node may have written it: nothing of it is trusted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orch.runner.verify.job.bisection import Pair
from orch.spec.errors import visible

MARKER = "orch-verify:"
MOST_LINES = 1_000_000
"""Two thousand nodes have two million pairs: more is nobody's verification."""
MOST_CHARACTERS = 4_096
MOST_RANKS = 100_000

Shared = Literal["all_reduce", "all_gather", "alltoall", "sendrecv"]
Own = Literal["gemm", "memory", "host_to_device", "device_to_host", "cpu", "disk_write", "disk_read"]
Text = Annotated[str, Field(max_length=1_000), AfterValidator(visible)]
Number = Annotated[float, Field(ge=0, lt=1e15, allow_inf_nan=False)]
Rank = Annotated[int, Field(ge=0, lt=MOST_RANKS)]
Bytes = Annotated[int, Field(ge=0, le=1 << 50)]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Start(_Line):
    """How it was done. `nodes`: how many there are."""

    kind: Literal["start"]
    v: Literal[1]
    backend: Literal["nccl", "gloo"]
    library: Text
    torch: Text
    ranks: Annotated[int, Field(ge=1, le=MOST_RANKS)]
    nodes: Annotated[int, Field(ge=1, le=MOST_RANKS)]


class RankPlace(_Line):
    """Where a process is, and its accelerator; "" for none."""

    kind: Literal["rank"]
    rank: Rank
    node: Rank
    card: Text
    memory_mib: Bytes = 0


class Collective(_Line):
    """A size of a collective: GB/s as nccl-tests counts them, and how many values came out wrong."""

    kind: Literal["collective"]
    measure: Shared
    size: Bytes
    seconds: Number
    algbw: Number
    busbw: Number
    wrong: Bytes


class Figure(_Line):
    """What a card (`rank`) or a node (`node`) reaches."""

    kind: Literal["figure"]
    measure: Own
    rank: Rank | None = None
    node: Rank | None = None
    value: Number
    unit: Text
    best: Number | None = None
    slowest: Number | None = None


class PairFigure(_Line):
    """GB/s of two nodes, each way, by messages of `size` bytes; `again`: in the last round, which measures
    suspects."""

    kind: Literal["pair"]
    round: Rank
    a: Rank
    b: Rank
    bandwidth: Number
    again: bool
    size: Bytes = 0


class Skipped(_Line):
    """What was not measured; `node`: there alone."""

    kind: Literal["skipped"]
    measure: Shared | Own | Literal["disk", "pairs"]
    why: Text
    node: Rank | None = None


class UsedTransport(_Line):
    """What NCCL or RCCL of a process used, by its own log; see `job/nccl_log.py`."""

    kind: Literal["transport"]
    rank: Rank
    network: Text | None = None
    family: Text | None = None
    provider: Text | None = None
    gpu_direct: bool | None = None
    devices: Annotated[list[Text], Field(max_length=64)] = []
    channels: Annotated[dict[Text, Bytes], Field(max_length=64)] = {}
    warnings: Annotated[list[Text], Field(max_length=16)] = []


class ProgramError(_Line):
    """Why a process ended early."""

    kind: Literal["error"]
    rank: Rank
    text: Text
    network: Text | None = None
    warnings: Annotated[list[Text], Field(max_length=16)] = []


class End(_Line):
    kind: Literal["end"]
    seconds: Number


Line = Start | RankPlace | Collective | Figure | PairFigure | Skipped | UsedTransport | ProgramError | End
_LINE: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


@dataclass(frozen=True)
class Results:
    """All that a verification printed. `unread`: how many of its lines are none of its program."""

    start: Start | None = None
    ranks: tuple[RankPlace, ...] = ()
    collectives: tuple[Collective, ...] = ()
    figures: tuple[Figure, ...] = ()
    pairs: tuple[PairFigure, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    transports: tuple[UsedTransport, ...] = ()
    errors: tuple[ProgramError, ...] = ()
    seconds: float | None = None
    unread: int = 0

    @property
    def ended(self) -> bool:
        """Whether it measured all that was asked for."""
        return self.start is not None and self.seconds is not None

    @property
    def told(self) -> frozenset[str]:
        """What was measured, or was told to have been skipped: names of `--runs`, and `pairs`."""
        measures = [each.measure for each in (*self.collectives, *self.figures, *self.skipped)]
        names = {name.partition("_")[0] if name.startswith("disk_") else name for name in measures}
        return frozenset(names | ({"pairs"} if self.pairs else set()))

    def measured_pairs(self, *, again: bool) -> dict[Pair, float]:
        return {
            (min(each.a, each.b), max(each.a, each.b)): each.bandwidth
            for each in self.pairs
            if each.again == again and each.a != each.b
        }


def is_result(text: str) -> bool:
    """Whether a line of a log is one of a verification's, and not for people."""
    return text.startswith(MARKER)


def line_of(text: str) -> Line | None:
    """What a line of a log says; None for one that is none, or that does not read."""
    if not is_result(text) or len(text) > MOST_CHARACTERS:
        return None
    try:
        value: Any = json.loads(text.removeprefix(MARKER))
        return _LINE.validate_python(value)
    except (ValueError, RecursionError, ValidationError):
        return None


def read(texts: Iterable[str]) -> Results:
    """The results in the lines of a log. Of what is told twice, the first counts."""
    found: dict[str, list[Any]] = {}
    seen: set[object] = set()
    unread = count = 0
    for text in texts:
        if not is_result(text):
            continue
        count += 1
        line = line_of(text) if count <= MOST_LINES else None
        if line is None:
            unread += 1
            continue
        key = _key(line)
        if key in seen:
            unread += 1
            continue
        seen.add(key)
        found.setdefault(line.kind, []).append(line)
    start: list[Start] = found.get("start", [])
    end: list[End] = found.get("end", [])
    return Results(
        start[0] if start else None,
        tuple(found.get("rank", ())),
        tuple(found.get("collective", ())),
        tuple(found.get("figure", ())),
        tuple(found.get("pair", ())),
        tuple(found.get("skipped", ())),
        tuple(found.get("transport", ())),
        tuple(found.get("error", ())),
        end[0].seconds if end else None,
        unread,
    )


def _key(line: Line) -> object:
    """What a line is about."""
    match line:
        case RankPlace() | UsedTransport() | ProgramError():
            return line.kind, line.rank
        case Collective():
            return line.kind, line.measure, line.size
        case Figure():
            return line.kind, line.measure, line.rank, line.node
        case PairFigure():
            return line.kind, frozenset((line.a, line.b)), line.again
        case Skipped():
            return line.kind, line.measure, line.node
        case _:
            return line.kind
