"""What names, states, ledgers and hosts say reaches a terminal as what it is, and costs no more than that."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path

import pytest
from kit.ledgers.oldrows import FLEET
from kit.support import ORCH, Folder, fork_server

import orch.cli
from orch.cli.errors import say
from orch.cli.runs.exec import ExecResult, show_answers
from orch.cli.targets.nodes import UnknownNode, nodes_named
from orch.runner.ledger.ledger import open_ledger
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import Completed
from orch.spec.grammar.hosts import fold
from orch.spec.state import FleetState
from orch.stacks.project.project import find

CLEAR = "\x1b[2J\x1b]0;owned\x07"
LINK = "[link=file:///etc]click[/link]"
BOMB = "gpu[1-99999999999]"


def put_up(folder: Folder, state: FleetState) -> None:
    """Record a fleet as the engine does."""
    checkpoint = find(folder.path).checkpoint(state.stack)
    assert checkpoint is not None
    checkpoint.parent.mkdir(parents=True)
    outputs = {"orch": {"schema": 2}, "fleet": state.model_dump(mode="json")}
    urn = "urn:pulumi:lab::tests::"
    resources = [{"urn": f"{urn}pulumi:pulumi:Stack::lab", "type": "pulumi:pulumi:Stack", "outputs": outputs}]
    resources += [{"urn": f"{urn}t::{node.name}", "type": "t", "outputs": {}} for node in state.nodes]
    checkpoint.write_text(json.dumps({"checkpoint": {"latest": {"resources": resources}}}))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    return Folder(tmp_path)


LIMITED = """
import resource, sys
from orch.cli.main import main

resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
sys.exit(main())
"""


def limited(folder: Folder, *words: str) -> tuple[int, str, str]:
    """`orch` with a gigabyte of memory and half a minute of CPU: a bomb ends it, not the machine."""

    return fork_server().call([*ORCH, *words], folder.path, os.environ, code=LIMITED)


def test_rows_of_a_ledger_that_others_write_too_are_shown_as_what_they_are(folder: Folder) -> None:
    find(folder.path).prepare()
    ledger = open_ledger(find(folder.path).ledger_url)
    for name, fleet, nodes in (
        ("one", f"lab{CLEAR}", ["n0"]),
        ("two", LINK, [f"n0{CLEAR}", LINK]),
        ("three", "lab\nfaked  lab", [BOMB, "@all", "a,b"]),
    ):
        plan = {"run": name, "run_id": "0123456789ab", "fleet": "lab", "backend": "local", "image": "i"}
        plan |= {"ranks": [], "launcher": "commands", "hostfile": "", "max_duration_s": 90}
        row = ledger.create(name, fleet, nodes, lambda number, p=plan: json.dumps({**p, "number": number}))
        lease = ledger.take(row.id, "somebody")
        assert lease is not None
        ledger.finish(lease, "failed", "executor_error", f"bad{CLEAR}")
    ledger.close()
    code, out, err = limited(folder, "ps", "-a")
    assert code == 0, err
    assert "\x1b" not in out + err
    assert "\x07" not in out + err
    assert f"n0<1b>[2J<1b>]0;owned<07>,{LINK}" in out
    assert f"{BOMB},@all,a,b" in out
    assert len(out.splitlines()) == 4, out
    for words, names in (
        (("--status", "failed", "--fleet", LINK), ["two"]),
        (("-a", "-u", "eve"), []),
        (("-a", "--owner", row.submitted_by.partition("@")[0], "-t", "failed"), ["three", "two", "one"]),
    ):
        said = folder.orch("ps", "-o", "json", *words)
        assert (said.code, [run["run"] for run in said.json["runs"]]) == (0, names), said.err
        assert all(run["submitted_at"] and run["time_limit_s"] == 90 for run in said.json["runs"])
    wide = folder.orch("ps", "-a", "-o", "wide").out.splitlines()
    assert wide[0].split()[-6:] == ["LIMIT", "PRIORITY", "PER", "HOUR", "COST", "REASON"]
    assert all("1m 30s" in line and "bad<1b>[2J" in line for line in wide[1:]), wide
    for words in (("--watch",), ("-t", "ending")):
        assert folder.orch("ps", *words).code == 2


def test_states_and_hosts_are_shown_as_what_they_are(folder: Folder) -> None:
    node = FLEET.nodes[0].model_copy(update={"name": f"n0{CLEAR}", "zone": LINK})
    node = node.reached(address="no where")  # which is known at once
    put_up(folder, FLEET.model_copy(update={"nodes": (node,)}))
    for words in (("fleet",), ("fleet", "show", "lab", "-v")):
        said = folder.orch(*words)
        assert said.code == 0, said.err
        assert "\x1b" not in said.out + said.err
        assert "n0<1b>[2J" in said.out
        assert LINK in said.out


BOMBS = ["gpu[0-9999]-[0-9999]-[0-9999]", "a,gpu[1-999999999]", "gpu[1 - 99999999999]", "gpu[99999999999]"]


@pytest.mark.parametrize(
    ("verb", "bomb"),
    [*((("cordon",), bomb) for bomb in BOMBS), (("ssh",), BOMB), (("exec", "lab", "--node"), BOMB)],
)
def test_names_that_stand_for_too_many_are_refused_before_they_are_unfolded(
    folder: Folder, verb: tuple[str, ...], bomb: str
) -> None:
    put_up(folder, FLEET)
    code, out, err = limited(folder, *verb, bomb, *(["--", "true"] if verb[0] == "exec" else []))
    assert code == 2, (out, err[-2000:])
    assert bomb in err
    assert "Traceback" not in err
    assert len(err) < 1000


def test_folded_names_are_chosen_as_before() -> None:
    nodes = tuple(FLEET.nodes[0].model_copy(update={"name": f"gpu{at}", "index": at}) for at in range(9))
    fleets = {"lab": FLEET.model_copy(update={"nodes": nodes})}

    def chosen(*given: str) -> str:
        return " ".join(node.name for node in nodes_named(given, fleets))

    assert chosen("gpu[1-2,4]", "gpu7") == "gpu1 gpu2 gpu4 gpu7"
    assert chosen("gpu[0-8/4]") == "gpu0 gpu4 gpu8"
    assert chosen("gpu1,gpu[2-3]") == "gpu1 gpu2 gpu3"
    for amiss in ("gpu[1", "gpu]", "gpu[a-b]", "gpu[3-1]", ""):
        with pytest.raises(UnknownNode):
            chosen(amiss)


def test_what_is_no_name_is_not_folded() -> None:
    assert fold(["n2", "n1", BOMB, "n3", "@all", "a b", "n4!n5"]) == f"n[1-3],{BOMB},@all,a b,n4!n5"
    assert fold([]) == ""


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, answers: list[ExecResult]) -> str:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        show_answers(answers)
        print("the end", flush=True)
        told = b""
        while b"the end" not in told:
            told += os.read(ours, 65_536)
    os.close(ours)
    return told.decode()


def test_what_commands_write_is_shown_on_a_terminal_and_passed_on_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Completed("n0", Command("x", "x"), 0, f"a\tb \x1b[31mred\x1b[0m{CLEAR}\n", "", 0.1)
    answers = [ExecResult(FLEET.nodes[0], done, None)]
    told = on_a_terminal(monkeypatch, answers)
    assert "\x1b[2J" not in told
    assert "\x1b[31mred\x1b[0m<1b>[2J" in told
    show_answers(answers)
    assert capsys.readouterr().out == f"n0:\n  a\tb \x1b[31mred\x1b[0m{CLEAR}\n"


def test_lines_for_people_are_escaped_and_may_be_coloured(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"\x1b[32mgood\x1b[0m {CLEAR}\nand more")
    assert capsys.readouterr().out == "\x1b[32mgood\x1b[0m <1b>[2J<1b>]0;owned<07>\nand more\n"


FORMS = ("json", "sarif", "github", "gitlab")


def test_every_verb_says_what_it_says_so() -> None:
    """Only data for programs, and logs of jobs, are printed as they are."""
    raw: list[str] = []
    for file in sorted(Path(orch.cli.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                what = ast.unparse(node.args[0])
                if not what.startswith(
                    ("json.dumps(", "json_text(", "report(", *(f"render_{form}(" for form in FORMS))
                ):
                    raw.append(f"{file.name}: {what}")
    assert raw == [
        "doctor.py: f'export {key}={shlex.quote(value)}'",  # for a shell
        r"errors.py: f'{visible_lines(hidden(_as_typed(text)))}\n'",
        "errors.py: visible_lines(hidden(_as_typed(text)))",
        "bring_up.py: done.printed",  # what `say` printed in a process of its own
        "files.py: text",  # a review, whose text is escaped, or JSON
        "live.py: text",  # a job's log
        "live.py: visible_lines(hidden(text))",
        "verbs.py: f'orch {__version__}'",
    ]
