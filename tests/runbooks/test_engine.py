"""Runs of runbooks with a real shell and a real ledger: journal, failures, resumption, undo, approvals."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from orch.cli.runbooks.screen import report_of
from orch.runbooks.engine import Consent, Refused, Run, StepFailed, Waits
from orch.runbooks.parameters import Parameter
from orch.runbooks.parse import parse
from orch.runbooks.plan import RUN, Gate, PlannedStep, RunPlan, holds, subject
from orch.runbooks.process import TIMED_OUT, Program, run
from orch.runner.ledger.changes import Change, ChangeUnderWay
from orch.runner.ledger.changes import Step as Written
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.schema import change_step
from orch.runner.processes import GONE, start_time_of
from orch.spec.document.text import Source
from orch.stacks.project.project import Project, find
from orch.stacks.record.change_log import gone_on_with, undertaken

HEAD = "---\nname: mine\nsummary: A test.\nparameters:\n  text: {default: x}\n---\n"


class Hall:
    """An audience that keeps what it hears, and says what it was told to."""

    def __init__(self, answers: dict[str, str] | None = None, approver: str | None = None) -> None:
        self.answers = answers or {}
        self.approver = approver
        self.heard = b""
        self.told: list[str] = []
        self.began: list[str] = []
        self.gates: list[Gate] = []

    def begins(self, at: int, step: PlannedStep, *, again: bool) -> None:
        self.began.append(f"{step.step.name}{' again' if again else ''}")

    def shows(self, output: bytes) -> None:
        self.heard += output

    def tells(self, text: str) -> None:
        self.told.append(text)

    def answer(self, question: Parameter) -> str | None:
        return self.answers.get(question.name)

    def approval(self, gate: Gate) -> Consent | None:
        self.gates.append(gate)
        if self.approver == "nobody, ever":
            raise Refused("no")
        return None if self.approver is None else Consent(self.approver)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "orch.yml").write_text("project: mine\n")
    made = find(tmp_path)
    made.prepare()
    return made


@contextmanager
def begun(project: Project, body: str, hall: Hall, **values: str) -> Iterator[Run]:
    kept = RunPlan("mine.md", HEAD + body, {"text": "x", **values}, {})
    what, held = subject("mine", kept.values), holds("mine", kept.values)
    with undertaken(project, RUN, what, plan=kept.as_json(), holds=held) as journal:
        goes_by = RunPlan.of(journal.change.plan)
        runbook = parse(Source.of(goes_by.file, goes_by.text))
        yield Run(
            runbook, goes_by, journal, hall, project.root, project.dot / "runbooks" / str(journal.change.id)
        )


def go(project: Project, body: str, hall: Hall | None = None, **values: str) -> Hall:
    hall = hall or Hall()
    with begun(project, body, hall, **values) as made:
        made.go()
    return hall


def written(project: Project) -> tuple[Change, dict[str, Written]]:
    """The latest run, and its steps."""
    with closing(open_ledger(project.ledger_url)) as ledger:
        change = ledger.changes.listed(project.name)[0]
        return change, {each.name: each for each in ledger.changes.steps(change.id)}


def statuses(project: Project) -> dict[str, str]:
    return {name: each.status for name, each in written(project)[1].items()}


def log(project: Project) -> str:
    return (project.root / "log").read_text()


STEP = "```shell name={0} repeat\necho {0} >> log\n```\n"


def test_steps_are_done_in_order_and_written(project: Project) -> None:
    hall = go(
        project,
        STEP.format("one") + "```shell name=two repeat\necho ${{ params.text }} | tee -a log\n```\n",
        text="a b",
    )
    assert log(project) == "one\na b\n"
    assert hall.heard == b"a b\n"
    change, steps = written(project)
    assert (change.verb, change.subject, change.status) == (RUN, 'mine text="a b"', "done")
    assert [(each.name, each.status) for each in steps.values()] == [("one", "done"), ("two", "done")]


FLAKY = (
    STEP.format("one")
    + "```shell name=two repeat\necho two >> log\ntest -e mended\n```\n"
    + STEP.format("three")
)


def test_a_failure_stops_tells_which_and_is_gone_on_from(project: Project) -> None:
    with pytest.raises(StepFailed) as caught:
        go(project, FLAKY)
    text = caught.value.text()
    assert "mine.md:10:1: error ORCH417: step two failed: it ended with exit code 1" in text
    assert "echo two >> log" in text
    assert "done: one" in text
    assert "`orch runbook resume 1`" in text
    assert statuses(project) == {"one": "done", "two": "failed"}
    assert written(project)[0].shown_status == "interrupted"
    (project.root / "mended").touch()
    hall = go(project, FLAKY)
    assert hall.began == ["two again", "three"]
    assert log(project) == "one\ntwo\ntwo\nthree\n"
    assert set(statuses(project).values()) == {"done"}
    assert written(project)[0].calls == 2


CHECKED = (
    STEP.format("one")
    + "```shell name=two\necho two >> log\ntest -e mended\n```\n```check\ntest -e mended\n```\n"
)


def test_what_was_mended_by_hand_is_not_done_again(project: Project) -> None:
    with pytest.raises(StepFailed):
        go(project, CHECKED)
    (project.root / "mended").touch()
    hall = go(project, CHECKED)
    assert hall.told == ["its check says that it is done"]
    assert log(project) == "one\ntwo\n"
    assert written(project)[1]["two"].message == "begun before; its check says that it is done"


def test_a_check_that_does_not_hold_is_a_failure_and_one_that_holds_later_is_none(project: Project) -> None:
    body = "```shell name=one\ntrue\n```\n```check\ntest -e late\n```\n"
    with pytest.raises(StepFailed, match="its check does not hold"):
        go(project, body)
    later = "```shell name=two\n(sleep 1; touch late) > /dev/null 2>&1 &\n```\n"
    later += "```check within=2m\ntest -e late\n```\n"
    go(project, later, text="y")
    assert statuses(project) == {"two": "done"}


@pytest.mark.parametrize(
    ("ok", "fails"), [("", True), (" ok=0,3", False), (" ok=any", False), (" ok=4", True)]
)
def test_exit_codes_that_are_no_failure(project: Project, ok: str, fails: bool) -> None:
    body = f"```shell name=one repeat{ok}\nexit 3\n```\n"
    if fails:
        with pytest.raises(StepFailed, match="exit code 3"):
            go(project, body)
    else:
        go(project, body)
        assert written(project)[1]["one"].message == "exit code 3"


def test_a_step_that_takes_too_long_is_ended_with_all_it_began(project: Project) -> None:
    body = "```shell name=one repeat timeout=1s\nsleep 600 &\necho $! > pid\nwait\n```\n"
    with pytest.raises(StepFailed, match=f"exit code {TIMED_OUT}"):
        go(project, body)
    pid = int((project.root / "pid").read_text())
    until(lambda: start_time_of(pid) == GONE)


UNDONE = (
    "```shell name=one repeat\necho one >> log\n```\n```undo\necho undo-one >> log\n```\n"
    + STEP.format("two")
    + "```shell name=three repeat\necho three >> log; false\n```\n```undo\necho undo-three >> log\n```\n"
)


def go_and_undo(project: Project, body: str) -> tuple[str, ...]:
    """What is undone of a run that fails."""
    undone: tuple[str, ...] = ()
    with suppress(StepFailed), begun(project, body, Hall()) as made:
        try:
            made.go()
        except StepFailed:
            undone = made.undo()
            assert made.can_undo() == ()
            made.journal.final = True
            raise
    return undone


def test_undo_goes_backwards_and_the_next_run_begins_anew(project: Project) -> None:
    assert go_and_undo(project, UNDONE) == ("three", "one")
    assert log(project) == "one\ntwo\nthree\nundo-three\nundo-one\n"
    assert statuses(project) == {"one": "undone", "two": "done", "three": "undone"}
    assert written(project)[0].status == "failed"
    with pytest.raises(StepFailed):
        go(project, UNDONE)
    assert written(project)[0].id == 2


def test_an_undo_that_fails_is_told(project: Project) -> None:
    body = UNDONE.replace("echo undo-one >> log", "exit 5")
    with begun(project, body, Hall()) as made:
        with pytest.raises(StepFailed):
            made.go()
        with pytest.raises(StepFailed, match="the undo of step one failed: it ended with exit code 5"):
            made.undo()
    assert statuses(project)["three"] == "undone"


ASKING = (
    "```question name=kind\ntype: choice\nchoices: [hard, soft]\ndescription: Which?\n```\n"
    '```shell name=hard repeat when="kind=hard"\necho hard >> log\n```\n'
    '```approval name=go when="kind=hard"\nMay I?\n```\n'
    "```shell name=end repeat\necho ${{ params.kind }} >> log\n```\n"
)


def test_a_run_waits_for_answers_and_approvals_and_keeps_them(project: Project) -> None:
    with pytest.raises(Waits, match="waits for an answer: Which") as caught:
        go(project, ASKING)
    assert caught.value.exit_code == 10
    with pytest.raises(Waits, match="waits for approval: May I"):
        go(project, ASKING, Hall({"kind": "hard"}))
    assert statuses(project) == {"kind": "done", "hard": "done", "go": "running"}
    hall = go(project, ASKING, Hall(approver="ada@box"))
    assert hall.began == ["go", "end"]
    assert log(project) == "hard\nhard\n"
    assert written(project)[1]["go"].message == "approved by ada@box"


def test_a_step_that_is_not_needed_is_left_out(project: Project) -> None:
    go(project, ASKING, Hall({"kind": "soft"}))
    assert statuses(project) == {"kind": "done", "hard": "skipped", "go": "skipped", "end": "done"}
    assert log(project) == "soft\n"


def test_who_refuses_stops_the_run_where_it_is(project: Project) -> None:
    with pytest.raises(Refused):
        go(project, ASKING, Hall({"kind": "hard"}, approver="nobody, ever"))
    assert written(project)[0].shown_status == "interrupted"
    assert log(project) == "hard\n"


def test_what_a_question_that_was_left_out_would_tell_is_no_empty_text(project: Project) -> None:
    body = (
        '```question name=kind when="text=y"\ndescription: Which?\n```\n'
        "```shell name=end repeat\necho ${{ params.kind }} >> log\n```\n"
    )
    with pytest.raises(StepFailed, match="nobody was asked for kind"):
        go(project, body)
    assert not (project.root / "log").exists()


def test_two_at_once_of_the_same_are_one_and_of_others_are_two(project: Project) -> None:
    with begun(project, STEP.format("one"), Hall()):
        with pytest.raises(ChangeUnderWay) as caught, begun(project, STEP.format("one"), Hall()):
            pass
        assert (caught.value.code, caught.value.exit_code) == ("ORCH389", 9)
        go(project, STEP.format("other"), text="y")


def test_a_changed_file_changes_no_run_that_was_begun(project: Project) -> None:
    with pytest.raises(StepFailed):
        go(project, FLAKY)
    (project.root / "mended").touch()
    go(project, STEP.format("another"))
    assert log(project) == "one\ntwo\ntwo\nthree\n"


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import importlib.util
spec = importlib.util.spec_from_file_location("test_engine", sys.argv[3])
module = sys.modules["test_engine"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.go(module.find(Path(sys.argv[1])), Path(sys.argv[1], "body").read_text())
"""


