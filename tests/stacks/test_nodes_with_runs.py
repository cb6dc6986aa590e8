"""Which nodes that were made for one run are not needed any more."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orch.runner.ledger.ledger import Ledger
from orch.spec.errors import OrchError
from orch.spec.state import FleetState, NodeState, own_nodes
from orch.stacks.project.project import Project
from orch.stacks.provisioning import nodes_with_runs
from orch.stacks.provisioning.nodes_with_runs import (
    COLLECTED_WITHIN_S,
    Removal,
    give_up,
    given_back,
    make_way,
    making,
    submitted,
    until_submitted,
    unused,
)
from orch.stacks.pulumi.progress import Listener, Progress
from orch.stacks.stack.state import StackState


def quiet() -> AbstractContextManager[Listener]:
    """Nobody listens."""
    return nullcontext(lambda event: None)


OLD, NEW = "2026-01-01T00:00:00Z", "2099-01-01T00:00:00Z"


@dataclass
class Runs:
    """A ledger with these runs. The plan of a row is the marks of its nodes."""

    active: list[Any] = field(default_factory=list)
    ended: list[Any] = field(default_factory=list)

    def placed_on(self, fleet: str) -> list[Any]:
        return self.active

    def listed(self, **asked: Any) -> Any:
        return SimpleNamespace(rows=self.ended)


@dataclass(frozen=True)
class Row:
    """A run. `collected`: of its ranks; `silent`: since when their nodes do not answer."""

    plan: str
    attempts: tuple[Any, ...] = ()
    now: float = 10_000.0
    finished_at: float = 9_000.0
    collected: bool = True
    silent: float | None = None

    @property
    def ranks(self) -> list[Any]:
        return [SimpleNamespace(collected=self.collected, silent_since=self.silent)]


@pytest.fixture(autouse=True)
def plans(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan_of(row: Row) -> Any:
        nodes = [SimpleNamespace(made_for=mark) for mark in row.plan.split()]
        return SimpleNamespace(ranks=[SimpleNamespace(node=node) for node in nodes])

    monkeypatch.setattr(nodes_with_runs, "plan_of", plan_of)


def look(
    folder: Path,
    ledger: Runs,
    *,
    all_known: bool = True,
    nodes: Collection[str] = (),
    claims: Mapping[str, tuple[str, ...]] | None = None,
    **created: str,
) -> set[str]:
    """The marks that are not needed. `created`: when the resources of a mark were made; `nodes`: those whose
    `up` ended; `claims`: the runs that nodes report, by mark."""
    return judge(folder, ledger, created, all_known=all_known, nodes=nodes, claims=claims or {})[0]


def judge(
    folder: Path,
    ledger: Runs,
    created: Mapping[str, str],
    *,
    all_known: bool,
    nodes: Collection[str],
    claims: Mapping[str, tuple[str, ...]],
) -> tuple[set[str], Mapping[str, str]]:
    resources = [
        {"urn": f"urn::{mark}", "inputs": {"made_for": mark}, "created": at} for mark, at in created.items()
    ]
    recorded = [*resources, {"urn": "urn::keys", "inputs": {}}]
    made = [{"name": mark, "made_for": mark} for mark in nodes]
    stack = SimpleNamespace(name="lab", resources=recorded, nodes=made)
    project = cast(Project, SimpleNamespace(dot=folder, knows_all_runs=all_known))
    asked = lambda _, names: {each: claims[each] for each in names if each in claims}  # noqa: E731
    return unused(project, cast(Ledger, ledger), cast(StackState, stack), asked)


def test_nodes_stay_as_long_as_their_run_and_no_longer(tmp_path: Path) -> None:
    attempt = SimpleNamespace(plan="earlier")
    ledger = Runs(active=[Row("runs", (attempt,))], ended=[Row("ended")])
    made = {"runs": OLD, "ended": NEW, "other": OLD}
    assert look(tmp_path, ledger, **cast(Any, made)) == {"ended", "other"}


def test_nodes_of_an_earlier_attempt_go_while_the_run_waits(tmp_path: Path) -> None:
    waiting = Row("first", (SimpleNamespace(plan="first"),))
    assert look(tmp_path, Runs(ended=[waiting]), first=NEW) == {"first"}


@pytest.mark.parametrize(
    ("row", "gone"),
    [
        (Row("mark", collected=False), False),
        (Row("mark", collected=False, silent=8_000.0), True),
        (Row("mark", collected=False, finished_at=10_000.0 - COLLECTED_WITHIN_S - 1), True),
    ],
    ids=["answers", "silent", "too long ago"],
)
def test_what_a_run_left_on_nodes_that_answer_is_waited_for(tmp_path: Path, row: Row, gone: bool) -> None:
    assert look(tmp_path, Runs(ended=[row]), mark=NEW) == ({"mark"} if gone else set())


def test_nodes_wait_for_the_run_of_whoever_makes_them_here(tmp_path: Path) -> None:
    project = cast(Project, SimpleNamespace(dot=tmp_path))
    with making(project, "mark"):
        assert look(tmp_path, Runs(), mark=OLD) == set()
    assert look(tmp_path, Runs(), mark=OLD) == set()
    give_up("mark")
    # A removal of them may fail or be killed.
    assert look(tmp_path, Runs(), mark=NEW) == look(tmp_path, Runs(), mark=NEW) == {"mark"}


def test_a_run_that_is_submitted_while_somebody_looks_keeps_its_nodes(tmp_path: Path) -> None:
    project = cast(Project, SimpleNamespace(dot=tmp_path))

    class Submitting(Runs):
        """Whoever made the nodes submits their run when the ledger was just read, and is killed then."""

        def listed(self, **asked: Any) -> Any:
            give_up("mark")
            return super().listed(**asked)

    with making(project, "mark"):
        pass
    assert look(tmp_path, Submitting(), mark=OLD) == set()


def test_nodes_whose_making_failed_are_not_waited_for(tmp_path: Path) -> None:
    project = cast(Project, SimpleNamespace(dot=tmp_path))
    with pytest.raises(KeyboardInterrupt), making(project, "mark"):
        raise KeyboardInterrupt
    assert look(tmp_path, Runs(), mark=NEW) == {"mark"}


def removals(monkeypatch: pytest.MonkeyPatch, refusal: OrchError | None = None) -> list[str]:
    """The fleets that unused nodes are removed from. `refusal`: what comes of it."""
    removed: list[str] = []

    def remove_unused(project: Project, name: str, listener: Listener) -> Removal:
        removed.append(name)
        if refusal is not None:
            raise refusal
        return Removal(("lab-0",))

    monkeypatch.setattr(nodes_with_runs, "remove_unused", remove_unused)
    return removed


def test_nodes_whose_run_could_not_be_submitted_go_and_its_error_is_what_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = cast(Project, SimpleNamespace(dot=tmp_path))
    removed = removals(monkeypatch, OrchError("RunPod does not answer"))
    told: list[str] = []

    def listen(event: Progress) -> None:
        told.append(str(getattr(event, "text", "")))

    with making(project, "mark"):
        pass
    with (
        pytest.raises(KeyboardInterrupt),
        until_submitted(project, "lab", "mark", lambda: nullcontext(listen)),
    ):
        raise KeyboardInterrupt
    assert removed == ["lab"]
    assert told == [
        "warning: RunPod does not answer; `orch reconcile` removes what was made for the run",
    ]
    assert look(tmp_path, Runs(), mark=NEW) == {"mark"}


def test_nodes_of_a_submitted_run_and_nodes_of_nobody_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = cast(Project, SimpleNamespace(dot=tmp_path))
    removed = removals(monkeypatch)
    with making(project, "mark"), until_submitted(project, "lab", "mark", quiet):
        pass
    assert not list((tmp_path / "making").iterdir())
    with pytest.raises(KeyboardInterrupt), given_back(project, "lab", None, quiet):
        raise KeyboardInterrupt
    assert removed == []


def test_a_run_makes_way_on_fleets_alone_whose_nodes_are_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = cast(Project, SimpleNamespace(dot=tmp_path))
    removed = removals(monkeypatch)
    pods, machines = (
        FleetState(name=name, stack=name, backend=backend)
        for name, backend in (("pods", "runpod"), ("machines", "aws"))
    )
    assert make_way(project, [pods, machines], quiet)
    assert removed == ["pods"]
    assert not make_way(project, [machines], quiet)


def test_nodes_that_another_machine_made_are_waited_for_a_while(tmp_path: Path) -> None:
    assert look(tmp_path, Runs(), young=NEW, old=OLD) == {"old"}
    project = cast(Project, SimpleNamespace(dot=tmp_path))
    with making(project, "here"):
        submitted(project, "here")
    assert not list((tmp_path / "making").iterdir())


@pytest.mark.parametrize(
    ("all_known", "nodes", "claims", "why"),
    [
        # Two ledgers on one state: whether its run goes on is for the other one to say.
        (False, ["mark"], {"mark": ()}, "others share the state"),
        (False, [], {}, "others share the state"),
        (True, ["mark"], {"mark": ("run train of ada",)}, "in use by run train of ada"),
        (True, ["mark"], {}, "does not answer"),
        (True, ["mark"], {"mark": ()}, None),
        (True, [], {}, None),
    ],
    ids=["shared", "shared and half made", "in use", "silent", "idle", "half made"],
)
def test_nodes_of_a_run_that_the_ledger_does_not_know_stay_until_it_is_sure_that_nobody_needs_them(
    tmp_path: Path, all_known: bool, nodes: list[str], claims: dict[str, tuple[str, ...]], why: str | None
) -> None:
    known: dict[str, Any] = {"all_known": all_known, "nodes": nodes, "claims": claims}
    removed, kept = judge(tmp_path, Runs(), {"mark": OLD}, **known)
    assert removed == (set() if why else {"mark"})
    assert (why or "") in kept.get("mark", "")
    # A run that this ledger has seen end gives its nodes back all the same.
    assert look(tmp_path, Runs(ended=[Row("mark")]), all_known=all_known, nodes=nodes, mark=OLD) == {"mark"}


def test_a_run_sees_its_own_nodes_and_those_of_nobody() -> None:
    def node(index: int, mark: str | None) -> NodeState:
        known = {"index": index, "name": f"lab-{index}", "made_for": mark}
        return NodeState.model_validate({**known, "address": "a", "user": "root", "host_key": "k"})

    nodes = (node(0, "mine"), node(1, "other"), node(2, None))
    fleet = FleetState(name="lab", stack="lab", backend="runpod", nodes=nodes)
    assert [each.index for each in own_nodes(fleet, "mine").nodes] == [0, 2]
    assert [each.index for each in own_nodes(fleet, None).nodes] == [2]
