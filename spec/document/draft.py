"""One document between nodes and model: the parts that could be read, its diagnostics, and the place of each
property.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orch.spec.diagnostics import Diagnostic, Related, Severity, Span, property_path
from orch.spec.document.bounded import DiagnosticList
from orch.spec.document.context import LoadContext
from orch.spec.document.redaction import masked
from orch.spec.document.text import Source
from orch.spec.document.yaml_nodes import Mapping, Node, Scalar, Sequence
from orch.spec.grammar.values import Problem
from orch.spec.models import MODELS, AnyModel

Part = str | int
Path_ = tuple[Part, ...]

# Spellings of properties inside blocks that take one value where the property takes a list.
_ALIASES = {"regions": ("region",), "availability_zones": ("zones", "zone"), "backends": ("backend",)}

# What `orch run` starts, and gives variables with `--env`.
RUNS = ("task", "dev-environment")


@dataclass
class Draft:
    """A document as far as it could be read.

    `model` is there when every property is right. `partial` leaves out the top-level properties named in
    `broken`: checks that need none of these run on it. `env_values`: for each place of a text with references
    to the environment, the variables that were filled in and their values.
    """

    source: Source
    index: int
    node: Node
    context: LoadContext = field(default_factory=LoadContext)
    kind: str = ""
    model: AnyModel | None = None
    partial: AnyModel | None = None
    broken: set[str] = field(default_factory=set[str])
    env_values: dict[Path_, dict[str, str]] = field(default_factory=dict[Path_, "dict[str, str]"])
    diagnostics: DiagnosticList = field(default_factory=DiagnosticList)

    @property
    def launched(self) -> bool:
        """Return True if the document is to be launched now, so that all its values are needed."""
        return self.kind in self.context.launch

    @property
    def missing(self) -> Severity:
        """The severity of something outside the file that is missing."""
        return Severity.ERROR if self.launched else Severity.WARNING

    def unset(self, name: str, path: AnySequence[Part]) -> Diagnostic:
        """That a variable of the environment is not set, and how this kind of document gets it."""
        if self.kind not in RUNS:
            hint = "export it, or give it a value here"
        elif self.launched:
            hint = f"export it or use `--env {name}=…`"
        else:
            hint = f"export it, or give it to the run: `orch run --env {name}=…`"
        summary = f"environment variable {name} is not set"
        # What `orch.yml` says for documents is needed where one of them takes it over.
        later = self.kind == "project" and tuple(path[:1]) in (("defaults",), ("profiles",))
        severity = Severity.WARNING if later else self.missing
        return self.diagnostic("ORCH173", path, summary, severity=severity, hint=hint)

    def written(self, name: str) -> bool:
        """Return True if the file gives a top-level property a value."""
        if not isinstance(self.node, Mapping):
            return False
        entry = self.node.entries.get(self._spelled(name, self.node))
        return entry is not None and not (isinstance(entry.value, Scalar) and entry.value.is_null)

    def span(self, path: AnySequence[Part], *, key: bool = False) -> Span:
        """Place of a property, or of the nearest thing around it."""
        key_span, node = self._find(path)
        if node is self.node:
            return self.heading()
        return key_span if key and key_span is not None else node.span

    def is_inherited(self, span: Span) -> bool:
        """Return True if a span is in the project's `orch.yml`, from which the document inherits it."""
        return self.context.common is not None and span.file != self.source.file

    def texts(self, path: AnySequence[Part]) -> tuple[tuple[int, str], ...]:
        """The texts of a list, with their index."""
        _, node = self._find(path)
        items = node.items if isinstance(node, Sequence) else ()
        return tuple((index, item.text) for index, item in enumerate(items) if isinstance(item, Scalar))

    def heading(self) -> Span:
        """Span that stands for the document as a whole: its `type` line, else its first key."""
        if not isinstance(self.node, Mapping) or not self.node.entries:
            return self.node.span
        entry = self.node.entries.get("type")
        if entry is not None:
            first, last = entry.key.span, entry.value.span
            same_line = first.line == last.end_line
            return Span(
                first.file,
                first.line,
                first.column,
                first.line,
                last.end_column if same_line else first.end_column,
            )
        return next(iter(self.node.entries.values())).key.span

    def diagnostic(
        self,
        code: str,
        path: AnySequence[Part],
        summary: str,
        *,
        key: bool = False,
        severity: Severity = Severity.ERROR,
        detail: str | None = None,
        hint: str | None = None,
        related: tuple[Related, ...] = (),
    ) -> Diagnostic:
        """Return a diagnostic at a property. Values of the environment are masked in its texts.

        A property that is inherited from `orch.yml` has its place there."""
        found = Diagnostic(
            code,
            self.span(path, key=key),
            summary,
            severity=severity,
            path=property_path(path),
            detail=detail,
            hint=hint,
            related=related,
        )
        return self._shown(found)

    def problem(self, problem: Problem, path: AnySequence[Part]) -> Diagnostic:
        """Return a diagnostic for a value that does not fit, as `diagnostic` does."""
        found = Diagnostic(
            problem.code,
            self.span(path, key=problem.on_key),
            problem.summary,
            path=property_path(path),
            detail=problem.detail,
            hint=problem.hint,
            replacement=problem.replacement,
        )
        return self._shown(found)

    def _shown(self, diagnostic: Diagnostic) -> Diagnostic:
        """Return the diagnostic with the line that it is about, and without values of the environment."""
        span, detail = diagnostic.span, diagnostic.detail
        line, inherited = self.source.line(span), self.is_inherited(span)
        if inherited and self.context.common is not None:
            line = self.context.common.line(span)
            origin = f"the {self.kind} at {self.source.file}:{self.heading().line} takes it over from here"
            detail = f"{detail}\n{origin}" if detail else origin
        diagnostic = replace(diagnostic, detail=detail, excerpt=line)
        return masked(diagnostic, self.context.env_values) if self.context.env_values else diagnostic

    def _find(self, path: AnySequence[Part]) -> tuple[Span | None, Node]:
        """The key (if any) and the value at a path, or of its deepest part that exists."""
        node, key = self.node, None
        for depth, part in enumerate(path):
            if isinstance(node, Mapping) and isinstance(part, str):
                spelled = _inner(part, node) if depth else self._spelled(part, node)
                entry = node.entries.get(spelled)
                if entry is None:
                    break
                key, node = entry.key.span, entry.value
                if isinstance(node, Scalar) and node.is_null:
                    node = entry.key
            elif isinstance(node, Sequence) and isinstance(part, int) and 0 <= part < len(node.items):
                node, key = node.items[part], None
            else:
                break
        return key, node

    def node_at(self, path: AnySequence[Part]) -> Node | None:
        """The value written at a path, or None where there is none."""
        node: Node | None = self.node
        for depth, part in enumerate(path):
            if isinstance(node, Mapping) and isinstance(part, str):
                spelled = _inner(part, node) if depth else self._spelled(part, node)
                entry = node.entries.get(spelled)
                node = entry.value if entry else None
            elif isinstance(node, Sequence) and isinstance(part, int) and 0 <= part < len(node.items):
                node = node.items[part]
            else:
                return None
        return None if isinstance(node, Scalar) and node.is_null else node

    def _spelled(self, name: str, node: Mapping) -> str:
        """The spelling of a top-level property that this document uses."""
        if name in node.entries or self.kind not in MODELS:
            return name
        spellings = MODELS[self.kind].spellings
        return next(
            (other for other, own in spellings.items() if own == name and other in node.entries), name
        )


def _inner(name: str, node: Mapping) -> str:
    """The spelling of a property that a block uses."""
    if name in node.entries:
        return name
    return next((other for other in _ALIASES.get(name, ()) if other in node.entries), name)


def scalars(node: Node, path: Path_ = ()) -> Iterator[tuple[Path_, Scalar]]:
    """Yield all texts of a document with their paths."""
    if isinstance(node, Scalar):
        yield path, node
    elif isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            yield from scalars(item, (*path, index))
    else:
        for key, entry in node.entries.items():
            yield from scalars(entry.value, (*path, key))


def env_path(draft: Draft, name: str, at: Path_ = ("env",)) -> Path_:
    """Return the path of a variable: under its key, or at its item of the list."""
    for index, text in draft.texts(at):
        if text == name or text.startswith(f"{name}="):
            return (*at, index)
    return (*at, name)


def folder_of(draft: Draft) -> Path:
    """Return the folder that relative paths of a document start from."""
    file = draft.source.file
    return Path.cwd() if file == "<stdin>" else Path(os.path.abspath(file)).parent