def started(project: Project, body: str) -> subprocess.Popen[bytes]:
    (project.root / "body").write_text(body)
    tests = str(Path(__file__).parent.parent)
    return subprocess.Popen([sys.executable, "-c", KILLED, str(project.root), tests, __file__])


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


MIDDLE = (
    STEP.format("one") + "```shell name=two\necho two >> log\nuntil test -e released; do sleep 0.1; done\n"
    "echo whole >> log\ntouch whole\n```\n" + "```check\ntest -e whole\n```\n" + STEP.format("three")
)


@pytest.mark.parametrize("released", ["before", "after"])
def test_a_kill_in_the_middle_does_nothing_twice(project: Project, released: str) -> None:
    """What the step began goes on without its run; who goes on with the run waits for it."""
    process = started(project, MIDDLE)
    until(lambda: (project.root / "log").exists() and log(project) == "one\ntwo\n")
    process.kill()
    process.wait()
    assert statuses(project) == {"one": "done", "two": "running"}
    if released == "before":
        (project.root / "released").touch()
        until((project.root / "whole").exists)
        hall = go(project, MIDDLE)
    else:
        hall = Hall()
        tells = hall.tells

        def tells_and_releases(text: str) -> None:
            tells(text)
            (project.root / "released").touch()

        hall.tells = tells_and_releases  # type: ignore[method-assign]
        go(project, MIDDLE, hall)
        assert hall.told[0] == "what was begun is still at work: waiting for its end"
    assert log(project) == "one\ntwo\nwhole\nthree\n"
    assert set(statuses(project).values()) == {"done"}


