"""The decision about a run, as a table: what is known and seen, what is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch.runner.node.runtime import CloudNotice, ObservedRank
from orch.runner.plan.run_plan import Elastic, RankPlan, RunPlan
from orch.runner.runs.decide import (
    Act,
    Collect,
    MarkRunning,
    Phase,
    ReleaseBarrier,
    RunView,
    Signal,
    Start,
    Stop,
    Verdict,
    Wait,
    decide,
    departed_ranks,
    rank_reason,
)
from orch.spec.state import NodeState


def plan(**more: object) -> RunPlan:
    nodes = [
        NodeState(
            index=i, name=f"n{i}", address="127.0.0.1", user="root", host_key="k", internal_ip=f"10.0.0.{i}"
        )
        for i in range(3)
    ]
    given: dict[str, object] = {
        "run": "job",
        "number": 1,
        "run_id": "r",
        "fleet": "f",
        "backend": "local",
        "image": "i",
        "ranks": [RankPlan(rank=i, node=node, blocks=1, script="") for i, node in enumerate(nodes)],
        "launcher": "commands",
        "hostfile": "",
        "unreachable_grace_s": 30,
    }
    return RunPlan.model_validate(given | more)


ABSENT, SILENT, READY = "absent", "silent", "ready"


def seen(*states: str | int) -> tuple[ObservedRank, ...]:
    """`ready` behind its barrier, `gone` without it, `up` started, `stopping`, a number for an exit code."""

    def one(rank: int, state: str | int) -> ObservedRank:
        if isinstance(state, int):
            return ObservedRank(
                rank, "exited", state, finished_at=f"t{rank}", marks=frozenset({"go", "started"})
            )
        marks = {"go": {"go"}, "up": {"go", "started"}, "stopping": {"go", "started", "stopping"}}
        marks["overdue"] = {"go", "started", "stopping", "overdue"}
        marks["late"] = {"go", "started", "overdue"}
        if state in (ABSENT, SILENT):
            return ObservedRank(rank, state)
        return ObservedRank(rank, "running", marks=frozenset(marks.get(state, ())))

    return tuple(one(rank, state) for rank, state in enumerate(states))


DONE = Verdict("done", "all_jobs_done")
FAILED = Verdict("failed", "job_failed", "why")


@pytest.mark.parametrize(
    ("phase", "states", "act"),
    [
        (Phase.STARTING, (ABSENT, READY, ABSENT), Start((0, 2))),
        (Phase.STARTING, (READY, READY, READY), ReleaseBarrier((0, 1, 2))),
        (Phase.STARTING, (READY, READY, SILENT), Wait()),
        (Phase.GOING, ("up", READY, "up"), ReleaseBarrier((1,))),
        (Phase.GOING, ("up", "go", "up"), Wait()),
        (Phase.GOING, ("up", "up", "up"), MarkRunning()),
        (Phase.GOING, ("up", 0, "up"), MarkRunning()),
        (Phase.RUNNING, ("up", "up", "up"), Wait()),
        (Phase.RUNNING, (0, 0, "up"), Wait()),
        (Phase.RUNNING, (0, 0, 0), Collect(DONE)),
        (Phase.RUNNING, ("up", SILENT, "up"), Wait()),
        (
            Phase.RUNNING,
            ("up", 3, "up"),
            Stop((0, 2), Verdict("failed", "job_failed", "rank 1 on node n1 exited with code 3")),
        ),
        (
            Phase.RUNNING,
            (0, 3, 0),
            Collect(Verdict("failed", "job_failed", "rank 1 on node n1 exited with code 3")),
        ),
        (
            Phase.RUNNING,
            ("up", ABSENT, "up"),
            Stop((0, 2), Verdict("failed", "job_failed", "the container of rank 1 on node n1 disappeared")),
        ),
    ],
)
def test_the_next_act_follows_from_what_is_seen(phase: Phase, states: tuple[str | int, ...], act: Act):
    assert decide(plan(), RunView("run", phase), seen(*states)) == act


@pytest.mark.parametrize(
    ("order", "phase", "states", "act"),
    [
        ("master-first", Phase.STARTING, (READY, READY, READY), ReleaseBarrier((0,))),
        ("master-first", Phase.GOING, ("go", READY, READY), Wait()),
        ("master-first", Phase.GOING, ("up", READY, READY), ReleaseBarrier((1, 2))),
        ("master-first", Phase.GOING, (0, READY, READY), ReleaseBarrier((1, 2))),
        ("workers-first", Phase.STARTING, (READY, READY, READY), ReleaseBarrier((1, 2))),
        ("workers-first", Phase.GOING, (READY, "up", "go"), Wait()),
        ("workers-first", Phase.GOING, (READY, "up", "up"), ReleaseBarrier((0,))),
    ],
)
def test_the_startup_order_is_kept(order: str, phase: Phase, states: tuple[str | int, ...], act: Act):
    assert decide(plan(startup_order=order), RunView("run", phase), seen(*states)) == act


def test_the_masters_success_stops_the_others_only_when_asked():
    states = seen(0, "up", "up")
    assert decide(plan(), RunView("run", Phase.RUNNING), states) == Wait()
    assert decide(plan(stop_criteria="master-done"), RunView("run", Phase.RUNNING), states) == Stop(
        (1, 2), DONE
    )


@pytest.mark.parametrize(
    ("desired", "states", "act"),
    [
        ("stop", ("up", "up", 0), Stop((0, 1), Verdict("terminated", "stopped_by_user"))),
        ("stop", (ABSENT, ABSENT, ABSENT), Collect(Verdict("terminated", "stopped_by_user"))),
        ("abort", ("stopping", "up", 0), Stop((0, 1), Verdict("terminated", "aborted_by_user"), kill=True)),
    ],
)
def test_a_wish_to_end_comes_before_all_else(desired: str, states: tuple[str | int, ...], act: Act):
    assert decide(plan(), RunView(desired, Phase.RUNNING), seen(*states)) == act


def test_a_verdict_is_seen_through_without_asking_again():
    known = RunView("run", Phase.STOPPING, FAILED)
    assert decide(plan(), known, seen("up", 3, "stopping")) == Stop((0,), FAILED)
    assert decide(plan(), known, seen("stopping", 3, "stopping")) == Wait()
    assert decide(plan(), known, seen(143, 3, 143)) == Collect(FAILED)
    assert decide(plan(), known, seen(143, 3, SILENT)) == Wait()


def test_a_node_is_given_up_after_its_grace_and_named():
    silent = seen("up", SILENT, "up")
    assert decide(plan(), RunView("run", Phase.RUNNING, silent_s={1: 29.0}), silent) == Wait()
    act = decide(plan(), RunView("run", Phase.RUNNING, silent_s={1: 30.0}), silent)
    assert act == Stop((0, 2), Verdict("failed", "job_failed", "node n1 did not answer for 30 s"))
    known = RunView("run", Phase.STOPPING, FAILED, silent_s={1: 31.0})
    assert decide(plan(), known, seen(143, SILENT, 143)) == Collect(FAILED)


def test_a_node_that_never_answered_is_not_waited_for():
    known = RunView("run", Phase.STOPPING, FAILED, silent_s={1: 0.0}, given_up=frozenset({1}))
    assert decide(plan(), known, seen(143, SILENT, 143)) == Collect(FAILED)


def test_of_two_failures_the_first_in_time_is_told():
    states = (
        ObservedRank(0, "exited", 1, finished_at="2026-01-01T00:00:05Z"),
        ObservedRank(1, "exited", 2, finished_at="2026-01-01T00:00:01Z"),
        ObservedRank(2, "exited", 0, finished_at="2026-01-01T00:00:00Z"),
    )
    act = decide(plan(), RunView("run", Phase.RUNNING), states)
    assert act == Collect(Verdict("failed", "job_failed", "rank 1 on node n1 exited with code 2"))


def test_time_and_memory_are_told_as_such():
    over = ObservedRank(0, "exited", 143, marks=frozenset({"expired"}))
    killed = ObservedRank(0, "exited", 0, out_of_memory=True)
    for one, words in ((over, "reached max_duration (60 s)"), (killed, "ran out of memory")):
        act = decide(plan(max_duration_s=60), RunView("run", Phase.RUNNING), (one, *seen(0, 0, 0)[1:]))
        assert isinstance(act, Collect)
        assert words in (act.verdict.message or "")


def test_what_should_be_gone_and_is_not_is_killed():
    known = RunView("stop", Phase.STOPPING, FAILED)
    assert decide(plan(), known, seen("overdue", "stopping", 0)) == Stop((0,), FAILED, kill=True)
    assert decide(plan(), known, seen("overdue", "up", 0)) == Stop((1,), FAILED), "first everybody is asked"
    assert decide(plan(), known, seen("stopping", "stopping", 0)) == Wait()


def test_max_duration_holds_where_the_nodes_clock_died():
    act = decide(plan(max_duration_s=60), RunView("run", Phase.RUNNING), seen("late", "up", "up"))
    assert isinstance(act, Stop)
    assert act.verdict.message == "rank 0 on node n0 reached max_duration (60 s)"


# --- elastic runs: one of three ranks may go

ELASTIC = Elastic(least=2, rendezvous_rank=0)


@pytest.mark.parametrize(
    ("states", "act"),
    [
        (("up", "up", SILENT), Wait()),
        (("up", "up", ABSENT), Wait()),
        (("up", "up", 1), Wait()),
        ((0, "up", 137), Wait()),
        ((0, 0, SILENT), Collect(DONE)),
        ((0, 0, 1), Collect(DONE)),
        (
            ("up", 1, 3),
            Stop((0,), Verdict("failed", "job_failed", "rank 1 on node n1 exited with code 1")),
        ),
        (
            (1, "up", "up"),
            Stop((1, 2), Verdict("failed", "job_failed", "rank 0 on node n0 exited with code 1")),
        ),
    ],
)
def test_an_elastic_run_goes_on_while_enough_ranks_and_the_rendezvous_are_left(
    states: tuple[str | int, ...], act: Act
):
    silent = {rank: 31.0 for rank, state in enumerate(states) if state == SILENT}
    view = RunView("run", Phase.RUNNING, silent_s=silent)
    assert decide(plan(elastic=ELASTIC), view, seen(*states)) == act


def test_an_elastic_run_waits_as_long_for_a_node_that_does_not_answer_as_any_other():
    assert (
        departed_ranks(plan(elastic=ELASTIC), RunView("run", Phase.RUNNING), seen("up", "up", SILENT))
        == set()
    )


def test_an_elastic_run_that_has_not_begun_needs_all_its_ranks():
    view = RunView("run", Phase.STARTING)
    assert decide(plan(elastic=ELASTIC), view, seen(READY, READY, ABSENT)) == Start((2,))


def test_max_duration_ends_an_elastic_run_too():
    expired = ObservedRank(2, "exited", 143, marks=frozenset({"go", "started", "expired"}))
    act = decide(plan(elastic=ELASTIC), RunView("run", Phase.RUNNING), (*seen("up", "up"), expired))
    assert isinstance(act, Stop)
    assert act.verdict.status == "failed"


def told(rank: int, exit_code: int | None = None, *marks: str) -> ObservedRank:
    """A rank whose node is taken away: it was sent the run's signal, unless other marks are given."""
    given = {"go", "started", "interrupted", *(marks or ("signalled",))}
    state = "running" if exit_code is None else "exited"
    notice = CloudNotice("spot", "2026-11-23T12:00:00Z")
    return ObservedRank(rank, state, exit_code, marks=frozenset(given), notice=notice)


