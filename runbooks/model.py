"""A runbook as its text says it. Pure data; every part knows its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from orch.runbooks.parameters import Parameter
from orch.runbooks.words import Word
from orch.spec.diagnostics import Span

Kind = Literal["orch", "shell", "question", "approval"]


@dataclass(frozen=True)
class Commands:
    """Commands of a fence: the words of one orch command, or text for a shell.

    `words`: of orch, without `orch` itself. `within_s`: of a check, how long it is asked again.
    """

    kind: Literal["orch", "shell"]
    text: str
    span: Span
    words: tuple[Word, ...] = ()
    within_s: int = 0


@dataclass(frozen=True)
class Condition:
    """Condition of a step: a parameter has one of these values."""

    name: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} is {' or '.join(self.values)}"

    def holds(self, values: Mapping[str, str]) -> bool | None:
        """None while the value is not known."""
        return values[self.name] in self.values if self.name in values else None


@dataclass(frozen=True)
class Step:
    """A step. `ok`: exit codes that are no failure, None for any. `repeat`: it may be done twice.

    `host`: a node on which the shell runs, None for this machine. `takes_s`: how long its author expects it
    to take.
    """

    name: str
    kind: Kind
    span: Span
    heading: str = ""
    commands: Commands | None = None
    check: Commands | None = None
    undo: Commands | None = None
    when: Condition | None = None
    host: Word | None = None
    sudo: bool = False
    repeat: bool = False
    ok: frozenset[int] | None = frozenset({0})
    timeout_s: int | None = None
    takes_s: int = 0
    question: Parameter | None = None
    text: str = ""


@dataclass(frozen=True)
class Runbook:
    """`when`: the alarm that it answers, as people see it. `text`: all of the file."""

    name: str
    summary: str
    when: str
    file: str
    text: str
    parameters: Mapping[str, Parameter]
    steps: tuple[Step, ...]

    @property
    def questions(self) -> dict[str, Parameter]:
        return {each.question.name: each.question for each in self.steps if each.question is not None}
