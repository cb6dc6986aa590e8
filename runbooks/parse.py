"""The text of a runbook to its steps, and every mistake to its place.

The front matter is YAML, steps are fenced blocks whose first word says their kind; other blocks are for
people alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from orch.runbooks.document import Fence, FrontMatter, fences, front_matter, parameter_of
from orch.runbooks.model import Commands, Condition, Kind, Runbook, Step
from orch.runbooks.parameters import NAME, Parameter
from orch.runbooks.shell import shell_text
from orch.runbooks.words import Word, check_known, command_words, word_of
from orch.spec.diagnostics import Diagnostic, Severity, Span
from orch.spec.document.text import Source
from orch.spec.grammar.values import Problem, check_name, parse_duration, shown
from orch.spec.loader.load import InvalidConfiguration
from orch.spec.suggest import hint_for, listed

T = TypeVar("T")

CheckVerb = Callable[[tuple[Word, ...]], Iterator[tuple[int, Problem]]]
"""Says what is wrong with the words of an orch command: the number of a word, and the problem."""

STEPS = ("orch", "shell", "question", "approval")
PARTS = ("check", "undo")
KINDS = (*STEPS, *PARTS)

MOST_SHELL = 100_000
"""Bytes of a block for a shell, which is one argument of a program; Linux takes 128 KiB."""

_ATTRIBUTES = {
    "orch": ("name", "when", "ok", "timeout", "takes"),
    "shell": ("name", "when", "ok", "timeout", "takes", "host", "sudo", "repeat"),
    "question": ("name", "when"),
    "approval": ("name", "when"),
    "check": ("within", "shell", "orch"),
    "undo": ("shell", "orch"),
}
_FLAGS = ("sudo", "repeat", "shell", "orch")


def parse(source: Source, check_verb: CheckVerb | None = None) -> Runbook:
    """The runbook of a text. Raises InvalidConfiguration with all that is wrong with it."""
    reader = _Reader(source, check_verb)
    runbook = reader.read()
    if any(each.severity is Severity.ERROR for each in reader.found):
        raise InvalidConfiguration(reader.found)
    return runbook


@dataclass
class _Attribute:
    """A word of a fence's first line. `at`: where it begins in the information of the fence."""

    name: str
    value: str | None
    at: int
    length: int


