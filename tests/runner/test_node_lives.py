"""The lives of nodes in the ledger, on both databases."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from orch.runner.ledger.history import node_lives
from orch.runner.ledger.history.node_lives import Look, PresentNode
from orch.runner.ledger.ledger import Ledger, open_ledger
from orch.runner.ledger.records import Waiting


@pytest.fixture
def any_ledger(ledger_url: str) -> Iterator[Ledger]:
    ledger = open_ledger(ledger_url)
    yield ledger
    ledger.close()


def node(index: int, identity: str = "", **more: object) -> PresentNode:
    values = {
        "node": f"lab-{index}",
        "identity": identity or f"i-{index}",
        "backend": "aws",
        "market": "on-demand",
        "gpus": 8,
        "price_hourly": 10.0,
        "created": 1_000_000.0,
    }
    return PresentNode(**{**values, **more})  # type: ignore[arg-type]


def test_nodes_come_and_go(any_ledger: Ledger) -> None:
    first = Look("lab", (node(0), node(1, price_hourly=None)), tags={"team": "nlp", "who": "ä\"'"})
    for _ in range(2):
        any_ledger.record_nodes("demo", "", first)
    lives = any_ledger.node_lives("demo")
    assert [(each.node, each.price_hourly, each.began_at, each.ended_at) for each in lives] == [
        ("lab-0", 10.0, 1_000_000.0, None),
        ("lab-1", None, 1_000_000.0, None),
    ]
    assert {each.tags["who"] for each in lives} == {"ä\"'"}
    assert all(abs(each.seen_at - time.time()) < 60 for each in lives)
    assert any_ledger.fleets_with_nodes("demo", "") == {"lab"}
    # One was replaced, one was deleted.
    new = node(0, "i-9", created=time.time())
    any_ledger.record_nodes("demo", "", Look("lab", (new,), removed=("lab-0", "lab-1")))
    lives = any_ledger.node_lives("demo")
    assert [(each.identity, each.ended_at is None, each.exact) for each in lives] == [
        ("i-0", False, True),
        ("i-1", False, True),
        ("i-9", True, True),
    ]
    assert lives[2].tags == lives[0].tags
    ended = lives[0].ended_at
    assert ended is not None
    assert abs(ended - time.time()) < 60
    any_ledger.record_nodes("demo", "", Look("lab", ()))
    assert any_ledger.fleets_with_nodes("demo", "") == frozenset()
    assert [each.exact for each in any_ledger.node_lives("demo")] == [True, True, False]
    assert any_ledger.node_lives("demo", since=time.time() + 100) == ()
    assert any_ledger.node_lives("demo", fleets=["other"]) == ()
    assert any_ledger.node_lives("other") == ()


def test_states_of_one_name_are_kept_apart_and_a_state_that_moved_goes_on(any_ledger: Ledger) -> None:
    any_ledger.record_nodes("demo", "aaa", Look("lab", (node(0),)))
    any_ledger.record_nodes("demo", "bbb", Look("lab", (node(0, "other"),)))
    any_ledger.record_nodes("demo", "bbb", Look("lab", ()))
    assert [(each.identity, each.ended_at is None) for each in any_ledger.node_lives("demo")] == [
        ("i-0", True),
        ("other", False),
    ]
    # The same machine, seen from where the state is now.
    any_ledger.record_nodes("demo", "ccc", Look("lab", (node(0),)))
    assert len(any_ledger.node_lives("demo")) == 2
    assert any_ledger.fleets_with_nodes("demo", "aaa") == frozenset()
    any_ledger.record_nodes("demo", "ccc", Look("lab", (), removed=("lab-0",)))
    assert all(each.ended_at is not None for each in any_ledger.node_lives("demo"))


def test_a_look_is_compared_without_being_written(any_ledger: Ledger) -> None:
    any_ledger.record_nodes("demo", "", Look("lab", (node(0),)))
    lives = any_ledger.compared_nodes("demo", "", Look("lab", (node(1),)))
    assert [(each.node, each.ended_at is None) for each in lives] == [("lab-0", False), ("lab-1", True)]
    assert [each.node for each in any_ledger.node_lives("demo")] == ["lab-0"]


def test_many_who_look_at_once_leave_one_row_of_each_node(ledger_url: str) -> None:
    open_ledger(ledger_url).close()
    count = 2 * node_lives.AT_ONCE + 7
    present = tuple(node(index) for index in range(count))

    def record() -> None:
        ledger = open_ledger(ledger_url)
        ledger.record_nodes("demo", "", Look("lab", present))
        ledger.close()

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    ledger = open_ledger(ledger_url)
    assert len(ledger.node_lives("demo")) == count
    ledger.close()


def test_attempts_are_told_with_their_own_times(any_ledger: Ledger) -> None:
    def plan(number: int) -> str:
        return json.dumps({"number": number})

    number = any_ledger.create("job", "lab", ["lab-0"], plan).id
    other = any_ledger.create("waits", "lab", ["lab-0"], plan).id
    assert list(any_ledger.timed_plans(0.0, time.time() + 100)) == []
    for run in (number, other):
        lease = any_ledger.take(run, "me")
        assert lease is not None
        any_ledger.mark_started(lease, "ranks 0")
    lease = any_ledger.take(other, "me")
    assert lease is not None
    # It failed, and waits: its times are those of the attempt that ended, and are told once.
    any_ledger.wait(lease, Waiting("w", 100.0, None, 1), ["error"])
    found = {each.run: each for each in any_ledger.timed_plans(0.0, time.time() + 100)}
    assert set(found) == {"job", "waits"}
    assert len(list(any_ledger.timed_plans(0.0, time.time() + 100))) == 2
    assert found["job"].finished_at is None
    assert (found["waits"].finished_at or 0.0) >= found["waits"].started_at
    assert list(any_ledger.timed_plans(0.0, 1000.0)) == []
    assert list(any_ledger.timed_plans(0.0, time.time() + 100, ["other"])) == []
    lease = any_ledger.take(number, "me")
    assert lease is not None
    any_ledger.finish(lease, "done", "all_jobs_done", None)
    ended = next(each for each in any_ledger.timed_plans(0.0, time.time() + 100) if each.run == "job")
    assert ended.finished_at is not None
    assert replace(ended, finished_at=None) == found["job"]
