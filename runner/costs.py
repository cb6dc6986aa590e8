"""What nodes cost, and for whom: sums over the lives of nodes (history/node_lives.py) and of runs. Pure.

Moments are seconds since the epoch, money is US dollars, days and weeks are those of UTC. What has no known
price is counted in hours alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple

from orch.runner.ledger.history.node_lives import NodeLife
from orch.runner.ledger.records import TimedPlan

Grouping = Literal["fleet", "tag", "user", "week", "run"]
IDLE, NO_TAG = "(idle)", "(none)"
WEEK_S = 7 * 86_400
# The first Monday since the epoch.
_MONDAY_S = 4 * 86_400


@dataclass(frozen=True)
class Use:
    """A run on a node, of which it has a share, for a time. `ended` is None while it is there."""

    run: str
    run_id: int
    owner: str
    tags: Mapping[str, str]
    fleet: str
    node: str
    share: float
    began: float
    ended: float | None


@dataclass
class Amounts:
    """What a group comes to. `busy`: while runs were on the nodes, by the blocks that they had; the rest of
    `dollars` is idle. `spot`, `reserved`: the part of `dollars` for nodes of these markets. `uncertain`: the
    part for the time between the last look at a node and the one that found it gone.
    """

    node_s: float = 0.0
    gpu_s: float = 0.0
    busy_node_s: float = 0.0
    unpriced_node_s: float = 0.0
    dollars: float = 0.0
    busy: float = 0.0
    spot: float = 0.0
    reserved: float = 0.0
    uncertain: float = 0.0

    @property
    def idle(self) -> float:
        return max(0.0, self.dollars - self.busy)

    def add(self, life: NodeLife, seconds: float, *, busy: bool, uncertain_s: float = 0.0) -> None:
        """Add a part of the time of a node; `seconds` are of the whole node."""
        if life.kind == "node":
            self.node_s += seconds
            self.gpu_s += seconds * life.gpus
            self.busy_node_s += seconds * busy
        if life.price_hourly is None:
            self.unpriced_node_s += seconds
            return
        dollars = life.price_hourly * seconds / 3600
        self.dollars += dollars
        self.busy += dollars * busy
        self.spot += dollars * (life.market == "spot")
        self.reserved += dollars * (life.market == "reserved")
        self.uncertain += life.price_hourly * uncertain_s / 3600


@dataclass(frozen=True)
class Forecast:
    """What a calendar month comes to if all that is there now stays. `month`: `2026-11`.

    `spent`: since its beginning; `hourly`: what is there costs that; `more`: until `ends`. `unpriced`: how
    many nodes of those have no known price.
    """

    month: str
    ends: float
    spent: float
    hourly: float
    more: float
    unpriced: int

    @property
    def total(self) -> float:
        return self.spent + self.more


@dataclass(frozen=True)
class Report:
    """Costs of a time in groups, the dearest first, but weeks in order. `overlap`: a node may be in several
    groups, as it has several tags."""

    since: float
    until: float
    groups: Mapping[str, Amounts] = field(default_factory=dict[str, Amounts])
    total: Amounts = field(default_factory=Amounts)
    overlap: bool = False


def uses_of(attempt: TimedPlan) -> tuple[Use, ...]:
    """Which nodes an attempt had, and how much of each; none where its plan cannot be read."""
    try:
        plan = json.loads(attempt.plan)
        shares = dict[str, float]()
        for rank in plan["ranks"]:
            node = rank["node"]
            share = int(rank["blocks"]) / max(1, int(node.get("blocks") or 1))
            shares[str(node["name"])] = shares.get(str(node["name"]), 0.0) + share
        tags = {str(key): str(value) for key, value in (plan.get("tags") or {}).items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return ()
    owner = attempt.submitted_by.partition("@")[0]
    return tuple(
        Use(
            attempt.run,
            attempt.run_id,
            owner,
            tags,
            attempt.fleet,
            node,
            min(1.0, share),
            attempt.started_at,
            attempt.finished_at,
        )
        for node, share in shares.items()
    )


def report(
    lives: Sequence[NodeLife],
    uses: Iterable[Use],
    by: Grouping,
    since: float,
    until: float,
    *,
    tag: str | None = None,
) -> Report:
    """What the nodes cost between two moments. `tag`: of groups by tag, the key whose values they are."""
    on_nodes: dict[tuple[str, str], list[Use]] = {}
    for use in uses:
        on_nodes.setdefault((use.fleet, use.node), []).append(use)
    keys = _keys(by, tag)
    groups: dict[str, Amounts] = {}
    total = Amounts()
    for life in lives:
        for piece in _pieces(life, on_nodes.get((life.fleet, life.node), ()), since, until):
            for amounts in (total, *(groups.setdefault(key, Amounts()) for key in keys(life, piece))):
                amounts.add(life, piece.seconds, busy=piece.use is not None, uncertain_s=piece.uncertain_s)
    in_order = sorted(
        groups.items(),
        key=lambda each: (each[0],) if by == "week" else (-each[1].dollars, -each[1].node_s, each[0]),
    )
    return Report(since, until, dict(in_order), total, overlap=by == "tag" and tag is None)


def spent(lives: Iterable[NodeLife], now: float) -> Amounts:
    """What nodes came to until now, whoever used them."""
    total = Amounts()
    for life in lives:
        for piece in _pieces(life, (), 0.0, now):
            total.add(life, piece.seconds, busy=False, uncertain_s=piece.uncertain_s)
    return total


def forecast(lives: Sequence[NodeLife], now: float, ends: Mapping[str, float] | None = None) -> Forecast:
    """What the calendar month of `now` comes to. `ends`: when the time of a fleet is over, by its name."""
    began, ending = month_of(now)
    total, hourly, more, unpriced = Amounts(), 0.0, 0.0, 0
    for life in lives:
        for piece in _pieces(life, (), began, now):
            total.add(life, piece.seconds, busy=False)
        if life.ended_at is not None:
            continue
        if life.price_hourly is None:
            unpriced += 1
            continue
        last = min(ending, (ends or {}).get(life.fleet, ending))
        hourly += life.price_hourly
        more += life.price_hourly * max(0.0, last - now) / 3600
    month = datetime.fromtimestamp(began, timezone.utc).strftime("%Y-%m")
    return Forecast(month, ending, total.dollars, hourly, more, unpriced)


def month_of(now: float) -> tuple[float, float]:
    """The beginning and the end of a calendar month."""
    first = datetime.fromtimestamp(now, timezone.utc).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    following = (first + timedelta(days=32)).replace(day=1)
    return first.timestamp(), following.timestamp()


def week_of(moment: float) -> str:
    """The week of a moment, as ISO 8601 counts them, and its Monday: `2026-W48 (23 Nov)`."""
    return _week(int((moment - _MONDAY_S) // WEEK_S))


@cache
def _week(number_since_epoch: int) -> str:
    monday = datetime.fromtimestamp(number_since_epoch * WEEK_S + _MONDAY_S, timezone.utc)
    year, number, _ = monday.isocalendar()
    return f"{year}-W{number:02d} ({monday.day} {monday:%b})"


class _Piece(NamedTuple):
    """A part of the time of a node: `seconds` of all of it, for one run, or for nobody."""

    began: float
    seconds: float
    use: Use | None
    uncertain_s: float = 0.0


def _pieces(life: NodeLife, uses: Sequence[Use], since: float, until: float) -> Iterator[_Piece]:
    """The time of a node between two moments in pieces that have one week, one run, or none.

    A node is never used more than once: where plans of runs overlap, as after a change of the clock, each
    gets less.
    """
    first = max(life.began_at, since)
    last = min(until if life.ended_at is None else life.ended_at, until)
    if last <= first:
        return
    here = sorted(
        (max(use.began, first), min(last if use.ended is None else use.ended, last), at)
        for at, use in enumerate(uses)
        if use.began < last and (use.ended is None or use.ended > first)
    )
    borders = {first, last, *_mondays(first, last)}
    borders |= {moment for began, ended, _ in here for moment in (began, ended)}
    known = life.seen_at if not life.exact and life.ended_at is not None else last
    if first < known < last:
        borders.add(known)
    in_order = sorted(borders)
    active: list[tuple[float, int]] = []  # end, use
    waiting = iter([*here, (float("inf"), float("inf"), -1)])
    following = next(waiting)
    for began, ended in pairwise(in_order):
        active = [each for each in active if each[0] > began]
        while following[0] <= began:
            if following[1] > began:
                active.append((following[1], following[2]))
            following = next(waiting)
        seconds, uncertain = ended - began, began >= known
        taken = sum(uses[at].share for _, at in active)
        for _, at in active:
            part = seconds * uses[at].share / max(1.0, taken)
            yield _Piece(began, part, uses[at], part if uncertain else 0.0)
        if taken < 1.0 - 1e-9:
            rest = seconds * (1.0 - taken)
            yield _Piece(began, rest, None, rest if uncertain else 0.0)


def _mondays(first: float, last: float) -> Iterator[float]:
    monday = first - (first - _MONDAY_S) % WEEK_S + WEEK_S
    while monday < last:
        yield monday
        monday += WEEK_S


def _keys(by: Grouping, tag: str | None) -> Callable[[NodeLife, _Piece], Collection[str]]:
    """The groups that a piece belongs to."""

    def of_tags(life: NodeLife, piece: _Piece) -> Collection[str]:
        tags = {**life.tags, **(piece.use.tags if piece.use is not None else {})}
        if tag is not None:
            return (tags.get(tag, NO_TAG),)
        return [f"{key}={value}" for key, value in sorted(tags.items())] or (NO_TAG,)

    if by == "fleet":
        return lambda life, piece: (life.fleet,)
    if by == "week":
        return lambda life, piece: (week_of(piece.began),)
    if by == "tag":
        return of_tags
    if by == "user":
        return lambda life, piece: (piece.use.owner if piece.use is not None else IDLE,)
    return lambda life, piece: (f"{piece.use.run} ({piece.use.run_id})" if piece.use is not None else IDLE,)
