"""What a verification makes of a node: a failure, a warning, or nothing."""

from __future__ import annotations

from typing import Literal

import pytest
from kit.ledgers.pureruns import fleet, node

from orch.runner.errors import HostUnreachable
from orch.runner.health.findings import Finding, report
from orch.runner.health.gate import Examined
from orch.runner.verify.judge import unmeasured, with_health
from orch.runner.verify.report import Shortfall
from orch.stacks.health.verified import finding_of, unhealthy
from orch.stacks.health.watch import Watched

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


def test_what_nodes_tell_of_themselves_falls_short_where_it_is_a_failure_and_is_a_note_otherwise() -> None:
    def examined(name: str, *found: Finding) -> Examined:
        return Examined(node(int(name[-1])).model_copy(update={"name": name}), report(found))

    lost = Finding("gpu lost", "failure", "GPU 3 (0000:5d:00)", "the GPU is lost", "reboot")
    hot = Finding("thermal", "warning", "GPU 1 (0000:1b:00)", "its driver slows it down")
    silent = Examined(node(2), error=HostUnreachable("node lab-2 does not answer"))
    watched = Watched(
        fleet(node(0)),
        (examined("lab-0", lost, hot), examined("lab-1"), silent),
        (("lab-3", "its preparation is under way"),),
    )
    found, notes = unhealthy(watched)
    assert found == (
        Shortfall("ORCH448", "lab-0: GPU 3 (0000:5d:00): the GPU is lost", ("lab-0",), "health"),
    )
    assert notes[0] == "warning of lab-0: GPU 1 (0000:1b:00): its driver slows it down"
    assert notes[1].endswith("was not examined: node lab-2 does not answer")
    assert notes[2] == "lab-3 was not examined: its preparation is under way"
    told = with_health(unmeasured("lab", ()), found, notes)
    assert (told.fine, told.sentence) == (
        False,
        "fleet lab falls short: lab-0: GPU 3 (0000:5d:00): the GPU is lost",
    )
