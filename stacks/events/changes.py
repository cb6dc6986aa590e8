"""Engine events as typed changes: what a plan does, or did, to each resource, down to the property.

Drift and change are separate. Drift is a difference between the recorded and the real value, which the
refresh before a plan found; a change leads from the real to the requested value, whoever caused it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from orch.stacks.events.masking import HIDDEN, KNOWN_LATER, holds_secret, masked_pair
from orch.stacks.events.notation import name_of
from orch.stacks.events.paths import PLAIN_STEP, normalized, overlap, path_steps, value_at, values_at

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

# Where GCP's provider repeats `labels`.
_COPIES = frozenset({"effectiveLabels", "pulumiLabels"})


@dataclass(frozen=True)
class PropertyDrift:
    """One property that differs from its record; of a lost resource `path` is "", `observed` is "(gone)"."""

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
    """One leaf that changes, from the real value (`old`) to the requested one (`new`).

    `replaces`: it cannot change in place. `drift`: the real value differs from the recorded one.
    """

    path: str
    old: Any
    new: Any
    replaces: bool = False
    drift: PropertyDrift | None = None

    @property
    def follows(self) -> bool:
        """Return True if its new value is only known once another resource exists."""
        return self.new == KNOWN_LATER and self.drift is None

    def as_json(self) -> dict[str, Any]:
        drift = self.drift
        return {
            "path": self.path,
            "old": self.old,
            "new": self.new,
            "replaces": self.replaces,
            "drift": {"registered": drift.registered, "observed": drift.observed} if drift else None,
        }


@dataclass(frozen=True)
class Change:
    """One resource and its operation. `drift`: what the refresh found of it; `id`: its id in the cloud."""

    op: Op
    type: str
    name: str
    urn: str
    diff: tuple[PropertyChange, ...] = ()
    drift: tuple[PropertyDrift, ...] = ()
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

    They leave out the stack itself, providers and the engine's own resources; resources that stay are in, as
    `same`. A resource that the refresh found gone is in when the plan does something with it.
    """
    result: dict[str, Change] = {}
    refreshes: dict[str, _Refresh] = {}
    for refreshing, data in _steps(events):
        urn = data["urn"]
        if refreshing:
            # A change of an earlier step of the same `up` is no drift to a later step.
            refreshes.setdefault(urn, _Refresh.of(data))
            continue
        op = _STEPS.get(data["op"])
        if op is None:
            continue
        before = result.get(urn)
        if before and op == "same":
            continue
        # A replacement comes as several steps; the one that knows the properties wins.
        if before and before.op == "replace" and (op != "replace" or before.diff):
            continue
        refresh = refreshes.get(urn, _NO_REFRESH)
        leaves = tuple(_leaves(data, refresh)) if data["op"] in _WITH_LEAVES else ()
        cloud_id = str((data.get("old") or {}).get("id") or "")
        result[urn] = Change(op, data["type"], name_of(urn), urn, leaves, refresh.drift, cloud_id)
    return tuple(result[urn] for urn in sorted(result))


def find_drift(events: Iterable[Mapping[str, Any]]) -> tuple[PropertyDrift, ...]:
    """The drift that a refresh found, alone or before a plan, sorted by urn and path."""
    refreshes: dict[str, _Refresh] = {}
    for refreshing, data in _steps(events):
        if refreshing:
            refreshes.setdefault(data["urn"], _Refresh.of(data))
    drifts = [each for refresh in refreshes.values() for each in refresh.drift]
    return tuple(sorted(drifts, key=lambda each: (each.urn, each.path)))