@dataclass
class _Reader:
    source: Source
    check_verb: CheckVerb | None
    found: list[Diagnostic] = field(default_factory=list[Diagnostic])
    steps: list[Step] = field(default_factory=list[Step])
    known: dict[str, Parameter] = field(default_factory=dict[str, Parameter])
    later: dict[str, Parameter] = field(default_factory=dict[str, Parameter])

    def read(self) -> Runbook:
        head = front_matter(self.source, self.found)
        self.known = dict(head.parameters)
        blocks = [each for each in fences(self.source, head.lines) if self._is_step(each)]
        questions = {id(each): self._question(each) for each in blocks if each.word == "question"}
        for each in questions.values():
            if each is not None and each.name not in self.known:
                self.later[each.name] = each
        for block in blocks:
            if block.word in PARTS:
                self._part(block)
            else:
                self._step(block, questions.get(id(block)))
        self._require_checks()
        if not self.steps and not self.found:
            self._report(
                "ORCH411", Span(self.source.file, 1, 1, 1, 1), "the runbook has no step", hint=_EXAMPLE
            )
        return self._runbook(head)

    def _runbook(self, head: FrontMatter) -> Runbook:
        return Runbook(
            head.name,
            head.summary,
            head.when,
            self.source.file,
            self.source.text,
            head.parameters,
            tuple(self.steps),
        )

    def _is_step(self, fence: Fence) -> bool:
        """Return True if a block is a step; blocks that only look like one are reported."""
        if fence.word in KINDS:
            if not fence.closed:
                self._report(
                    "ORCH419", fence.head, "the block has no end", hint=f"end it with a line `{fence.markup}`"
                )
            return True
        hint = hint_for(fence.word, KINDS) if fence.word else None
        named = re.search(r"\s(?:name|host|when)=", f" {fence.info}") is not None
        if named or (hint is not None and fence.word not in _LANGUAGES):
            self._report(
                "ORCH411",
                fence.span_of(fence.word_at, len(fence.word)),
                f"{shown(fence.word)} is no kind of step",
                hint=hint or f"write {listed(STEPS)}; a block for people alone has no `name=`",
            )
        return False

    # Steps

    def _step(self, fence: Fence, question: Parameter | None) -> None:
        attributes = self._attributes(fence)
        name = self._name(fence, attributes)
        step = Step(name, _kind(fence), fence.head, heading=fence.heading, question=question)
        for attribute in attributes.values():
            step = self._trying(fence, attribute, lambda step=step, a=attribute: self._with(step, a)) or step
        if fence.word == "approval":
            step = replace(step, text=" ".join(fence.content.split()))
            if not step.text:
                self._report(
                    "ORCH411", fence.head, "the approval does not say of what", hint="write it in the block"
                )
        elif fence.word in ("orch", "shell"):
            step = replace(step, commands=self._commands(fence, _shell_or_orch(fence.word)))
        self.steps.append(step)
        if question is not None:
            self.known[question.name] = question
            self.later.pop(question.name, None)

    def _name(self, fence: Fence, attributes: dict[str, _Attribute]) -> str:
        attribute = attributes.pop("name", None)
        if attribute is None or not attribute.value:
            self._report("ORCH411", fence.head, "a step needs a name", hint=f"write `{fence.word} name=…`")
            return ""
        span = fence.span_of(attribute.at, attribute.length)
        form = _check_question if fence.word == "question" else check_name
        try:
            form(attribute.value)
        except Problem as problem:
            self._problem(problem, span)
            return ""
        if first := next((each for each in self.steps if each.name == attribute.value), None):
            self._report(
                "ORCH412",
                span,
                f"two steps have the name `{attribute.value}`, the first in line {first.span.line}",
                hint="give this one another name: the journal tells steps by their names",
            )
        return attribute.value

    def _with(self, step: Step, attribute: _Attribute) -> Step:
        """The step with an attribute of its fence. Raises Problem."""
        value = attribute.value or ""
        if attribute.name == "sudo":
            return replace(step, sudo=True)
        if attribute.name == "repeat":
            return replace(step, repeat=True)
        if attribute.name == "when":
            return replace(step, when=self._condition(value))
        if attribute.name == "ok":
            return replace(step, ok=_exit_codes(value))
        if attribute.name in ("timeout", "takes"):
            return replace(step, **{f"{attribute.name}_s": _seconds(value)})
        if value == "local":
            return step
        host = word_of(value)
        for name in host.names:
            check_known(name, self.known, self.later)
        return replace(step, host=host)

    def _condition(self, text: str) -> Condition:
        name, equals, values = text.partition("=")
        if not equals or not values:
            raise Problem("ORCH411", "a condition is a name and a value", hint='write `when="NAME=VALUE"`')
        check_known(name.strip(), self.known, self.later)
        parameter = self.known[name.strip()]
        try:
            found = tuple(parameter.value(each.strip()) for each in values.split("|"))
        except Problem as problem:
            raise Problem(problem.code, f"`when`: {problem.summary}", hint=problem.hint) from problem
        return Condition(name.strip(), found)

    def _question(self, fence: Fence) -> Parameter | None:
        attributes = {each.name: each for each in self._words(fence)}
        name = attributes["name"].value if "name" in attributes else None
        if not name:
            return None
        parameter = parameter_of(self.source, name, fence.content, fence.first_line, self.found)
        if name in self.known and parameter is not None:
            at = attributes["name"]
            self._report(
                "ORCH412",
                fence.span_of(at.at, at.length),
                f"`{name}` is a parameter already",
                hint="give the question another name, or leave it out",
            )
        return parameter

    # Parts

    def _part(self, fence: Fence) -> None:
        attributes = self._attributes(fence)
        step = self.steps[-1] if self.steps else None
        if step is None or step.commands is None:
            after = (
                "there is no step before it"
                if step is None
                else f"step {step.name} does nothing to {fence.word}"
            )
            self._report(
                "ORCH413",
                fence.head,
                f"`{fence.word}` belongs to the step before it: {after}",
                hint="put it after an `orch` or a `shell` block",
            )
            return
        if getattr(step, fence.word) is not None:
            self._report(
                "ORCH413", fence.head, f"step {step.name} has two blocks `{fence.word}`", hint="make them one"
            )
            return
        kind = (
            "shell"
            if "shell" in attributes
            else "orch"
            if "orch" in attributes
            else _shell_or_orch(step.kind)
        )
        commands = self._commands(fence, kind)
        if (within := attributes.get("within")) is not None:
            seconds = self._trying(fence, within, lambda: _seconds(within.value or ""))
            commands = replace(commands, within_s=seconds or 0)
        both = {"check": commands} if fence.word == "check" else {"undo": commands}
        self.steps[-1] = replace(step, **both)

    def _require_checks(self) -> None:
        for step in self.steps:
            if step.kind == "shell" and step.check is None and not step.repeat:
                self._report(
                    "ORCH411",
                    step.span,
                    f"the shell step {step.name} has no check",
                    detail="of a run that is interrupted in it, nobody knows whether it is done",
                    hint="add a `check` block that succeeds once it is done; where it may be done twice, "
                    "write `repeat`",
                )

    # What stands in blocks

    def _commands(self, fence: Fence, kind: str) -> Commands:
        span = fence.content_span
        if kind == "shell":
            self._shell(fence)
            return Commands("shell", fence.content, span)
        try:
            words = command_words(fence.content)
            for name in (name for each in words for name in each.names):
                check_known(name, self.known, self.later)
        except Problem as problem:
            self._problem(problem, self._place_of_reference(fence, problem) or span)
            return Commands("orch", fence.content, span)
        for at, problem in self.check_verb(words) if self.check_verb is not None else ():
            self._problem(
                problem, fence.place_of(_shown_word(words, at), after=_shown_word(words, 0)) or span
            )
        return Commands("orch", fence.content, span, words)

    def _shell(self, fence: Fence) -> None:
        if not fence.content.strip():
            self._report(
                "ORCH411", fence.head, "there is no command here", hint="write one, or remove the block"
            )
        if len(fence.content.encode("utf-8", "replace")) > MOST_SHELL:
            self._report("ORCH105", fence.head, f"a block for a shell has at most {MOST_SHELL:,} bytes")
        try:
            for name in shell_text(fence.content).names:
                check_known(name, self.known, self.later)
        except Problem as problem:
            at = [int(each) for each in problem.at or ()]
            place = fence.span_in(at[0], at[1]) if at else self._place_of_reference(fence, problem)
            self._problem(problem, place or fence.content_span)

    def _place_of_reference(self, fence: Fence, problem: Problem) -> Span | None:
        """Return the span of the reference that a problem names; None if it is not found."""
        for match in re.finditer(r"\$\{\{(.*?)\}\}", fence.content, re.DOTALL):
            names = (
                match[1].strip(),
                match[1].strip().rpartition(".")[2],
                match[1].strip().partition(".")[0],
            )
            if any(
                f"`{each}`" in problem.summary or f"'{each}'" in problem.summary for each in names if each
            ):
                return fence.span_in(*match.span())
        return None

    # The first line of a block

    def _words(self, fence: Fence) -> list[_Attribute]:
        found: list[_Attribute] = []
        for match in _WORDS.finditer(fence.info, fence.word_at + len(fence.word)):
            name, equals, value = match[0].partition("=")
            plain = value.replace('"', "") if equals else None
            found.append(_Attribute(name, plain, match.start(), len(match[0])))
        return found

    def _attributes(self, fence: Fence) -> dict[str, _Attribute]:
        allowed = _ATTRIBUTES[fence.word]
        attributes: dict[str, _Attribute] = {}
        for each in self._words(fence):
            span = fence.span_of(each.at, each.length)
            if each.name not in allowed:
                hint = hint_for(each.name, allowed) or f"a block `{fence.word}` takes {listed(allowed)}"
                self._report("ORCH411", span, f"{shown(each.name)} means nothing here", hint=hint)
            elif each.name in attributes:
                self._report("ORCH411", span, f"`{each.name}` is set twice", hint="remove one of them")
            elif (each.value is None) != (each.name in _FLAGS):
                hint = f"write `{each.name}`" if each.name in _FLAGS else f"write `{each.name}=VALUE`"
                self._report("ORCH411", span, f"`{shown(each.name)[1:-1]}` is not written so", hint=hint)
            else:
                attributes[each.name] = each
        return attributes

    def _trying(self, fence: Fence, attribute: _Attribute, do: Callable[[], T]) -> T | None:
        try:
            return do()
        except Problem as problem:
            self._problem(problem, fence.span_of(attribute.at, attribute.length))
            return None

    def _problem(self, problem: Problem, span: Span) -> None:
        self._report(problem.code, span, problem.summary, detail=problem.detail, hint=problem.hint)

    def _report(
        self, code: str, span: Span, summary: str, *, detail: str | None = None, hint: str | None = None
    ) -> None:
        excerpt = self.source.line(span)
        self.found.append(Diagnostic(code, span, summary, detail=detail, hint=hint, excerpt=excerpt))


