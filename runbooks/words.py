"""Parameters in commands: how a value gets into a step, and how it never does.

In a command of orch, a word of the text is one word of the command, whatever is filled in, and none that
begins with a value becomes an option. Text for a shell: `shell.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from orch.spec.grammar.interpolate import ReferenceSite, references, split_words
from orch.spec.grammar.values import Problem, shown
from orch.spec.suggest import hint_for, listed

NAMESPACE = "params"
REFERENCE = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_OPERATORS = re.compile(r"[|&;<>`]|\$(?:\(|\{|[A-Za-z_]+)")


@dataclass(frozen=True)
class Word:
    """A word with references: literal text and names of parameters in turns, literal text first."""

    parts: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.parts[1::2]

    @property
    def literal(self) -> str:
        """The text before the first reference."""
        return self.parts[0]

    def __str__(self) -> str:
        return self._with({})

    def filled(self, values: Mapping[str, str]) -> str:
        """The word, references to values that are not known as they are. Raises Problem."""
        text = self._with(values)
        if text.startswith("-") and not self.literal:
            raise Problem(
                "ORCH162",
                f"the value of `{self.names[0]}` begins with a dash: {shown(text)} would be an option",
                hint="give another value, or write the option and the value as one word: `--option=${{ … }}`",
            )
        return text

    def _with(self, values: Mapping[str, str]) -> str:
        return "".join(
            part if at % 2 == 0 else values.get(part, f"${{{{ params.{part} }}}}")
            for at, part in enumerate(self.parts)
        )


def word_of(text: str) -> Word:
    """A word of the text. Raises Problem for a reference that is none."""
    parts: list[str] = []
    at = 0
    for each in references(text, ReferenceSite.COMMAND):
        parts += [text[at : each.start].replace("$${{", "${{"), _name(each.namespace, each.name)]
        at = each.end
    return Word((*parts, text[at:].replace("$${{", "${{")))


def command_words(text: str) -> tuple[Word, ...]:
    """The words of one orch command, the first being `orch`. Raises Problem."""
    lines = [line for line in text.replace("\\\n", " ").split("\n") if line.strip()]
    if len(lines) != 1:
        what = "there is no command here" if not lines else f"these are {len(lines)} commands"
        raise Problem(
            "ORCH135", f"{what}, a step is one", hint="a long one goes on after a backslash at its end"
        )
    words = tuple(word_of(each) for each in split_words(lines[0]))
    if words[0].parts != ("orch",):
        raise Problem(
            "ORCH135", "a command of orch begins with `orch`", hint="another program is a `shell` step"
        )
    plain = re.sub(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|\$?\$\{\{.*?\}\}""", "", lines[0])
    if found := _OPERATORS.search(plain):
        raise Problem(
            "ORCH135",
            f"`{found.group()}` is for a shell, and no shell reads a command of orch",
            hint="quote it, or write a `shell` step",
        )
    ends = [at for at, each in enumerate(words) if each.parts == ("--",)]
    for each in words[ends[0] :] if ends else ():
        if each.names:
            raise reaches_a_shell(each.names[0])
    return words[1:]


def reaches_a_shell(name: str) -> Problem:
    """The problem of a value in words that a shell on a node reads."""
    return Problem(
        "ORCH415",
        f"a shell on the node would read the value of `{name}`",
        hint="write a `shell` step with `host=`, which passes it as a variable",
    )


def parameter_name(reference: str) -> str:
    """Return the parameter that a reference names: `params.NAME`. Raises Problem."""
    namespace, _, name = reference.strip().partition(".")
    return _name(namespace.strip(), name.strip())


def _name(namespace: str, name: str) -> str:
    if namespace != NAMESPACE:
        raise Problem(
            "ORCH130",
            f"{shown(namespace)} is not a namespace of runbooks",
            hint=hint_for(namespace, (NAMESPACE,))
            or "write `${{ params.NAME }}`, or `$${{` for these characters",
        )
    return name


def check_known(name: str, known: Mapping[str, object], later: Mapping[str, object]) -> None:
    """Raises Problem for a reference to a parameter that is not there, or is asked for later only."""
    if name in known:
        return
    if name in later:
        raise Problem("ORCH172", f"`{name}` is asked for after this step", hint="move the question up")
    hint = hint_for(name, known) or (
        f"known are {listed(known)}" if known else "the runbook has no parameters"
    )
    raise Problem("ORCH172", f"there is no parameter {shown(name)}", hint=hint)


def variable(name: str) -> str:
    """The variable of the environment that holds a parameter."""
    return f"ORCH_PARAM_{name.upper()}"
