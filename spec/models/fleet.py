"""`type: fleet`: nodes that belong together."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field

from orch.spec import values
from orch.spec.suggest import closest
from orch.spec.values import Problem, shown

from .base import Section
from .fields import Env, Flag, Name, Tags, Text, choice, duration, text, whole
from .resources import Resources

DEFAULT_IDLE_S = 3 * 86_400
MAX_NODES = 100_000

# Backends of the language, and names known from elsewhere that have no driver.
BACKENDS = (
    "local",
    "aws",
    "gcp",
    "nebius",
    "crusoe",
    "runpod",
    "lambda",
    "kubernetes",
    "azure",
    "oci",
    "ssh",
)
FOREIGN_BACKENDS = (
    "amddevcloud", "cloudrift", "cudo", "datacrunch", "digitalocean", "dstack", "hotaisle",
    "jarvislabs", "slurm", "tensordock", "vastai", "verda", "vultr",
)  # fmt: skip


def _count(part: str) -> int:
    return values.parse_int(part, low=0, high=MAX_NODES, what="a number of nodes")


class Nodes(Section):
    """How many: at least `min`, `target` when created, at most `max` (None: no bound). A range starts at
    its minimum.
    """

    noun: ClassVar[str] = "`nodes`"

    min: Annotated[int, whole(0, MAX_NODES)] = Field(default=0, description="Never fewer than this.")
    target: Annotated[int, whole(0, MAX_NODES)] = Field(description="Created at first.")
    max: Annotated[int | None, whole(0, MAX_NODES)] = Field(default=None, description="Never more than this.")

    @classmethod
    def expand(cls, data: object) -> object:
        if isinstance(data, (str, int)):
            written = text(data)
            dashed = written.replace(" ", "").split("-")
            if len(dashed) == 2 and all(part.isascii() and part.isdigit() for part in dashed):
                fixed = "..".join(dashed)
                raise Problem(
                    "ORCH112", f"{shown(written)} is not a range", hint=f"write `{fixed}`", replacement=fixed
                )
            low, high = values.parse_range(written, _count)
            data = {"min": low or 0, "target": low or 0, "max": high}
        if isinstance(data, dict):
            data = _ordered(dict(cast("dict[str, object]", data)))
        return cast(object, data)

    @classmethod
    def form(cls) -> str:
        return "write `2`, `2..8` or `{min: 1, target: 2, max: 8}`"


def _ordered(written: dict[str, object]) -> dict[str, object]:
    """Fills in `target` from `min`, and refuses ends out of order. Ends that do not read are left to their
    fields.
    """
    try:
        ends = {
            key: _count(text(written[key]))
            for key in ("min", "target", "max")
            if written.get(key) is not None
        }
    except Problem:
        written.setdefault("target", 0)
        return written
    low, high = ends.get("min", 0), ends.get("max")
    target = ends.get("target", low)
    if high is not None and low > high:
        turned = f"{high}..{low}"
        raise Problem("ORCH122", "the range runs backwards", hint=f"write `{turned}`")
    if target < low:
        raise Problem(
            "ORCH123", f"target {target} is below min {low}", hint=f"write a target of {low} or more"
        )
    if high is not None and target > high:
        raise Problem(
            "ORCH123", f"target {target} is above max {high}", hint=f"write a target of {high} or less"
        )
    return {**written, "target": target}


def _backends(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise Problem("ORCH112", "a list of backends is expected", hint=f"write `[{text(value, 'a list')}]`")
    read: list[str] = []
    for index, item in enumerate(cast("list[object]", value)):
        try:
            name = text(item, "a backend")
        except Problem as problem:
            problem.at = (index,)
            raise
        if name not in (*BACKENDS, *FOREIGN_BACKENDS):
            match = closest(name, (*BACKENDS, *FOREIGN_BACKENDS))
            hint = f"did you mean '{match}'?" if match else f"known are {', '.join(BACKENDS)}"
            raise Problem(
                "ORCH116", f"unknown backend {shown(name)}", hint=hint, replacement=match, at=(index,)
            )
        read.append(name)
    return tuple(read)


Backends = Annotated[tuple[str, ...], BeforeValidator(_backends)]


def _blocks(value: object) -> int | str:
    written = text(value)
    if written == "auto":
        return written
    return values.parse_int(written, low=1, high=1024, what="a number of blocks or `auto`")


class Fleet(Section):
    """Nodes created together, interconnected when `placement` is `cluster`."""

    noun: ClassVar[str] = "a fleet"
    spellings: ClassVar[dict[str, str]] = {"backend": "backends"}
    listed_spellings: ClassVar[frozenset[str]] = frozenset({"backend"})

    type: Literal["fleet"] = Field(default="fleet", description="`fleet`.")
    name: Name = Field(
        default="", description="Its identity; the file's name if not given. Renaming replaces the fleet."
    )
    placement: Annotated[Literal["any", "cluster"], choice("any", "cluster")] = Field(
        default="any", description="`cluster`: interconnected nodes, needed by distributed tasks."
    )
    nodes: Nodes | None = Field(
        default=None, description="How many nodes: `4`, `0..8`, `{min, target, max}`."
    )
    resources: Resources = Field(default=Resources(), description="What each node must have.")
    backends: Backends = Field(
        default=("local",), description="Where nodes may be created. `local`: containers on this machine."
    )
    idle_duration_s: Annotated[int | None, duration(DEFAULT_IDLE_S)] = Field(
        default=DEFAULT_IDLE_S,
        validation_alias="idle_duration",
        description="A node without a job for this long is terminated.",
    )
    blocks: Annotated[int | Literal["auto"], BeforeValidator(_blocks)] = Field(
        default=1, description="Jobs that may share a node."
    )
    env: Env = Field(default={}, description="Variables given to every job.")
    tags: Tags = Field(default={}, description="Tags of the nodes.")
    image: Text | None = Field(default=None, description="Container image of jobs that name none.")
    protect: Flag = Field(default=False, description="Refuse to delete or replace the fleet.")

    @classmethod
    def expand(cls, data: object) -> object:
        """A plain `nodes: N` beside a written `idle_duration` may shrink to nothing when idle."""
        if isinstance(data, dict):
            written = cast("dict[str, object]", data)
            nodes, idle = written.get("nodes"), written.get("idle_duration", written.get("idle_duration_s"))
            plain = isinstance(nodes, int) or (isinstance(nodes, str) and nodes.isascii() and nodes.isdigit())
            if idle is not None and plain and not isinstance(nodes, bool):
                return {**written, "nodes": {"min": "0", "target": nodes, "max": nodes}}
        return cast(object, data)