def test_a_kill_of_run_and_step_has_the_step_done_again(project: Project) -> None:
    process = started(project, MIDDLE.replace("echo two", "echo $$ > pid; echo two"))
    until(lambda: (project.root / "log").exists() and log(project) == "one\ntwo\n")
    process.kill()
    process.wait()
    os.killpg(int((project.root / "pid").read_text()), signal.SIGKILL)
    (project.root / "released").touch()
    hall = go(project, MIDDLE)
    assert hall.began == ["two again", "three"]
    assert log(project) == "one\ntwo\ntwo\nwhole\nthree\n"


def test_what_another_machine_began_is_not_done_again_before_somebody_has_looked(project: Project) -> None:
    with pytest.raises(StepFailed):
        go(project, FLAKY)
    with closing(open_ledger(project.ledger_url)) as ledger, ledger._begin() as db:
        elsewhere = "eve@elsewhere:v2:7:12:another-boot:1"
        db.execute(
            update(change_step).where(change_step.c.name == "two").values(status="running", message=elsewhere)
        )
    (project.root / "mended").touch()
    with pytest.raises(Waits, match="nobody knows whether step two is still at work") as caught:
        go(project, FLAKY)
    assert "process 7 of eve@elsewhere" in caught.value.text()
    assert log(project) == "one\ntwo\n"
    go(project, FLAKY, Hall(approver="ada@box"))
    assert log(project) == "one\ntwo\ntwo\nthree\n"


