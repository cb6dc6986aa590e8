"""The resources of a plan as a tree: one line each, equal ones folded, and their leaves below.

A line has a resource's name and its kind in words of the field, as in the progress of `up`. By default only
leaves that matter to people are shown; `-v` shows every leaf, as the JSON does, and Pulumi's types.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from orch.stacks.events.changes import GONE, Change, PropertyChange, PropertyDrift
from orch.stacks.events.kinds import kind_of
from orch.stacks.events.masking import HIDDEN
from orch.stacks.events.notation import fold, type_of
from orch.stacks.plans.headline import Headline

MARKS = {"create": "+", "update": "~", "replace": "±", "delete": "-", "same": " "}
COLOURS = {"create": "32", "update": "33", "replace": "35", "delete": "31", "same": "2"}

WIDEST = 100
"""Characters of a value that are shown without `-v`."""

MANY = 3
"""From this many on, resources of different types with the same change are folded into one line."""


def tree(
    changes: Iterable[Change], headline: Headline, *, colour: bool = False, verbose: bool = False
) -> list[str]:
    """The lines of what changes. Of a fleet that moves, the nodes alone unless `verbose`."""
    changed = [change for change in changes if change.op != "same"]
    if headline.moves and not verbose:
        return ["  ± every resource of it; -v names them"]
    return [line for group in groups(changed, headline, verbose) for line in group.lines(colour, verbose)]


def drift_lines(drifted: Iterable[PropertyDrift]) -> list[str]:
    """Lines of drift: registered and observed values, equal ones of several resources once."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for each in drifted:
        token = type_of(each.urn)
        # Resources of a cloud may share a name, so the kind is added; ours have names of their own.
        kind = "" if token.startswith("orch:") else f"{kind_of(token)} "
        registered, observed = value_text(each.registered), value_text(each.observed)
        groups.setdefault((kind, each.path, registered, observed), []).append(each.name)
    return [
        f"  {kind}{fold(names)}: {path}: registered {registered}, found {observed}"
        if path
        else f"  {kind}{fold(names)}: {observed}"
        for (kind, path, registered, observed), names in groups.items()
    ]


def paint(text: str, colour: str, on: bool) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if on else text


@dataclass(frozen=True)
class Group:
    """Resources with the same change, and the leaves that all of them have."""

    members: tuple[Change, ...]
    leaves: tuple[PropertyChange, ...]

    def lines(self, colour: bool, verbose: bool) -> Iterator[str]:
        first = self.members[0]
        types = list(dict.fromkeys(each.type for each in self.members))
        names = fold(list(dict.fromkeys(each.name for each in self.members)))
        many = len(self.members)
        kind = kind_of(types[0]) if len(types) == 1 else f"{many} resources of {len(types)} types"
        number = f" ({many})" if len(types) == 1 and many > 1 else ""
        token = f"  {types[0]}" if len(types) == 1 and verbose else ""
        gone = " (drift: the one before is gone)" if first.op == "create" and _is_gone(first) else ""
        yield paint(f"  {MARKS[first.op]} {names}  {kind}{number}{token}{gone}", COLOURS[first.op], colour)
        for leaf in folded(self.leaves, counting=not verbose):
            yield f"      {leaf_text(leaf, WIDEST if not verbose else None)}"


def groups(changes: Sequence[Change], headline: Headline, verbose: bool) -> list[Group]:
    """Folded by type and leaves, then those of several types whose leaves are the same."""
    by_type: dict[tuple[Any, ...], list[Change]] = {}
    leaves: dict[tuple[Any, ...], tuple[PropertyChange, ...]] = {}
    for change in changes:
        visible_leaves = tuple(_of_people(change, headline) if not verbose else _flat(change))
        impersonal = tuple(_own(leaf, change) for leaf in visible_leaves)
        key = (change.op, change.type, _is_gone(change), tuple(map(_comparable, impersonal)))
        by_type.setdefault(key, []).append(change)
        # In a group, the values that differ by resource (name, id, address) become placeholders.
        leaves[key] = impersonal if len(by_type[key]) > 1 else visible_leaves
    across: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for key in by_type:
        alike = not verbose and (key[3] or key[0] == "update")
        across.setdefault((key[0], *key[2:]) if alike else key, []).append(key)
    found: list[Group] = []
    for keys in across.values():
        if sum(len(by_type[key]) for key in keys) < MANY or len(keys) == 1:
            found += [Group(tuple(by_type[key]), leaves[key]) for key in keys]
        else:
            found.append(Group(tuple(each for key in keys for each in by_type[key]), leaves[keys[0]]))
    return found


def _of_people(change: Change, headline: Headline) -> Iterator[PropertyChange]:
    """The leaves that matter to people."""
    for leaf in change.diff:
        if headline.is_redundant(change, leaf):
            continue
        yield from (part for part in _parts(leaf) if not headline.is_redundant(change, part))


