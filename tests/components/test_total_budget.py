"""`budget.total`: by what a fleet has cost it may get new nodes, be warned of, or only lose some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.clouds.aws_cases import Case
from kit.clouds.planning import request_of

from orch.components.deployment import Deployment
from orch.components.registry.planning import check_total_budget
from orch.components.request import PriorState, Spent
from orch.spec.diagnostics import Severity
from orch.spec.errors import ExitCode
from orch.spec.findings import Finding, PlanErrors

THERE = frozenset({"lab-0", "lab-1"})


def checked(
    spent: Spent | None, nodes: int, existing: frozenset[str] | None = THERE, **budget: Any
) -> tuple[Finding, ...]:
    case = Case.of("cpu")
    fleet = Case(case.name, {**case.data, "fleet": {**case.data["fleet"], "budget": budget}}).fleet
    request = request_of(
        fleet,
        previous=PriorState(existing_nodes=existing),
        folder=Path("/"),
        spent=spent,
    )
    names = tuple(f"lab-{index}" for index in range(nodes))
    deployment = Deployment(
        reasons=(), pins={}, hourly=0.0, register=lambda: pytest.fail("nothing is made"), nodes=names
    )
    return check_total_budget(request, deployment)


def test_a_fleet_within_its_budget_grows() -> None:
    assert checked(Spent(79.99), 5, total=100) == ()
    assert checked(None, 5, total=100) == ()
    assert checked(Spent(1e9), 5, hourly=100) == ()


def test_from_80_percent_on_it_is_told() -> None:
    for dollars, part in ((80.0, "80%"), (99.5, "99%")):
        (finding,) = checked(Spent(dollars), 5, total=100)
        assert (finding.code, finding.path, finding.severity) == (
            "ORCH289",
            "budget.total",
            Severity.WARNING,
        )
        assert f"has cost ${dollars:g}" in finding.summary
        assert f"{part} of its budget of $100" in finding.summary


def test_what_is_spent_bars_new_nodes_and_nothing_else() -> None:
    with pytest.raises(PlanErrors) as refused:
        checked(Spent(100.0), 4, total=100)
    assert refused.value.summary == (
        "the fleet has cost $100.00 so far, its budget is $100.00: 2 new nodes would add to it"
    )
    assert refused.value.exit_code is ExitCode.POLICY
    assert (refused.value.code, refused.value.path) == ("ORCH281", "budget.total")
    for nodes in (2, 1, 0):
        (finding,) = checked(Spent(250.0), nodes, total=100)
        assert finding.severity is Severity.WARNING
        assert "250% of its budget" in finding.summary
    with pytest.raises(PlanErrors, match="1 new node would"):
        checked(Spent(100.0), 1, frozenset(), total=100)


def test_what_is_not_known_is_told_and_bars_nothing() -> None:
    (finding,) = checked(Spent(None, problem="the run ledger cannot be used"), 4, total=100)
    assert (finding.code, finding.severity, finding.detail) == (
        "ORCH282",
        Severity.WARNING,
        "the run ledger cannot be used",
    )
    (finding,) = checked(Spent(1.0, unpriced_hours=7.5), 4, total=100)
    assert finding.code == "ORCH282"
    assert "7.5 node-hours" in finding.summary
