"""Names of runs, which become folders, containers and words of commands: checked where they enter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.ledgers.oldrows import FLEET, old_row
from kit.support import Folder
from sqlalchemy import text

from orch.runner.errors import BadRunName
from orch.runner.events import Notice, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.node_api.claims import Claim, busy_error
from orch.runner.node_api.connector import Connector
from orch.runner.plan.run_names import RunName
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.models import Task
from orch.spec.state import NodeState
from orch.stacks.project.project import find

HOSTILE = (
    "x;touch${IFS}pwned;",
    "../../escaped",
    "..",
    "x /home y",
    "$(touch pwned)",
    "`touch pwned`",
    "it's",
    'a"b',
    "x\ntouch pwned",
    "train\n",
    "-rf",
    "--privileged",
    "x\0y",
    "x\u2028y",
    "*",
    "",
    "x" * 42,
)


class NoNode:
    """A way to nodes that nobody may take."""

    def run(self, node: NodeState, command: object, **_: object) -> object:
        raise AssertionError(f"{node.name} was sent {command}")

    close = hang_up = lambda self: None


@pytest.fixture
def place(tmp_path: Path) -> Iterator[RunnerContext]:
    dot = tmp_path / "deep" / "project" / ".orch"
    transport: Connector = NoNode()  # type: ignore[assignment]
    ledger = open_ledger(f"sqlite:///{dot / 'ledger.db'}")
    yield RunnerContext(dot, ledger, transport, Recorder())
    ledger.close()


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "ledger.db" not in path.name}


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_name_that_is_none_is_refused_before_anything_happens(
    name: str, place: RunnerContext, tmp_path: Path
) -> None:
    before = listing(tmp_path)
    with pytest.raises(BadRunName, match="cannot be the name of a run") as told:
        lifecycle.submit(
            place, Submission(Task(commands=["true"]), FLEET, image="i", base=tmp_path, name=name)
        )
    assert (told.value.code, int(told.value.exit_code)) == ("ORCH115", 2)
    assert "\n" not in told.value.summary
    assert listing(tmp_path) == before
    assert place.ledger.runs() == ()


@pytest.mark.parametrize(
    "name", ["x;touch${IFS}pwned;", "../../escaped", "x /home y", "-rf", "--privileged", "", "x" * 5000]
)
def test_the_command_line_refuses_it_with_the_name_and_a_way_on(name: str, folder: Folder) -> None:
    folder.write("train.yml", "type: task\ncommands: [echo hello]\n")
    said = folder.orch("run", "train.yml", f"--name={name}")
    assert said.code == 2
    assert "ORCH115" in said.err
    assert "cannot be the name of a run" in said.err
    assert "Traceback" not in said.err
    assert not list(folder.path.parent.rglob("escaped*"))
    assert not list(folder.path.rglob("pwned*"))


@pytest.mark.parametrize("verb", ["logs", "attach", "stop"])
def test_verbs_know_no_run_of_such_a_name(verb: str, folder: Folder) -> None:
    for name in ("../../orch.yml", "x;touch pwned", "x\ny"):
        said = folder.orch(verb, name)
        assert (said.code, "no run named" in said.err) == (3, True), said.err
    assert not list(folder.path.rglob("pwned*"))


def test_a_long_or_odd_stem_gives_a_name_that_fits() -> None:
    for stem in ("train", "x" * 500, "a-" * 40):
        assert re.fullmatch(r"[a-z][a-z0-9-]{1,35}-[0-9a-f]{4}", RunName.generate(stem))


# --- what the ledger holds already


@pytest.mark.parametrize(
    "name",
    [
        # PostgreSQL keeps no such text: what was written there has none.
        pytest.param(name, marks=[pytest.mark.sqlite] if "\0" in name else [], id=ascii(name))
        for name in sorted({*HOSTILE} - {"-rf", "--privileged", "x" * 42})
    ],
)
def test_a_row_with_such_a_name_touches_no_node_and_can_be_ended(
    name: str, place: RunnerContext, tmp_path: Path
) -> None:
    row = old_row(place.ledger, name)
    before = listing(tmp_path)
    for act in (lambda: plan_of(row), lambda: lifecycle.drive(place, row), lambda: place.context(row)):
        with pytest.raises(BadRunName, match="which no node can hold"):
            act()
    lifecycle.reconcile_once(place)
    recorder = place.processor
    assert isinstance(recorder, Recorder)
    assert any(isinstance(event, Notice) and "no node can hold" in event.text for event in recorder.events)
    assert lifecycle.stop(place, row).status == "terminated"
    assert listing(tmp_path) == before


def test_a_row_whose_name_docker_takes_is_served_as_before(place: RunnerContext) -> None:
    """Names were not checked before, and such a run may be on a node now."""
    row = old_row(place.ledger, "Train_1.b")
    assert plan_of(row).container(0) == "orch-Train_1.b-0-0-01234567"
    assert place.context(row).folder.path == place.dot / "runs" / "Train_1.b"


def test_a_plan_of_another_run_is_not_carried_out(place: RunnerContext) -> None:
    row = old_row(place.ledger, "one")
    plan = row.plan.replace('"one"', '"two"')
    with pytest.raises(Exception, match="cannot be read"):
        plan_of(RunRow(**{**row.__dict__, "plan": plan}))


@pytest.mark.parametrize("name", ["x;touch y", "..", "-x"], ids=ascii)
def test_a_row_with_such_a_name_that_nobody_drives_hides_no_other_run(name: str, folder: Folder) -> None:
    ledger = open_ledger(find(folder.path).ledger_url)
    for each in (name, "other"):
        old_row(ledger, each)
    with ledger._begin() as database:
        database.execute(text("UPDATE run SET owner = NULL, status = 'running'"))
    ledger.close()
    said = folder.orch("ps", "-a", "--json")
    assert (said.code, "Traceback" in said.err) == (0, False), said.err
    assert {run["run"] for run in json.loads(said.out)["runs"]} == {name, "other"}
    assert "`orch attach other`" in said.err
    if name.startswith("-"):
        assert f"`orch attach -- {name}`" in said.err


def test_whom_to_ask_for_a_busy_node_is_a_command_that_may_be_pasted() -> None:
    claims = [Claim("c", run, "eve@away", "then", "1") for run in ("a", "-b", "$(touch pwned)")]
    hint = busy_error("n0", 1, 1, claims).hint or ""
    assert "`orch stop a` and `orch stop -- -b` and `orch stop '$(touch pwned)'`" in hint
