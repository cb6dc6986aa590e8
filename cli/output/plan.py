"""A plan as a person reviews it, and as pipelines read it: what it comes to, what drifted, what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from orch.cli.output.plan_tree import drift_lines, paint, tree
from orch.stacks.provisioning.busy_nodes import Occupant, by_run
from orch.stacks.pulumi.changes import Change, summary
from orch.stacks.pulumi.kinds import counted_kinds
from orch.stacks.summary import fold

if TYPE_CHECKING:
    from orch.components.request import NewHostKey, NodeProblem, NodeWarning
    from orch.spec import Document
    from orch.spec.errors import OrchError
    from orch.stacks.plan import Plan

SCHEMA = 1

WORDS = {"create": "to create", "update": "to change", "replace": "to replace", "delete": "to delete"}
DONE = {"create": "created", "update": "changed", "replace": "replaced", "delete": "deleted"}


def plan_lines(plan: Plan, *, colour: bool, verbose: bool = False) -> list[str]:
    """A plan for people: what it comes to first, then what was found to have drifted, then resources."""
    lines = [f"fleet {plan.fleet}", *(paint(f"  {line}", "1", colour) for line in plan.headline.lines)]
    if plan.drift:
        lines.append(paint("  drift, changed outside orch since the last `up`:", "33", colour))
        lines += [f"  {line}" for line in drift_lines(plan.drift)]
    lines += tree(plan.changes, plan.headline, colour=colour, verbose=verbose)
    return lines


def counts(changes: Iterable[Change], *, done: bool = False, moves: bool = False) -> str:
    """`4 to create, 2 unchanged`, or `no changes (4 resources)`. All of a fleet that `moves` is made anew.

    What was `done` is told with what it was done to: `3 created (2 nodes, 1 fleet)`."""
    changes = tuple(changes)
    found = summary(changes)
    if moves:
        there = sum(found.values()) - found["create"]
        return f"{there} to delete first, {sum(found.values()) - found['delete']} to create then"
    words = DONE if done else WORDS
    kinds = {
        op: f" ({counted_kinds(each.type for each in changes if each.op == op)})" if done else ""
        for op in words
    }
    parts = [f"{found[op]} {word}{kinds[op]}" for op, word in words.items() if found[op]]
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
    delta = round(plan.delta, 2) + 0.0  # a sum of floats may leave -0.001
    return f"costs ${plan.hourly:.2f} per hour ({delta:+.2f}){beside}"


def warning_lines(warnings: Iterable[NodeWarning]) -> list[str]:
    """Each warning once, with the nodes it is about folded."""
    nodes: dict[str, list[str]] = {}
    for warning in warnings:
        nodes.setdefault(warning.text, []).append(warning.node)
    return [f"warning: {fold(names)}: {text}" for text, names in nodes.items()]


def run_lines(found: Sequence[Occupant]) -> list[str]:
    """The runs that are on nodes that go, which `up` will not do under them."""
    if not found:
        return []
    lines = [f"  {line}" for line in by_run(found)]
    return ["warning: runs are on nodes that go; `up` refuses that until they end (`--force`):", *lines]


def plan_json(
    plan: Plan, document: Document | None = None, occupants: Sequence[Occupant] = ()
) -> dict[str, Any]:
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
        "headline": list(plan.headline.lines),
        "moves": plan.headline.moves,
        "summary": summary(plan.changes),
        "changes": [change.as_json() for change in plan.changes],
        "drift": [each.as_json() for each in plan.drift],
        "runs": [{"run": each.run, "by": each.by, "node": each.node} for each in occupants],
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
        "headline": [],
        "moves": False,
        "summary": None,
        "changes": [],
        "drift": [],
        "runs": [],
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