def matches_record(events: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if the refresh before a plan found every resource as it was recorded.

    Events hide secrets. A secret that differs changes its resource, so a resource with secrets that changes
    counts as different.
    """
    for refreshing, data in _steps(events):
        old, new = data.get("old") or {}, data.get("new") or {}
        if refreshing and old.get("outputs") != new.get("outputs"):
            return False
        if not refreshing and data["op"] in _WITH_LEAVES and holds_secret(old):
            return False
    return True


def gone(events: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the urns of the resources that a refresh found gone."""
    return frozenset(data["urn"] for refreshing, data in _steps(events) if refreshing and not data.get("new"))


def summary(changes: Iterable[Change]) -> dict[str, int]:
    """The number of changes of each operation; every operation is a key."""
    counts = {"create": 0, "update": 0, "replace": 0, "delete": 0, "same": 0}
    for change in changes:
        counts[change.op] += 1
    return counts


def without_values(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """An event of the engine, without the values of a resource that no plan shows.

    These are the inputs of a resource that is created, and what a refresh found unchanged. A cloud repeats
    the user data in each node: of a thousand nodes that is a gigabyte of Python objects.
    """
    start, end = event.get("resourcePreEvent"), event.get("resOutputsEvent")
    data: Mapping[str, Any] = (start or end or {}).get("metadata") or {}
    if not data or data["op"] in _WITH_LEAVES:
        return event
    old, new = data.get("old") or {}, data.get("new") or {}
    outputs: Mapping[str, Any] = new.get("outputs") or {}
    may_differ = outputs != (old.get("outputs") or {}) or "observed" in outputs
    if end and data["op"] != "create" and may_differ:
        return event
    ids = {side: {"id": data[side].get("id")} for side in ("old", "new") if data.get(side)}
    return {"resourcePreEvent" if start else "resOutputsEvent": {"metadata": {**data, **ids}}}


@dataclass(frozen=True)
class _Refresh:
    """The refresh of one resource: recorded values, actual values, and where they differ."""

    recorded: Mapping[str, Any] = field(default_factory=dict[str, Any])
    actual: Mapping[str, Any] = field(default_factory=dict[str, Any])
    drift: tuple[PropertyDrift, ...] = ()

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> _Refresh:
        urn, name = data["urn"], name_of(data["urn"])
        old, new = data.get("old") or {}, data.get("new")
        if not new:
            return cls(drift=(PropertyDrift(urn, name, "", "registered", GONE),))
        outputs: Mapping[str, Any] = new.get("outputs") or {}
        if "observed" in outputs:
            # A resource of ours: its inputs are the record, and the observed values have the same names.
            recorded, actual = new.get("inputs") or {}, outputs["observed"] or {}
            pairs = [
                pair
                for key in actual
                if key in recorded
                for pair in (
                    _leaf_pairs(key, recorded[key], actual[key])
                    if _nested(recorded[key])
                    else [(key, recorded[key], actual[key])]
                )
            ]
        else:
            # A cloud's own provider tells which leaves differ.
            recorded, actual = old.get("outputs") or {}, outputs
            pairs = [
                (path, *values_at(recorded, actual, path, kind.get("diffKind", "")))
                for path, kind in (data.get("detailedDiff") or {}).items()
                if not _COPIES.intersection(path_steps(path)[:1])
            ]
        differing = {path: (before, now) for path, before, now in pairs if before != now}
        drift = [
            PropertyDrift(urn, name, path, *masked_pair(*differing[path]))
            for path in sorted(differing, key=path_steps)
        ]
        return cls(recorded, actual, tuple(drift))

    def at(self, path: str) -> PropertyDrift | None:
        """The drift that touches a property; None for none."""
        touched = [each for each in self.drift if overlap(each.path, path)]
        exact = next((each for each in touched if path_steps(each.path) == path_steps(path)), None)
        if exact or not touched:
            return exact
        before, now = value_at(self.recorded, path), value_at(self.actual, path)
        if normalized(before) == normalized(now):
            return None
        return PropertyDrift(touched[0].urn, touched[0].name, path, *masked_pair(before, now))


_NO_REFRESH = _Refresh()


def _nested(value: Any) -> bool:
    """Return True if a value is a map that contains maps or lists: as a whole it would say little."""
    if not isinstance(value, Mapping):
        return False
    return any(isinstance(each, (Mapping, list)) for each in cast("Mapping[str, Any]", value).values())


def _leaf_pairs(path: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """The parts of two values that differ, each by its path."""
    if before == now:
        return
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        old, new = cast("Mapping[str, Any]", before), cast("Mapping[str, Any]", now)
        for key in sorted({*old, *new}):
            step = f".{key}" if PLAIN_STEP.fullmatch(key) else f'["{key}"]'
            yield from _leaf_pairs(f"{path}{step}", old.get(key), new.get(key))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):  # pyright: ignore[reportUnknownArgumentType]
        rows = zip(cast("list[Any]", before), cast("list[Any]", now), strict=True)
        for index, (one, other) in enumerate(rows):
            yield from _leaf_pairs(f"{path}[{index}]", one, other)
    else:
        yield path, before, now


def _steps(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[bool, Mapping[str, Any]]]:
    """The data of each step, and whether the step is a refresh.

    A refresh reports its result at the end of a step that began as `refresh`, whatever `op` the end names.
    """
    refreshing: set[str] = set()
    for event in events:
        start, end = event.get("resourcePreEvent"), event.get("resOutputsEvent")
        data: Mapping[str, Any] = (start or end or {}).get("metadata") or {}
        if not data or data["type"].startswith("pulumi:"):
            continue
        urn, op = data["urn"], data["op"]
        if start and op == "refresh":
            refreshing.add(urn)
        elif start:
            refreshing.discard(urn)
            yield False, data
        else:
            yield op == "refresh" or urn in refreshing, data


def _leaves(data: Mapping[str, Any], refresh: _Refresh) -> Iterator[PropertyChange]:
    old, new = data.get("old") or {}, data.get("new") or {}
    old_inputs, new_inputs = old.get("inputs") or {}, new.get("inputs") or {}
    outputs = old.get("outputs") or {}
    observed: Mapping[str, Any] = outputs.get("observed") or {}
    detailed: Mapping[str, Mapping[str, Any]] | None = data.get("detailedDiff")
    if detailed is None:
        replacing = set(data.get("keys") or ())
        differing = {key for key in {*old_inputs, *new_inputs} if old_inputs.get(key) != new_inputs.get(key)}
        detailed = {
            key: {"diffKind": "update-replace" if key in replacing else "update"} for key in differing
        }
    for path in sorted(detailed, key=path_steps):
        kind = detailed[path].get("diffKind", "")
        # `inputDiff` false: the provider compared the new inputs with real values, not with old inputs.
        base = old_inputs if detailed[path].get("inputDiff", True) else {**outputs, **observed}
        before, after = values_at(base, new_inputs, path, kind)
        drift = refresh.at(path)
        was, becomes = masked_pair(before, after)
        # A value that neither the file nor the program sets comes from the provider.
        later = after is None and "delete" not in kind and value_at(old_inputs, path) is None
        yield PropertyChange(
            path,
            drift.observed if drift and was != HIDDEN else was,
            KNOWN_LATER if later else becomes,
            "replace" in kind,
            drift,
        )
