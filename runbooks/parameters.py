"""Parameters of runbooks: their types, and the text of a value in its final form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from orch.spec.diagnostics import Span
from orch.spec.errors import ExitCode, OrchError
from orch.spec.grammar.characters import check_characters
from orch.spec.grammar.values import Problem, check_name, parse_bool, parse_duration, parse_int, shown
from orch.spec.suggest import hint_for, listed

Type = Literal["string", "integer", "number", "boolean", "duration", "node", "fleet", "choice"]
TYPES: tuple[str, ...] = get_args(Type)

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
MOST_CHARACTERS = 4096

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?")


class WrongValue(OrchError):
    """A value that does not fit its parameter, one that is missing, or one of no parameter."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class Parameter:
    """A value that a run needs: from the command line, or of a question. `default`: in its final form."""

    name: str
    type: Type
    span: Span
    description: str = ""
    default: str | None = None
    choices: tuple[str, ...] = ()
    pattern: str | None = None

    @property
    def expected(self) -> str:
        """Return the accepted values, for people."""
        if self.type == "choice":
            return listed(self.choices)
        return f"{self.type}, {self.pattern}" if self.pattern else self.type

    def value(self, text: str) -> str:
        """The final form of a value. Raises Problem."""
        if len(text) > MOST_CHARACTERS:
            raise Problem("ORCH416", f"a value has at most {MOST_CHARACTERS:,} characters")
        check_characters(text)
        text = self._typed(text)
        if self.pattern is not None and not re.fullmatch(self.pattern, text):
            raise Problem("ORCH416", f"{shown(text)} does not match `{self.pattern}`")
        return text

    def _typed(self, text: str) -> str:
        if self.type == "integer":
            return str(parse_int(text))
        if self.type == "number" and not _NUMBER.fullmatch(text):
            raise Problem("ORCH416", f"{shown(text)} is not a number")
        if self.type == "boolean":
            return "true" if parse_bool(text) else "false"
        if self.type == "duration":
            if parse_duration(text) is None:
                hint = "write `30m` or `2h`"
                raise Problem("ORCH124", f"{shown(text)} is not a length of time", hint=hint)
        elif self.type == "node" and not _NODE.fullmatch(text):
            raise Problem(
                "ORCH416", f"{shown(text)} is not the name of a node", hint="`orch fleet list` tells them"
            )
        elif self.type == "fleet":
            check_name(text)
        elif self.type == "choice" and text not in self.choices:
            hint = hint_for(text, self.choices) or f"write {listed(self.choices)}"
            raise Problem("ORCH416", f"{shown(text)} is none of the choices", hint=hint)
        return text


def bound(parameters: Mapping[str, Parameter], words: tuple[str, ...]) -> dict[str, str]:
    """The values of `NAME=VALUE` words, defaults included. Raises WrongValue, also for what is missing."""
    values = values_of(parameters, words)
    missing = [each for name, each in parameters.items() if name not in values and each.default is None]
    if missing:
        raise WrongValue(
            f"a value is missing: {', '.join(each.name for each in missing)}",
            detail="\n".join(
                f"{each.name}: {each.expected}. {each.description}".rstrip() for each in missing
            ),
            hint=f"add {' '.join(f'{each.name}=VALUE' for each in missing)} to the command",
            code="ORCH416",
        )
    defaults = {name: each.default for name, each in parameters.items() if each.default is not None}
    return {**defaults, **values}


def values_of(parameters: Mapping[str, Parameter], words: tuple[str, ...]) -> dict[str, str]:
    """The values of `NAME=VALUE` words in their final form. Raises WrongValue."""
    values: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise WrongValue(
                f"{shown(word)} is no parameter with a value",
                hint=f"write NAME=VALUE, with one of {listed(parameters)}" if parameters else None,
                code="ORCH416",
            )
        if name in values:
            raise WrongValue(f"{name} is given twice", hint="leave one of them out", code="ORCH416")
        if name not in parameters:
            known = f"known are {listed(parameters)}" if parameters else "this runbook has none"
            raise WrongValue(
                f"there is no parameter {shown(name)}",
                hint=hint_for(name, parameters) or known,
                code="ORCH416",
            )
        try:
            values[name] = parameters[name].value(text)
        except Problem as problem:
            expected = f"expected is {parameters[name].expected}"
            raise WrongValue(
                f"{name}: {problem.summary}", detail=expected, hint=problem.hint, code=problem.code
            ) from problem
    return values
