"""Parameters in commands: how a value gets into a step, and how it never does.

In a command of orch, a word of the text is one word of the command, whatever is filled in, and none that
begins with a value becomes an option. In text for a shell no value is ever part of the text: a reference
becomes a variable of the environment, quoted by where it stands, so that a value is neither read as commands
nor split into words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from orch.spec.grammar.interpolate import ReferenceSite, references, split_words
from orch.spec.grammar.values import Problem, shown
from orch.spec.suggest import hint_for, listed

NAMESPACE = "params"
_REFERENCE = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
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


def shell_text(text: str) -> tuple[str, tuple[str, ...]]:
    """Text for a shell in which references are variables, and the names of their parameters.

    Raises Problem, whose `at` is the place in the text, where the shell would not expand it, or something
    would read the value as commands.
    """
    out: list[str] = []
    names: list[str] = []
    at = 0
    for place in _places(text):
        name = _name(*_parts_of(place.name))
        _require_safe(text, place, name)
        names.append(name)
        expanded = f"${{{variable(name)}}}"
        out += [
            text[at : place.start],
            expanded if place.quotes in ("double", "heredoc") else f'"{expanded}"',
        ]
        at = place.end
    out.append(text[at:])
    return "".join(out).replace("$${{", "${{"), tuple(dict.fromkeys(names))


def _parts_of(reference: str) -> tuple[str, str]:
    namespace, _, name = reference.strip().partition(".")
    return namespace.strip(), name.strip()


Quotes = Literal["none", "double", "single", "heredoc", "backticks", "arithmetic", "comment"]


@dataclass(frozen=True)
class _Place:
    """A reference in text for a shell, and what quotes are around it."""

    name: str
    start: int
    end: int
    quotes: Quotes


_UNSAFE = {
    "single": ("the shell does not expand what stands in single quotes", "use double quotes"),
    "backticks": ("backticks have quotes of their own", "write `$( … )`"),
    "arithmetic": ("a shell may run what it finds in arithmetic", "calculate elsewhere"),
}
_AGAIN = (
    (re.compile(r"(?:^|\s)eval\s"), "`eval` would read the value as commands", "leave `eval` out"),
    (
        re.compile(r"(?:^|[\s/])(?:ssh|orch\s+(?:ssh|exec))\s"),
        "a shell on the other side would read the value as commands",
        "write a `shell` step with `host=`",
    ),
)
_SHELL_TEXT = re.compile(r"sh\s+(?:-\w+\s+)*-\w*c\s")


def _require_safe(text: str, place: _Place, name: str) -> None:
    at = (place.start, place.end)
    if place.quotes in _UNSAFE:
        why, hint = _UNSAFE[place.quotes]
        raise Problem("ORCH415", f"`{name}` stands where it is not safe: {why}", hint=hint, at=at)
    before = re.split(r"(?<!\\)\n|[;|&]", text[: place.start])[-1]
    for pattern, why, hint in _AGAIN:
        if place.quotes != "comment" and pattern.search(before):
            raise Problem("ORCH415", f"`{name}` stands where it is not safe: {why}", hint=hint, at=at)
    if place.quotes == "double" and _SHELL_TEXT.search(before):
        raise Problem(
            "ORCH415",
            f"`{name}` stands where it is not safe: another shell would read the value as commands",
            hint="pass it as an argument: `sh -c '… \"$1\" …' sh ${{ … }}`",
            at=at,
        )


def _places(text: str) -> tuple[_Place, ...]:
    """Where references stand in text for a POSIX shell. Raises Problem for one without an end."""
    places: list[_Place] = []
    around: list[str] = ["none"]
    heredocs: list[tuple[str, bool, bool]] = []
    at = 0

    def reference(quotes: Quotes) -> int:
        found = _REFERENCE.match(text, at)
        if found is None:
            hint = "write `$${{` for these characters themselves"
            raise Problem("ORCH134", "`${{` has no closing `}}`", hint=hint, at=(at, at + 3))
        places.append(_Place(found[1], *found.span(), quotes))
        return found.end()

    while at < len(text):
        top = around[-1]
        if text.startswith("$${{", at):
            at += 4
        elif text.startswith("${{", at):
            at = reference(_quotes(around))
        elif top == "single":
            if text[at] == "'":
                around.pop()
            at += 1
        elif text[at] == "\\":
            at += 2
        elif text[at] == "`":
            if "`" in around:
                del around[around.index("`") :]
            else:
                around.append("`")
            at += 1
        elif text.startswith("$((", at):
            around += ["((", "("]
            at += 3
        elif text.startswith("$(", at):
            around.append("(")
            at += 2
        elif top == "double":
            if text[at] == '"':
                around.pop()
            at += 1
        elif text[at] in "'\"":
            around.append("single" if text[at] == "'" else "double")
            at += 1
        elif text[at] == "(":
            around.append("(")
            at += 1
        elif text[at] == ")":
            if top in ("(", "(("):
                around.pop()
            at += 1
        elif text[at] == "#" and (at == 0 or text[at - 1] in " \t\n;(|&"):
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            while at < end:
                at = reference("comment") if text.startswith("${{", at) and "}}" in text[at:end] else at + 1
        elif "((" not in around and (found := _HEREDOC.match(text, at)):
            word = re.sub(r"['\"\\]", "", found[2])
            heredocs.append((word, word != found[2], bool(found[1])))
            at = found.end()
        elif text.startswith("<<<", at):
            at += 3
        elif text[at] == "\n" and heredocs:
            at += 1
            for word, quoted, stripped in heredocs:
                while at < len(text):
                    end = text.find("\n", at)
                    end = len(text) if end < 0 else end
                    line = text[at:end]
                    if (line.lstrip("\t") if stripped else line) == word:
                        at = end
                        break
                    while at < end:
                        if text.startswith("${{", at) and not text.startswith("$${{", at - 1):
                            at = reference("single" if quoted else "heredoc")
                        else:
                            at += 1
                    at = max(at, end) + 1
            heredocs.clear()
        else:
            at += 1
    return tuple(places)


_HEREDOC = re.compile(r"<<(?!<)(-?)[ \t]*((?:'[^'\n]*'|\"[^\"\n]*\"|\\.|[^\s;&|<>()'\"\\])+)")


def _quotes(around: list[str]) -> Quotes:
    if "`" in around:
        return "backticks"
    if "((" in around:
        return "arithmetic"
    if around[-1] in ("single", "double"):
        return "single" if around[-1] == "single" else "double"
    return "none"
