"""The text of runbooks: what is read of it, and what is wrong with it, at its place."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.support import ROOT

from orch.cli.runbooks.verb_words import plan_words, wrong_words
from orch.runbooks.library import LIBRARY, places
from orch.runbooks.model import Runbook
from orch.runbooks.parse import KINDS, parse
from orch.runbooks.plan import plan_json, planned
from orch.runbooks.shell import shell_text
from orch.runbooks.words import variable
from orch.spec.document.text import Source
from orch.spec.loader.load import InvalidConfiguration

HEAD = "---\nname: mine\nsummary: A test.\nparameters:\n  node: {type: node}\n  text: {default: x}\n---\n"
"""Seven lines."""

SHELL = "```shell name=go repeat\n{}\n```\n"
CHECKED = "```shell name=go\ntouch a\n```\n```check\ntest -e a\n```\n"


def read(body: str, head: str = HEAD) -> Runbook:
    return parse(Source.of("mine.md", head + body), wrong_words)


@dataclass(frozen=True)
class Wrong:
    """A text that is wrong, and the beginning of what is said of it."""

    says: str
    body: str
    hint: str = ""
    head: str = HEAD


WRONG = (
    Wrong("mine.md:1:1: error ORCH411: a runbook begins with its front matter", "", "two lines", "# Mine\n"),
    Wrong("mine.md:1:1: error ORCH411: a runbook begins with its front matter", "", "two lines", ""),
    Wrong("mine.md:1:1: error ORCH411: the runbook has no step", "# Text\n", "```orch name=NAME"),
    Wrong(
        "mine.md:2:1: error ORCH110: unknown property 'nam'",
        CHECKED,
        "did you mean 'name'?",
        "---\nnam: a\nname: mine\nsummary: s\n---\n",
    ),
    Wrong("mine.md:2:1: error ORCH113: `summary` is missing", CHECKED, "add", "---\nname: mine\n---\n"),
    Wrong("mine.md:2:7: error ORCH115: ", CHECKED, "", "---\nname: Mine Own\nsummary: s\n---\n"),
    Wrong(
        "mine.md:5:16: error ORCH111: 'nodes' is not a type of parameters",
        CHECKED,
        "did you mean 'node'?",
        "---\nname: mine\nsummary: s\nparameters:\n  node: {type: nodes}\n---\n",
    ),
    Wrong(
        "mine.md:5:3: error ORCH159: `choices` goes with `type: choice`",
        CHECKED,
        "both",
        "---\nname: mine\nsummary: s\nparameters:\n  kind: {type: choice}\n---\n",
    ),
    Wrong(
        "mine.md:5:31: error ORCH112: 'many' is not a whole number",
        CHECKED,
        "",
        "---\nname: mine\nsummary: s\nparameters:\n  n: {type: integer, default: many}\n---\n",
    ),
    Wrong("mine.md:8:4: error ORCH411: 'shel' is no kind of step", "```shel name=go\nls\n```\n", "'shell'"),
    Wrong(
        "mine.md:8:4: error ORCH411: 'bash' is no kind of step", "```bash name=go\nls\n```\n", "for people"
    ),
    Wrong("mine.md:8:1: error ORCH411: a step needs a name", "```orch\norch ps\n```\n", "orch name=…"),
    Wrong("mine.md:8:9: error ORCH115: ", "```orch name=Go_On\norch ps\n```\n"),
    Wrong(
        "mine.md:11:9: error ORCH412: two steps have the name `go`, the first in line 8",
        "```orch name=go\norch ps\n```\n```orch name=go\norch ps\n```\n",
        "another name",
    ),
    Wrong(
        "mine.md:8:1: error ORCH413: `undo` belongs to the step before it", "```undo\nls\n```\n", "`shell`"
    ),
    Wrong(
        "mine.md:11:1: error ORCH413: `check` belongs to the step before it: step go does nothing to check",
        "```approval name=go\nMay I?\n```\n```check\nls\n```\n" + SHELL.replace("go", "end").format("ls"),
    ),
    Wrong(
        "mine.md:14:1: error ORCH413: step go has two blocks `check`", CHECKED + "```check\nls\n```\n", "one"
    ),
    Wrong(
        "mine.md:8:1: error ORCH411: the shell step go has no check", "```shell name=go\nls\n```\n", "repeat"
    ),
    Wrong(
        "mine.md:9:6: error ORCH414: `orch` has no verb 'drift-'", "```orch name=go\norch drift- lab\n```\n"
    ),
    Wrong(
        "mine.md:9:12: error ORCH414: `orch fleet` has no verb 'lst'",
        "```orch name=go\norch fleet lst\n```\n",
        "did you mean 'list'?",
    ),
    Wrong(
        "mine.md:9:16: error ORCH414: `orch drift` has no option '--jsn'",
        "```orch name=go\norch drift lab --jsn\n```\n",
        "did you mean '--json'?",
    ),
    Wrong("mine.md:9:6: error ORCH414: `orch drift` lacks ", "```orch name=go\norch drift\n```\n"),
    Wrong(
        "mine.md:9:9: error ORCH414: `orch ps` takes no argument 'lab'", "```orch name=go\norch ps lab\n```\n"
    ),
    Wrong("mine.md:9:9: error ORCH414: `--fleet` needs a value", "```orch name=go\norch ps --fleet\n```\n"),
    Wrong(
        "mine.md:9:6: error ORCH414: a runbook does not run another one",
        "```orch name=go\norch runbook list\n```\n",
    ),
    Wrong("mine.md:9:1: error ORCH135: these are 2 commands", "```orch name=go\norch ps\norch ps\n```\n"),
    Wrong("mine.md:8:1: error ORCH135: there is no command here", "```orch name=go\n```\n"),
    Wrong(
        "mine.md:9:1: error ORCH135: a command of orch begins", "```orch name=go\nls\n```\n", "`shell` step"
    ),
    Wrong(
        "mine.md:9:1: error ORCH135: `|` is for a shell", "```orch name=go\norch ps | wc\n```\n", "quote it"
    ),
    Wrong("mine.md:9:1: error ORCH135: `$(` is for a shell", "```orch name=go\norch drift $(id)\n```\n"),
    Wrong("mine.md:9:1: error ORCH135: a quote is not closed", "```orch name=go\norch drift 'lab\n```\n"),
    Wrong(
        "mine.md:9:12: error ORCH172: there is no parameter 'nod'",
        "```orch name=go\norch drift ${{ params.nod }}\n```\n",
        "did you mean 'node'?",
    ),
    Wrong(
        "mine.md:9:6: error ORCH172: there is no parameter 'nod'",
        SHELL.format("echo ${{ params.nod }}"),
        "'node'",
    ),
    Wrong(
        "mine.md:9:6: error ORCH130: 'param' is not a namespace",
        SHELL.format("echo ${{ param.node }}"),
        "did you mean 'params'?",
    ),
    Wrong("mine.md:9:6: error ORCH134: `${{` has no closing", SHELL.format("echo ${{ params.node")),
    Wrong(
        "mine.md:9:7: error ORCH415: `text` stands where it is not safe: the shell does not expand",
        SHELL.format("echo '${{ params.text }}'"),
        "double quotes",
    ),
    Wrong(
        "mine.md:11:3: error ORCH415: `text` stands where it is not safe: the shell does not expand",
        SHELL.format("cat <<'END'\nfine\n  ${{ params.text }}\nEND"),
    ),
    Wrong("mine.md:9:7: error ORCH415: `text` stands", SHELL.format("echo `${{ params.text }}`"), "$( … )"),
    Wrong("mine.md:9:9: error ORCH415: `text` stands", SHELL.format("echo $((${{ params.text }} + 1))")),
    Wrong("mine.md:9:6: error ORCH415: `text` stands", SHELL.format("eval ${{ params.text }}"), "`eval`"),
    Wrong("mine.md:9:15: error ORCH415: `text` stands", SHELL.format("true; eval ls ${{ params.text }}")),
    Wrong(
        "mine.md:9:13: error ORCH415: `text` stands", SHELL.format('bash -c "ls ${{ params.text }}"'), "$1"
    ),
    Wrong("mine.md:9:9: error ORCH415: `text` stands", SHELL.format("ssh box ${{ params.text }}"), "host="),
    Wrong(
        "mine.md:9:23: error ORCH415: a shell on the node would read the value of `text`",
        "```orch name=go\norch exec lab -- echo ${{ params.text }}\n```\n",
        "host=",
    ),
    Wrong(
        "mine.md:9:15: error ORCH415: a shell on the node would read the value of `text`",
        "```orch name=go\norch exec lab ${{ params.text }}\n```\n",
        "host=",
    ),
    Wrong("mine.md:8:1: error ORCH419: the block has no end", "```shell name=go repeat\nls\n", "```"),
    Wrong(
        "mine.md:8:1: error ORCH419: ",
        "````shell name=go repeat\nls\n```\n\nmore\n",
        "````",
    ),
    Wrong(
        "mine.md:8:18: error ORCH411: 'hots' means nothing here",
        "```shell name=go hots=x repeat\nls\n```\n",
        "'host'",
    ),
    Wrong(
        "mine.md:8:25: error ORCH411: `sudo` is not",
        "```shell name=go repeat sudo=yes\nls\n```\n",
    ),
    Wrong(
        "mine.md:8:17: error ORCH411: `name` is set twice",
        "```orch name=go name=on\norch ps\n```\n",
    ),
    Wrong(
        "mine.md:8:18: error ORCH411: 'x' are no exit codes",
        "```shell name=go ok=x repeat\nls\n```\n",
        "ok=any",
    ),
    Wrong("mine.md:8:18: error ORCH124: ", "```shell name=go timeout=soon repeat\nls\n```\n"),
    Wrong("mine.md:8:18: error ORCH411: a condition is", "```shell name=go when=text repeat\nls\n```\n"),
    Wrong(
        "mine.md:8:18: error ORCH172: there is no parameter 'txt'",
        '```shell name=go when="txt=1" repeat\nls\n```\n',
        "'text'",
    ),
    Wrong(
        "mine.md:9:7: error ORCH111: 'choce' is not a type",
        "```question name=kind\ntype: choce\n```\n" + SHELL.format("ls"),
        "'choice'",
    ),
    Wrong(
        "mine.md:8:13: error ORCH412: `node` is a parameter already",
        "```question name=node\ndescription: Which?\n```\n" + SHELL.format("ls"),
    ),
    Wrong(
        "mine.md:9:6: error ORCH172: `kind` is asked for after this step",
        SHELL.format("echo ${{ params.kind }}") + "```question name=kind\ndescription: Which?\n```\n",
        "move the question up",
    ),
    Wrong(
        "mine.md:9:1: error ORCH113: a question has a `description`",
        "```question name=kind\ntype: string\n```\n" + SHELL.format("ls"),
    ),
    Wrong("mine.md:8:1: error ORCH411: the approval does not say of what", "```approval name=go\n```\n"),
)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: re.sub(r"\W+", "-", wrong.says)[:70])
def test_what_is_wrong_is_told_at_its_place(wrong: Wrong) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        read(wrong.body, wrong.head)
    text = caught.value.text()
    starts = [line for line in text.split("\n") if line.startswith(wrong.says)]
    assert starts, text
    assert wrong.hint in text, text


def test_all_that_is_wrong_is_told_at_once() -> None:
    body = "```orch name=go\norch drif lab\n```\n```shell name=go\nls\n```\n```undo\n```\n"
    with pytest.raises(InvalidConfiguration) as caught:
        read(body)
    codes = [each.code for each in caught.value.diagnostics]
    assert sorted(codes) == ["ORCH411", "ORCH411", "ORCH412", "ORCH414"]


def test_a_whole_runbook_is_read() -> None:
    runbook = read(
        "# Mine\n\n## Look\n\n1. In a list:\n\n   ```orch name=look ok=0,10 timeout=5m takes=90s\n"
        "   orch drift lab \\\n     --json\n   ```\n\n```yaml\nname: of people\n```\n"
        "```question name=kind\ntype: choice\nchoices: [yes, no]\ndescription: Which?\n```\n"
        '~~~shell name=go host=${{ params.node }} sudo when="kind=yes|no"\nid\n~~~\n'
        "```check within=30s\ntrue\n```\n```undo orch\norch ps\n```\n"
        "> ```approval name=agreed\n> May\n> I?\n> ```\n"
    )
    look, kind, go, agreed = runbook.steps
    assert [str(each) for each in look.commands.words] == ["drift", "lab", "--json"]  # type: ignore[union-attr]
    assert (look.ok, look.timeout_s, look.takes_s, look.heading) == (frozenset({0, 10}), 300, 90, "Look")
    assert (look.span.line, look.span.column) == (14, 4)
    assert kind.question is not None
    assert kind.question.choices == ("yes", "no")
    assert (str(go.host), go.sudo, go.when.values) == ("${{ params.node }}", True, ("yes", "no"))  # type: ignore[union-attr]
    assert go.check is not None
    assert go.undo is not None
    assert (go.check.kind, go.check.within_s, go.undo.kind) == ("shell", 30, "orch")
    assert (agreed.kind, agreed.text) == ("approval", "May I?")


def test_a_plan_has_the_final_words_and_tells_what_is_asked_for_later() -> None:
    runbook = read(
        "```orch name=look\norch drift ${{ params.text }}\n```\n"
        "```question name=kind\ndescription: Which?\n```\n"
        '```orch name=end when="kind=b"\norch cordon ${{ params.node }} --reason=${{ params.kind }}\n```\n'
    )
    early = planned(runbook, {"node": "n0", "text": "a b"})
    assert early[0].do is not None
    assert early[0].do.words == ("drift", "a b")
    assert (early[2].needed, early[2].do.missing) == (None, ("kind",))  # type: ignore[union-attr]
    late = planned(runbook, {"node": "n0", "text": "a", "kind": "b"})
    assert late[2].do.words == ("cordon", "n0", "--reason=b")  # type: ignore[union-attr]
    assert [
        each["needed"] for each in plan_json(planned(runbook, {"node": "n0", "text": "", "kind": "c"}))
    ] == [
        True,
        True,
        False,
    ]


def test_verbs_that_have_a_plan_of_their_own_are_asked_for_it() -> None:
    assert plan_words(("up", "fleets", "--yes")) == ("preview", "fleets")
    assert plan_words(("drift", "lab")) is None


@pytest.mark.parametrize("name", sorted(each.stem for each in LIBRARY.glob("*.md") if each.stem != "README"))
def test_every_runbook_of_the_library_is_right(name: str) -> None:
    text = (LIBRARY / f"{name}.md").read_text()
    runbook = parse(Source.of(f"{name}.md", text), wrong_words)
    assert runbook.name == name
    assert runbook.when
    assert runbook.summary.endswith(".")
    for step in runbook.steps:
        # One that changes something can be gone on with only when its end can be told.
        assert step.kind != "shell" or step.check is not None or step.repeat
        for name_ in runbook.parameters:
            assert runbook.parameters[name_].description


def test_a_check_of_the_library_does_not_hold_because_it_cannot_look(tmp_path: Path) -> None:
    """As where orch is not found, a host does not answer, or a state cannot be read."""
    (tmp_path / "orch").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "orch").chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    looked = 0
    for place in places(ROOT / "nowhere").values():
        runbook = parse(Source.of(place.name, place.path.read_text()), wrong_words)
        for step in runbook.steps:
            if step.check is None or step.check.kind != "shell":
                continue
            script = shell_text(step.check.text)
            environment = {**path, **{variable(name): "lab" for name in script.names}}
            words = ["/bin/sh", "-euc", script.text]
            done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, check=False)
            assert done.returncode, (place.name, step.name)
            looked += 1
    assert looked


def test_the_index_has_every_runbook_of_the_library() -> None:
    index = (LIBRARY / "README.md").read_text()
    for name in places(ROOT / "nowhere"):
        assert f"({name}.md)" in index, name


def test_reading_runbooks_needs_neither_the_engine_nor_a_ledger() -> None:
    code = (
        "import sys, orch.runbooks.parse, orch.runbooks.library, orch.runbooks.plan\n"
        "print([n for n in ('pulumi', 'sqlalchemy', 'paramiko', 'docker') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_kinds_are_told_apart_from_languages() -> None:
    assert set(KINDS) == {"orch", "shell", "question", "approval", "check", "undo"}
