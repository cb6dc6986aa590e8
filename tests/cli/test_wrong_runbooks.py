"""`orch runbook` as a user calls it: wrong inputs, plans, answers, approvals, and what a copy overwrites."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kit.forges.forges import GitHubServer, GitLabServer
from kit.support import ORCH, Folder, Said

from orch.cli.runbooks.verb_words import rehearsed_commands

HEAD, OLDER = "a" * 40, "b" * 40

MINE = """---
name: mine
summary: A test.
when: The bell rings
parameters:
  text: {description: Any text.}
  count: {type: integer, default: 2}
---
```shell name=one repeat
printf '%s\\n' ${{ params.text }} >> log
```
```question name=kind
type: choice
choices: [hard, soft]
description: Which is it?
```
```approval name=go
May I?
```
```shell name=two
echo ${{ params.kind }} >> log
```
```check
tail -n 1 log | grep -q ${{ params.kind }}
```
```undo
echo undone >> log
```
"""


@pytest.fixture
def mine(folder: Folder) -> Folder:
    (folder.path / "runbooks").mkdir()
    folder.write("runbooks/mine.md", MINE)
    return folder


def runbook(folder: Folder, *words: str, **env: str) -> Said:
    return folder.orch("runbook", *words, env=env)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("plan", "min", "text=x"), 2, "there is no runbook 'min'\n  neither in runbooks/ of the project"),
        (("plan", "min", "text=x"), 2, "hint: did you mean 'mine'?"),
        (("plan", "nowhere/mine.md"), 3, "nowhere/mine.md:1:1: error ORCH100: there is no such file"),
        (("plan", "mine"), 2, "error ORCH416: a value is missing: text"),
        (("plan", "mine"), 2, "text: string. Any text.\n  hint: add text=VALUE to the command"),
        (
            ("plan", "mine", "txt=x"),
            2,
            "error ORCH416: there is no parameter 'txt'\n  hint: did you mean 'text'?",
        ),
        (("plan", "mine", "text=x", "text=y"), 2, "text is given twice"),
        (("plan", "mine", "x"), 2, "'x' is no parameter with a value"),
        (("plan", "mine", "text=x", "count=many"), 2, "count: 'many' is not a whole number"),
        (("plan", "mine", "text=x", "kind=odd"), 2, "kind: 'odd' is none of the choices"),
        (("run", "mine", "text=x"), 2, "this asks before it acts, and there is no terminal"),
        (("run", "mine", "text=x", "--approved-by", "3", "--yes"), 2, "hint: set GITHUB_REPOSITORY;"),
        (("status", "7"), 2, "there is no run 7\n  hint: `orch runbook status` lists them"),
        (("status", "--report", "r.md"), 2, "a report is of one run"),
        (("resume", "7"), 2, "there is no run 7"),
        (("init", "bad-nod"), 2, "the library has no runbook 'bad-nod'\n  hint: did you mean 'bad-node'?"),
        (("run", "mine", "text=x", "--yes", "--approved-by", "5"), 2, "which repository?"),
        (("list", "more"), 2, "Got unexpected extra argument"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_done(
    mine: Folder, words: tuple[str, ...], code: int, says: str
) -> None:
    said = runbook(mine, *words, GITHUB_REPOSITORY="", GITLAB_CI="")
    assert (said.code, says in said.err) == (code, True), said.err
    assert "Traceback" not in said.err
    assert not (mine.path / "log").exists()
    assert runbook(mine, "status").out == "no runbook was run in this project\n"


def test_a_runbook_with_mistakes_is_told_with_places_by_every_verb(mine: Folder) -> None:
    mine.write(
        "runbooks/other.md",
        MINE.replace("name: mine", "name: other").replace("shell name=two", "shel name=two"),
    )
    place = "runbooks/other.md:20:4: error ORCH411: 'shel' is no kind of step"
    for words in (
        ("list",),
        ("show", "other"),
        ("plan", "other", "text=x"),
        ("run", "other", "text=x", "--yes"),
    ):
        said = runbook(mine, *words)
        assert (said.code, place in said.err) == (3, True), said.err
    listed = runbook(mine, "list", "--json").json["runbooks"]
    assert {each["name"]: each["valid"] for each in listed if each["own"]} == {"mine": True, "other": False}


def test_a_plan_changes_nothing_and_has_the_final_words(mine: Folder) -> None:
    said = runbook(mine, "plan", "mine", "text=a; b", "--json").json
    assert said["values"] == {"text": "a; b", "count": "2"}
    one, kind, go, two = said["steps"]
    assert one["do"] == {
        "script": "printf '%s\\n' \"${ORCH_PARAM_TEXT}\" >> log\n",
        "environment": {"ORCH_PARAM_TEXT": "a; b"},
        "missing": [],
    }
    assert (kind["text"], go["text"], two["do"]["missing"]) == ("Which is it?", "May I?", ["kind"])
    assert not (mine.path / ".orch" / "runbooks").exists()
    assert "ORCH_PARAM_TEXT='a; b'" in runbook(mine, "plan", "mine", "text=a; b").out


def test_a_run_stops_for_people_and_goes_on_with_what_they_say(mine: Folder) -> None:
    said = runbook(mine, "run", "mine", "text=a", "--yes", "--json")
    assert (said.code, said.json["run"]["status"]) == (10, "waits")
    assert "hint: `orch runbook resume 1 kind=VALUE` goes on" in said.err
    said = runbook(mine, "resume", "1", "kind=soft")
    assert said.code == 10
    assert "waits for approval: May I?" in said.err
    shown = runbook(mine, "status", "1").out
    assert "3. go  waits\n" in shown
    assert "`orch runbook resume 1 --approve` goes on" in shown
    done = runbook(mine, "resume", "1", "--approve", "--report", "report.md", "--json")
    assert done.code == 0
    assert [each["status"] for each in done.json["run"]["steps"]] == ["done"] * 4
    assert done.json["run"]["steps"][2]["message"].startswith("approved by ")
    assert (mine.path / "log").read_text() == "a\nsoft\n"
    assert (mine.path / "report.md").read_text().startswith("# mine: done\n")
    again = runbook(mine, "resume", "1")
    assert (again.code, "run 1 is done: there is nothing to go on with" in again.err) == (2, True)
    (change,) = mine.orch("log", "--json").json["changes"]
    assert (change["verb"], change["subject"], change["calls"]) == ("runbook run", "mine count=2 text=a", 3)


def test_a_failure_is_undone_where_that_was_asked_for(mine: Folder) -> None:
    mine.write("runbooks/mine.md", MINE.replace("grep -q ${{ params.kind }}", "grep -q nothing"))
    said = runbook(mine, "run", "mine", "text=a", "kind=hard", "--yes")
    said = runbook(mine, "resume", "1", "--approve", "--undo-on-failure", "--json")
    assert said.code == 6
    assert "error ORCH417: step two failed: its check does not hold" in said.err
    assert "hint: undone: two; `orch runbook run` begins anew" in said.err
    assert said.json["run"]["status"] == "failed"
    assert (mine.path / "log").read_text() == "a\nhard\nundone\n"


def test_what_is_not_undone_is_told(mine: Folder) -> None:
    mine.write("runbooks/mine.md", MINE.replace("grep -q ${{ params.kind }}", "grep -q nothing"))
    runbook(mine, "run", "mine", "text=a", "kind=hard", "--yes")
    said = runbook(mine, "resume", "1", "--approve")
    assert "nothing is undone; what can be: two" in said.err
    assert "`orch runbook resume 1` goes on from here" in said.err


def test_restart_gives_an_interrupted_run_up(mine: Folder) -> None:
    assert runbook(mine, "run", "mine", "text=a", "--yes").code == 10
    assert runbook(mine, "run", "mine", "text=a", "--yes", "--restart").code == 10
    runs = runbook(mine, "status", "--json").json["runs"]
    assert [(each["id"], each["status"]) for each in runs] == [(2, "waits"), (1, "abandoned")]


def test_a_copy_never_overwrites_what_was_changed(mine: Folder) -> None:
    assert runbook(mine, "init", "broken-lock").out == "runbooks/broken-lock.md: written\n"
    copied = mine.path / "runbooks" / "broken-lock.md"
    copied.write_text(copied.read_text() + "\nOurs.\n")
    done = runbook(mine, "init", "--json").json["runbooks"]
    assert done["broken-lock"] == "kept"
    assert done["bad-node"] == "written"
    assert copied.read_text().endswith("\nOurs.\n")
    assert set(runbook(mine, "init", "--json").json["runbooks"].values()) == {"kept", "unchanged"}
    listed = runbook(mine, "list", "--json").json["runbooks"]
    assert all(each["own"] and each["valid"] for each in listed)


def test_a_folder_that_cannot_be_written_is_told(folder: Folder) -> None:
    (folder.path / "runbooks").write_text("a file")
    said = runbook(folder, "init")
    assert (said.code, "the runbooks cannot be written" in said.err) == (3, True), said.err


# Approvals by pull request


@pytest.fixture
def github() -> Iterator[GitHubServer]:
    with GitHubServer().running() as server:
        assert isinstance(server, GitHubServer)
        server.add_pull(5, HEAD)
        server.permissions |= {"bob": "write", "eve": "read"}
        yield server


@pytest.fixture
def gitlab() -> Iterator[GitLabServer]:
    with GitLabServer().running() as server:
        assert isinstance(server, GitLabServer)
        server.add_request(5, HEAD)
        yield server


def at_github(server: GitHubServer, folder: Folder, *words: str) -> Said:
    env = {"GITHUB_API_URL": server.url, "GITHUB_TOKEN": "person", "GITHUB_REPOSITORY": server.repo}
    return folder.orch(
        "runbook", *words, "--approved-by", "5", env={**env, "GITLAB_CI": "", "GITHUB_EVENT_PATH": ""}
    )


def at_gitlab(server: GitLabServer, folder: Folder, *words: str) -> Said:
    env = {
        "GITLAB_CI": "true",
        "CI_SERVER_URL": server.url,
        "GITLAB_TOKEN": "project-token",
        "CI_PROJECT_ID": "7",
    }
    return folder.orch("runbook", *words, "--approved-by", "5", env=env)


def mark(folder: Folder, *answers: str, gate: str = "go") -> str:
    return runbook(folder, "plan", "mine", "text=a", *(answers or ("kind=soft",)), "--json").json["marks"][
        gate
    ]


RUN = ("run", "mine", "text=a", "kind=soft", "--yes")


def test_a_run_that_a_pull_request_approves_goes_through(mine: Folder, github: GitHubServer) -> None:
    github.add_review(5, "bob", HEAD, body=f"Yes.\r\n{mark(mine)}\r\n")
    said = at_github(github, mine, *RUN, "--json")
    assert said.code == 0, said.err
    assert said.json["run"]["steps"][2]["message"] == "approved by bob in acme/cluster#5"
    assert github.problems == []
    assert github.writes() == []


@pytest.mark.parametrize(
    "review",
    [
        ("bob", "COMMENTED", HEAD, True),
        ("bob", "CHANGES_REQUESTED", HEAD, True),
        ("bob", "APPROVED", OLDER, True),
        ("bob", "APPROVED", HEAD, False),
        ("eve", "APPROVED", HEAD, True),
        ("ada", "APPROVED", HEAD, True),
    ],
    ids=["a comment", "no", "of an older commit", "without the mark", "who may not write", "its author"],
)
def test_what_is_no_approval_approves_nothing(
    mine: Folder, github: GitHubServer, review: tuple[str, str, str, bool]
) -> None:
    login, state, commit, marked = review
    body = mark(mine) if marked else f"orch-runbook: mine go {'0' * 40}"
    github.add_review(5, login, commit, state=state, body=body)
    said = at_github(github, mine, *RUN)
    assert said.code == 4, said.err
    assert "error ORCH418: nobody has approved this run in pull request 5" in said.err
    assert f"with the line `{mark(mine)}`" in said.err
    assert not (mine.path / "log").exists()


def test_a_later_no_takes_an_approval_back(mine: Folder, github: GitHubServer) -> None:
    github.add_review(5, "bob", HEAD, body=mark(mine))
    github.add_review(5, "bob", HEAD, body=mark(mine), state="DISMISSED")
    assert at_github(github, mine, *RUN).code == 4


def test_the_mark_is_of_the_text_the_parameters_and_the_answers(mine: Folder) -> None:
    before = mark(mine)
    assert before.startswith("orch-runbook: mine go ")
    assert mark(mine, "kind=hard") != before
    assert runbook(mine, "plan", "mine", "text=b", "kind=soft", "--json").json["marks"]["go"] != before
    rehearsal = runbook(mine, "plan", "mine", "text=a", "kind=soft", "--json", "--rehearse").json["marks"][
        "go"
    ]
    assert rehearsal != before
    mine.write("runbooks/mine.md", MINE + "\nMore.\n")
    assert mark(mine) != before


HOSTILE = MINE.replace(" >> log\n```\n```check", " EVIL >> log\n```\n```check").replace(
    "grep -q", "grep -q EVIL || grep -q"
)


def test_an_approval_of_another_text_does_not_let_a_run_go_on(mine: Folder, github: GitHubServer) -> None:
    """A run goes by the text that it was begun with; the file was replaced by a harmless one since."""
    mine.write("runbooks/mine.md", HOSTILE)
    assert runbook(mine, *RUN).code == 10
    mine.write("runbooks/mine.md", MINE)
    github.add_review(5, "bob", HEAD, body=mark(mine))
    for words in (RUN, ("resume", "1")):
        said = at_github(github, mine, *words)
        assert said.code == 4, said.err
        assert "approved without its mark: bob" in said.err
    assert "EVIL" not in (mine.path / "log").read_text()
    mine.write("runbooks/mine.md", HOSTILE)
    hostile = mark(mine)
    assert hostile in said.err
    github.add_review(5, "bob", HEAD, body=hostile)
    assert at_github(github, mine, "resume", "1").code == 0
    assert "EVIL" in (mine.path / "log").read_text()


def typed(folder: Folder, words: tuple[str, ...], text: str) -> str:
    """What a command shows on a terminal on which somebody types this text."""
    ours, its = pty.openpty()
    os.write(ours, text.encode())
    with subprocess.Popen([*ORCH, *words], cwd=folder.path, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        shown = b""
        with suppress(OSError):  # how Linux tells that nobody has the other end
            while piece := os.read(ours, 4096):
                shown += piece
    os.close(ours)
    assert process.returncode == 0
    return shown.decode()


def test_what_is_confirmed_is_what_goes_on_when_the_file_was_changed(mine: Folder) -> None:
    mine.write("runbooks/mine.md", HOSTILE)
    assert runbook(mine, *RUN).code == 10
    mine.write("runbooks/mine.md", MINE)
    shown = typed(mine, ("runbook", *RUN[:-1], "--words-only"), "y\nn\n")
    before, _, after = shown.partition("the runbook was changed since")
    assert "EVIL" not in before
    assert "EVIL" in after
    assert "Go on with these steps?" in after
    assert "nothing was done" in after
    assert (mine.path / "log").read_text() == "a\n"


TWO = (
    MINE
    + """```approval name=again
May I go on?
```
```shell name=three repeat
echo three >> log
```
"""
)


def test_one_approval_passes_one_gate(mine: Folder, github: GitHubServer) -> None:
    mine.write("runbooks/mine.md", TWO)
    github.add_review(5, "bob", HEAD, body=mark(mine))
    said = at_github(github, mine, *RUN)
    assert said.code == 4
    assert (mine.path / "log").read_text() == "a\nsoft\n"
    assert mark(mine, gate="again") in said.err
    github.add_review(5, "bob", HEAD, body=mark(mine, gate="again"))
    assert at_github(github, mine, "resume", "1").code == 0


def test_an_approval_is_used_once(mine: Folder, github: GitHubServer) -> None:
    github.add_review(5, "bob", HEAD, body=mark(mine))
    assert at_github(github, mine, *RUN).code == 0
    said = at_github(github, mine, *RUN)
    assert said.code == 4
    assert "the approval of bob was used before: one approval passes one gate, once" in said.err
    github.add_review(5, "bob", HEAD, body=mark(mine))
    assert at_github(github, mine, *RUN).code == 0


def test_another_answer_needs_another_approval(mine: Folder, github: GitHubServer) -> None:
    mine.write("runbooks/mine.md", TWO.replace("echo three >> log", "test -e mended"))
    both = f"{mark(mine)}\n{mark(mine, gate='again')}"
    github.add_review(5, "bob", HEAD, body=both)
    assert at_github(github, mine, *RUN).code == 6
    said = at_github(github, mine, "resume", "1", "kind=hard")
    assert said.code == 4
    assert mark(mine, "kind=hard") in said.err
    # Nor does the old one count for the old answer.
    assert at_github(github, mine, "resume", "1", "kind=soft").code == 4


def test_approve_is_for_the_gate_at_which_the_run_stopped(mine: Folder) -> None:
    mine.write("runbooks/mine.md", TWO)
    assert runbook(mine, *RUN).code == 10
    said = runbook(mine, "resume", "1", "kind=hard", "--approve")
    assert said.code == 10
    assert "--approve is for the gate at which the run stopped" in said.err
    said = runbook(mine, "resume", "1", "--approve")
    assert (said.code, (mine.path / "log").read_text()) == (10, "a\nhard\n")
    assert "waits for approval: May I go on?" in said.err
    assert runbook(mine, "resume", "1", "--approve").code == 0


BEFORE, AFTER = "2026-11-25T11:00:00Z", "2026-11-25T13:00:00Z"


def test_a_merge_request_approves_too(mine: Folder, gitlab: GitLabServer) -> None:
    assert at_gitlab(gitlab, mine, *RUN).code == 4
    gitlab.add_note(5, "bob", f"Fine.\n{mark(mine)}")
    assert at_gitlab(gitlab, mine, *RUN).code == 4
    gitlab.levels |= {"bob": 30, "grace": 40}
    gitlab.approve(5, "grace")
    gitlab.approve(5, "bob")
    said = at_gitlab(gitlab, mine, *RUN, "--json")
    assert said.code == 0, said.err
    assert said.json["run"]["steps"][2]["message"] == "approved by bob in 7#5"
    assert gitlab.problems == []


def test_a_server_that_does_not_tell_when_has_a_note_on_it(mine: Folder, gitlab: GitLabServer) -> None:
    gitlab.levels |= {"bob": 30}
    gitlab.approve(5, "bob", at=None)
    gitlab.add_note(5, "bob", mark(mine))
    assert at_gitlab(gitlab, mine, *RUN).code == 4
    gitlab.add_note(5, "bob", "approved this merge request")
    assert at_gitlab(gitlab, mine, *RUN).code == 4
    gitlab.add_note(5, "bob", "approved this merge request", system=True)
    assert at_gitlab(gitlab, mine, *RUN).code == 0


@pytest.mark.parametrize(
    "case", ["reads", "no member", "author", "older", "older note", "edited", "other", "taken back"]
)
def test_what_is_no_approval_of_a_merge_request(mine: Folder, gitlab: GitLabServer, case: str) -> None:
    login = "grace" if case == "author" else "bob"
    gitlab.levels |= {} if case == "no member" else {login: 20 if case == "reads" else 30, "eve": 30}
    if case != "taken back":
        gitlab.approve(5, login, BEFORE if case == "older" else AFTER)
    who = "eve" if case == "other" else login
    note = gitlab.add_note(5, who, mark(mine), at=BEFORE if case == "older note" else AFTER)
    if case == "edited":
        note["updated_at"] = "2026-11-25T14:00:00Z"
    said = at_gitlab(gitlab, mine, *RUN)
    assert said.code == 4, said.err
    assert "nobody has approved this run in merge request 5" in said.err
    assert gitlab.problems == []
    assert not (mine.path / "log").exists()


def test_a_commit_that_is_pushed_takes_approvals_away(mine: Folder, gitlab: GitLabServer) -> None:
    gitlab.levels |= {"bob": 30}
    gitlab.approve(5, "bob")
    gitlab.add_note(5, "bob", mark(mine))
    gitlab.push(5, OLDER, AFTER)
    assert at_gitlab(gitlab, mine, *RUN).code == 4


def test_texts_of_steps_move_no_terminal(mine: Folder) -> None:
    mine.write(
        "runbooks/mine.md", MINE.partition("```question")[0].replace(">> log", "; printf '\\033[2Jx\\n'")
    )
    said = runbook(mine, "run", "mine", "text=a\x1b[31m", "--yes")
    assert said.code == 0, said.err
    assert "\x1b[2J" not in said.out
    assert "<1b>[2Jx" in said.out
    shown = runbook(mine, "status", "1")
    assert "\x1b[31m" not in shown.out.replace("\x1b[0m", "") or "\\u001b" in shown.out
    json.loads(runbook(mine, "status", "--json").out)


def test_paths_of_steps_are_of_the_project_wherever_it_is_called(mine: Folder) -> None:
    (mine.path / "below").mkdir()
    assert Folder(mine.path / "below").orch("runbook", "run", "mine", "text=a", "--yes").code == 10
    assert Path(mine.path, "log").read_text() == "a\n"


def test_a_report_that_cannot_be_written_is_told_before_a_step_is_done(mine: Folder) -> None:
    said = runbook(mine, "run", "mine", "text=x", "--yes", "--report", "nowhere/report.md")
    assert (said.code, said.out) == (2, "")
    assert "nowhere/report.md: error: the report cannot be written there" in said.err
    assert not (mine.path / "log").exists()


def test_the_command_that_does_not_ask_can_be_typed_as_it_is_told(mine: Folder) -> None:
    said = runbook(mine, "run", "mine", "text=$(id) é")
    assert said.code == 2
    assert "hint: write `orch runbook run mine 'text=$(id) é' --yes`" in said.err


def test_numbers_that_no_ledger_counts_are_refused(folder: Folder) -> None:
    for words in (("log",), ("runbook", "status"), ("runbook", "resume"), ("log", "--abandon")):
        for number in (str(2**63), "0"):
            said = folder.orch(*words, number)
            assert said.code == 2, said.err
            assert "error: Invalid value for" in said.err


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("hint: `orch unlock lab`", "hint: `orch unlock lab --rehearse`"),
        (
            "`orch fleet`, or `orch log 3 --abandon`",
            "`orch fleet --rehearse`, or `orch log 3 --abandon --rehearse`",
        ),
        ("`orch exec lab -- ls -l`", "`orch exec lab --rehearse -- ls -l`"),
        ("`orch up FILE --rehearse`", "`orch up FILE --rehearse`"),
        ("`orch secret set x`, `orch --help`, `orch lab`", "`orch secret set x`, `orch --help`, `orch lab`"),
    ],
)
def test_commands_of_a_rehearsal_stay_in_it(text: str, typed: str) -> None:
    assert rehearsed_commands(text) == typed


def test_a_rehearsed_run_tells_how_it_goes_on(mine: Folder) -> None:
    said = runbook(mine, "run", "mine", "text=x", "kind=hard", "--yes", "--rehearse")
    assert said.code == 10, said.err
    assert "`orch runbook resume 1 --approve --rehearse` goes on" in said.err
    assert (
        "`orch runbook resume 1 --approve --rehearse` goes on"
        in runbook(mine, "status", "1", "--rehearse").out
    )
    assert runbook(mine, "resume", "1", "--approve", "--rehearse").code == 0
