"""`torchrun` and `mpirun`: distributed launchers, as one line of text or as a mapping."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field

from orch.spec.grammar import values
from orch.spec.grammar.characters import check_line, check_word
from orch.spec.grammar.interpolate import split_words
from orch.spec.grammar.values import Problem
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.fields.parsing import Reads
from orch.spec.models.fields.types import Args, EnvNames, Flag, Text, choice, duration, text, whole

Port = Annotated[int | None, whole(1, 65_535)]


def _master(value: object) -> int | None:
    written = text(value)
    return values.parse_int(written.removeprefix("rank").strip(), low=0, what="a rank, such as `0`")


def _written_span(pair: object) -> object:
    low, high = cast("tuple[int, int]", pair)
    return f"{low}..{high}"


def _settings(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Problem(
            "ORCH112",
            "a mapping of rendezvous settings is expected",
            hint="write `key: value` lines below it",
        )
    return {check_word(key): check_line(text(item)) for key, item in cast("dict[str, object]", value).items()}


def _elastic(value: object) -> tuple[int, int]:
    if isinstance(value, (list, tuple)):
        return cast("tuple[int, int]", tuple(cast("list[int]", value)))
    written = text(value)
    if ":" in written and ".." not in written:
        fixed = written.replace(":", "..", 1)
        raise Problem(
            "ORCH122", "a range is written with two dots", hint=f"write `{fixed}`", replacement=fixed
        )
    low, high = values.parse_range(
        written, lambda end: values.parse_int(end, low=1, what="a number of nodes")
    )
    if low is None or high is None:
        raise Problem("ORCH122", "both ends are needed here", hint="write `2..4`")
    return low, high


class Rdzv(Section):
    """Where and how torchrun's agents find each other."""

    noun: ClassVar[str] = "`rdzv`"

    backend: Annotated[Literal["static", "c10d"] | None, choice("static", "c10d")] = Field(
        default=None, description="`static`; `c10d` when elastic or restarting."
    )
    port: Port = Field(default=None, description="A free port from 29500 on.")
    host: Annotated[
        int | None, Reads(_master, json_schema.either("rank", json_schema.number(0), json_schema.TEXT))
    ] = Field(default=None, description="Rank of the node to meet on.")
    timeout_s: Annotated[int, duration(never=False)] = Field(
        default=900, validation_alias="timeout", description="How long to wait for all."
    )
    conf: Annotated[dict[str, str], Reads(_settings, json_schema.mapping(json_schema.TEXT, "settings"))] = (
        Field(default={}, description="More settings, passed as they are.")
    )


class Torchrun(Section):
    """torchrun on every node; rank, count and master are filled in."""

    noun: ClassVar[str] = "`torchrun`"
    short: ClassVar[tuple[Form, ...]] = (json_schema.TEXT,)

    program: Text | None = Field(default=None, description="The script.")
    module: Text | None = Field(default=None, description="A module instead of a script.")
    args: Args = Field(default=(), description="Its arguments, text or a list.")
    nproc_per_node: Annotated[int | None, whole(1, 4096)] = Field(
        default=None, description="Processes; GPUs of the node, else 1."
    )
    nnodes: Annotated[
        tuple[int, int] | None,
        Reads(
            _elastic, json_schema.pattern("min..max", r"[0-9]+\s*\.\.\s*[0-9]+|[0-9]+"), write=_written_span
        ),
    ] = Field(default=None, description="`min..max`: elastic; max is at most `nodes`.")
    max_restarts: Annotated[int, whole(0, 1000)] = Field(
        default=0, description="Restarts of the worker group."
    )
    rdzv: Rdzv = Field(default=Rdzv(), description="Rendezvous.")
    extra: Args = Field(default=(), description="More flags of torchrun.")

    @classmethod
    def expand(cls, data: object) -> object:
        if isinstance(data, str):
            words = _line("torchrun", data)
            if words[0] in ("-m", "--module"):
                if len(words) < 2:
                    raise Problem(
                        "ORCH155", "no module follows `-m`", hint="write `torchrun: -m package.train`"
                    )
                return {"module": words[1], "args": list(words[2:])}
            return {"program": words[0], "args": list(words[1:])}
        return data

    @classmethod
    def form(cls) -> str:
        return "write `torchrun: train.py --epochs 3`"


class Mpirun(Section):
    """mpirun on rank 0; the other nodes wait for its processes."""

    noun: ClassVar[str] = "`mpirun`"
    short: ClassVar[tuple[Form, ...]] = (json_schema.TEXT,)

    program: Text = Field(description="The executable.")
    args: Args = Field(default=(), description="Its arguments, text or a list.")
    nproc_per_node: Annotated[int | None, whole(1, 4096)] = Field(
        default=None, description="Ranks per node; GPUs, else 1."
    )
    np: Annotated[int | None, whole(1, 1_000_000)] = Field(default=None, description="Ranks in all.")
    hostfile: Annotated[
        Literal["openmpi", "mpich", "intel", "deepspeed", "plain"] | None,
        choice("openmpi", "mpich", "intel", "deepspeed", "plain"),
    ] = Field(default=None, description="Form of the hostfile; follows `mpi`.")
    mpi: Annotated[
        Literal["auto", "openmpi", "mpich", "intel"], choice("auto", "openmpi", "mpich", "intel")
    ] = Field(default="auto", description="Which MPI the image holds.")
    bind_to: Text = Field(default="none", description="Binding of ranks to cores.")
    export: EnvNames = Field(default=(), description="Variables passed to all ranks, besides `env`.")
    torch_env: Flag = Field(default=False, description="Set RANK, LOCAL_RANK and WORLD_SIZE per rank.")
    extra: Args = Field(default=(), description="More flags of mpirun.")

    @classmethod
    def expand(cls, data: object) -> object:
        if isinstance(data, str):
            words = _line("mpirun", data)
            return {"program": words[0], "args": list(words[1:])}
        return data

    @classmethod
    def form(cls) -> str:
        return "write `mpirun: ./allreduce --steps 10`"


def _line(launcher: str, written: str) -> tuple[str, ...]:
    words = split_words(written)
    if not words:
        raise Problem(
            "ORCH155", f"`{launcher}` names no program", hint=f"write `{launcher}: PROGRAM ARGUMENTS`"
        )
    if words[0] in (launcher, "mpiexec", "srun"):
        rest = written.strip().removeprefix(words[0]).strip()
        raise Problem(
            "ORCH155",
            f"`{words[0]}` itself is left out here",
            hint=f"write `{launcher}: {rest}`" if 0 < len(rest) < 60 else "begin with the program",
        )
    if "${{" in words[0]:
        raise Problem("ORCH133", "the program itself cannot come from the job", hint="write its name")
    if words[0].startswith("-") and not (launcher == "torchrun" and words[0] in ("-m", "--module")):
        raise Problem(
            "ORCH155",
            "the program comes first, this is a flag",
            hint="write the mapping form: flags of the launcher go to `extra`, ranks to `nproc_per_node`",
        )
    return words
