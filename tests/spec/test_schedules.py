"""Arrays, signals and schedules as text, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.spec.grammar import schedule
from orch.spec.grammar.schedule import ArrayRequest, SignalRequest
from orch.spec.grammar.values import Problem


@pytest.mark.parametrize(
    ("text", "indexes", "at_once"),
    [
        ("1-4", (1, 2, 3, 4), None),
        ("0-31:8", (0, 8, 16, 24), None),
        ("7", (7,), None),
        ("1,3,7-9%2", (1, 3, 7, 8, 9), 2),
        ("3,1,2-3", (1, 2, 3), None),
    ],
)
def test_an_array_is_its_indexes(text: str, indexes: tuple[int, ...], at_once: int | None) -> None:
    request = schedule.parse_array(text)
    assert (request.indexes, request.at_once) == (indexes, at_once)


@pytest.mark.parametrize(
    "text", ["", "a", "-1", "1-", "1--3", "1..4", "0-10000", "1-9%", "1-9%x", "1,,2", "9" * 30]
)
def test_what_is_no_array_is_refused(text: str) -> None:
    with pytest.raises(Problem):
        schedule.parse_array(text)


spans = st.tuples(st.integers(0, 500), st.integers(0, 90), st.integers(1, 9)).map(
    lambda span: (span[0], span[0] + span[1], span[2] if span[1] else 1)
)


@given(st.lists(spans, min_size=1, max_size=9), st.one_of(st.none(), st.integers(1, 99)))
def test_a_rendered_array_reads_as_itself(ranges: list[tuple[int, int, int]], at_once: int | None) -> None:
    request = ArrayRequest(tuple(ranges), at_once)
    assert schedule.parse_array(schedule.render_array(request)) == request


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("USR1@300", SignalRequest("USR1", 300)),
        ("B:TERM@5m", SignalRequest("TERM", 300, shell_only=True)),
    ],
)
def test_a_signal_has_a_time_before_the_end(text: str, request_: SignalRequest) -> None:
    assert schedule.parse_signal(text) == request_
    assert schedule.parse_signal(schedule.render_signal(request_)) == request_


@pytest.mark.parametrize(
    "text", ["0 3 * * *", "*/15 0-5 1,15 jan-mar mon-fri", "59 23 31 12 7", "0 0 * * sun", "0 0-23/2 * * *"]
)
def test_a_schedule_has_five_fields(text: str) -> None:
    assert schedule.parse_cron(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "1-x * * * *",
        "* * * foo *",
        "@daily",
    ],
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(Problem):
        schedule.parse_cron(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("0 3 * * 0", "sun"),
        ("0 3 * * 1-5", "mon-fri"),
        ("0 3 * * 7", "sun"),
        ("0 3 * * mon", None),
        ("0 3 * * */2", None),
    ],
)
def test_a_weekday_in_numbers_is_told_by_name(text: str, named: str | None) -> None:
    assert schedule.numeric_weekday(text) == named