def test_a_program_that_nobody_tells_to_begin_does_nothing(tmp_path: Path) -> None:
    """As when the process that starts it is killed before it has written which process it is."""

    def killed(_: int) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        run(
            Program(["/bin/sh", "-c", "touch done"], {}, tmp_path, group=True),
            tmp_path / "log",
            killed,
            lambda _: None,
        )
    run(
        Program(["/bin/sh", "-c", "echo all"], {}, tmp_path, group=True),
        tmp_path / "log",
        lambda _: None,
        lambda _: None,
    )
    assert not (tmp_path / "done").exists()


def test_a_report_has_what_was_done_and_cannot_be_broken_out_of(project: Project) -> None:
    body = "```shell name=one repeat\nprintf '````\\n<b>\\033[2J | x\\n'; exit 3\n```\n"
    with pytest.raises(StepFailed), begun(project, body, Hall(), text="a|b`c\n# d") as made:
        made.go()
    change, steps = written(project)
    from orch.cli.runbooks.screen import status_json

    text = report_of(
        made.runbook, made.plan, status_json(change, tuple(steps.values()), made.runbook), made.logs
    )
    assert text.startswith("# mine: interrupted\n")
    assert "- text: a\\|b\\`c #&#8203; d" in text
    assert "| one |  | failed |" in text
    assert "\x1b" not in text
    assert "`````text" in text


