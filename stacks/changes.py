"""Engine events as typed changes: what will be done, or was, to each resource, down to the property."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orch.stacks.masking import shown_pair

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


@dataclass(frozen=True)
class PropertyChange:
    """One leaf that changes.

    `replaces`: it cannot change in place. `drifted`: the world changed, not the file.
    """

    path: str
    old: Any
    new: Any
    replaces: bool = False
    drifted: bool = False


@dataclass(frozen=True)
class Change:
    """One resource and what becomes of it."""

    op: Op
    type: str
    name: str
    urn: str
    diff: tuple[PropertyChange, ...] = ()

    def as_json(self) -> dict[str, Any]:
        leaves = [{"path": d.path, "old": d.old, "new": d.new, "replaces": d.replaces} for d in self.diff]
        return {"op": self.op, "type": self.type, "name": self.name, "urn": self.urn, "diff": leaves}


@dataclass(frozen=True)
class Drifted:
    """One property that is not as registered; `observed` "(gone)" at path "" when the whole resource is."""

    urn: str
    name: str
    path: str
    registered: Any
    observed: Any

    def as_json(self) -> dict[str, Any]:
        return {
            "urn": self.urn,
            "name": self.name,
            "path": self.path,
            "registered": self.registered,
            "observed": self.observed,
        }


GONE = "(gone)"


def changes(events: Iterable[Mapping[str, Any]]) -> tuple[Change, ...]:
    """The changes of a preview or an update, one per resource, sorted by urn.

    The stack itself, providers and the engine's own resources are left out; resources that stay are in, as
    `same`.
    """
    found: dict[str, Change] = {}
    for event in events:
        step = event.get("resourcePreEvent") or event.get("resOutputsEvent")
        if not step:
            continue
        data: Mapping[str, Any] = step["metadata"]
        op = _STEPS.get(data["op"])
        if op is None or data["type"].startswith("pulumi:"):
            continue
        before = found.get(data["urn"])
        if before and op == "same":
            continue
        # A replacement comes as several steps; the one that knows the properties wins.
        if before and before.op == "replace" and (op != "replace" or before.diff):
            continue
        leaves = _leaves(data) if data["op"] in ("update", "replace", "create-replacement") else ()
        found[data["urn"]] = Change(op, data["type"], name_of(data["urn"]), data["urn"], leaves)
    return tuple(found[urn] for urn in sorted(found))


def drifted(events: Iterable[Mapping[str, Any]]) -> tuple[Drifted, ...]:
    """What a refresh found to differ from what was registered, sorted by urn and path."""
    found: dict[tuple[str, str], Drifted] = {}
    for event in events:
        step = event.get("resOutputsEvent")
        if not step or step["metadata"]["type"].startswith("pulumi:"):
            continue
        data = step["metadata"]
        urn, name = data["urn"], name_of(data["urn"])
        old, new = data.get("old"), data.get("new")
        if data["op"] == "delete" or (old and not new):
            found[urn, ""] = Drifted(urn, name, "", "registered", GONE)
            continue
        if not new:
            continue
        if "observed" not in (new.get("outputs") or {}):
            # A cloud's own provider: the refresh tells which leaves differ from what was recorded.
            for path in data.get("detailedDiff") or ():
                before, now = at(old.get("outputs"), path), at(new.get("outputs"), path)
                if before != now:
                    found[urn, path] = Drifted(urn, name, path, *shown_pair(before, now))
            continue
        registered = new.get("inputs") or {}
        for path, value in ((new.get("outputs") or {}).get("observed") or {}).items():
            if path in registered and registered[path] != value:
                found[urn, path] = Drifted(urn, name, path, *shown_pair(registered[path], value))
    return tuple(found[key] for key in sorted(found))


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


_STEP = re.compile(r'\.?([^.\[\]"]+)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]')


def at(value: Any, path: str) -> Any:
    """What lies at a path of the engine, `ingress[0].ports` or `tags["a.b"]`; None when nothing does."""
    for key, index, quoted in _STEP.findall(path):
        if index:
            listed = isinstance(value, list) and int(index) < len(value)
            value = value[int(index)] if listed else None
        else:
            value = value.get(key or quoted.replace('\\"', '"')) if isinstance(value, Mapping) else None
    return value


def _leaves(data: Mapping[str, Any]) -> tuple[PropertyChange, ...]:
    old, new = data.get("old") or {}, data.get("new") or {}
    old_inputs, new_inputs = old.get("inputs") or {}, new.get("inputs") or {}
    observed = (old.get("outputs") or {}).get("observed") or {}
    detailed: Mapping[str, Mapping[str, Any]] | None = data.get("detailedDiff")
    if detailed is None:
        paths = sorted(
            key for key in {*old_inputs, *new_inputs} if old_inputs.get(key) != new_inputs.get(key)
        )
        replacing = set(data.get("keys") or ())
        return tuple(
            PropertyChange(p, *shown_pair(old_inputs.get(p), new_inputs.get(p)), p in replacing)
            for p in paths
        )
    leaves: list[PropertyChange] = []
    for path in sorted(detailed):
        kind = detailed[path]
        from_world = not kind.get("inputDiff", True)
        before = at(old_inputs, path)
        if from_world:
            before = observed[path] if path in observed else at(old.get("outputs"), path)
        leaves.append(
            PropertyChange(
                path,
                *shown_pair(before, at(new_inputs, path)),
                "replace" in kind.get("diffKind", ""),
                from_world,
            )
        )
    return tuple(leaves)
