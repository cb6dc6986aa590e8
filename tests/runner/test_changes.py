"""The audit log in the ledger, on both databases: who holds what, and what is gone on with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import update

from orch.runner.ledger import schema
from orch.runner.ledger.changes import Changes, ChangeUnderWay, Undertaking
from orch.runner.ledger.lease import LeaseLost
from orch.runner.ledger.ledger import Ledger, open_ledger

REPLACE = Undertaking(
    "demo",
    "",
    "node replace",
    "nodes lab-0",
    "orch node replace lab-0",
    plan='{"a": 1}',
    holds=("lab/lab-0",),
)
DRAIN = replace(REPLACE, verb="node drain", command="orch node drain lab-0")


@pytest.fixture
def any_ledger(ledger_url: str) -> Iterator[Ledger]:
    ledger = open_ledger(ledger_url)
    yield ledger
    ledger.close()


def forget_owner(ledger: Ledger, number: int) -> None:
    """As if its process had been killed on another machine, long ago."""
    with ledger._begin() as db:
        db.execute(
            update(schema.change)
            .where(schema.change.c.id == number)
            .values(owner="eve@elsewhere:1", lease_until=1.0)
        )


def test_a_change_from_its_beginning_to_its_end(any_ledger: Ledger) -> None:
    changes = any_ledger.changes
    begun = changes.begin(Undertaking("demo", "", "up", 'fleet "lä\0b"', "orch up f.yml", "here at 12ab"))
    running = changes.get(begun.change.id)
    assert running is not None
    assert (running.status, running.held, running.exit_code, running.calls) == ("running", True, None, 1)
    changes.set_plan(begun.lease, '{"create": 2}')
    changes.end(begun.lease, "done", "2 created", 0)
    ended = changes.get(begun.change.id)
    assert ended is not None
    assert (ended.status, ended.result, ended.exit_code, ended.plan) == (
        "done",
        "2 created",
        0,
        '{"create": 2}',
    )
    assert ended.ended_at is not None
    assert ended.ended_at >= ended.began_at
    assert (ended.verb, ended.subject, ended.origin) == ("up", 'fleet "lä\ufffdb"', "here at 12ab")
    assert "@" in ended.by
    with pytest.raises(LeaseLost):
        changes.end(begun.lease, "failed", "again", 5)
    assert changes.get(99) is None


def test_what_a_change_holds_no_other_one_takes(any_ledger: Ledger) -> None:
    changes = any_ledger.changes
    begun = changes.begin(REPLACE)
    for other in (REPLACE, DRAIN):
        with pytest.raises(ChangeUnderWay) as caught:
            changes.begin(other)
        assert caught.value.code == "ORCH389"
        assert "node replace" in caught.value.summary
        assert f"orch log {begun.change.id}" in str(caught.value.hint)
    # Neighbours, other projects and what holds nothing go on.
    assert not changes.begin(replace(DRAIN, subject="nodes lab-1", holds=("lab/lab-1",))).resumed
    assert not changes.begin(replace(REPLACE, project="other")).resumed
    assert not changes.begin(replace(REPLACE, scope="12ab34")).resumed
    assert not changes.begin(replace(REPLACE, verb="up", holds=())).resumed
    with pytest.raises(ChangeUnderWay):
        changes.resume(begun.change.id)
    with pytest.raises(ChangeUnderWay):
        changes.abandon(begun.change.id)
    changes.end(begun.lease, "done", "")
    assert not changes.begin(DRAIN).resumed


def test_the_same_change_goes_on_and_does_nothing_twice(any_ledger: Ledger) -> None:
    changes = any_ledger.changes
    first = changes.begin(REPLACE)
    assert changes.begin_step(first.lease, "lab-0", "drain")
    changes.end_step(first.lease, "lab-0", "drain", "done", "2 runs stopped")
    assert changes.begin_step(first.lease, "lab-0", "remove")
    forget_owner(any_ledger, first.change.id)
    with pytest.raises(ChangeUnderWay) as caught:
        changes.begin(DRAIN)
    assert "orch node replace lab-0" in str(caught.value.hint)
    second = changes.begin(replace(REPLACE, plan='{"a": 2}'))
    assert second.resumed
    assert (second.change.id, second.change.plan, second.change.calls) == (first.change.id, '{"a": 1}', 2)
    with pytest.raises(LeaseLost):
        changes.begin_step(first.lease, "lab-0", "create")
    with pytest.raises(LeaseLost):
        changes.end_step(first.lease, "lab-0", "remove", "done")
    assert not changes.begin_step(second.lease, "lab-0", "drain")
    assert changes.begin_step(second.lease, "lab-0", "remove")
    changes.end_step(second.lease, "lab-0", "remove", "failed", "no answer")
    changes.end(second.lease, "interrupted", "no answer", 5)
    third = changes.begin(REPLACE)
    assert third.resumed
    steps = changes.steps(first.change.id)
    assert [(each.host, each.name, each.status, each.message) for each in steps] == [
        ("lab-0", "drain", "done", "2 runs stopped"),
        ("lab-0", "remove", "failed", "no answer"),
    ]


def test_an_interrupted_change_is_given_up(any_ledger: Ledger) -> None:
    changes = any_ledger.changes
    first = changes.begin(REPLACE)
    forget_owner(any_ledger, first.change.id)
    unfinished = changes.listed("demo", unfinished=True)
    assert [each.shown_status for each in unfinished] == ["interrupted"]
    assert changes.abandon(first.change.id).status == "abandoned"
    second = changes.begin(DRAIN)
    assert not second.resumed
    changes.end(second.lease, "interrupted", "")
    third = changes.begin(DRAIN, resume=False)
    assert not third.resumed
    assert [each.status for each in changes.listed("demo")] == ["running", "abandoned", "abandoned"]


def test_lists(any_ledger: Ledger) -> None:
    changes = any_ledger.changes
    for verb in ("up", "node drain", "node replace", "nodes", "down"):
        changes.end(changes.begin(replace(DRAIN, verb=verb, holds=())).lease, "done", "")
    assert [each.verb for each in changes.listed("demo")] == [
        "down",
        "nodes",
        "node replace",
        "node drain",
        "up",
    ]
    assert [each.verb for each in changes.listed("demo", verbs=["node", "up"])] == [
        "node replace",
        "node drain",
        "up",
    ]
    assert [each.verb for each in changes.listed("demo", limit=1)] == ["down"]
    assert [each.verb for each in changes.listed("demo", verbs=["node"], limit=1)] == ["node replace"]
    assert changes.listed("demo", since=changes.listed("demo")[0].now + 60) == ()
    assert changes.listed("other") == ()


def test_of_many_who_begin_at_once_one_does(any_ledger: Ledger) -> None:
    begun: list[int] = []
    refused: list[ChangeUnderWay] = []
    start = threading.Barrier(6)

    def begin(changes: Changes) -> None:
        start.wait()
        try:
            begun.append(changes.begin(REPLACE).change.id)
        except ChangeUnderWay as error:
            refused.append(error)

    threads = [threading.Thread(target=begin, args=(any_ledger.changes,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(begun), len(refused)) == (1, 5)
