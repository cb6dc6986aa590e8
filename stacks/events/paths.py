"""Paths of properties, as the engine writes them, and the values there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_STEP = re.compile(r'\.?([^.\[\]"]+)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]')

PLAIN_STEP = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def path_steps(path: str) -> tuple[str, ...]:
    """The steps of a path of the engine, `ingress[0].ports` or `tags["a.b"]`; indexes sort as numbers."""
    steps: list[str] = []
    for key, index, quoted in _STEP.findall(path):
        steps.append(f"[{int(index):06d}]" if index else key or quoted.replace('\\"', '"'))
    return tuple(steps)


def overlap(one: str, other: str) -> bool:
    """Return True if one path is a part of the other, or both are the same."""
    first, second = path_steps(one), path_steps(other)
    return all(a == b for a, b in zip(first, second, strict=False))


def value_at(value: Any, path: str) -> Any:
    """The value at a path; None when there is none."""
    for step in path_steps(path):
        if isinstance(value, list):
            index = int(step[1:-1]) if step.startswith("[") else -1
            value = value[index] if 0 <= index < len(value) else None
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return value


def values_at(before: Any, after: Any, path: str, kind: str) -> tuple[Any, Any]:
    """The values at a path on both sides, as a change of a kind ("add", "delete", "update-replace").

    Lists that stand for sets come in any order, and a provider numbers their members by its own order: then
    the difference is the member that only one side has, whatever index the provider reports.
    """
    old, new = value_at(before, path), value_at(after, path)
    parent, index, rest = _split_at_index(path)
    if index is None:
        return old, new
    lists = value_at(before, parent), value_at(after, parent)
    if not all(isinstance(each, list | None) for each in lists):
        return old, new
    removed = _without_equals(lists[0] or [], lists[1] or [])
    added = _without_equals(lists[1] or [], lists[0] or [])
    if not rest and kind.startswith("delete") and removed:
        return _member_at(removed, lists[0] or [], index), None
    if not rest and kind.startswith("add") and added:
        return None, _member_at(added, lists[1] or [], index)
    if normalized(old) == normalized(new) and len(removed) == len(added) == 1:
        return value_at(removed[0], rest), value_at(added[0], rest)
    return old, new


def normalized(value: Any) -> Any:
    """A value for comparison: without empty fields that a cloud fills in, numbers and booleans as text."""
    if isinstance(value, Mapping):
        fields = {str(key): normalized(item) for key, item in value.items()}
        return {
            key: item for key, item in sorted(fields.items()) if item not in (None, "", "0", "false", [], {})
        }
    if isinstance(value, list):
        return [normalized(item) for item in value]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:g}"
    return value


def _split_at_index(path: str) -> tuple[str, int | None, str]:
    """The path of the first list on the way, the index in it, and the rest of the way."""
    match = re.search(r"\[(\d+)\]", path)
    if match is None:
        return path, None, ""
    return path[: match.start()], int(match[1]), path[match.end() :].lstrip(".")


def _without_equals(members: list[Any], others: list[Any]) -> list[Any]:
    """Members that have no equal in the other list."""
    rest = [normalized(each) for each in others]
    different: list[Any] = []
    for each in members:
        if normalized(each) in rest:
            rest.remove(normalized(each))
        else:
            different.append(each)
    return different


def _member_at(different: list[Any], whole: list[Any], index: int) -> Any:
    """The member at the index if it is one of those that differ, else one of these."""
    if index < len(whole) and whole[index] in different:
        return whole[index]
    return different[index % len(different)]
