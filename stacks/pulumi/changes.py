"""Engine events as typed changes: what will be done, or was, to each resource, down to the property.

Drift and change are kept apart. Drift is what the refresh before a plan found to differ from what was
recorded; a change leads from what is there to what is wanted, whoever caused it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from orch.stacks.pulumi.masking import HIDDEN, KNOWN_LATER, holds_secret, masked_pair

Op = Literal["create", "update", "replace", "delete", "same"]

_STEPS: Mapping[str, Op] = {
    "create": "create",
    "update": "update",
    "delete": "delete",
    "same": "same",
    "replace": "replace",
    "create-replacement": "replace",
    "delete-replaced": "replace",
    "discard": "delete",
}
_WITH_LEAVES = ("update", "replace", "create-replacement")

GONE = "(gone)"


@dataclass(frozen=True)
class Drifted:
    """One property that is not as registered; `observed` "(gone)" at path "" when the whole resource is."""

    urn: str
    name: str
    path: str
    registered: Any
    observed: Any

    def as_json(self) -> dict[str, Any]:
        return {"urn": self.urn, "name": self.name, **self.of_resource()}

    def of_resource(self) -> dict[str, Any]:
        return {"path": self.path, "registered": self.registered, "observed": self.observed}


@dataclass(frozen=True)
class PropertyChange:
    """One leaf that changes, from what is there (`old`) to what is wanted (`new`).

    `replaces`: it cannot change in place. `drift`: what is there is not what was registered.
    """

    path: str
    old: Any
    new: Any
    replaces: bool = False
    drift: Drifted | None = None

    @property
    def follows(self) -> bool:
        """Whether its new value is only known once something else was made."""
        return self.new == KNOWN_LATER and self.drift is None

    def as_json(self) -> dict[str, Any]:
        found = self.drift
        return {
            "path": self.path,
            "old": self.old,
            "new": self.new,
            "replaces": self.replaces,
            "drift": {"registered": found.registered, "observed": found.observed} if found else None,
        }


@dataclass(frozen=True)
class Change:
    """One resource and what becomes of it. `drift`: what was found of it; `id`: what it is called there."""

    op: Op
    type: str
    name: str
    urn: str
    diff: tuple[PropertyChange, ...] = ()
    drift: tuple[Drifted, ...] = ()
    id: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "type": self.type,
            "name": self.name,
            "urn": self.urn,
            "diff": [leaf.as_json() for leaf in self.diff],
            "drift": [each.of_resource() for each in self.drift],
        }


def changes(events: Iterable[Mapping[str, Any]]) -> tuple[Change, ...]:
    """The changes of a preview or an update, one per resource, sorted by urn.

    The stack itself, providers and the engine's own resources are left out; resources that stay are in, as
    `same`. A resource that the refresh found to be gone is in when something becomes of it.
    """
    found: dict[str, Change] = {}
    looked: dict[str, _Look] = {}
    for refreshing, data in _steps(events):
        urn = data["urn"]
        if refreshing:
            # What an earlier step of the same `up` made is no drift to a later one.
            looked.setdefault(urn, _Look.of(data))
            continue
        op = _STEPS.get(data["op"])
        if op is None:
            continue
        before = found.get(urn)
        if before and op == "same":
            continue
        # A replacement comes as several steps; the one that knows the properties wins.
        if before and before.op == "replace" and (op != "replace" or before.diff):
            continue
        look = looked.get(urn, _NOTHING)
        leaves = tuple(_leaves(data, look)) if data["op"] in _WITH_LEAVES else ()
        known = str((data.get("old") or {}).get("id") or "")
        found[urn] = Change(op, data["type"], name_of(urn), urn, leaves, look.drift, known)
    return tuple(found[urn] for urn in sorted(found))


def drifted(events: Iterable[Mapping[str, Any]]) -> tuple[Drifted, ...]:
    """What a refresh, alone or before a plan, found to differ from what was recorded, by urn and path."""
    looked: dict[str, _Look] = {}
    for refreshing, data in _steps(events):
        if refreshing:
            looked.setdefault(data["urn"], _Look.of(data))
    found = [each for look in looked.values() for each in look.drift]
    return tuple(sorted(found, key=lambda each: (each.urn, each.path)))


def found_as_recorded(events: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the refresh before a plan found all as it was recorded.

    Events hide secrets. One that differs changes its resource, so of those that change it is not known.
    """
    for refreshing, data in _steps(events):
        old, new = data.get("old") or {}, data.get("new") or {}
        if refreshing and old.get("outputs") != new.get("outputs"):
            return False
        if not refreshing and data["op"] in _WITH_LEAVES and holds_secret(old):
            return False
    return True


def summary(found: Iterable[Change]) -> dict[str, int]:
    """How many of each, every kind named."""
    counts = {"create": 0, "update": 0, "replace": 0, "delete": 0, "same": 0}
    for change in found:
        counts[change.op] += 1
    return counts


def name_of(urn: str) -> str:
    return urn.rsplit("::", 1)[-1]


def type_of(urn: str) -> str:
    """A resource's own type, without those of its parents."""
    return urn.split("::")[2].rsplit("$", 1)[-1]


