"""Nodes do not go while runs are on them: what the ledger knows is enough, also where no node answers."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from kit.ledgers.activeruns import start
from kit.support import Folder

from orch.components.deployment import Deployment
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow, Waiting
from orch.runner.node import status
from orch.runner.node.status import read_claims
from orch.runner.node_api.claims import Claim
from orch.runner.placement.slots import access_of
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.access import OtherAccess
from orch.spec.state import FleetState, Gpus, NodeState, PodQueue
from orch.stacks.errors import Conflict
from orch.stacks.events.changes import Change
from orch.stacks.project.project import Project, find
from orch.stacks.provisioning.busy_nodes import lost_nodes, occupants, refuse_occupied
from orch.stacks.pulumi.operation import Note
from orch.stacks.record.volume_attaching import ProjectVolumes
from orch.stacks.stack.state import StackState

KEY = "ssh-ed25519 AAAA"


def node(index: int, key: str = KEY) -> NodeState:
    """One that nobody reaches, which is known at once."""
    return NodeState(
        index=index, name=f"lab-{index}", address="no where", user="root", host_key=f"{key}{index}"
    )


def bring_up(folder: Folder, queue: PodQueue | None = None) -> Path:
    """Record a fleet of three, or one of pods, as the engine does; the file of its state."""
    nodes = () if queue is not None else tuple(map(node, range(3)))
    fleet = FleetState(name="lab", stack="lab", backend="local", nodes=nodes, queue=queue)
    urn = "urn:pulumi:lab::tests"
    outputs = {"orch": {"version": "0", "schema": 3}, "fleet": fleet.model_dump(mode="json")}
    resources = [
        {"urn": f"{urn}::pulumi:pulumi:Stack::tests-lab", "type": "pulumi:pulumi:Stack", "outputs": outputs},
        *(
            {
                "urn": f"{urn}::orch:fleet:Local$orch:local:Node::{each.name}",
                "type": "orch:local:Node",
                "custom": True,
                "id": each.name,
            }
            for each in fleet.nodes
        ),
    ]
    file = find(folder.path).checkpoint("lab")
    assert file is not None
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"version": 3, "checkpoint": {"latest": {"resources": resources}}}))
    return file


@pytest.mark.parametrize(
    "words",
    [("down", "lab"), ("fleet", "delete", "lab"), ("down", "lab", "-i", "0", "-i", "1")],
    ids=" ".join,
)
def test_nodes_are_not_removed_under_a_run(folder: Folder, words: tuple[str, ...]) -> None:
    state = bring_up(folder)
    before = state.read_text()
    start(find(folder.path), "train", node(1), node(2))
    said = folder.orch(*words, "--yes")
    assert said.code == 9, said.err
    assert "error ORCH386: runs are on nodes of the fleet lab that would go: train" in said.err
    on = "lab-1" if "-i" in words else "lab-[1-2]"
    assert f"  {on}: run train of " in said.err
    assert "`orch stop train`" in said.err
    assert "`--force`" in said.err
    asked = "lab-[0-1]" if "-i" in words else "lab-[0-2]"
    assert f"{asked}: no answer; which runs are there is known by this project's ledger alone" in said.err
    assert state.read_text() == before


def test_a_fleet_of_pods_stays_while_a_run_has_pods_of_it(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "reconcile_once", lambda runner, rows: None)
    queue = PodQueue(namespace="training", gang="job", pods=4, mark="lab-1a2b")
    bring_up(folder, queue)
    project = find(folder.path)
    stack = StackState(project, "lab")
    other = queue.model_copy(update={"mark": "lab-9f9f"})
    start(project, "theirs", pod(other, "theirs-0"))
    refuse_occupied(stack, [], lambda _: None, whole=True)
    start(project, "train", pod(queue, "train-0"), pod(queue, "train-1"))
    with pytest.raises(Conflict, match="runs are on nodes of the fleet lab that would go: train") as caught:
        refuse_occupied(stack, [], lambda _: None, whole=True)
    assert "leaves them their pods" in (caught.value.hint or "")
    assert "train-[0-1]: run train of " in (caught.value.detail or "")
    assert "theirs" not in (caught.value.detail or "")


def pod(queue: PodQueue, name: str) -> NodeState:
    access = OtherAccess.model_validate(access_of(queue, pod=name, uid="u", container="job"))
    return NodeState(index=int(name[-1]), name=name, access=access, runtime="process", made_for=name)


def test_a_plan_without_the_key_asks_no_node(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    bring_up(folder)
    project = replace(find(folder.path), keyless=True)
    start(project, "train", node(1))
    asked: list[object] = []
    monkeypatch.setattr(status, "claims_of", lambda *given, **more: asked.append(given) or [None, None])
    monkeypatch.setattr(lifecycle, "reconcile_once", lambda *given: asked.append(given))
    notes: list[object] = []
    (found,) = occupants(StackState(project, "lab"), ["lab-0", "lab-1"], notes.append)
    assert (found.node, found.run) == ("lab-1", "train")
    assert asked == []
    known = "which runs are there is known by this project's ledger alone"
    assert notes == [Note(f"lab-[0-1]: not asked; {known}")]


def test_a_fleet_that_runs_wait_for_stays_and_single_nodes_of_it_may_go(folder: Folder) -> None:
    bring_up(folder)
    project = find(folder.path)
    start(project, "train", node(1))
    start(project, "later", node(1), waiting=Waiting("no free nodes", 600, None, 1))
    start(project, "other", node(1), fleet="rack", waiting=Waiting("no free nodes", 600, None, 1))
    stack = StackState(project, "lab")
    with pytest.raises(
        Conflict, match="runs are on nodes of the fleet lab that would go: train, later"
    ) as caught:
        refuse_occupied(stack, ["lab-0", "lab-1"], lambda _: None, whole=True)
    on, waits = (caught.value.detail or "").splitlines()
    assert on.startswith("lab-1: run train of ")
    assert re.fullmatch("no node yet: run later of .*, which waits", waits)
    assert "`orch stop train` and `orch stop later`" in (caught.value.hint or "")
    with pytest.raises(Conflict, match="runs wait for nodes of the fleet lab, which would go: later"):
        refuse_occupied(stack, ["lab-0"], lambda _: None, whole=True)
    refuse_occupied(stack, ["lab-0"], lambda _: None)
    said = folder.orch("down", "lab", "--yes")
    assert (said.code, "no node yet: run later of " in said.err) == (9, True), said.err


def told(project: Project, *nodes: str) -> str | None:
    try:
        refuse_occupied(StackState(project, "lab"), nodes, lambda _: None)
    except Conflict as error:
        return error.detail
    return None


def test_silent_nodes_without_runs_may_go_and_so_may_those_beside_a_run(folder: Folder) -> None:
    bring_up(folder)
    project = find(folder.path)
    assert told(project, "lab-0", "lab-1") is None
    start(find(folder.path), "train", node(1))
    assert told(project, "lab-0", "lab-2") is None
    assert (told(project, "lab-0", "lab-1") or "").startswith("lab-1: run train of ")


def test_a_run_on_machines_that_were_there_before_holds_no_node_of_the_same_name(folder: Folder) -> None:
    bring_up(folder)
    start(find(folder.path), "old", node(1, key="ssh-ed25519 BBBB"))
    assert told(find(folder.path), "lab-1") is None


def test_a_run_counts_with_the_gpus_of_all_of_its_nodes(folder: Folder) -> None:
    bring_up(folder)
    four = Gpus(count=4, vendor="nvidia", name="H100")
    whole, half = (node(index).model_copy(update={"gpus": four, "blocks": index}) for index in (1, 2))
    start(find(folder.path), "train", whole, half)
    (occupant,) = occupants(StackState(find(folder.path), "lab"), ["lab-1"], lambda _: None)
    # All four of the one, and two of the other, of which the run has one of two blocks.
    assert (occupant.node, occupant.gpus, occupant.own) == ("lab-1", 6, True)


def test_several_runs_are_each_named_with_their_nodes(folder: Folder) -> None:
    bring_up(folder)
    start(find(folder.path), "one", node(0), node(1))
    start(find(folder.path), "two", node(2))
    with pytest.raises(Conflict) as caught:
        refuse_occupied(StackState(find(folder.path), "lab"), ["lab-0", "lab-1", "lab-2"], lambda _: None)
    lines = sorted((caught.value.detail or "").splitlines())
    assert [line.partition(" of ")[0] for line in lines] == ["lab-2: run two", "lab-[0-1]: run one"]
    assert "`orch stop one`" in (caught.value.hint or "")
    assert "`orch stop two`" in (caught.value.hint or "")


def test_disks_of_runs_that_have_ended_can_be_detached(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up(folder)
    project, given = find(folder.path), list[RunnerContext]()
    start(project, "train", node(1))

    def reconcile(runner: RunnerContext, rows: list[RunRow]) -> None:
        given.append(runner)

    monkeypatch.setattr(lifecycle, "reconcile_once", reconcile)
    assert told(project, "lab-1") is not None
    assert [runner.volumes for runner in given] == [ProjectVolumes(project)]


def test_what_an_ended_run_left_is_told_with_what_clears_it_away(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up(folder)
    project = find(folder.path)
    start(project, "train", node(1), node(2))
    with closing(open_ledger(project.ledger_url)) as ledger:
        row = ledger.get("train")
        container = plan_of(row).container(0)
        lease = ledger.take(row.id, "test")
        assert lease is not None
        ledger.finish(lease, "failed", "job_failed", "rank 0 could not start")
    claim = Claim(container, "train", "ada@desk", "2026-11-22T10:00:00Z")
    monkeypatch.setattr(status, "claims_of", lambda nodes, *_, **__: [(claim,) for _ in nodes])
    with pytest.raises(Conflict) as caught:
        refuse_occupied(StackState(project, "lab"), ["lab-1"], lambda _: None)
    error = caught.value
    assert error.detail == "lab-1: run train of ada@desk, which has ended and is not cleared away"
    assert (error.hint or "").startswith("see to Docker of lab-1: once it answers")
    assert "orch stop" not in (error.hint or "")
    assert "`--force`" in (error.hint or "")


def planned(*nodes: str, moves: bool = False) -> Deployment:
    return Deployment((), {}, 0.0, lambda: pytest.fail("not registered"), nodes=nodes, moves=moves)


def change(op: str, name: str, kind: str = "orch:local:Node") -> Change:
    return Change(op, kind, name, f"urn:pulumi:s::p::{kind}::{name}")  # type: ignore[arg-type]


THREE = {f"lab-{index}": f"lab-{index}" for index in range(3)}


def test_nodes_go_that_a_plan_has_no_more_and_those_that_are_made_anew() -> None:
    assert lost_nodes(THREE, planned("lab-0", "lab-1", "lab-2", "lab-3")) == set()
    assert lost_nodes(THREE, planned("lab-0", "lab-1")) == {"lab-2"}
    assert lost_nodes(THREE, planned("lab-0", moves=True)) == set(THREE)
    found = [change("update", "lab-0"), change("replace", "lab-1"), change("create", "lab-2")]
    assert lost_nodes(THREE, planned(*THREE), found) == {"lab-1"}


def test_nodes_go_with_the_group_that_made_them() -> None:
    grouped = dict.fromkeys(THREE, "lab-group")
    group = "gcp:compute/instanceGroupManager:InstanceGroupManager"
    assert lost_nodes(grouped, planned(*THREE), [change("replace", "lab-group", group)]) == set(THREE)
    assert lost_nodes(grouped, planned(*THREE), [change("update", "lab-group", group)]) == set()


def test_a_node_called_as_its_fleet_stays_when_the_fleet_s_own_record_is_made_anew() -> None:
    found = [change("replace", "lab", "orch:fleet:Ssh"), change("same", "lab")]
    assert lost_nodes({"lab": "lab"}, planned("lab"), found) == set()


CLAIM = "claim orch-train-0-0-0123|train|ada@desk|2026-01-01T00:00:00Z|1\n"


def test_claims_hold_a_node_unless_it_stays_in_another_fleet() -> None:
    assert [claim.run for claim in read_claims(CLAIM)] == ["train"]
    assert [claim.run for claim in read_claims(f"{CLAIM}registered\n")] == ["train"]
    assert read_claims(f"{CLAIM}registered\nregistered\n") == ()
    assert read_claims("") == ()


@pytest.mark.sqlite
def test_a_ledger_that_cannot_be_read_stops_what_removes_nodes_and_says_how_to_go_on(folder: Folder) -> None:
    state = bring_up(folder)
    before = state.read_text()
    ledger = find(folder.path).local_ledger
    assert ledger is not None
    ledger.write_text("no database at all" * 100)
    said = folder.orch("down", "lab", "-i", "0", "-i", "1", "--yes")
    assert said.code == 3, said.err
    assert "the run ledger cannot be used" in said.err
    assert "nobody knows which runs are on lab-[0-1]" in said.err
    assert "`--force` removes the nodes, whoever is on them" in said.err
    assert state.read_text() == before


@pytest.mark.sqlite
def test_a_ledger_whose_address_has_settings_counts(folder: Folder) -> None:
    bring_up(folder)
    ledger = folder.path / "elsewhere.db"
    (folder.path / "orch.yml").write_text(f"project: tests\nledger: sqlite:///{ledger}?timeout=5\n")
    project = find(folder.path)
    start(project, "train", node(1))
    assert project.local_ledger == ledger
    assert told(project, "lab-1") == told(project, "lab-0", "lab-1")
    assert "run train of" in (told(project, "lab-1") or "")


def test_a_state_that_orch_did_not_write_ends_no_down_as_a_bug(folder: Folder) -> None:
    state = bring_up(folder)
    start(find(folder.path), "train", node(1))
    state.write_text(state.read_text().replace('"placement": "any"', '"placement": "beside the sea"'))
    said = folder.orch("down", "lab", "--yes")
    assert said.code == 9, said.err
    assert "is not one that orch wrote" in said.err
    assert "run train of" in said.err
