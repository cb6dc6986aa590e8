"""`orch log`: who changed what, and what became of it; and what a log never tells."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.support import Folder, record_fleet
from sqlalchemy import insert, select

from orch.cli.project.log import SHOWN
from orch.runner.errors import LedgerUnusable, NodesBusy
from orch.runner.ledger import schema
from orch.runner.ledger.changes import Undertaking
from orch.runner.ledger.lease import LeaseLost
from orch.runner.ledger.ledger import Ledger, open_ledger
from orch.stacks.errors import EngineFailed, Interrupted
from orch.stacks.events.changes import Change, Op
from orch.stacks.maintenance.errors import MaintenanceError
from orch.stacks.project.project import Project, find
from orch.stacks.pulumi.progress import Note, Progress
from orch.stacks.record.change_log import command_line, logged, origin, undertaken
from orch.stacks.record.node_accounts import accounted
from orch.stacks.stack.state import StackState


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    find(tmp_path).prepare()
    return Folder(tmp_path)


@pytest.fixture
def project(folder: Folder) -> Project:
    return find(folder.path)


@pytest.fixture
def ledger(project: Project) -> Iterator[Ledger]:
    ledger = open_ledger(project.ledger_url)
    yield ledger
    ledger.close()


def quiet(event: Progress) -> None:
    del event


def made(op: Op, name: str) -> Change:
    return Change(op, "orch:local:Node", name, f"urn:{name}")


def test_a_change_with_its_plan(folder: Folder, project: Project) -> None:
    with logged(project, "up", "fleet lab", quiet) as outcome:
        outcome.made([made("create", "lab-0"), made("replace", "lab-1"), made("same", "lab-2")])
    said = folder.orch("log")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[0].split() == ["ID", "WHEN", "BY", "CHANGE", "STATUS", "RESULT"]
    assert "up of fleet lab" in said.out
    assert "1 created, 1 replaced" in said.out
    said = folder.orch("log", "1")
    assert "  plan\n    create orch:local:Node lab-0\n    replace orch:local:Node lab-1\n" in said.out + "\n"
    (row,) = folder.orch("log", "--json").json["changes"]
    assert (row["verb"], row["subject"], row["status"], row["exit_code"]) == ("up", "fleet lab", "done", 0)
    assert row["from"].startswith(str(folder.path))


def test_what_changed_nothing_is_listed_with_all_alone(folder: Folder, project: Project) -> None:
    with logged(project, "up", "fleet lab", quiet) as outcome:
        outcome.made([made("same", "lab-0")])
    assert folder.orch("log").out == "no change is in the log\n"
    assert "no changes" in folder.orch("log", "--all").out


def test_a_change_that_failed_tells_of_what(folder: Folder, project: Project) -> None:
    error = NodesBusy("runs are on lab-0", detail="train-1")
    with pytest.raises(NodesBusy), logged(project, "down", "fleet lab", quiet):
        raise error
    with pytest.raises(Interrupted), logged(project, "up", "fleet lab", quiet):
        raise Interrupted("the user stopped it")
    with pytest.raises(KeyboardInterrupt), logged(project, "up", "fleet lab", quiet):
        raise KeyboardInterrupt
    rows = folder.orch("log", "--json").json["changes"]
    assert [(each["status"], each["exit_code"], each["result"]) for each in rows] == [
        ("failed", 130, "KeyboardInterrupt"),
        ("failed", 130, "the user stopped it"),
        ("failed", 9, "runs are on lab-0"),
    ]


def test_what_a_users_program_wrote_is_not_kept(folder: Folder, project: Project) -> None:
    failed = EngineFailed("up failed for fleet lab", errors={}, detail="init step said geheim")
    with pytest.raises(EngineFailed), logged(project, "up", "fleet lab", quiet):
        raise failed
    with pytest.raises(MaintenanceError), logged(project, "node drain", "nodes lab-0", quiet):
        raise MaintenanceError("not in order", detail="disk is full")
    assert [each["result"] for each in folder.orch("log", "--json").json["changes"]] == [
        "not in order: disk is full",
        "up failed for fleet lab",
    ]


def test_what_was_interrupted_is_listed_gone_on_with_or_given_up(folder: Folder, project: Project) -> None:
    holds = ("lab/lab-0",)
    fail_at_the_second_step(project, "node replace", holds)
    said = folder.orch("log", "--unfinished")
    assert "interrupted" in said.out
    said = folder.orch("log", "1")
    assert "    lab-0  drain  done (0 s): 1 run stopped\n" in said.out
    assert "    lab-0  remove  failed (0 s): busy\n" in said.out
    assert "  holds    lab/lab-0\n" in said.out
    with undertaken(project, "node replace", "nodes lab-0", holds=holds) as journal:
        assert journal.resumed
        assert journal.is_done("lab-0", "drain")
        assert journal.step("lab-0", "drain", fail) is None
        journal.step("lab-0", "remove", lambda: None)
    said = folder.orch("log", "1", "--abandon")
    assert said.code == 2
    assert "change 1 is done: there is nothing to give up" in said.err
    fail_at_the_second_step(project, "node drain", holds)
    said = folder.orch("log", "2", "--abandon")
    assert said.code == 0
    assert "abandoned" in said.out
    with undertaken(project, "node drain", "nodes lab-0", holds=holds) as journal:
        assert not journal.resumed


def fail_at_the_second_step(project: Project, verb: str, holds: tuple[str, ...]) -> None:
    def work() -> None:
        with undertaken(project, verb, "nodes lab-0", holds=holds) as journal:
            assert journal.step("lab-0", "drain", lambda: "1 run stopped") == "1 run stopped"
            journal.step("lab-0", "remove", fail)

    with pytest.raises(NodesBusy):
        work()


def test_one_that_held_something_and_began_no_step_holds_nothing(project: Project) -> None:
    with pytest.raises(NodesBusy), undertaken(project, "node drain", "lab-0", holds=("lab/lab-0",)):
        raise NodesBusy("busy")
    with undertaken(project, "node reboot", "lab-0", holds=("lab/lab-0",)) as journal:
        assert not journal.resumed


def fail() -> None:
    raise NodesBusy("busy")


def test_a_ledger_that_cannot_be_used_keeps_nothing_from_being_done(project: Project) -> None:
    path = project.local_ledger
    assert path is not None
    path.mkdir()
    notes: list[str] = []
    done: list[int] = []

    def hear(event: Progress) -> None:
        assert isinstance(event, Note)
        notes.append(event.text)

    with logged(project, "up", "fleet lab", hear):
        done.append(1)
    assert done == [1]
    assert notes[0].startswith("warning: `orch up` of fleet lab is not in the log: ")
    with pytest.raises(LedgerUnusable), undertaken(project, "node drain", "lab-0"):
        done.append(2)
    assert done == [1]


def test_what_went_wrong_is_told_where_its_end_cannot_be_written(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unusable(*_: object) -> None:
        raise LedgerUnusable("the ledger is gone")

    monkeypatch.setattr("orch.runner.ledger.changes.Changes.end", unusable)
    with pytest.raises(NodesBusy), undertaken(project, "node drain", "lab-0"):
        raise NodesBusy("busy")
    with pytest.raises(NodesBusy), logged(project, "down", "fleet lab", quiet):
        raise NodesBusy("busy")
    notes: list[Progress] = []
    with logged(project, "down", "fleet lab", notes.append):
        pass
    assert "is not in the log: the ledger is gone" in str(notes)


def test_a_change_that_another_process_goes_on_with_ends_here(project: Project, ledger: Ledger) -> None:
    def work() -> None:
        with undertaken(project, "node drain", "lab-0", holds=("a",)) as journal:
            journal.step("lab-0", "drain", lambda: None)
            with ledger._begin() as db:
                db.execute(schema.change.update().values(owner="eve@elsewhere:1", lease_until=1.0))
            ledger.changes.resume(journal.change.id)
            journal.step("lab-0", "uncordon", lambda: None)

    with pytest.raises(LeaseLost):
        work()


def test_a_long_list_says_what_it_leaves_out(folder: Folder, ledger: Ledger) -> None:
    changes = ledger.changes
    changes.end(changes.begin(Undertaking("tests", "", "up", "fleet lab")).lease, "done", "1 created", 0)
    with ledger._begin() as db:
        row = dict(db.execute(select(schema.change)).one()._mapping)
        del row["id"]
        db.execute(insert(schema.change), [row] * (SHOWN + 4))
    said = folder.orch("log")
    assert said.out.endswith("… and 5 earlier: `orch log --all`\n")
    assert folder.orch("log", "--json").json["left_out"] == 5
    assert len(folder.orch("log", "--all", "--json").json["changes"]) == SHOWN + 5


def test_single_nodes_that_are_removed_are_no_end_of_their_fleet(project: Project, folder: Folder) -> None:
    record_fleet(folder, "lab")
    stack = StackState(project, "lab")
    with accounted(stack, lambda _: None, verb="down", only=("lab-1", "lab-2")):
        pass
    (change,) = folder.orch("log", "--json").json["changes"]
    assert (change["verb"], change["subject"]) == ("down", "nodes lab-[1-2] of fleet lab")


def test_a_long_list_of_runbooks_says_what_it_leaves_out(folder: Folder, ledger: Ledger) -> None:
    changes = ledger.changes
    kept = '{"schema": 1, "file": "a.md", "text": "", "values": {}, "answers": {}}'
    begun = changes.begin(Undertaking("tests", "", "runbook run", "mine", plan=kept))
    changes.end(begun.lease, "done", "1 step", 0)
    with ledger._begin() as db:
        row = dict(db.execute(select(schema.change)).one()._mapping)
        del row["id"]
        db.execute(insert(schema.change), [row] * (SHOWN + 4))
    said = folder.orch("runbook", "status")
    assert said.out.endswith("… and 5 earlier: `orch runbook status --all`\n")
    assert folder.orch("runbook", "status", "--json").json["left_out"] == 5
    assert len(folder.orch("runbook", "status", "--all", "--json").json["runs"]) == SHOWN + 5


def test_wrong_words(folder: Folder) -> None:
    said = folder.orch("log", "7")
    assert (said.code, said.out) == (2, "")
    assert "no change 7 is in the log of tests" in said.err
    assert folder.orch("log", "--abandon").code == 2
    assert folder.orch("log", "1", "--verb", "up").code == 2
    said = folder.orch("log", "--since", "soon")
    assert said.code == 2
    assert "--since" in said.err


def test_looking_makes_no_ledger(folder: Folder, project: Project) -> None:
    assert folder.orch("log").out == "no change is in the log\n"
    told = folder.orch("log", "--json").json
    assert told["project"] == {"name": "tests", "folder": str(folder.path)}
    assert (told["schema"], told["changes"], told["left_out"]) == (1, [], 0)
    assert project.local_ledger is not None
    assert not project.local_ledger.exists()


def test_values_of_variables_and_secrets_are_not_in_the_log() -> None:
    words = [
        "/usr/bin/orch",
        "run",
        "t.yml",
        "--env",
        "A=geheim",
        "-e",
        "B=geheim=2",
        "--env=C=geheim",
        "-e",
        "D",
    ]
    assert "geheim" not in command_line(words)
    assert command_line(words).startswith("orch run t.yml --env 'A=…' -e 'B=…'")
    assert command_line(["orch", "secret", "set", "tok", "geheim"]) == "orch secret set tok"
    assert command_line(["orch", "up", "my fleet.yml"]) == "orch up 'my fleet.yml'"
    assert command_line(["pytest", "geheim"]) == ""
    assert command_line([]) == ""


def test_where_a_change_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_RUN_ID", "CI_JOB_URL", "BUILD_URL", "BUILDKITE_BUILD_URL"):
        monkeypatch.delenv(name, raising=False)
    assert origin(tmp_path) == str(tmp_path)
    for name, value in {
        "RUN_ID": "7",
        "SERVER_URL": "https://forge",
        "REPOSITORY": "a/b",
        "ACTOR": "ada",
    }.items():
        monkeypatch.setenv(f"GITHUB_{name}", value)
    assert origin(tmp_path) == "https://forge/a/b/actions/runs/7 by ada"
    monkeypatch.delenv("GITHUB_RUN_ID")
    monkeypatch.setenv("CI_JOB_URL", "https://lab/-/jobs/3")
    assert origin(tmp_path) == "https://lab/-/jobs/3 by unknown"


def test_argv_is_of_this_process(project: Project, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/bin/orch", "up", "-e", "A=geheim"])
    with logged(project, "up", "fleet lab", quiet):
        pass
    (change,) = ledger.changes.listed("tests")
    assert change.command == "orch up -e 'A=…'"