def test_a_rank_that_saved_and_left_is_interrupted_and_one_that_was_not_told_is_done() -> None:
    assert rank_reason(told(0, 0)) == "interrupted_by_no_capacity"
    assert rank_reason(told(0, 1, "interrupted")) == "interrupted_by_no_capacity"
    assert rank_reason(told(0, 0, "interrupted")) == "done"


def test_all_ranks_get_the_signal_of_one_whose_node_is_taken_and_may_save() -> None:
    of = plan(signal={"name": "USR1", "before_s": 60}, stop_duration_s=20, stop_criteria="master-done")
    view = RunView("run", Phase.RUNNING)
    up = seen("up", "up", "up")
    assert decide(of, view, (told(0), *up[1:])) == Signal((1, 2))
    # Also where it was quicker than who looks.
    assert decide(of, view, (told(0, 0), *up[1:])) == Signal((1, 2))
    # An elastic run goes on without it, and one without a signal has nothing to send.
    elastic = of.model_copy(update={"elastic": Elastic(least=1)})
    assert decide(elastic, view, (told(0), *up[1:])) == Wait()
    assert decide(plan(), view, (told(0), *up[1:])) == Wait()

    passed = ObservedRank(1, "running", marks=frozenset({"go", "started", "signalled"}))
    saved = (told(0, 0), passed, *seen("up", "up", 0)[2:])
    assert decide(of, view, saved) == Wait()
    late = decide(of, replace(view, interrupted_s=20.0), saved)
    assert isinstance(late, Stop)
    assert (late.ranks, late.verdict.status) == ((1,), "failed")
    assert late.verdict.message == (
        "rank 0 on node n0 was interrupted: its cloud takes it back at 2026-11-23T12:00:00Z"
    )
    ended = decide(of, view, (told(0, 0), *seen("up", 0, 0)[1:]))
    assert isinstance(ended, Collect)
    assert ended.verdict.status == "failed"


def test_a_node_that_was_announced_to_go_is_not_one_that_does_not_answer() -> None:
    notices = {1: CloudNotice("maintenance", "")}
    view = RunView("run", Phase.RUNNING, silent_s={1: 31.0}, notices=notices)
    act = decide(plan(), view, seen("up", SILENT, "up"))
    assert isinstance(act, Stop)
    assert act.verdict.message == "node n1 was interrupted: its cloud announces maintenance"
