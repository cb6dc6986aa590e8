"""What this state does not record, or this ledger does not know, is not deleted for that alone. The simulated
account is the judge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kit.clouds.cloud_engine import quiet
from kit.clouds.rehearsals import Rehearsed, RehearsedLambda
from kit.clouds.runpod_engine import begin, stack
from kit.support import Folder, containers, docker, fleet_yaml

from orch.stacks.provisioning.nodes_with_runs import give_up, remove_unused
from orch.stacks.record.fleets import find_fleet

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("engine", "forked_providers")]

KIND = "g6.xlarge"


def changed(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the state in a checkpoint."""
    whole = json.loads(file.read_text())
    change(whole["checkpoint"]["latest"])
    file.write_text(json.dumps(whole))


def aged(latest: dict[str, Any]) -> None:
    """As it is an hour later: what was recorded then."""
    long_ago = (datetime.now(timezone.utc) - timedelta(hours=2)).isoformat().replace("+00:00", "Z")
    latest["manifest"]["time"] = long_ago
    for each in latest["resources"]:
        each["created"] = long_ago


def grown(there: Rehearsed, **more: Any) -> tuple[Path, set[str]]:
    """Bring up a fleet of one node, then of two: a copy of the first state, and the second node."""
    there.fleet(1, **more)
    said = there.up()
    assert said.code == 0, said.err
    former = there.path / "former.json"
    shutil.copy(there.checkpoint(), former)
    first = set(there.cloud.instances())
    there.fleet(2, **more)
    said = there.up()
    assert said.code == 0, said.err
    return former, set(there.cloud.instances()) - first


def without_ledger(there: Rehearsed) -> None:
    """Another machine has another ledger."""
    for file in there.path.glob(".orch/rehearsal/ledger.db*"):
        file.unlink()


def test_a_node_that_an_older_state_lacks_goes_by_its_mark_alone(tmp_path: Path) -> None:
    aws = Rehearsed.make(tmp_path / "aws")
    lambda_ = RehearsedLambda.make(tmp_path / "lambda")
    for there, more in ((aws, {"instance_types": [KIND], "placement": "any"}), (lambda_, {})):
        former, second = grown(there, **more)
        shutil.copy(former, there.checkpoint())
        said = there.orch("gc", "--rehearse", "--yes", "--json")
        assert said.code == 0, said.err
        kept = {row["id"]: row["why"] for row in said.json["kept"]}
        assert second <= kept.keys()
        assert {kept[each] for each in second} == {
            "the ledger has it as a node: this state may be an older copy"
        }
        assert (said.json["orphans"], said.json["deleted"]) == ([], [])
        # Another machine's ledger knows nothing: the engine's history does.
        without_ledger(there)
        changed(there.checkpoint(), aged)
        said = there.orch("gc", "--rehearse", "--yes")
        assert said.code == 0, said.err
        assert "it is an older copy" in said.out
        assert second <= set(there.cloud.instances())
        mark = there.orch("gc", "--rehearse", "--json").json["kept"][0]["mark"]
        said = there.orch("gc", "--rehearse", "--yes", "--stack", mark)
        assert said.code == 0, said.err
        assert not second & set(there.cloud.instances())


def test_a_killed_call_of_an_older_state_takes_nothing_that_later_calls_made(tmp_path: Path) -> None:
    there: Rehearsed = Rehearsed.make(tmp_path)
    former, second = grown(there, instance_types=[KIND], placement="any")
    latest = json.loads(there.checkpoint().read_text())["checkpoint"]["latest"]
    (node,) = [each for each in latest["resources"] if each.get("id") in second]
    begun = {key: value for key, value in node.items() if key not in ("id", "outputs")}

    def pending(older: dict[str, Any]) -> None:
        """As it was while the second node was being created."""
        older["pending_operations"] = [{"resource": begun, "type": "creating"}]
        older["manifest"]["time"] = node["created"]

    changed(former, pending)
    ledger = tmp_path / ".orch/rehearsal/ledger.db"
    for known in (False, True):  # another machine's ledger knows nothing
        shutil.move(ledger, tmp_path / "own.db") if not known else shutil.move(tmp_path / "own.db", ledger)
        shutil.copy(former, there.checkpoint())
        said = there.orch("refresh", there.called, "--rehearse")
        assert said.code == 0, said.err
        assert f"({min(second)}): " in said.err
        assert "is an older copy" in said.err or "may be an older copy" in said.err
        assert second <= set(there.cloud.instances())
    assert there.orch("gc", "--rehearse", "--yes", "--json").json["deleted"] == []
    assert second <= set(there.cloud.instances())


def test_a_ledger_that_does_not_know_a_pod_s_run_leaves_it_the_pod(tmp_path: Path) -> None:
    """Nobody can ask the pods here: no machine stands behind them."""
    begin(tmp_path)
    there = Rehearsed(tmp_path)
    (tmp_path / "lab.yml").write_text(
        "type: fleet\nname: lab\nbackends: [runpod]\nregions: [US]\nnodes: 0..2\nresources: {gpu: 'H100:8'}\n"
    )
    lab = stack(tmp_path)
    lab.up(find_fleet(tmp_path, "lab")[1])
    former = there.checkpoint("lab").read_text()
    mark, pods = lab.grow(1)
    give_up(mark)
    (tmp_path / ".orch/rehearsal/making" / mark).unlink()
    changed(there.checkpoint("lab"), aged)

    place = tmp_path / "shared"
    shutil.copytree(tmp_path / ".orch/rehearsal/state", place)
    shared = replace(lab.project, state_url=f"file://{place}")
    assert not shared.knows_all_runs
    done = remove_unused(shared, "lab", quiet)
    assert (done.removed, done.kept) == (
        (),
        {"lab-0": "this ledger does not know its run, and others share the state"},
    )
    said = there.orch("reconcile", "--rehearse", "--json")
    assert said.code == 0, said.err
    (row,) = said.json["fleets"]
    assert row["done"] == (
        "lab-0 stays: this ledger does not know its run, and it does not answer; stop its run where it was "
        "started, or `orch down lab` removes it"
    )
    assert set(lab.cloud.instances()) == set(pods)

    # The state goes back to before it, and the ledger is another one.
    there.checkpoint("lab").write_text(former)
    without_ledger(there)
    said = there.orch("gc", "--rehearse", "--yes")
    assert said.code == 0, said.err
    assert "older copy" in said.out
    assert set(lab.cloud.instances()) == set(pods)


