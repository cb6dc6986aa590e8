"""Differences between a program's inputs and the recorded state, leaf by leaf. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orch.providers.orch.values import UNKNOWN
from orch.rehearsal.pulumi.schema import Schema


@dataclass(frozen=True)
class PropertyDifference:
    """A difference of one leaf. `path` is as Pulumi writes it (`tags.Name`, `ingress[0].fromPort`)."""

    path: str
    kind: Literal["add", "delete", "update"]
    replaces: bool

    @property
    def top(self) -> str:
        return self.path.replace("[", ".").split(".")[0]


def differences(
    schema: Schema, state: Mapping[str, Any], inputs: Mapping[str, Any]
) -> list[PropertyDifference]:
    """The changes that lead from `state` (what was last read) to `inputs`."""
    changes: list[PropertyDifference] = []
    for name in sorted(inputs):
        if name in schema.inputs and name not in schema.places:
            changes += _compare(schema, name, state.get(name), inputs[name])
    optional = schema.computed | schema.places | set(schema.defaults)
    for name in sorted(schema.inputs - set(inputs) - optional):
        if state.get(name) not in (None, "", [], {}, False, 0):
            changes += _compare(schema, name, state[name], None)
    return changes


def _compare(schema: Schema, name: str, old: Any, new: Any) -> Iterator[PropertyDifference]:
    if name in schema.json and isinstance(old, str) and isinstance(new, str) and _json(old) == _json(new):
        return
    if name in schema.sets and isinstance(old, list) and isinstance(new, list):
        old, new = _align_sets(old, new)
    for path, plain, kind in _leaves(schema, name, name, old, new):
        yield PropertyDifference(path, kind, schema.replaces(plain) or schema.shrinks(plain, old, new))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _leaves(
    schema: Schema, path: str, plain: str, old: Any, new: Any
) -> Iterator[tuple[str, str, Literal["add", "delete", "update"]]]:
    """(path, path without indexes, kind) of each difference."""
    if same(old, new) or (plain in schema.links and refers(old, new)):
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*new, *(key for key in old if key not in new)]:
            below = f"{plain}.{key}"
            if key not in new and not _is_removal(schema, below, old[key]):
                continue
            yield from _leaves(schema, _step(path, key), below, old.get(key), new.get(key))
        return
    if (
        isinstance(old, Sequence)
        and isinstance(new, Sequence)
        and not isinstance(old, str)
        and not isinstance(new, str)
    ):
        for index in range(max(len(old), len(new))):
            before = old[index] if index < len(old) else None
            after = new[index] if index < len(new) else None
            yield from _leaves(schema, f"{path}[{index}]", plain, before, after)
        return
    yield path, plain, "add" if old in (None, "") else "delete" if new is None else "update"


def _is_removal(schema: Schema, plain: str, old: Any) -> bool:
    """Whether a key that only the old value has is a difference: else the cloud filled it in."""
    if plain.partition(".")[0] in schema.maps:
        return old is not None
    return plain in schema.strict and old not in (None, "", [], {})


def _step(path: str, key: str) -> str:
    return f'{path}["{key}"]' if any(mark in key for mark in '."[]') else f"{path}.{key}"


def same(old: Any, new: Any) -> bool:
    """Equal, or the same value in another form: the provider takes "1" for 1 and "true" for true."""
    if new is UNKNOWN or old is UNKNOWN:
        return False
    if old == new and isinstance(old, bool) == isinstance(new, bool):
        return True
    empty = (None, "", [], {})
    if old in empty and new in empty:
        return True
    if isinstance(old, str | int | float) and isinstance(new, str | int | float):
        return _text(old) == _text(new)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(same(a, b) for a, b in zip(old, new, strict=True))
    return False


def refers(old: Any, new: Any) -> bool:
    """Whether two references name the same resource: one by URL, the other by a part of it or by number."""
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    (one, first), (other, second) = _target(old), _target(new)
    if one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}"):
        return True
    numbers = {number for number in (first, second) if number}
    ends = {one.rsplit("/", 1)[-1], other.rsplit("/", 1)[-1]}
    return bool(numbers & ends) and one.rsplit("/", 1)[0] == other.rsplit("/", 1)[0]


def _target(link: str) -> tuple[str, str]:
    """(path after the address of the API, unique number)."""
    path, _, words = link.partition("?uniqueId=")
    for version in ("/compute/v1/", "/compute/beta/"):
        path = path.rpartition(version)[2]
    return path, words


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _align_sets(old: list[Any], new: list[Any]) -> tuple[list[Any], list[Any]]:
    """Two sets as lists with equal members at the same positions."""
    rest = list(old)
    first: list[Any] = []
    for item in new:
        match = next((one for one in rest if covers(one, item)), None)
        if match is not None:
            rest.remove(match)
        first.append(item if match is not None else None)
    for index, item in enumerate(first):
        if item is None and rest:
            first[index] = rest.pop(0)
    return [*first, *rest], list(new)


def covers(old: Any, new: Any) -> bool:
    """Whether `old` equals `new` apart from empty values that the cloud added."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return all(covers(old.get(key), value) for key, value in new.items()) and all(
            value in (None, "", [], {}, False, 0) for key, value in old.items() if key not in new
        )
    if isinstance(old, list) and isinstance(new, list):
        rest = list(old)
        for item in new:
            match = next((one for one in rest if covers(one, item)), None)
            if match is None:
                return False
            rest.remove(match)
        return not rest
    return same(old, new)
