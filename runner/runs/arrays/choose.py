"""Names of several members of an array: what they are on a command line, and what many runs are told as."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orch.runner.errors import BadRunName, UnknownRun
from orch.runner.ledger.arrays import Member
from orch.runner.ledger.records import ArrayKey, RunRow
from orch.spec.grammar.schedule import ArrayRequest, parse_array, render_array
from orch.spec.grammar.values import Problem, shown

if TYPE_CHECKING:
    from orch.runner.ledger.ledger import Ledger

_MEMBERS = re.compile(r"(.+)_\[(.*)\]", re.DOTALL)
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Chosen:
    """An array, and those of its members that were named. `whole`: it was named itself."""

    array: ArrayKey
    members: tuple[Member, ...]
    whole: bool

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(each.id for each in self.members)


def choose(ledger: Ledger, text: str) -> Chosen | None:
    """`sweep`, `sweep_[50-100]`, or `1001_[50-100]` by the array's number; None for what names one run.

    Raises BadRunName (ORCH125) for indexes that cannot be read or that the array does not have, UnknownRun
    where there is no such array.
    """
    written = _MEMBERS.fullmatch(text)
    if written is None:
        array = ledger.arrays.find(text)
        if array is None or _has_newer_run(ledger, array):
            return None
        return Chosen(array, ledger.arrays.members(array), True)
    name, indexes = written[1], _indexes(written[2])
    array = ledger.arrays.find(name)
    if array is None and _NUMBER.fullmatch(name):
        array = ledger.arrays.by_id(int(name))
    if array is None:
        raise UnknownRun(f"no array named {shown(name)}", hint="`orch ps -a` lists all runs")
    members = ledger.arrays.members(array)
    known = {each.index for each in members}
    if missing := [index for index in indexes if index not in known]:
        raise BadRunName(
            f"the array {array.name} has no index {folded(missing)}",
            hint=f"its indexes are {folded(sorted(known))}",
            code="ORCH125",
        )
    chosen = frozenset(indexes)
    return Chosen(array, tuple(each for each in members if each.index in chosen), False)


def folded(indexes: Sequence[int]) -> str:
    """`1-100`, `0-30:2`, `1,3,7-9`: indexes in ascending order as a task has them."""
    spans: list[tuple[int, int, int]] = []
    at = 0
    while at < len(indexes):
        end = at + 1
        step = indexes[end] - indexes[at] if end < len(indexes) else 1
        while end < len(indexes) and indexes[end] - indexes[end - 1] == step:
            end += 1
        if step > 1 and end - at < 3:  # two that are apart are shorter alone
            end = at + 1
        spans.append((indexes[at], indexes[end - 1], step if end - at > 1 else 1))
        at = end
    return render_array(ArrayRequest(tuple(spans)))


def fold_waiting(rows: Sequence[RunRow]) -> tuple[RunRow, ...]:
    """Runs with those members of an array that wait as one, called `sweep_[4-100]`: the one that stands in
    line for nodes, else the first."""
    waiting: dict[tuple[ArrayKey, bool], list[RunRow]] = {}
    for row in rows:
        if row.array is not None and row.status == "pending":
            waiting.setdefault((row.array, bool(row.attempts)), []).append(row)
    shown: list[RunRow] = []
    for row in rows:
        group = (
            waiting.get((row.array, bool(row.attempts))) if row.array and row.status == "pending" else None
        )
        if group is None or len(group) == 1:
            shown.append(row)
        elif row is group[0]:
            first = min(group, key=lambda each: (not each.in_line, each.array_index or 0))
            name = f"{row.array_name}_[{folded(sorted(each.array_index or 0 for each in group))}]"
            shown.append(replace(first, name=name))
    return tuple(shown)


def _indexes(text: str) -> tuple[int, ...]:
    try:
        request = parse_array(text)
    except Problem as problem:
        raise BadRunName(problem.summary, hint=problem.hint, code=problem.code) from problem
    if request.at_once is not None:
        raise BadRunName(
            f"{shown(text)} is not a choice of indexes: `%` limits an array when it is submitted",
            hint=f"write `{text.partition('%')[0]}`",
            code="ORCH125",
        )
    return request.indexes


def _has_newer_run(ledger: Ledger, array: ArrayKey) -> bool:
    """Whether a run of the same name was submitted after it."""
    try:
        return ledger.get(array.name).id > array.id
    except UnknownRun:
        return False
