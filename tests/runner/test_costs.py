"""Sums over the lives of nodes: what overlaps, what was replaced, what has no price, and where weeks meet."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from itertools import pairwise

import pytest

from orch.runner.costs import (
    IDLE,
    NO_TAG,
    Amounts,
    Use,
    forecast,
    month_of,
    report,
    spent,
    uses_of,
    week_of,
)
from orch.runner.ledger.history.node_lives import Look, NodeLife, PresentNode, compare
from orch.runner.ledger.plans import hourly_of
from orch.runner.ledger.records import TimedPlan

HOUR = 3600.0


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


NOON = at("2026-11-25T12:00")
LIFE = NodeLife(
    fleet="h100",
    node="h100-0",
    identity="i-0",
    kind="node",
    backend="aws",
    market="on-demand",
    instance_type="p5.48xlarge",
    gpus=8,
    price_hourly=10.0,
    tags={},
    began_at=NOON - 10 * HOUR,
    ended_at=None,
    exact=True,
    seen_at=NOON,
    id=1,
)
PRESENT = PresentNode(
    "h100-0", "i-0", "aws", "on-demand", "node", "p5.48xlarge", 8, 10.0, created=NOON - 10 * HOUR
)


def use(began_h: float, ended_h: float | None, run: str = "train", **more: object) -> Use:
    """A run from so many hours before noon on."""
    ended = None if ended_h is None else NOON - ended_h * HOUR
    values = {
        "run": run,
        "run_id": 7,
        "owner": "ada",
        "tags": {},
        "fleet": "h100",
        "node": "h100-0",
        "share": 1.0,
        "began": NOON - began_h * HOUR,
        "ended": ended,
    }
    return Use(**{**values, **more})  # type: ignore[arg-type]


def total(amounts: Amounts) -> tuple[float, float, float, float]:
    """Node-hours, cost, busy and idle."""
    return tuple(
        round(each, 6) for each in (amounts.node_s / HOUR, amounts.dollars, amounts.busy, amounts.idle)
    )  # type: ignore[return-value]


def test_a_node_costs_from_its_creation_on_and_is_busy_while_a_run_is_there() -> None:
    found = report([LIFE], [use(8, 5), use(2, None, "next")], "fleet", 0.0, NOON)
    assert total(found.total) == (10, 100, 50, 50)
    assert found.total.gpu_s == 80 * HOUR
    assert list(found.groups) == ["h100"]
    # Of a part of that time only what is in it.
    part = report([LIFE], [use(8, 5)], "fleet", NOON - 6 * HOUR, NOON - 4 * HOUR)
    assert total(part.total) == (2, 20, 10, 10)
    assert report([LIFE], [], "fleet", 0.0, NOON - 10 * HOUR).groups == {}


def test_a_run_pays_for_its_blocks_and_never_more_than_the_node() -> None:
    half = use(4, 0, share=0.5)
    assert total(report([LIFE], [half], "fleet", 0.0, NOON).total) == (10, 100, 20, 80)
    two = [half, use(4, 0, "other", share=0.25, owner="bob")]
    by_user = report([LIFE], two, "user", 0.0, NOON).groups
    assert {name: total(each)[1] for name, each in by_user.items()} == {IDLE: 70, "ada": 20, "bob": 10}
    # Plans that overlap by a mistake share what there is.
    double = [use(4, 0), use(4, 2, "other", owner="bob")]
    found = report([LIFE], double, "user", 0.0, NOON)
    assert {name: total(each)[1] for name, each in found.groups.items()} == {IDLE: 60, "ada": 30, "bob": 10}
    assert total(found.total) == (10, 100, 40, 60)


def test_a_replaced_node_of_the_same_name_is_another_one() -> None:
    first = replace(LIFE, ended_at=NOON - 6 * HOUR)
    second = replace(LIFE, identity="i-1", price_hourly=20.0, began_at=NOON - 5 * HOUR, id=2)
    # A run that was on the first one is not on the second; nor on none, in the hour between.
    runs = [use(9, 5.5), use(1, None, "next")]
    found = report([first, second], runs, "run", 0.0, NOON)
    assert total(found.total) == (9, 4 * 10 + 5 * 20, 3 * 10 + 20, 10 + 80)
    assert {name: total(each)[1] for name, each in found.groups.items()} == {
        "train (7)": 30,
        "next (7)": 20,
        IDLE: 90,
    }


def test_an_unknown_price_is_hours_and_no_dollar() -> None:
    unknown = replace(LIFE, price_hourly=None)
    own = replace(LIFE, fleet="rack", node="rack-0", price_hourly=0.0, market="own")
    found = report([unknown, own], [use(4, 0)], "fleet", 0.0, NOON)
    assert total(found.total) == (20, 0, 0, 0)
    assert found.total.unpriced_node_s == 10 * HOUR
    assert found.total.busy_node_s == 4 * HOUR
    assert found.groups["rack"].unpriced_node_s == 0


def test_markets_are_kept_apart_and_what_is_beside_nodes_is_no_node() -> None:
    spot = replace(LIFE, market="spot", price_hourly=3.0)
    reserved = replace(LIFE, node="h100-1", market="reserved")
    beside = replace(LIFE, node="h100-bastion", kind="beside", gpus=0, price_hourly=0.1)
    found = report([spot, reserved, beside], [], "fleet", 0.0, NOON).total
    assert (found.spot, found.reserved) == (pytest.approx(30), pytest.approx(100))
    assert total(found) == (20, 131, 0, 131)


def test_what_was_found_gone_is_uncertain_since_it_was_last_seen() -> None:
    gone = replace(LIFE, exact=False, seen_at=NOON - 4 * HOUR, ended_at=NOON - HOUR)
    found = report([gone], [use(5, 2)], "user", 0.0, NOON)
    assert total(found.total)[1] == 90
    assert found.total.uncertain == pytest.approx(30)
    assert found.groups["ada"].uncertain == pytest.approx(20)
    assert spent([gone], NOON).uncertain == pytest.approx(30)
    assert report([replace(gone, exact=True)], [], "fleet", 0.0, NOON).total.uncertain == 0


def test_weeks_begin_on_monday_in_utc_whatever_clocks_do() -> None:
    # In Europe and America clocks change in this time; a week has 168 hours.
    began, ended = at("2026-10-17T22:00"), at("2026-11-09T06:00")
    life = replace(LIFE, began_at=began, ended_at=ended)
    found = report([life], [], "week", 0.0, NOON).groups
    assert {name: each.node_s / HOUR for name, each in found.items()} == {
        "2026-W42 (12 Oct)": 26,
        "2026-W43 (19 Oct)": 168,
        "2026-W44 (26 Oct)": 168,
        "2026-W45 (2 Nov)": 168,
        "2026-W46 (9 Nov)": 6,
    }
    assert list(found) == sorted(found)
    assert sum(each.node_s for each in found.values()) == ended - began
    assert week_of(at("2026-12-31T12:00")) == week_of(at("2027-01-03T23:59")) == "2026-W53 (28 Dec)"
    assert week_of(at("2027-01-04T00:00")) == "2027-W01 (4 Jan)"


def test_tags_of_a_run_come_before_those_of_its_fleet() -> None:
    life = replace(LIFE, tags={"team": "infra", "cost-centre": "4"})
    other = replace(LIFE, fleet="dev", node="dev-0")
    run = use(4, 0, tags={"team": "nlp"})
    found = report([life, other], [run], "tag", 0.0, NOON, tag="team")
    assert {name: total(each)[1] for name, each in found.groups.items()} == {
        NO_TAG: 100,
        "infra": 60,
        "nlp": 40,
    }
    assert not found.overlap
    every = report([life, other], [run], "tag", 0.0, NOON)
    assert {name: total(each)[1] for name, each in every.groups.items()} == {
        NO_TAG: 100,
        "cost-centre=4": 100,
        "team=infra": 60,
        "team=nlp": 40,
    }
    assert every.overlap
    assert total(every.total)[1] == 200


def test_the_month_is_what_was_spent_and_what_is_there_until_its_end() -> None:
    began, ends = month_of(NOON)
    assert (began, ends) == (at("2026-11-01T00:00"), at("2026-12-01T00:00"))
    assert month_of(at("2026-12-31T23:59"))[1] == at("2027-01-01T00:00")
    before = replace(LIFE, began_at=at("2026-10-30T00:00"), ended_at=at("2026-11-01T02:00"))
    unknown = replace(LIFE, node="h100-9", price_hourly=None)
    short = replace(LIFE, fleet="ttl", node="ttl-0", price_hourly=1.0)
    found = forecast([before, LIFE, unknown, short], NOON, {"ttl": NOON + 6 * HOUR})
    left_h = (ends - NOON) / HOUR
    assert left_h == 132
    assert found.month == "2026-11"
    assert found.spent == pytest.approx(2 * 10 + 10 * 10 + 10)
    assert (found.hourly, found.unpriced) == (11, 1)
    assert found.more == pytest.approx(132 * 10 + 6)
    assert found.total == pytest.approx(found.spent + found.more)


def test_shares_of_a_plan_and_of_one_that_cannot_be_read() -> None:
    def plan(*ranks: tuple[str, int, int]) -> str:
        return json.dumps(
            {
                "tags": {"team": "nlp"},
                "ranks": [{"node": {"name": n, "blocks": of}, "blocks": taken} for n, taken, of in ranks],
            }
        )

    attempt = TimedPlan(
        3, "job", "h100", "ada@laptop", plan(("a", 2, 8), ("a", 2, 8), ("b", 1, 1)), 1.0, None
    )
    assert [(each.node, each.share) for each in uses_of(attempt)] == [("a", 0.5), ("b", 1.0)]
    assert {(each.owner, each.tags["team"], each.ended) for each in uses_of(attempt)} == {
        ("ada", "nlp", None)
    }
    for text in ("", "{}", "[]", '{"ranks": [1]}', '{"ranks": [{"node": {}, "blocks": 1}]}'):
        assert uses_of(replace(attempt, plan=text)) == ()


def test_many_runs_one_after_the_other_add_up() -> None:
    minutes = [NOON - 600 * 60 + 60 * each for each in range(601)]
    runs = [
        use(0, 0, f"r{number}", began=began, ended=ended)
        for number, (began, ended) in enumerate(pairwise(minutes))
        if number % 2
    ]
    found = report([LIFE], runs, "run", 0.0, NOON)
    assert len(found.groups) == 301
    assert total(found.total) == (10, 100, 50, 50)


# What a look changes.


def look(*present: PresentNode, **more: object) -> Look:
    return Look("h100", present, **more)  # type: ignore[arg-type]


def test_a_first_look_begins_at_the_creation_and_a_second_one_changes_nothing() -> None:
    first = compare([], look(PRESENT, other_tags={"team": "nlp"}), NOON)
    assert [(life.began_at, life.tags) for life in first.begun] == [(NOON - 10 * HOUR, {"team": "nlp"})]
    second = compare(first.begun, look(PRESENT), NOON + 60)
    assert (second.ended, second.begun) == ((), ())
    assert [life.seen_at for life in second.seen] == [NOON + 60]
    # A creation that this clock has not come to, and one that nobody recorded, is now.
    for created in (NOON + 5, None):
        (life,) = compare([], look(replace(PRESENT, created=created)), NOON).begun
        assert life.began_at == NOON


def test_a_new_price_or_tag_begins_another_row_at_once() -> None:
    for changed, tags in ((replace(PRESENT, price_hourly=12.0), None), (PRESENT, {"team": "nlp"})):
        found = compare([LIFE], look(changed, tags=tags), NOON)
        assert [(life.ended_at, life.exact) for life in found.ended] == [(NOON, True)]
        assert [(life.began_at, life.price_hourly) for life in found.begun] == [(NOON, changed.price_hourly)]
    # Tags that are not told stay.
    tagged = replace(LIFE, tags={"team": "nlp"})
    assert compare([tagged], look(PRESENT), NOON).seen


def test_how_a_node_ended_is_known_or_at_most() -> None:
    later = NOON + 2 * HOUR
    cases = {
        (): (later, False),
        (("removed", ("h100-0",)),): (later, True),
        (("ends", NOON + HOUR),): (NOON + HOUR, True),
        (("ends", later + 1),): (later, False),
    }
    for words, (ended_at, exact) in cases.items():
        (life,) = compare([LIFE], look(**dict(words)), later).ended
        assert (life.ended_at, life.exact) == (ended_at, exact), words


def test_the_successor_of_a_node_tells_when_it_was_gone_at_the_latest() -> None:
    new = replace(PRESENT, identity="i-1", created=NOON + HOUR)
    found = compare([LIFE], look(new), NOON + 3 * HOUR)
    assert [(life.ended_at, life.exact) for life in found.ended] == [(NOON + HOUR, False)]
    assert [life.began_at for life in found.begun] == [NOON + HOUR]


def test_a_node_that_is_there_again_was_away() -> None:
    away = replace(LIFE, ended_at=NOON - HOUR, exact=False)
    (life,) = compare([away], look(PRESENT), NOON).begun
    assert life.began_at == NOON


@pytest.mark.parametrize(("backend", "hourly"), [("kubernetes", None), ("ssh", 0.0)])
def test_pods_have_no_price_that_is_known_and_hosts_of_the_user_cost_nothing(
    backend: str, hourly: float | None
) -> None:
    rank = {"node": {"price_hourly": None, "blocks": 1}, "blocks": 1}
    assert hourly_of(json.dumps({"backend": backend, "ranks": [rank]})) == hourly