_EXAMPLE = "a step is a block that begins with ```orch name=NAME"
_WORDS = re.compile(r'(?:\$\{\{.*?\}\}|"[^"]*"|[^\s"$]|\$)+')
_LANGUAGES = frozenset({"sh", "shellsession", "bash", "text", "json", "yaml"})


def _kind(fence: Fence) -> Kind:
    return next(each for each in ("orch", "shell", "question", "approval") if each == fence.word)


def _shell_or_orch(kind: str) -> str:
    return "orch" if kind == "orch" else "shell"


def _shown_word(words: tuple[Word, ...], at: int) -> str:
    return str(words[at]) if at < len(words) else "orch"


def _check_question(name: str) -> str:
    if not NAME.fullmatch(name):
        raise Problem(
            "ORCH115",
            f"{shown(name)} is not the name of a parameter",
            hint="write lower-case letters, digits and `_`",
        )
    return name


def _exit_codes(text: str) -> frozenset[int] | None:
    if text == "any":
        return None
    if not re.fullmatch(r"[0-9]{1,3}(?:,[0-9]{1,3})*", text):
        raise Problem("ORCH411", f"{shown(text)} are no exit codes", hint="write `ok=0,10`, or `ok=any`")
    return frozenset(int(each) for each in text.split(","))


def _seconds(text: str) -> int:
    seconds = parse_duration(text)
    if not seconds:
        raise Problem("ORCH124", f"{shown(text)} is not a length of time", hint="write `30s`, `5m` or `2h`")
    return seconds
