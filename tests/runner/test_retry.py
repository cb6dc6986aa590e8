"""What is tried again, when, and when it is given up: the decision alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kit.ledgers.pureruns import compiled, fleet, node

from orch.runner.ledger.records import AttemptRow, RankRow, RunRow
from orch.runner.placement.availability import NodeAvailability
from orch.runner.placement.placement import place_task
from orch.runner.plan.run_plan import RetryPlan
from orch.runner.runs.retry import GiveUp, TryAgain, attempt_events, attempts_made, counts, next_try
from orch.spec.models import Task

ALL = ("no-capacity", "error", "interruption")
HOUR = 3600


def rank(number: int, reason: str | None) -> RankRow:
    return RankRow(number, f"n{number}", "failed", None, reason, None, None, collected=True)


def row(**more: object) -> RunRow:
    """A run submitted at 1000 whose commands began at 1100 and failed at 1200."""
    given: dict[str, object] = {
        "id": 1,
        "name": "job",
        "fleet": "lab",
        "plan": "",
        "status": "terminating",
        "desired": "run",
        "phase": "collecting",
        "reason": "job_failed",
        "message": None,
        "attempt": 0,
        "master_port": None,
        "submitted_by": "me",
        "owner": None,
        "lease_until": None,
        "fence": 1,
        "created_at": 1000.0,
        "started_at": 1100.0,
        "finished_at": None,
        "next_at": None,
        "retry_since": None,
        "priority": 0,
        "queued_at": None,
        "looked_at": None,
        "in_use": 0,
        "retry_tries": 0,
        "now": 1200.0,
        "ranks": (),
    }
    return RunRow(**{**given, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reasons", "started", "events"),
    [
        (("container_exited_with_error", "sibling_failed"), True, {"error"}),
        (("creating_container_error", "sibling_failed"), False, {"error"}),
        (("volume_error", None), False, {"error"}),
        (("instance_unreachable", "sibling_failed"), True, {"interruption", "error"}),
        # What a cloud announced is a lost node's events, by its market and by whether commands had begun.
        (("interrupted_by_no_capacity", "sibling_failed"), False, {"interruption", "error", "no-capacity"}),
        (("sibling_failed", "instance_unreachable"), True, {"interruption"}),
        # The container went with its node, or with the node's Docker.
        (("sibling_failed", "executor_error"), True, {"interruption"}),
        # Before commands began it is what no attempt changes: a secret or files that are gone.
        (("instance_unreachable", "executor_error"), False, set()),
        # The loss of one node makes the others fail.
        (("container_exited_with_error", "instance_unreachable"), True, {"error", "interruption"}),
        (("failed_to_start_due_to_no_capacity", None), False, {"no-capacity"}),
        (("failed_to_start_due_to_no_capacity", "creating_container_error"), False, {"no-capacity", "error"}),
        (("health_failure", "sibling_failed"), False, {"interruption", "error", "no-capacity"}),
        (("sibling_failed", "instance_unreachable"), False, {"interruption", "no-capacity"}),
        # The time of a run is over for good, whatever else its ranks did.
        (("max_duration_exceeded", "container_exited_with_error"), True, set()),
        (("terminated_by_user", "terminated_by_user"), True, set()),
    ],
)
def test_the_events_of_an_attempt_are_those_of_its_ranks(
    reasons: tuple[str | None, ...], started: bool, events: set[str]
):
    plan = compiled(fleet(node(0), node(1, spot=True)), nodes=2, commands=["a"]).plan
    ranks = [rank(number, reason) for number, reason in enumerate(reasons)]
    assert attempt_events(plan, ranks, started=started) == events


def policy(*on: str, **more: object) -> RetryPlan:
    return RetryPlan.model_validate({"on_events": on or ALL, "duration_s": HOUR, **more})


def test_only_events_that_are_listed_are_tried_again_on():
    assert next_try(None, row(), {"error"}, made=1) is None
    assert next_try(policy("no-capacity"), row(), {"error"}, made=1) is None
    assert next_try(policy("error"), row(), frozenset(), made=1) is None
    assert isinstance(next_try(policy("error"), row(), {"error", "interruption"}, made=1), TryAgain)


def test_the_delays_grow_to_ten_minutes():
    delays: list[float] = []
    present = row()
    for attempt in range(1, 9):
        choice = next_try(policy(duration_s=None), present, {"error"}, made=attempt)
        assert isinstance(choice, TryAgain)
        delays.append(choice.delay_s)
        began = present.now + choice.delay_s
        present = replace(
            present,
            retry_since=choice.since,
            retry_tries=choice.tries,
            started_at=began,
            now=began + 5,
            attempt=attempt,
        )
    assert delays == [15, 30, 60, 120, 300, 600, 600, 600]


def test_the_duration_counts_from_the_first_failure_and_the_last_try_is_at_its_end():
    first = next_try(policy(), row(), {"error"}, made=1)
    assert first == TryAgain(15, 1200.0, 1)
    later = row(started_at=4600.0, now=4700.0, retry_since=1200.0, retry_tries=5)
    # 600 s would be after the hour.
    assert next_try(policy(), later, {"error"}, made=6) == TryAgain(100, 1200.0, 6)
    over = replace(later, now=4800.0)
    assert next_try(policy(), over, {"error"}, made=6) == GiveUp("the `duration` of its retry (1h) is over")


def test_without_nodes_it_counts_from_the_submission():
    unstarted = row(started_at=None, now=1010.0)
    first = next_try(policy(), unstarted, {"no-capacity"}, made=0)
    assert first == TryAgain(15, 1000.0, 1)
    assert isinstance(next_try(policy(), replace(unstarted, now=4600.0), {"no-capacity"}, made=0), GiveUp)
    # What the first failure of an attempt begins is a count of its own.
    failed = row(started_at=4500.0, now=4600.0, retry_since=1000.0, retry_tries=9)
    assert next_try(policy(), failed, {"error"}, made=1) == TryAgain(15, 4600.0, 1)


def test_an_attempt_that_ran_for_the_duration_begins_a_new_count():
    ran = row(started_at=2000.0, retry_since=1200.0, retry_tries=4, now=2000.0 + HOUR)
    assert next_try(policy(), ran, {"interruption"}, made=5) == TryAgain(15, ran.now, 1)
    short = replace(ran, now=ran.now - 1, retry_since=2000.0)
    assert next_try(policy(), short, {"interruption"}, made=5) == TryAgain(1, 2000.0, 5)


def test_the_attempts_are_counted_with_the_first_one():
    assert isinstance(next_try(policy(max_attempts=2), row(), {"error"}, made=1), TryAgain)
    given_up = next_try(policy(max_attempts=2), row(attempt=1), {"error"}, made=2)
    assert given_up == GiveUp("`max_attempts` (2) is reached")


def test_an_attempt_whose_nodes_others_took_first_is_not_counted():
    def ended(*events: str) -> AttemptRow:
        return AttemptRow(0, "", events, None, None, 1200.0, ())

    assert not counts({"no-capacity"})
    assert counts({"no-capacity", "error"})
    assert attempts_made([ended("error"), ended("no-capacity"), ended("interruption", "no-capacity")]) == 2


def test_only_a_want_of_nodes_counts_from_the_submission():
    # The image took longer than the duration, and then the container could not be made.
    late = row(started_at=None, now=1000.0 + 2 * HOUR)
    assert next_try(policy(), late, {"error"}, made=1) == TryAgain(15, late.now, 1)
    assert next_try(policy(), late, {"interruption", "no-capacity"}, made=1) == TryAgain(15, late.now, 1)
    assert isinstance(next_try(policy(), late, {"no-capacity"}, made=1), GiveUp)
    assert isinstance(next_try(policy("no-capacity"), late, {"error", "no-capacity"}, made=1), GiveUp)
    again = row(started_at=None, retry_since=late.now, retry_tries=1, now=late.now + 60)
    assert next_try(policy(), again, {"error"}, made=2) == TryAgain(30, late.now, 2)


def test_the_wait_after_an_attempt_is_none_of_its_time():
    assert row().took_s == 100
    assert row(started_at=None).took_s is None
    ended = AttemptRow(0, "", ("error",), None, 1100.0, 1150.0, ())
    assert row(attempts=(ended,)).took_s == 50
    assert row(attempts=(ended,), finished_at=1900.0, now=2000.0).took_s == 50
    assert row(attempts=(ended,), attempt=1, started_at=1160.0).took_s == 40


def test_of_nodes_on_which_it_failed_a_run_takes_those_with_the_fewest_failures():
    task = Task.model_validate({"nodes": 2, "commands": ["a"]})
    on = fleet(*(node(index) for index in range(4)))
    failed = {"n0": 2, "n1": 1, "n2": 10, "n3": 1}
    seats = place_task(task, on, {name: NodeAvailability(failed=count) for name, count in failed.items()})
    assert [seat.node.name for seat in seats] == ["n1", "n3"]
