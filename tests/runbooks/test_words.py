"""Values that attack: in a command of orch each is one word, and a shell never reads one as commands."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orch.runbooks.parameters import Parameter, WrongValue, bound, values_of
from orch.runbooks.parse import parse
from orch.runbooks.plan import holds, planned, subject
from orch.runbooks.process import program_of
from orch.runbooks.words import command_words
from orch.spec.diagnostics import Span
from orch.spec.document.text import Source
from orch.spec.grammar.values import Problem

HEAD = "---\nname: mine\nsummary: A test.\nparameters:\n  text: {type: string}\n---\n"

ATTACKS = (
    "; touch pwned",
    "$(touch pwned)",
    "`touch pwned`",
    "a\ntouch pwned\n",
    "'; touch pwned; '",
    '"; touch pwned; "',
    '\\"; touch pwned; #',
    "| touch pwned",
    "&& touch pwned",
    "> pwned",
    "* ? [a-z] ~ {a,b}",
    "${IFS}touch${IFS}pwned",
    "$((1+1)) $HOME",
    "${{ params.text }}",
    "END\ntouch pwned\nEND",
    " leading and trailing ",
    "tab\tand\rreturn",
    "--version",
    "-n",
    "ünïcode \u202e",
    "",
)

SCRIPT = r"""
printf '<%s>' ${{ params.text }} > out
printf '<%s>' "before ${{ params.text }} after" >> out
printf '<%s>' pre${{ params.text }}post >> out
printf '<%s>' "$(printf '%s.' ${{ params.text }})" >> out
cat << END >> out
<${{ params.text }}>
END
sh -c 'printf "<%s>" "$1" >> out' sh ${{ params.text }}
# a comment with ${{ params.text }}
case ${{ params.text }} in nothing) touch pwned ;; esac
"""


def said_for(text: str) -> str:
    return f"<{text}><before {text} after><pre{text}post><{text}.><{text}>\n<{text}>"


def run(script: str, text: str, folder: Path, host: str = "") -> str:
    """What a step's script leaves in its file `out`; nothing else may be there."""
    runbook = parse(Source.of("mine.md", f"{HEAD}```shell name=go repeat{host}\n{script}\n```\n"))
    (step,) = planned(runbook, {"text": text})
    assert step.do is not None
    program = program_of(step, step.do, folder)
    words = list(program.words)
    if step.host is not None:
        # What sshd does with the words after the node: a shell reads them, joined.
        words = ["/bin/sh", "-c", " ".join(words[words.index("--") + 1 :])]
    if text:
        assert not [word for word in words if text in word and text not in script]
    done = subprocess.run(
        words, cwd=folder, env={**program.environment}, input=program.given, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [each.name for each in folder.iterdir()] == ["out"]
    found = (folder / "out").read_bytes().decode()
    (folder / "out").unlink()
    return found


@pytest.mark.parametrize("where", ["", " host=n0", " host=n0 timeout=1m"], ids=["here", "node", "limited"])
@pytest.mark.parametrize("text", ATTACKS)
def test_a_shell_reads_no_value_as_commands(text: str, where: str, tmp_path: Path) -> None:
    assert run(SCRIPT, text, tmp_path, where) == said_for(text)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.sampled_from("ab '\"\\$`(){}[];&|<>*?~#!\n\t-=%"), max_size=30))
def test_a_shell_reads_no_value_by_chance_as_commands(tmp_path: Path, text: str) -> None:
    assert run(SCRIPT, text, tmp_path) == said_for(text)


@pytest.mark.parametrize("text", [each for each in ATTACKS if not each.startswith("-")])
def test_in_a_command_of_orch_each_word_stays_one(text: str) -> None:
    words = command_words(
        "orch cordon ${{ params.text }} --reason \"why: ${{ params.text }}\" '${{params.text}}'"
    )
    assert [each.filled({"text": text}) for each in words] == [
        "cordon",
        text,
        "--reason",
        f"why: {text}",
        text,
    ]


@pytest.mark.parametrize("text", ["-f", "--yes", "-", "--reason=x"])
def test_no_value_becomes_an_option(text: str) -> None:
    words = command_words("orch cordon ${{ params.text }} --reason=${{ params.text }}")
    with pytest.raises(Problem, match="begins with a dash"):
        words[1].filled({"text": text})
    assert words[2].filled({"text": text}) == f"--reason={text}"


def test_a_value_is_not_read_again_as_a_reference() -> None:
    words = command_words("orch cordon ${{ params.a }} ${{ params.b }}")
    values = {"a": "${{ params.b }}", "b": "x"}
    assert [each.filled(values) for each in words] == ["cordon", "${{ params.b }}", "x"]


def parameter(kind: str, **more: object) -> Parameter:
    return Parameter("p", kind, Span("f", 1, 1, 1, 1), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "text", "final"),
    [
        ("string", "a b", "a b"),
        ("integer", "+7", "7"),
        ("number", "-1.50", "-1.50"),
        ("boolean", "Yes", "true"),
        ("duration", "1h30m", "1h30m"),
        ("node", "gpu-3.lab", "gpu-3.lab"),
        ("fleet", "lab", "lab"),
    ],
)
def test_values_get_their_final_form(kind: str, text: str, final: str) -> None:
    assert values_of({"p": parameter(kind)}, (f"p={text}",)) == {"p": final}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("integer", "1.5"),
        ("integer", "1; ls"),
        ("number", "1e3"),
        ("boolean", "maybe"),
        ("duration", "soon"),
        ("duration", "off"),
        ("node", "-n0"),
        ("node", "a b"),
        ("node", "$(id)"),
        ("node", ""),
        ("fleet", "La b"),
        ("string", "a\0b"),
        ("string", "x" * 5000),
    ],
)
def test_values_that_do_not_fit_are_refused(kind: str, text: str) -> None:
    with pytest.raises(WrongValue) as caught:
        values_of({"p": parameter(kind)}, (f"p={text}",))
    assert caught.value.exit_code == 2


def test_missing_unknown_and_double_values_are_told_with_what_to_write() -> None:
    known = {"p": parameter("choice", choices=("yes", "no"), description="Which?")}
    for words, hint in (
        ((), "p=VALUE"),
        (("other=1",), "known are `p`"),
        (("p=yes", "p=no"), "leave"),
        (("p",), "NAME="),
    ):
        with pytest.raises(WrongValue) as caught:
            bound(known, words)
        assert hint in caught.value.text()
    with pytest.raises(WrongValue, match="none of the choices"):
        bound(known, ("p=ye",))
    assert bound({"p": parameter("string", default="d")}, ()) == {"p": "d"}


def test_the_same_parameters_hold_the_same_and_others_do_not() -> None:
    one, other = {"a": "1", "b": "x y"}, {"b": "x y", "a": "1"}
    assert holds("mine", one) == holds("mine", other)
    assert holds("mine", one) != holds("mine", {**one, "a": "2"})
    assert holds("mine", {"a": "1 b=2"}) != holds("mine", {"a": "1", "b": "2"})
    assert subject("mine", one) == 'mine a=1 b="x y"'
    assert shlex.split(subject("mine", {"a": "plain"})) == ["mine", "a=plain"]
