"""What stands before the text of a runbook: YAML between two lines `---`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from orch.runbooks.parameters import NAME, TYPES, Parameter
from orch.spec.diagnostics import Diagnostic, Span
from orch.spec.grammar.values import Problem, check_name, shown
from orch.spec.loader.compose import parse
from orch.spec.loader.text import Source
from orch.spec.loader.yaml_nodes import Mapping, Node, Scalar, Sequence
from orch.spec.suggest import hint_for, listed

_TOP = ("name", "summary", "when", "parameters")
_OF_PARAMETER = ("type", "description", "default", "choices", "pattern")


@dataclass(frozen=True)
class FrontMatter:
    """`lines`: how many lines of the text it takes, with those around it."""

    name: str = ""
    summary: str = ""
    when: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict[str, Parameter])
    lines: int = 0


def front_matter(source: Source, found: list[Diagnostic]) -> FrontMatter:
    """The front matter of a text; what is wrong with it goes to `found`."""
    lines = source.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    start = Span(source.file, 1, 1, 1, 2)
    ends = [at for at, line in enumerate(lines) if at and line.rstrip() == "---"]
    if lines[0].rstrip() != "---" or not ends:
        found.append(
            Diagnostic(
                "ORCH411",
                start,
                "a runbook begins with its front matter",
                hint="write `name`, `summary` and `parameters` between two lines `---` at its top",
            )
        )
        return FrontMatter()
    # Empty lines in the place of the one before keep every place what it is in the file.
    reader = _Reader(source, found)
    node = reader.yaml("\n".join(["", *lines[1 : ends[0]]]))
    return replace(reader.read(node), lines=ends[0] + 1)


def parameter_of(
    source: Source, name: str, text: str, first_line: int, found: list[Diagnostic]
) -> Parameter | None:
    """The parameter that the YAML of a question describes. `first_line`: where the YAML begins."""
    reader = _Reader(source, found)
    node = reader.yaml("\n" * (first_line - 1) + text)
    span = Span(source.file, first_line, 1, first_line, 2)
    if node is None:
        return None
    made = reader.parameter(name, node, span)
    if made is not None and not made.description:
        reader.report(
            "ORCH113", span, "a question has a `description`: what is asked", hint="add `description: …`"
        )
    return made


class _Reader:
    def __init__(self, source: Source, found: list[Diagnostic]) -> None:
        self.source = source
        self.found = found

    def yaml(self, text: str) -> Node | None:
        parsed = parse(Source.of(self.source.file, text))
        self.found += parsed.diagnostics
        return parsed.documents[0] if parsed.documents and not parsed.diagnostics else None

    def read(self, node: Node | None) -> FrontMatter:
        if node is None:
            return FrontMatter()
        entries = self.entries(node, _TOP)
        for name in ("name", "summary"):
            if name not in entries and isinstance(node, Mapping):
                self.report("ORCH113", node.span, f"`{name}` is missing", hint=f"add `{name}: …`")
        name = self.text(entries.get("name"))
        if name:
            self.trying(entries["name"], lambda: check_name(name))
        parameters: dict[str, Parameter] = {}
        at = entries.get("parameters")
        if isinstance(at, Mapping):
            for key, entry in at.entries.items():
                if not NAME.fullmatch(key):
                    self.report(
                        "ORCH115",
                        entry.key.span,
                        f"{shown(key)} is not the name of a parameter",
                        hint="write lower-case letters, digits and `_`, a letter first",
                    )
                elif (made := self.parameter(key, entry.value, entry.key.span)) is not None:
                    parameters[key] = made
        elif at is not None:
            self.report(
                "ORCH112", at.span, "`parameters` is a mapping of names", hint="write `NAME: {type: string}`"
            )
        return FrontMatter(
            name, self.text(entries.get("summary")), self.text(entries.get("when")), parameters
        )

    def parameter(self, name: str, node: Node, span: Span) -> Parameter | None:
        """A parameter of its YAML. None, and reported, when something is wrong with it."""
        before = len(self.found)
        entries = self.entries(node, _OF_PARAMETER)
        if not isinstance(node, Mapping):
            return None
        kind = self.text(entries.get("type")) or "string"
        if kind not in TYPES:
            hint = hint_for(kind, TYPES) or f"write {listed(TYPES)}"
            self.report(
                "ORCH111", entries["type"].span, f"{shown(kind)} is not a type of parameters", hint=hint
            )
            return None
        if ("choices" in entries) != (kind == "choice"):
            what = "`choices` goes with `type: choice`"
            self.report("ORCH159", span, what, hint="write both, or neither")
        if "pattern" in entries and kind != "string":
            self.report(
                "ORCH159", entries["pattern"].span, "`pattern` goes with `type: string`", hint="remove it"
            )
        pattern = self.text(entries.get("pattern")) or None
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                self.report("ORCH112", entries["pattern"].span, f"this is no regular expression: {error}")
        made = Parameter(
            name,
            next(each for each in _types() if each == kind),
            span,
            self.text(entries.get("description")),
            choices=self.choices(entries.get("choices")),
            pattern=pattern,
        )
        if len(self.found) > before:
            return None
        default = entries.get("default")
        if isinstance(default, Scalar):
            value = self.trying(default, lambda: made.value(default.text))
            return None if value is None else replace(made, default=value)
        if default is not None:
            self.report("ORCH112", default.span, "a default is one value")
        return made

    def choices(self, node: Node | None) -> tuple[str, ...]:
        if node is None:
            return ()
        if not isinstance(node, Sequence) or len(node.items) < 2:
            self.report("ORCH117", node.span, "`choices` are two or more", hint="write `choices: [yes, no]`")
            return ()
        return tuple(self.text(each) for each in node.items)

    def entries(self, node: Node, allowed: tuple[str, ...]) -> dict[str, Node]:
        if not isinstance(node, Mapping):
            self.report("ORCH108", node.span, "a mapping is expected here", hint=f"write {listed(allowed)}")
            return {}
        for key, entry in node.entries.items():
            if key not in allowed:
                hint = hint_for(key, allowed) or f"known are {listed(allowed)}"
                self.report("ORCH110", entry.key.span, f"unknown property {shown(key)}", hint=hint)
        return {key: entry.value for key, entry in node.entries.items() if key in allowed}

    def text(self, node: Node | None) -> str:
        if node is None:
            return ""
        if not isinstance(node, Scalar):
            self.report("ORCH112", node.span, "text is expected here")
            return ""
        return "" if node.is_null else " ".join(node.text.split())

    def trying(self, node: Node, do: Any) -> Any:
        try:
            return do()
        except Problem as problem:
            self.report(problem.code, node.span, problem.summary, detail=problem.detail, hint=problem.hint)
            return None

    def report(
        self, code: str, span: Span, summary: str, *, detail: str | None = None, hint: str | None = None
    ) -> None:
        excerpt = self.source.line(span)
        self.found.append(Diagnostic(code, span, summary, detail=detail, hint=hint, excerpt=excerpt))


def _types() -> tuple[Any, ...]:
    return TYPES