def without_values(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """An event of the engine, without the values of a resource that nothing here is told of.

    They are what a resource is made with, or what a refresh found to be as it was. A cloud repeats in each
    node what nodes start with: of a thousand nodes that is a gigabyte of Python.
    """
    begun, done = event.get("resourcePreEvent"), event.get("resOutputsEvent")
    data: Mapping[str, Any] = (begun or done or {}).get("metadata") or {}
    if not data or data["op"] in _WITH_LEAVES:
        return event
    old, new = data.get("old") or {}, data.get("new") or {}
    outputs: Mapping[str, Any] = new.get("outputs") or {}
    unlike = outputs != (old.get("outputs") or {}) or "observed" in outputs
    if done and data["op"] != "create" and unlike:
        return event
    bare = {side: {"id": data[side].get("id")} for side in ("old", "new") if data.get(side)}
    return {"resourcePreEvent" if begun else "resOutputsEvent": {"metadata": {**data, **bare}}}


@dataclass(frozen=True)
class _Look:
    """What the refresh saw of one resource: what was recorded, what is there, and what differs."""

    recorded: Mapping[str, Any] = field(default_factory=dict[str, Any])
    there: Mapping[str, Any] = field(default_factory=dict[str, Any])
    drift: tuple[Drifted, ...] = ()

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> _Look:
        urn, name = data["urn"], name_of(data["urn"])
        old, new = data.get("old") or {}, data.get("new")
        if not new:
            return cls(drift=(Drifted(urn, name, "", "registered", GONE),))
        outputs: Mapping[str, Any] = new.get("outputs") or {}
        if "observed" in outputs:
            # A resource of ours: what was registered are its inputs, what was seen has the same names.
            recorded, seen = new.get("inputs") or {}, outputs["observed"] or {}
            pairs = [(key, recorded[key], seen[key]) for key in seen if key in recorded]
        else:
            # A cloud's own provider tells which leaves differ.
            recorded, seen = old.get("outputs") or {}, outputs
            pairs = [
                (path, *between(recorded, seen, path, kind.get("diffKind", "")))
                for path, kind in (data.get("detailedDiff") or {}).items()
            ]
        differing = {path: (before, now) for path, before, now in pairs if before != now}
        drift = [
            Drifted(urn, name, path, *masked_pair(*differing[path]))
            for path in sorted(differing, key=steps_of)
        ]
        return cls(recorded, seen, tuple(drift))

    def at(self, path: str) -> Drifted | None:
        """The drift that a property has part in."""
        touched = [each for each in self.drift if overlap(each.path, path)]
        exact = next((each for each in touched if steps_of(each.path) == steps_of(path)), None)
        if exact or not touched:
            return exact
        before, now = at(self.recorded, path), at(self.there, path)
        if bare(before) == bare(now):
            return None
        return Drifted(touched[0].urn, touched[0].name, path, *masked_pair(before, now))


_NOTHING = _Look()


def _steps(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[bool, Mapping[str, Any]]]:
    """Whether it is of a refresh, and the data of each step.

    What a refresh found comes as the end of a step that began as `refresh`, whatever it is called then.
    """
    refreshing: set[str] = set()
    for event in events:
        begun, done = event.get("resourcePreEvent"), event.get("resOutputsEvent")
        data: Mapping[str, Any] = (begun or done or {}).get("metadata") or {}
        if not data or data["type"].startswith("pulumi:"):
            continue
        urn, op = data["urn"], data["op"]
        if begun and op == "refresh":
            refreshing.add(urn)
        elif begun:
            refreshing.discard(urn)
            yield False, data
        else:
            yield op == "refresh" or urn in refreshing, data


def _leaves(data: Mapping[str, Any], look: _Look) -> Iterator[PropertyChange]:
    old, new = data.get("old") or {}, data.get("new") or {}
    old_inputs, wanted = old.get("inputs") or {}, new.get("inputs") or {}
    outputs = old.get("outputs") or {}
    observed: Mapping[str, Any] = outputs.get("observed") or {}
    detailed: Mapping[str, Mapping[str, Any]] | None = data.get("detailedDiff")
    if detailed is None:
        replacing = set(data.get("keys") or ())
        differing = {key for key in {*old_inputs, *wanted} if old_inputs.get(key) != wanted.get(key)}
        detailed = {
            key: {"diffKind": "update-replace" if key in replacing else "update"} for key in differing
        }
    for path in sorted(detailed, key=steps_of):
        kind = detailed[path].get("diffKind", "")
        # Where a provider compares what is wanted with what is there, and not with what was wanted before.
        there = old_inputs if detailed[path].get("inputDiff", True) else {**outputs, **observed}
        before, after = between(there, wanted, path, kind)
        drift = look.at(path)
        was, becomes = masked_pair(before, after)
        # A value that neither file nor program gives is the provider's to find.
        later = after is None and "delete" not in kind and at(old_inputs, path) is None
        yield PropertyChange(
            path,
            drift.observed if drift and was != HIDDEN else was,
            KNOWN_LATER if later else becomes,
            "replace" in kind,
            drift,
        )


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
