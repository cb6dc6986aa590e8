"""A plan as text for people and as JSON for pipelines: the changes, the drift, the cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from orch.review.tree import drift_lines, paint, tree
from orch.spec.grammar.values import encodable
from orch.spec.suggest import counted
from orch.stacks.events.changes import Change, summary
from orch.stacks.events.kinds import counted_kinds
from orch.stacks.events.notation import fold
from orch.stacks.provisioning.busy_nodes import Occupant, by_run

if TYPE_CHECKING:
    from orch.components.request import NewHostKey, NodeProblem, NodeWarning
    from orch.policies.settings import Violation
    from orch.spec.errors import OrchError
    from orch.spec.loader.load import Document
    from orch.stacks.plans.plan import Plan

SCHEMA = 1

WORDS = {"create": "to create", "update": "to change", "replace": "to replace", "delete": "to delete"}
DONE = {"create": "created", "update": "changed", "replace": "replaced", "delete": "deleted"}


def plan_lines(plan: Plan, *, colour: bool, verbose: bool = False) -> list[str]:
    """A plan for people: the headline, then drift, then resources."""
    lines = [f"fleet {plan.fleet}", *(paint(f"  {line}", "1", colour) for line in plan.headline.lines)]
    if plan.drift:
        lines.append(paint("  drift, changed outside orch since the last `up`:", "33", colour))
        lines += [f"  {line}" for line in drift_lines(plan.drift)]
    lines += tree(plan.changes, plan.headline, colour=colour, verbose=verbose)
    return lines


def reason_lines(plan: Plan, *, colour: bool, verbose: bool = False) -> list[str]:
    """Return the reasons of a plan: those that the last `up` did not give, or all of them."""
    reasons = plan.reasons if verbose else plan.new_reasons
    lines = [f"· {reason}" for reason in reasons]
    if len(reasons) < len(plan.reasons):
        what = "the rest" if reasons else "everything"
        lines.append(f"· {what} is decided as before (`-v` explains it)")
    return [paint(f"  {line}", "2", colour) for line in lines]


def counts(changes: Iterable[Change], *, done: bool = False, moves: bool = False) -> str:
    """`4 to create, 2 unchanged`, or `no changes (4 resources)`. A fleet that `moves` is replaced as a whole.

    `done`: the changes were made, which names kinds too: `3 created (2 nodes, 1 fleet)`."""
    changes = tuple(changes)
    numbers = summary(changes)
    if moves:
        existing = sum(numbers.values()) - numbers["create"]
        return f"{existing} to delete first, {sum(numbers.values()) - numbers['delete']} to create then"
    words = DONE if done else WORDS
    kinds = {
        op: f" ({counted_kinds(each.type for each in changes if each.op == op)})" if done else ""
        for op in words
    }
    parts = [f"{numbers[op]} {word}{kinds[op]}" for op, word in words.items() if numbers[op]]
    if not parts:
        return f"no changes ({numbers['same']} resources)"
    return ", ".join(parts) + (f", {numbers['same']} unchanged" if numbers["same"] else "")


def key_lines(keys: Iterable[NewHostKey]) -> list[str]:
    """The host keys that `up` pins, each with its fingerprint and where it comes from."""
    lines = [f"      {key.host}: {key.fingerprint} ({key.source})" for key in keys]
    if not lines:
        return []
    return ["  host keys that are accepted and pinned:", *lines]


def waiting_lines(keys: Iterable[NewHostKey]) -> list[str]:
    """The host keys that somebody must accept before orch logs in there."""
    lines = [f"      {key.host}: {key.key.split()[0]} {key.fingerprint}" for key in keys]
    return ["  host keys that nobody has accepted yet:", *lines]


def cost_line(plan: Plan) -> str:
    """The hourly cost after the change, the difference, and what has no known price."""
    if plan.unpriced and not plan.hourly and not plan.delta:
        return f"no price is known of {', '.join(plan.unpriced)}"
    unpriced = f", not counting {', '.join(plan.unpriced)}" if plan.unpriced else ""
    delta = round(plan.delta, 2) + 0.0  # a sum of floats may leave -0.001
    spares = plan.spares
    beside = (
        f", ${plan.spares_hourly:.2f} of it for {counted(spares.count, 'spare')}"
        if spares is not None and plan.spares_hourly
        else ""
    )
    return f"costs ${plan.hourly:.2f} per hour ({delta:+.2f}){beside}{unpriced}"


def plan_line(plan: Plan) -> str:
    """Return a one-line summary of a plan."""
    also = "; `health` of its file is recorded" if plan.rewatched else ""
    also += "; the number of its spares is recorded" if plan.respared else ""
    return f"plan: {counts(plan.changes, moves=plan.headline.moves)}{also}; {cost_line(plan)}"


def warning_lines(warnings: Iterable[NodeWarning]) -> list[str]:
    """Each warning once, with the nodes it is about folded."""
    nodes: dict[str, list[str]] = {}
    for warning in warnings:
        nodes.setdefault(warning.text, []).append(warning.node)
    return [f"warning: {fold(names)}: {text}" for text, names in nodes.items()]


def run_lines(occupants: Sequence[Occupant]) -> list[str]:
    """A warning of runs on nodes that the plan removes: `up` refuses that."""
    if not occupants:
        return []
    lines = [f"  {line}" for line in by_run(occupants)]
    return [
        "warning: runs are on nodes that go; `up` refuses that until they end (`--force`):",
        *lines,
    ]


def plan_json(
    plan: Plan, document: Document | None = None, occupants: Sequence[Occupant] = ()
) -> dict[str, Any]:
    """A plan as JSON; findings get their places in `document`."""
    diagnostics = [_problem_json(problem) for problem in plan.problems]
    diagnostics += [
        {"severity": "warning", "host": each.node, "summary": each.text} for each in plan.warnings
    ]
    if document is not None:
        diagnostics += [dict(finding.placed(document).as_dict()) for finding in plan.findings]
    diagnostics += [
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
        "spares": plan.spares.count if plan.spares is not None else 0,
        "cost": {
            "hourly": plan.hourly,
            "delta": plan.delta,
            "currency": "USD",
            "unpriced": list(plan.unpriced),
        },
        "diagnostics": diagnostics,
        "policies": [policy_json(each, document) for each in plan.policies],
    }


def policy_json(violation: Violation, document: Document | None) -> dict[str, Any]:
    """A violation with its place in `document`."""
    span = document.span(violation.path) if document is not None else None
    exempt = violation.exempt
    return {
        "name": violation.rule.name,
        "level": violation.level,
        "severity": violation.rule.severity,
        "message": violation.message,
        "urn": violation.urn or None,
        "file": encodable(span.file) if span is not None else None,
        "line": span.line if span is not None else None,
        "exempt": {"owner": exempt.owner, "reason": exempt.reason, "expires": exempt.expires.isoformat()}
        if exempt is not None
        else None,
    }


def refused_json(fleet: str, error: OrchError, problems: Iterable[NodeProblem]) -> dict[str, Any]:
    """JSON in place of a plan that was refused: the error, and the problems of each node."""
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
    data: dict[str, Any] = {
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
        data["host_key"] = {"of": new.host, "key": new.key, "fingerprint": new.fingerprint}
    return data
