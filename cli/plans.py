"""A plan as a tree that a person reviews: what is made, changed, replaced and removed, down to the leaf,
nodes folded."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from orch.stacks.changes import Change, Drifted, PropertyChange, summary

if TYPE_CHECKING:
    from orch.components.plan import NewHostKey, NodeProblem, NodeWarning
    from orch.spec import Document
    from orch.spec.errors import OrchError
    from orch.stacks.operations import Plan

SCHEMA = 1

MARKS = {"create": "+", "update": "~", "replace": "±", "delete": "-", "same": " "}
COLOURS = {"create": "32", "update": "33", "replace": "35", "delete": "31", "same": "2"}
WORDS = {"create": "to create", "update": "to change", "replace": "to replace", "delete": "to delete"}
DONE = {"create": "created", "update": "changed", "replace": "replaced", "delete": "deleted"}


def tree(fleet: str, changes: Iterable[Change], *, colour: bool) -> list[str]:
    """One line per resource that changes, equal ones folded (`laptop-[0-7]`), its leaves below it."""
    lines: list[str] = []
    groups: dict[tuple[Any, ...], list[Change]] = {}
    for change in changes:
        if change.op != "same":
            groups.setdefault((change.op, change.type, _comparable(change.diff)), []).append(change)
    for (op, kind, _), members in groups.items():
        names = fold([member.name for member in members])
        lines.append(paint(f"  {MARKS[op]} {kind}  {names}", COLOURS[op], colour))
        lines += [f"      {_leaf(leaf)}" for leaf in members[0].diff]
    return [f"fleet {fleet}", *lines]


def counts(changes: Iterable[Change], *, done: bool = False) -> str:
    """`4 to create, 2 unchanged`, or `no changes (4 resources)`."""
    found = summary(changes)
    words = DONE if done else WORDS
    parts = [f"{found[op]} {word}" for op, word in words.items() if found[op]]
    if not parts:
        return f"no changes ({found['same']} resources)"
    return ", ".join(parts) + (f", {found['same']} unchanged" if found["same"] else "")


def key_lines(keys: Iterable[NewHostKey]) -> list[str]:
    """The host keys that `up` pins, each with its fingerprint and where it comes from."""
    found = list(keys)
    if not found:
        return []
    lines = [f"      {key.host}: {key.fingerprint} ({key.source})" for key in found]
    return ["  host keys that are accepted and pinned:", *lines]


def waiting_lines(keys: Iterable[NewHostKey]) -> list[str]:
    """The host keys that somebody must accept before orch logs in there."""
    lines = [f"      {key.host}: {key.key.split()[0]} {key.fingerprint}" for key in keys]
    return ["  host keys that nobody has accepted yet:", *lines]


def cost_line(plan: Plan) -> str:
    """What the fleet costs afterwards, the difference, and what is not in it."""
    beside = f", not counting {', '.join(plan.unpriced)}" if plan.unpriced else ""
    return f"costs ${plan.hourly:.2f} per hour ({plan.delta:+.2f}){beside}"


def warning_lines(warnings: Iterable[NodeWarning]) -> list[str]:
    """Each warning once, with the nodes it is about folded."""
    nodes: dict[str, list[str]] = {}
    for warning in warnings:
        nodes.setdefault(warning.text, []).append(warning.node)
    return [f"warning: {fold(names)}: {text}" for text, names in nodes.items()]


def plan_json(plan: Plan, document: Document | None = None) -> dict[str, Any]:
    """A plan as pipelines read it; what it found gets its place in `document`."""
    told = [_problem_json(problem) for problem in plan.problems]
    told += [{"severity": "warning", "host": each.node, "summary": each.text} for each in plan.warnings]
    if document is not None:
        told += [dict(finding.placed(document).as_dict()) for finding in plan.findings]
    told += [
        {
            "severity": "note",
            "host": key.host,
            "summary": f"the host key {key.fingerprint} is accepted and pinned ({key.source})",
        }
        for key in plan.new_keys
    ]
    return {
        "schema": SCHEMA,
        "fleet": plan.fleet,
        "stack": plan.stack,
        "summary": summary(plan.changes),
        "changes": [change.as_json() for change in plan.changes],
        "cost": {
            "hourly": plan.hourly,
            "delta": plan.delta,
            "currency": "USD",
            "unpriced": list(plan.unpriced),
        },
        "diagnostics": told,
        "policies": [],
    }


def refused_json(fleet: str, error: OrchError, problems: Iterable[NodeProblem]) -> dict[str, Any]:
    """A plan that there is not: why, and what is amiss with each node."""
    return {
        "schema": SCHEMA,
        "fleet": fleet,
        "stack": fleet,
        "summary": None,
        "changes": [],
        "cost": None,
        "diagnostics": [
            {"severity": "error", "code": error.code, "summary": error.summary, "hint": error.hint},
            *map(_problem_json, problems),
        ],
        "policies": [],
    }


def _problem_json(problem: NodeProblem) -> dict[str, Any]:
    told: dict[str, Any] = {
        "severity": "error",
        "code": problem.code,
        "host": problem.node,
        "summary": problem.summary,
        "where": problem.where,
        "detail": problem.detail,
        "hint": problem.hint,
    }
    new = getattr(problem, "new", None)
    if new is not None:
        told["host_key"] = {"of": new.host, "key": new.key, "fingerprint": new.fingerprint}
    return told


def drift_lines(found: Iterable[Drifted]) -> list[str]:
    lines: list[str] = []
    for item in found:
        values = f"registered {_value(item.registered)}, found {_value(item.observed)}"
        lines.append(
            f"  {item.name}: {item.path}: {values}" if item.path else f"  {item.name}: {item.observed}"
        )
    return lines


def fold(names: list[str]) -> str:
    """`laptop-[0-2]` for laptop-0, laptop-1, laptop-2."""
    if len(names) < 2 or not all(re.search(r"\d", name) for name in names):
        return ", ".join(names)
    from ClusterShell.NodeSet import NodeSet

    return str(NodeSet.fromlist(names))


def paint(text: str, colour: str, on: bool) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if on else text


def _comparable(diff: tuple[PropertyChange, ...]) -> tuple[Any, ...]:
    return tuple((leaf.path, str(leaf.old), str(leaf.new), leaf.replaces) for leaf in diff)


def _leaf(leaf: PropertyChange) -> str:
    why = " (replaces it)" if leaf.replaces else ""
    drift = " (drift: changed outside orch)" if leaf.drifted else ""
    return f"{leaf.path}: {_value(leaf.old)} -> {_value(leaf.new)}{why}{drift}"


def _value(value: Any) -> str:
    return "(none)" if value is None else str(value)
