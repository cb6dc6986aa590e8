"""The health of nodes in the ledger, on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import update

from orch.runner.ledger import schema
from orch.runner.ledger.history.node_health import KEPT_S, Examination
from orch.runner.ledger.ledger import Ledger, open_ledger

WELL = Examination("lab-0", "healthy", "", "{}")
LOST = Examination("lab-1", "failure", "GPU 3 lost \0 'x'", '{"a": 1}')


@pytest.fixture
def any_ledger(ledger_url: str) -> Iterator[Ledger]:
    ledger = open_ledger(ledger_url)
    yield ledger
    ledger.close()


def test_a_period_lasts_while_status_and_reason_stay(any_ledger: Ledger) -> None:
    ledger = any_ledger
    for _ in range(3):
        ledger.record_health("demo", "", "lab", [WELL, LOST])
    first, second = ledger.health("demo", "")
    assert (first.node, first.status, first.report) == ("lab-0", "healthy", "{}")
    assert (second.node, second.reason) == ("lab-1", "GPU 3 lost \ufffd 'x'")
    assert len(ledger.health("demo", "", history=True)) == 2
    ledger.record_health("demo", "", "lab", [Examination("lab-1", "healthy", "", "{}")])
    ledger.record_health("demo", "", "lab", [Examination("lab-1", "failure", "hot", "{}")])
    told = [(each.node, each.status) for each in ledger.health("demo", "", history=True)]
    assert told == [("lab-0", "healthy"), ("lab-1", "failure"), ("lab-1", "healthy"), ("lab-1", "failure")]
    assert [each.reason for each in ledger.health("demo", "")] == ["", "hot"]
    assert all(each.began_at <= each.seen_at for each in ledger.health("demo", "", history=True))


def test_a_fault_whose_counter_rises_is_one(any_ledger: Ledger) -> None:
    ledger = any_ledger
    for reason in (
        "GPU 3: 5 uncorrected errors",
        "GPU 3: 70 uncorrected errors",
        "GPU 4: 70 uncorrected errors",
    ):
        ledger.record_health("demo", "", "lab", [Examination("lab-0", "failure", reason, "{}")])
    told = [each.reason for each in ledger.health("demo", "", history=True)]
    assert told == ["GPU 3: 70 uncorrected errors", "GPU 4: 70 uncorrected errors"]


def test_projects_states_and_fleets_are_apart(any_ledger: Ledger) -> None:
    ledger = any_ledger
    for project, scope, fleet in (("a", "", "lab"), ("a", "x", "lab"), ("b", "", "lab"), ("a", "", "other")):
        ledger.record_health(project, scope, fleet, [WELL])
    assert [each.fleet for each in ledger.health("a", "")] == ["lab", "other"]
    assert [each.fleet for each in ledger.health("a", "", ["other", "none"])] == ["other"]
    assert ledger.health("a", "", []) == ()
    assert len(ledger.health("a", "", ["lab"], history=True)) == 1


def test_what_was_seen_long_ago_goes(any_ledger: Ledger) -> None:
    ledger = any_ledger
    ledger.record_health("demo", "", "lab", [WELL, LOST])
    with ledger._begin() as db:
        table = schema.node_health
        db.execute(update(table).where(table.c.node == "lab-0").values(seen_at=table.c.seen_at - KEPT_S - 1))
    ledger.record_health("demo", "", "lab", [LOST])
    assert [each.node for each in ledger.health("demo", "", history=True)] == ["lab-1"]