def test_where_gc_cannot_look_it_says_so_and_never_that_nothing_is_left(tmp_path: Path) -> None:
    there: Rehearsed = Rehearsed.make(tmp_path)
    said = there.orch("gc", "--rehearse")
    assert (said.code, "nothing is left" in said.out) == (5, False), said.err
    assert "no cloud was looked at" in said.err
    # Its fleets' files say where something may be, and so do credentials.
    file = there.fleet(1, instance_types=[KIND], placement="any", network={"bastion": False})
    said = there.up()
    assert said.code == 0, said.err
    (stray,) = there.cloud.instances()
    shutil.rmtree(there.stacks)
    for named in (True, False):
        if not named:
            (tmp_path / file).unlink()
        said = there.orch("gc", "--rehearse", "--json")
        assert (said.code, stray in {row["id"] for row in said.json["unknown"]}) == (0, True), said.err
    there.cloud.turn(denied=["DescribeTags"])
    said = there.orch("gc", "--rehearse")
    assert (said.code, "nothing is left" in said.out) == (5, False), said.err
    said = there.orch("gc", "--rehearse", "--yes", "--stack", "tests/p5/1a2b3c4d")
    assert (said.code, "has the mark" in said.err) == (5, False), said.err
    there.cloud.turn(denied=["DescribeFileSystems"])
    said = there.orch("gc", "--rehearse", "--json")
    assert (said.code, len(said.json["unseen"]) > 0) == (5, True), said.err
    # Nor does anybody make a fleet unasked where its cloud does not tell whether it is there.
    there.fleet(1, instance_types=[KIND], placement="any")
    there.cloud.turn(denied=["DescribeTags"])
    said = there.up()
    assert (said.code, "ORCH434" in said.err, "`--make-another`" in said.err) == (9, True, True), said.err
    # Nor by a plan that was saved, whose leases make an empty stack.
    said = there.orch("preview", "p5.yml", "--rehearse", "--out", "plan.json")
    assert (said.code, "is not known" in said.err) == (0, True), said.err
    for more in ((), ("--lease", "1h", "--owner", "ada")):
        said = there.orch("up", "--plan", "plan.json", "--rehearse", "--yes", *more)
        assert (said.code, "ORCH434" in said.err, "without `--plan`" in said.err) == (9, True, True), said.err


def test_what_a_killed_call_made_goes_also_where_nobody_repeats_it(tmp_path: Path) -> None:
    there: Rehearsed = Rehearsed.make(tmp_path)
    file = there.fleet(1, instance_types=[KIND], placement="any", network={"bastion": False})
    there.killed_at({"action": "RunInstances", "when": "after"}, "up", file)
    (half_made,) = there.cloud.instances()
    said = there.orch("gc", "--rehearse", "--yes", "--json")
    assert said.code == 0, said.err
    assert (said.json["kept"], half_made in there.cloud.instances()) == ([], False)


def test_a_local_node_with_a_run_stays_until_the_run_has_ended_and_its_mark_is_named(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    fleet = f"u{uuid4().hex[:8]}"
    folder.write("f.yml", fleet_yaml(fleet, 1))
    folder.write("t.yml", f"type: task\nname: train\nfleets: [{fleet}]\nnodes: 2\ncommands: [sleep 600]\n")
    try:
        assert folder.orch("up", "f.yml", "--yes").code == 0
        shutil.copytree(tmp_path / ".orch/state", tmp_path / "former")
        folder.write("f.yml", fleet_yaml(fleet, 2))
        assert folder.orch("up", "f.yml", "--yes").code == 0
        said = folder.orch("run", "t.yml", "--detach", timeout=300)
        assert said.code == 0, said.err
        nodes = set(containers(folder, fleet))
        shutil.rmtree(tmp_path / ".orch/state")
        shutil.copytree(tmp_path / "former", tmp_path / ".orch/state")
        said = folder.orch("gc", "--yes", "--json")
        assert said.code == 0, said.err
        (kept,) = said.json["kept"]
        assert (kept["name"], "in use by run train" in kept["why"]) == (f"{fleet}-1", True)
        said = folder.orch("gc", "--yes", "--stack", kept["mark"])
        assert (said.code, "ORCH386" in said.err) == (9, True), said.err
        assert folder.orch("stop", "train").code == 0
        said = folder.orch("gc", "--yes", "--json")
        assert said.code == 0, said.err
        assert "may be an older copy" in said.json["kept"][0]["why"]
        assert set(containers(folder, fleet)) == nodes
        said = folder.orch("gc", "--yes", "--stack", kept["mark"])
        assert said.code == 0, said.err
        assert set(containers(folder, fleet)) == nodes - {kept["id"]}
    finally:
        folder.orch("down", fleet, "--yes", "--force")
        for each in containers(folder, fleet):
            docker("rm", "-f", each)
