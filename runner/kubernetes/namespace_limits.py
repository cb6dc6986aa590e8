"""What a namespace bounds: single pods (LimitRange) and what all have together (ResourceQuota). Pure.

A LimitRange has a limit for whoever says none. Where that is less than a pod requests, the API server refuses
the pod; and a quota of limits refuses every pod without one.
Source: kubernetes plugin/pkg/admission/limitranger and resourcequota.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from orch.spec.grammar.quantities import amount

Doc = dict[str, Any]
Docs = Sequence[Mapping[str, Any]]

OF_LIMITS = "limits."
_SHARED = ("cpu", "memory", "ephemeral-storage")
"""Resources of which a pod may use more than it requests; of others limits equal requests."""


def with_limits(job: Doc, ranges: Docs, quotas: Docs = ()) -> Doc:
    """The Job with a limit where its pods have to say one: as much as they request, or what they would get
    where that is more."""
    defaults = _defaults(ranges)
    named = {key.removeprefix(OF_LIMITS) for key in _hard(quotas) if key.startswith(OF_LIMITS)}
    template = job["spec"]["template"]
    pod = template["spec"]
    containers = [_limited(each, defaults, named) for each in pod["containers"]]
    return {
        **job,
        "spec": {**job["spec"], "template": {**template, "spec": {**pod, "containers": containers}}},
    }


def _limited(container: Doc, defaults: Mapping[str, str], named: set[str]) -> Doc:
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, dict(resources.get("limits") or {})
    for key in _SHARED:
        if key in limits or key not in requests:
            continue
        default = defaults.get(key)
        if key in named if default is None else amount(default) < amount(requests[key]):
            limits[key] = requests[key]
    return {**container, "resources": {**resources, "limits": limits}}


def _defaults(ranges: Docs) -> dict[str, str]:
    return {
        key: str(text)
        for _, row in _rows(ranges, "Container")
        for key, text in (row.get("default") or {}).items()
    }


def too_much(ranges: Docs, requests: Mapping[str, str]) -> Iterator[str]:
    """What a pod of these requests has too much of, or too little, for the bounds of its namespace."""
    for name, row in _rows(ranges, "Container", "Pod"):
        kind = str(row["type"]).lower()
        for key, request in requests.items():
            most, least = (row.get("max") or {}).get(key), (row.get("min") or {}).get(key)
            asks = f"and a pod asks for {request}"
            if most is not None and amount(request) > amount(most):
                yield f"LimitRange {name} lets a {kind} have {most} of {key} at most, {asks}"
            if least is not None and amount(request) < amount(least):
                yield f"LimitRange {name} wants {least} of {key} of a {kind} at least, {asks}"


def short_quotas(quotas: Docs, requests: Mapping[str, str], pods: int) -> Iterator[str]:
    """Quotas that so many pods of these requests do not fit in, also where nothing else is there."""
    asks = {"pods": "1", "count/pods": "1", **requests}
    asks |= {f"requests.{key}": text for key, text in requests.items()}
    for each in quotas:
        spec = each.get("spec") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue
        rooms = {
            key: int(amount(text) // amount(asks[key]))
            for key, text in (spec.get("hard") or {}).items()
            if amount(asks.get(key, 0)) > Fraction(0)
        }
        if rooms and (room := min(rooms.values())) < pods:
            key = min(rooms, key=lambda key: rooms[key])
            name, hard = each["metadata"]["name"], spec["hard"][key]
            room_for = f"ResourceQuota {name} has room for {room} of {pods} pods"
            yield f"{room_for}: {hard} of {key} in all, {asks[key]} a pod"


def _rows(ranges: Docs, *kinds: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for each in ranges:
        for row in (each.get("spec") or {}).get("limits") or ():
            if row.get("type") in kinds:
                yield str(each["metadata"]["name"]), row


def _hard(quotas: Docs) -> Iterator[str]:
    for each in quotas:
        yield from (each.get("spec") or {}).get("hard") or ()