def test_a_report_takes_the_end_of_an_output_however_long(project: Project) -> None:
    body = "```shell name=one repeat\nyes a long line | head -c 3000000; printf '\\nlast\\r\\n'\n```\n"
    with begun(project, body, Hall()) as made:
        made.go()
    change, steps = written(project)
    from orch.cli.runbooks.screen import Screen, status_json

    row = status_json(change, tuple(steps.values()), made.runbook)
    text = report_of(made.runbook, made.plan, row, made.logs)
    assert "\na long line\n" in text
    assert len(text) < 10_000
    shown = io.StringIO()
    Screen(1, shown, terminal=False, approver=None).shows(b"refused\r\n")
    assert shown.getvalue() == "refused\n"


def test_gone_on_with_by_number(project: Project) -> None:
    with pytest.raises(Waits):
        go(project, ASKING)
    with gone_on_with(project, 1) as journal:
        assert journal.resumed
        assert RunPlan.of(journal.change.plan).values == {"text": "x"}


VERDICT = (
    "```question name=verdict\ntype: choice\nchoices: [reset, reboot]\ndescription: What?\n```\n"
    '```approval name=gentle when="verdict=reboot"\nMay it be rebooted?\n```\n'
    "```approval name=agreed\nMay it be done?\n```\n"
    '```shell name=reset when="verdict=reset" repeat\necho reset >> log\nfalse\n```\n'
    '```shell name=reboot when="verdict=reboot" repeat\necho reboot >> log\ntest -e mended\n```\n'
)


def go_on(project: Project, hall: Hall, **answers: str) -> None:
    """As `orch runbook resume 1 NAME=ANSWER`."""
    with gone_on_with(project, 1) as journal:
        kept = RunPlan.of(journal.change.plan)
        kept = replace(kept, answers={**kept.answers, **answers})
        runbook = parse(Source.of(kept.file, kept.text))
        Run(runbook, kept, journal, hall, project.root, project.dot / "runbooks" / "1").go()


def test_another_answer_is_written_and_asks_for_approval_again(project: Project) -> None:
    with pytest.raises(StepFailed, match="step reset failed"):
        go(project, VERDICT, Hall({"verdict": "reset"}, approver="ada@box"))
    assert statuses(project)["gentle"] == "skipped"
    with pytest.raises(Waits, match="May it be rebooted"):
        go_on(project, Hall(), verdict="reboot")
    steps = written(project)[1]
    assert (steps["verdict"].message, steps["agreed"].status) == ("reboot", "undone")
    with pytest.raises(StepFailed, match="step reboot failed"):
        go_on(project, Hall(approver="eve@box"))
    assert log(project) == "reset\nreboot\n"
    assert written(project)[1]["agreed"].message == "approved by eve@box"
    (project.root / "mended").touch()
    hall = Hall()
    go_on(project, hall)
    assert hall.began == ["reboot again"]
    assert statuses(project)["reset"] == "skipped"


def test_what_is_shown_and_done_is_what_a_rehearsal_does(project: Project) -> None:
    """A reader who types a shown command must not reach the real fleet, and neither must a shell."""
    body = (
        "```shell name=look repeat\necho rehearse=$ORCHCTL_REHEARSE >> log\n```\n"
        "```orch name=down\norch down nothing\n```\n"
    )
    with begun(project, body, Hall()) as made:
        made.more_words = lambda words: (*words, "--rehearse")
        made.environment = {"ORCHCTL_REHEARSE": "1"}
        with pytest.raises(StepFailed) as failed:
            made.go()
    assert log(project) == "rehearse=1\n"
    assert "\n  orch down nothing --rehearse\n" in failed.value.text()
