"""Single properties in engine events: where one lies, what it was and becomes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_STEP = re.compile(r'\.?([^.\[\]"]+)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]')


def steps_of(path: str) -> tuple[str, ...]:
    """The steps of a path of the engine, `ingress[0].ports` or `tags["a.b"]`; indexes sort as numbers."""
    found: list[str] = []
    for key, index, quoted in _STEP.findall(path):
        found.append(f"[{int(index):06d}]" if index else key or quoted.replace('\\"', '"'))
    return tuple(found)


def overlap(one: str, other: str) -> bool:
    """Whether one path leads to what the other leads to, or to a part of it."""
    first, second = steps_of(one), steps_of(other)
    return all(a == b for a, b in zip(first, second, strict=False))


def at(value: Any, path: str) -> Any:
    """What lies at a path; None when nothing does."""
    for step in steps_of(path):
        if isinstance(value, list):
            index = int(step[1:-1]) if step.startswith("[") else -1
            value = value[index] if 0 <= index < len(value) else None
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return value


def between(before: Any, after: Any, path: str, kind: str) -> tuple[Any, Any]:
    """What lies at a path in both, as a change of a kind ("add", "delete", "update-replace").

    Lists that stand for sets come in any order, and a provider counts their members in its own: what only one
    side has then is the difference, whichever index it is told under.
    """
    old, new = at(before, path), at(after, path)
    parent, index, rest = _member(path)
    if index is None:
        return old, new
    lists = at(before, parent), at(after, parent)
    if not all(isinstance(each, list | None) for each in lists):
        return old, new
    gone, came = _unlike(lists[0] or [], lists[1] or []), _unlike(lists[1] or [], lists[0] or [])
    if not rest and kind.startswith("delete") and gone:
        return _one(gone, lists[0] or [], index), None
    if not rest and kind.startswith("add") and came:
        return None, _one(came, lists[1] or [], index)
    if bare(old) == bare(new) and len(gone) == len(came) == 1:
        return at(gone[0], rest), at(came[0], rest)
    return old, new


def bare(value: Any) -> Any:
    """A value for comparing: without what a cloud fills in empty, numbers and booleans as their text."""
    if isinstance(value, Mapping):
        kept = {str(key): bare(item) for key, item in value.items()}
        return {
            key: item for key, item in sorted(kept.items()) if item not in (None, "", "0", "false", [], {})
        }
    if isinstance(value, list):
        return [bare(item) for item in value]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:g}"
    return value


def _member(path: str) -> tuple[str, int | None, str]:
    """The path of the first list on the way, the index in it, and the rest of the way."""
    found = re.search(r"\[(\d+)\]", path)
    if found is None:
        return path, None, ""
    return path[: found.start()], int(found[1]), path[found.end() :].lstrip(".")


def _unlike(these: list[Any], those: list[Any]) -> list[Any]:
    """Members that the other list has no equal of."""
    rest = [bare(each) for each in those]
    found: list[Any] = []
    for each in these:
        if bare(each) in rest:
            rest.remove(bare(each))
        else:
            found.append(each)
    return found


def _one(unlike: list[Any], whole: list[Any], index: int) -> Any:
    """The member at the index where it is one of those that differ, else one of these."""
    if index < len(whole) and whole[index] in unlike:
        return whole[index]
    return unlike[index % len(unlike)]