def _flat(change: Change) -> Iterator[PropertyChange]:
    for leaf in change.diff:
        yield from _parts(leaf)


def _parts(leaf: PropertyChange) -> Iterator[PropertyChange]:
    """A leaf that holds a mapping or a list on both sides, as the leaves below that differ."""
    old, new = leaf.old, leaf.new
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        pairs = [
            (f'["{key}"]' if re.search(r'[."\[\]]', key) else f".{key}", old.get(key), new.get(key))
            for key in dict.fromkeys([*old, *new])
        ]
    elif isinstance(old, list) and isinstance(new, list):
        pairs = [(f"[{index}]", a, b) for index, (a, b) in enumerate(zip_longest(old, new))]
    else:
        yield leaf
        return
    for step, before, after in pairs:
        if before != after:
            yield from _parts(replace(leaf, path=f"{leaf.path}{step}", old=before, new=after))


def folded(leaves: Sequence[PropertyChange], *, counting: bool) -> Iterator[PropertyChange]:
    """Equal changes of a list's members as one: `networkInterfaces[1-31]`.

    `counting`: members that are added or removed as a whole are counted, whatever they hold.
    """
    groups: dict[tuple[str, Any], list[PropertyChange]] = {}
    for leaf in leaves:
        plain = _INDEX.sub("[]", leaf.path, count=1)
        whole = counting and plain.endswith("[]")
        like = "went" if whole and leaf.new is None else "came" if whole and leaf.old is None else None
        same = like or (str(leaf.old), str(leaf.new))
        groups.setdefault((plain, (same, leaf.replaces, leaf.drift is not None)), []).append(leaf)
    for (plain, (same, *_)), members in groups.items():
        if len(members) == 1 or "[]" not in plain:
            yield from members
            continue
        indices = [_INDEX.search(leaf.path) for leaf in members]
        numbers = fold(f"n{match[1]}" for match in indices if match)
        within = numbers.removeprefix("n").strip("[]")
        path = plain.replace("[]", f"[{within}]", 1)
        if same in ("went", "came"):
            word = f"{len(members)} {'removed' if same == 'went' else 'added'}"
            yield replace(members[0], path=path, old=None, new=_Word(word))
        else:
            yield replace(members[0], path=path)


_INDEX = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True)
class _Word:
    """Text in place of the old and the new value."""

    text: str


def _own(leaf: PropertyChange, change: Change) -> PropertyChange:
    """The leaf with placeholders for the resource's own name, number, id and addresses."""
    return replace(leaf, old=_impersonal(leaf.old, change), new=_impersonal(leaf.new, change))


def _impersonal(value: Any, change: Change) -> Any:
    if isinstance(value, Mapping):
        return {key: _impersonal(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_impersonal(item, change) for item in value]
    if not isinstance(value, str):
        return value
    if change.id and len(change.id) > MANY:
        value = value.replace(change.id, "ID")
    value = value.replace(change.name, "NAME")
    number = re.search(r"-(\d+)$", change.name)
    if number and value.endswith(number[0]):
        value = f"{value[: -len(number[0])]}-N"
    return "ADDRESS" if _is_address(value) else value


def _is_address(value: str) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


def _is_gone(change: Change) -> bool:
    return any(each.observed == GONE for each in change.drift)


def _comparable(leaf: PropertyChange) -> tuple[Any, ...]:
    drift = leaf.drift and (str(leaf.drift.registered), str(leaf.drift.observed))
    return (leaf.path, str(leaf.old), str(leaf.new), leaf.replaces, drift)


def leaf_text(leaf: PropertyChange, widest: int | None) -> str:
    """`path: old -> new`, with whether it replaces the resource and whether it drifted."""
    suffix = " (replaces it)" if leaf.replaces else ""
    drift = ""
    if leaf.drift is not None:
        registered = value_text(leaf.drift.registered, widest)
        restores = registered == value_text(leaf.new, widest)
        drift = " (drift: changed outside orch)" if restores else f" (drift: registered {registered})"
    if isinstance(leaf.new, _Word):
        return f"{leaf.path}: {leaf.new.text}{suffix}{drift}"
    if leaf.old == leaf.new == HIDDEN:
        return f"{leaf.path}: another secret{suffix}{drift}"
    return f"{leaf.path}: {value_text(leaf.old, widest)} -> {value_text(leaf.new, widest)}{suffix}{drift}"


def value_text(value: Any, widest: int | None = None) -> str:
    """A value on one line, as YAML writes it."""
    text = _flow(value)
    return text if widest is None or len(text) <= widest else f"{text[: widest - 1]}…"


def _flow(value: Any) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        items = {key: item for key, item in value.items() if item not in (None, "", [], {})}
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in items.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return str(value) if value != "" else '""'
