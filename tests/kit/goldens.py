"""Recorded outcomes of named cases, in one file: a few in full, the others as differences from one of those.

A difference is `{"base": NAME, POINTER: VALUE, ...}`. A pointer is a JSON pointer (RFC 6901) into the base:
`/a/b` sets a value, `-/a/b` removes it, and `/a/2:4` replaces these items of a list.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from difflib import SequenceMatcher
from functools import cache, cached_property
from pathlib import Path
from typing import Any

WIDTH = 110


def difference(base: Any, other: Any, at: str = "") -> dict[str, Any]:
    """Return the changes that turn one JSON value into another one of the same type."""
    found = dict[str, Any]()
    if isinstance(base, dict) and isinstance(other, dict):
        found |= {f"-{at}/{_escaped(key)}": None for key in base if key not in other}
        for key, value in other.items():
            place = f"{at}/{_escaped(key)}"
            found |= difference(base[key], value, place) if key in base else {place: value}
    elif isinstance(base, list) and isinstance(other, list):
        texts = [[json.dumps(item) for item in items] for items in (base, other)]
        for kind, start, end, first, last in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
            if kind == "replace" and end - start == last - first:
                for index, value in enumerate(other[first:last], start):
                    found |= difference(base[index], value, f"{at}/{index}")
            elif kind != "equal":
                found[f"{at}/{start}:{end}"] = other[first:last]
    elif type(base) is not type(other) or base != other:
        found[at] = other
    return found


def applied(base: Any, changes: Mapping[str, Any]) -> Any:
    """Return a copy of the base with the changes."""
    result = deepcopy(base)
    for pointer, value in reversed(changes.items()):  # so that a change of a list moves no place of another
        *way, last = (_plain(part) for part in pointer.split("/")[1:])
        holder = result
        for part in way:
            holder = holder[int(part) if isinstance(holder, list) else part]
        if isinstance(holder, list):
            holder[slice(*map(int, last.split(":"))) if ":" in last else int(last)] = value
        elif pointer.startswith("-"):
            del holder[last]
        else:
            holder[last] = value
    return result


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _plain(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def rendered(value: Any, indent: int = 0, lead: int = 0) -> str:
    """Return JSON text with each value that fits on one line. `lead`: columns taken before it."""
    line = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, (dict, list)) or lead + len(line) < WIDTH:
        return line
    margin = "\n" + " " * (indent + 1)
    if isinstance(value, list):
        items = [rendered(item, indent + 1, indent + 1) for item in value]
    else:
        heads = {f"{json.dumps(key, ensure_ascii=False)}: ": item for key, item in value.items()}
        items = [head + rendered(item, indent + 1, indent + 1 + len(head)) for head, item in heads.items()]
    opening, closing = ("[", "]") if isinstance(value, list) else ("{", "}")
    return f"{opening}{margin}{f',{margin}'.join(items)}{margin[:-1]}{closing}"


class Goldens:
    """The file of a set of cases.

    `outcomes` computes what the cases become now. The file is rewritten with it when
    `ORCHCTL_REWRITE_GOLDEN` is set.
    """

    def __init__(self, file: Path, outcomes: Callable[[], Mapping[str, Any]]) -> None:
        self.file, self.outcomes = file, outcomes

    @cached_property
    def records(self) -> dict[str, Any]:
        recorded = json.loads(self.file.read_text("utf-8")) if self.file.exists() else {}
        if not os.environ.get("ORCHCTL_REWRITE_GOLDEN"):
            return recorded
        found = records_of(self.outcomes(), {name: _base(record) for name, record in recorded.items()})
        # Processes of one session all write the same.
        written = self.file.with_suffix(f".{os.getpid()}")
        written.write_text(rendered(found) + "\n", "utf-8")
        written.replace(self.file)
        return found

    def outcome(self, name: str) -> Any:
        """Return what is recorded for a case. Raises KeyError if nothing is."""
        record = self.records[name]
        base = _base(record)
        if base is None:
            return record
        return applied(self.outcome(base), {key: value for key, value in record.items() if key != "base"})


def _base(record: Any) -> str | None:
    return record.get("base") if isinstance(record, dict) else None


def records_of(outcomes: Mapping[str, Any], bases: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the record of each outcome, by name.

    A case keeps its base. A new one gets the base that leaves the shortest record, if that is at most half as
    long as the outcome in full.
    """

    @cache
    def record(name: str, base: str | None) -> Any:
        outcome = outcomes[name]
        return outcome if base is None else {"base": base, **difference(outcomes[base], outcome)}

    @cache
    def length(name: str, base: str | None) -> int:
        lines = rendered(record(name, base)).count("\n") + 1
        return lines if base is None or 2 * lines <= length(name, None) else 2 * length(name, None)

    kept = {name: base for name, base in bases.items() if {name, base or name} <= outcomes.keys()}
    while new := [name for name in outcomes if name not in kept]:
        # A base is written in full, or is a difference from one that is.
        near = (None, *(name for name, base in kept.items() if kept.get(base or name) is None))
        _, name, base = min((length(name, base), name, base or "") for name in new for base in near)
        kept[name] = base or None
    return {name: record(name, kept[name]) for name in sorted(outcomes)}
