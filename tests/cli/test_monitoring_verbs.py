"""`orch metrics serve`, `textfile` and `boards`, and the runs that have such a name."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from pathlib import Path

import pytest
from kit.support import Folder, record_fleet
from prometheus_client.parser import text_string_to_metric_families

from orch.runner.ledger.ledger import open_ledger
from orch.runner.metrics.boards import board_files
from orch.runner.plan.run_names import RunName
from orch.spec.state import FleetState


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A project with a fleet without nodes, whose file has a budget, and a run that waits."""
    made = Folder(tmp_path)
    made.write("orch.yml", "project: lab\n")
    made.write("laptop.yml", "type: fleet\nname: laptop\nbackend: local\nnodes: 1\nbudget: {total: 50}\n")
    record_fleet(made, "laptop")
    state = tmp_path / ".orch/state/.pulumi/stacks/lab/laptop.json"
    fleet = FleetState(name="laptop", stack="laptop", backend="local").model_dump(mode="json")
    stack = {"type": "pulumi:pulumi:Stack", "urn": "urn", "outputs": {"fleet": fleet}}
    state.write_text(json.dumps({"checkpoint": {"latest": {"resources": [stack]}}}))
    ledger = open_ledger(f"sqlite:///{tmp_path}/.orch/ledger.db")
    ledger.create(RunName.parse("serve"), "laptop", ["laptop-0"], lambda number: "{}")
    ledger.close()
    return made


def families(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """Values by metric and labels, in the order of their names."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.sqlite
def test_a_project_is_served_until_it_is_told_to_end(folder: Folder) -> None:
    with folder.start("metrics", "serve", "--listen", "127.0.0.1:0") as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r"metrics of project lab on (http://127\.0\.0\.1:\d+/metrics)", line)
            assert found, line + process.stderr.read()
            with urllib.request.urlopen(found[1]) as answer:
                told = families(answer.read().decode())
        finally:
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    assert told["orch_fleet_nodes", ("local", "laptop")] == 0.0
    assert told["orch_fleet_budget_usd", ("laptop",)] == 50.0
    assert told["orch_runs", ("laptop", "submitted")] == 1.0
    assert told["orch_run_info", ("laptop", told_owner(told), "serve", "1", "submitted")] == 1.0
    assert {source: told["orch_source_up", (source,)] for source in ("state", "ledger", "files")} == {
        "state": 1.0,
        "ledger": 1.0,
        "files": 1.0,
    }


def told_owner(told: dict[tuple[str, tuple[str, ...]], float]) -> str:
    (owner,) = (labels[1] for name, labels in told if name == "orch_run_info")
    return owner


@pytest.mark.sqlite
def test_a_textfile_is_whole_or_not_there(folder: Folder) -> None:
    said = folder.orch("metrics", "textfile", "orch.prom", "--fleet", "laptop")
    assert (said.code, said.out, said.err) == (0, "", "")
    told = families((folder.path / "orch.prom").read_text())
    assert told["orch_queue_length", ("laptop",)] == 0.0
    assert not any(name == "orch_month_cost_usd" for name, _ in told), "it is of the whole project"
    assert [each.name for each in folder.path.glob("orch.prom*")] == ["orch.prom"]
    said = folder.orch("metrics", "textfile", "nosuch/orch.prom")
    assert (said.code, "nosuch/orch.prom cannot be written" in said.err) == (2, True), said.err
    said = folder.orch("metrics", "textfile", "orch.txt")
    assert (said.code, "does not end in .prom" in said.err) == (2, True), said.err


@pytest.mark.sqlite
def test_a_fleet_that_cannot_be_read_hides_no_other_one(folder: Folder) -> None:
    record_fleet(folder, "broken")  # as no version of orch recorded it
    said = folder.orch("metrics", "textfile", "orch.prom")
    assert said.code == 0
    assert said.err.startswith("warning: the recorded state of broken is not one that orch wrote: ")
    told = families((folder.path / "orch.prom").read_text())
    assert told["orch_fleet_nodes", ("local", "laptop")] == 0.0
    assert told["orch_source_up", ("state",)] == 0.0


@pytest.mark.parametrize("words", [("serve",), ("textfile", "x.prom")])
def test_a_fleet_that_is_not_up_is_told(folder: Folder, words: tuple[str, ...]) -> None:
    said = folder.orch("metrics", *words, "--fleet", "nothere")
    assert said.code == 3
    assert "the fleet nothere is not up in this project" in said.err
    assert not (folder.path / "x.prom").exists()


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:70000", ":", "203.0.113.1:0"])
def test_where_it_cannot_listen_is_told(folder: Folder, listen: str) -> None:
    said = folder.orch("metrics", "serve", "--listen", listen)
    assert said.code == 2, said.err
    assert "--listen" in said.err
    assert "Traceback" not in said.err


@pytest.mark.sqlite
def test_a_run_named_as_a_verb_has_its_kind_before_it(folder: Folder) -> None:
    said = folder.orch("metrics", "run:serve", "--json")
    assert "run serve has not started" in said.err, said.err
    said = folder.orch("metrics", "laptop", "--json")
    told = {key: said.json[key] for key in ("schema", "fleet", "nodes")}
    assert (said.code, told) == (0, {"schema": 1, "fleet": "laptop", "nodes": []})


def test_boards_are_copied_and_overwritten_on_request_alone(folder: Folder) -> None:
    said = folder.orch("metrics", "boards", "monitoring")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines() == [f"monitoring/{name}" for name in board_files()]
    board = folder.path / "monitoring/grafana/orch-runs.json"
    assert json.loads(board.read_text())["uid"] == "orch-runs"
    assert folder.orch("metrics", "boards", "monitoring").code == 0, "nothing differs"
    board.write_text("mine")
    said = folder.orch("metrics", "boards", "monitoring")
    assert said.code == 2
    assert "orch-runs.json is there and differs" in said.err
    assert board.read_text() == "mine"
    assert folder.orch("metrics", "boards", "monitoring", "--force").code == 0
    assert board.read_bytes() == board_files()["grafana/orch-runs.json"]
    said = folder.orch("metrics", "boards", "orch.yml")
    assert (said.code, "orch.yml cannot be written" in said.err) == (2, True), said.err
