"""How many: nodes of a fleet, and blocks of a node."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field

from orch.spec.grammar import values
from orch.spec.grammar.hosts import MAX_FOLDED
from orch.spec.grammar.values import Problem, shown
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.fields.parsing import Reads
from orch.spec.models.fields.types import text
from orch.spec.suggest import counted

MAX_NODES = MAX_FOLDED
"""Of a fleet, and so of a run, which stays on one: as many as a folded name has hosts. A fleet is one stack,
and each node takes the engine about 10 ms of a preview (1,000 and 10,000 nodes on Lambda, simulated)."""


def _count(part: str) -> int:
    number = values.parse_int(part, low=0, what="a number of nodes")
    if number > MAX_NODES:
        raise Problem(
            "ORCH119",
            f"{number} nodes are too many for one fleet",
            hint=f"write {MAX_NODES} or less; more nodes are several fleets, for a fleet is one stack, which "
            "the engine plans and writes as a whole",
        )
    return number


_NODES = Reads(lambda value: _count(text(value)), json_schema.number(0, MAX_NODES))


class Nodes(Section):
    """How many: at least `min`, `target` when created, at most `max` (None: no bound). A range starts at
    its minimum.

    `spare` more are made than a file's numbers say, for nodes that fail. The numbers of a model count them,
    so that whoever makes, prices or bounds machines has all of them: `{min: 4, max: 4, spare: 1}` reads as
    five to five nodes, of which one is a spare.
    """

    noun: ClassVar[str] = "`nodes`"
    short: ClassVar[tuple[Form, ...]] = (json_schema.NODE_COUNTS,)

    min: Annotated[int, _NODES] = Field(default=0, description="Never fewer than this.")
    target: Annotated[int, _NODES] = Field(
        description="Created at first; `min` if not given.", json_schema_extra={"optional": True}
    )
    max: Annotated[int | None, _NODES] = Field(default=None, description="Never more than this.")
    spare: Annotated[int, _NODES] = Field(
        default=0,
        description="So many more, which runs get only in place of nodes that fail; 0 if not given.",
    )

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

    @property
    def for_runs(self) -> int | None:
        """Return the maximum number of nodes of a run; None without a bound."""
        return None if self.max is None else self.max - self.spare

    def plain(self) -> object:
        if self.min == self.target and not self.spare:
            return f"{self.min}..{'' if self.max is None else self.max}"
        numbers = {key: value for key, value in dict(self).items() if value is not None}
        if not self.spare:
            del numbers["spare"]
            return numbers
        return {key: value - (self.spare if key != "spare" else 0) for key, value in numbers.items()}


def _ordered(written: dict[str, object]) -> dict[str, object]:
    """Fills in `target` from `min`, refuses ends out of order, and adds `spare` to them. Ends that do not
    read are left to their fields.
    """
    try:
        ends = {
            key: _count(text(written[key]))
            for key in ("min", "target", "max", "spare")
            if written.get(key) is not None
        }
    except Problem:
        written.setdefault("target", 0)
        return written
    low, high, spare = ends.get("min", 0), ends.get("max"), ends.get("spare", 0)
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
    if not spare:
        return {**written, "target": target}
    most = max(target, high or 0)
    if not most and high is not None:
        raise Problem("ORCH123", "spares of a fleet without nodes", hint="write a `max` of 1 or more")
    if most + spare > MAX_NODES:
        raise Problem(
            "ORCH119",
            f"{most} nodes and {counted(spare, 'spare')} are too many for one fleet",
            hint=f"write {MAX_NODES} or less in all",
        )
    high = None if high is None else high + spare
    return {**written, "min": low + spare, "target": target + spare, "max": high}


def _blocks(value: object) -> int | str:
    written = text(value)
    if written == "auto":
        return written
    return values.parse_int(written, low=1, high=1024, what="a number of blocks or `auto`")


Blocks = Annotated[
    int | Literal["auto"],
    Reads(_blocks, json_schema.either("int, auto", json_schema.number(1, 1024), json_schema.words("auto"))),
]
