"""What a verification makes of a node: a failure, a warning, or nothing."""

from __future__ import annotations

from typing import Literal

import pytest

from orch.runner.verify.judge import Shortfall
from orch.stacks.health.verified import finding_of

Kind = Literal["figure", "card", "node", "link", "transport", "values"]


@pytest.mark.parametrize(
    ("kind", "gated", "status", "action"),
    [
        ("card", False, "failure", "replace"),
        ("node", False, "failure", "replace"),
        ("transport", False, "failure", "none"),
        ("values", False, "failure", "none"),
        ("link", True, "warning", "none"),
        ("figure", False, "warning", "none"),
        ("figure", True, "failure", "none"),
    ],
)
def test_what_falls_short_of_a_node(kind: Kind, *, gated: bool, status: str, action: str) -> None:
    slow = [Shortfall("ORCH444", "it is slow", ("lab-1",), kind)]
    found = finding_of("lab-1", slow, gated=gated)
    assert (found.status, found.action, found.findings[0].reason) == (status, action, "it is slow")
    assert (
        finding_of("lab-0", [Shortfall("ORCH444", "it is slow", ("lab-1",), kind)], gated=gated).findings
        == ()
    )
