"""One document between nodes and model: what could be read of it, what is wrong with it, and where each
property stands.
"""

from __future__ import annotations

import os
from collections.abc import Mapping as AnyMapping
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from . import interpolate, unsupported
from .diagnostics import Diagnostic, Related, Severity, Span, property_path
from .interpolate import Rule
from .models import KINDS, Fleet, Project, Task
from .models.base import Section
from .placing import section_at, unknown_property
from .source import Mapping, Node, Scalar, Sequence, Source
from .suggest import hint_for, listed
from .values import Problem, Problems, check_name, shown

Part = str | int
Path_ = tuple[Part, ...]

# Properties whose references are filled in when a job starts; all others are finished when the file is read.
_RULES: dict[tuple[str, str], Rule] = {
    ("task", "commands"): Rule.COMMAND,
    ("task", "env"): Rule.TEXT,
    ("task", "volumes"): Rule.TEXT,
    ("task", "working_dir"): Rule.TEXT,
    ("task", "torchrun"): Rule.TEXT,
    ("task", "mpirun"): Rule.TEXT,
    ("fleet", "env"): Rule.TEXT,
}


@dataclass
class Draft:
    """A document as far as it could be read.

    `model` is there when every property is right. `partial` leaves out the top-level properties named in
    `broken`: checks that need none of these run on it.
    """

    source: Source
    index: int
    node: Node
    kind: str = ""
    model: Fleet | Task | Project | None = None
    partial: Fleet | Task | Project | None = None
    broken: set[str] = field(default_factory=set[str])
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])

    def written(self, name: str) -> bool:
        """Whether a top-level property stands in the file with a value."""
        if not isinstance(self.node, Mapping):
            return False
        entry = self.node.entries.get(self._spelled(name, self.node))
        return entry is not None and not (isinstance(entry.value, Scalar) and entry.value.is_null)

    def span(self, path: AnySequence[Part], *, key: bool = False) -> Span:
        """Place of a property, or of the nearest thing around it."""
        found, node = self._find(path)
        return found if key and found is not None else node.span if path else self.heading()

    def texts(self, path: AnySequence[Part]) -> tuple[tuple[int, str], ...]:
        """The texts of a list, with their index."""
        _, node = self._find(path)
        items = node.items if isinstance(node, Sequence) else ()
        return tuple((index, item.text) for index, item in enumerate(items) if isinstance(item, Scalar))

    def heading(self) -> Span:
        """What stands for the document as a whole: its `type` line, else its first key."""
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

    def covers(self, span: Span) -> bool:
        """Whether a place lies in this document."""
        own = self.node.span
        starts = (own.file == span.file) and (own.line, own.column) <= (span.line, span.column)
        return starts and (span.line, span.column) <= (own.end_line, own.end_column)

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
        replacement: str | None = None,
        related: tuple[Related, ...] = (),
    ) -> Diagnostic:
        span = self.span(path, key=key)
        return Diagnostic(
            code,
            span,
            summary,
            severity=severity,
            path=property_path(path),
            detail=detail,
            hint=hint,
            replacement=replacement,
            related=related,
            excerpt=self.source.line(span),
        )

    def _find(self, path: AnySequence[Part]) -> tuple[Span | None, Node]:
        """The key (if any) and the value at a path, or of its deepest part that exists."""
        node, key = self.node, None
        for depth, part in enumerate(path):
            if isinstance(node, Mapping) and isinstance(part, str):
                entry = node.entries.get(part if depth else self._spelled(part, node))
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

    def _spelled(self, name: str, node: Mapping) -> str:
        """The spelling of a top-level property that this document uses."""
        if name in node.entries or self.kind not in MODELS:
            return name
        spellings = MODELS[self.kind].spellings
        return next(
            (other for other, own in spellings.items() if own == name and other in node.entries), name
        )


MODELS: dict[str, type[Fleet | Task | Project]] = {**KINDS, "project": Project}


class DraftReader:
    """Reads the documents of one text."""

    def __init__(self, source: Source, environ: AnyMapping[str, str], unset: Severity) -> None:
        self.source = source
        self.environ = environ
        self.unset = unset

    def read(self, node: Node, index: int) -> Draft:
        draft = Draft(self.source, index, node)
        if not isinstance(node, Mapping):
            draft.diagnostics.append(
                draft.diagnostic(
                    "ORCH108",
                    (),
                    f"a document is a mapping, this is {'a list' if isinstance(node, Sequence) else 'text'}",
                    hint="begin with its type: `type: fleet` or `type: task`",
                )
            )
            return draft
        draft.kind = _kind(draft, node)
        if not draft.kind:
            return draft
        walk = _Walk(draft, self.environ, self.unset)
        values = cast("dict[str, object]", walk.values(node, (), ""))
        if draft.kind == "fleet" and "name" not in draft.broken and not draft.written("name"):
            _name_after_file(draft, values)
        _validate(draft, values, walk.unclear)
        return draft


def _kind(draft: Draft, node: Mapping) -> str:
    """`fleet`, `task` or `project`; empty (and told) when it is none of them."""
    entry = node.entries.get("type")
    if os.path.basename(draft.source.file) in ("orch.yml", "orch.yaml"):
        if entry is not None:
            summary = "this file is the project's own and holds no other documents"
            hint = "move the document to a file of another name"
            draft.diagnostics.append(draft.diagnostic("ORCH110", ("type",), summary, key=True, hint=hint))
            return ""
        return "project"
    if entry is None or (isinstance(entry.value, Scalar) and entry.value.is_null):
        draft.diagnostics.append(_untyped(draft, node))
        return ""
    if not isinstance(entry.value, Scalar):
        draft.diagnostics.append(
            draft.diagnostic(
                "ORCH112",
                ("type",),
                "`type` is one word",
                hint=f"write {listed(f'type: {k}' for k in KINDS)}",
            )
        )
        return ""
    word = entry.value.text
    if word in KINDS:
        return word
    hint: str | None
    if word in unsupported.NOT_RUN:
        code, (summary, hint) = "ORCH114", unsupported.NOT_RUN[word]
    elif word in unsupported.NOT_YET:
        code, summary, hint = "ORCH118", f"`type: {word}` is not supported by this version", None
    elif word in _BACKEND_TYPES:
        code, summary = "ORCH118", f"a document of backend {shown(word)} is not supported by this version"
        hint = "backends are listed in `orch.yml` under `backends`"
    else:
        known = (*KINDS, *unsupported.NOT_YET)
        code, summary = "ORCH111", f"{shown(word)} is not a type of document"
        hint = hint_for(word, known) or f"write {listed(KINDS)}"
    draft.diagnostics.append(draft.diagnostic(code, ("type",), summary, hint=hint))
    return ""


_BACKEND_TYPES = (
    "aws",
    "gcp",
    "nebius",
    "crusoe",
    "runpod",
    "lambda",
    "kubernetes",
    "azure",
    "oci",
    "local",
    "ssh",
    "remote",
)


def _untyped(draft: Draft, node: Mapping) -> Diagnostic:
    keys = set(node.entries)
    if keys & {"projects", "backends"} and not keys & {"nodes", "placement", "commands", "resources"}:
        hint = "the project and its backends belong in a file named `orch.yml`"
    elif keys & {"commands", "torchrun", "mpirun", "image", "files", "working_dir"}:
        hint = "begin with `type: task`"
    elif keys & {"placement", "ssh_config", "nodes", "backends", "backend"}:
        hint = "begin with `type: fleet`"
    else:
        close = next((key for key in keys if hint_for(key, ("type",))), None)
        hint = f"did you mean 'type' by '{close}'?" if close else "begin with `type: fleet` or `type: task`"
    return draft.diagnostic("ORCH113", (), "this document has no `type`", hint=hint)


def _name_after_file(draft: Draft, values: dict[str, object]) -> None:
    """An unnamed fleet is named after its file, so that its identity is stable."""
    file = draft.source.file
    stem = os.path.basename(file)
    for ending in (".yml", ".yaml", ".dstack"):
        stem = stem.removesuffix(ending)
    stem = stem or Path(file).absolute().parent.name
    try:
        if file == "<stdin>":
            raise Problem("ORCH113", "a fleet from standard input needs a name", hint="add `name: NAME`")
        values["name"] = check_name(stem)
    except Problem as problem:
        draft.broken.add("name")
        summary = problem.summary
        if problem.code == "ORCH115":
            summary = f"this fleet has no name, and that of its file, {shown(stem)}, is none: {summary}"
        hint = f"add `name: {problem.replacement}`" if problem.replacement else "add `name: NAME`"
        draft.diagnostics.append(draft.diagnostic(problem.code, (), summary, hint=hint))


class _Walk:
    """Nodes to plain values, references looked at on the way, rows of `unsupported` taken out."""

    def __init__(self, draft: Draft, environ: AnyMapping[str, str], unset: Severity) -> None:
        self.draft = draft
        self.environ = environ
        self.unset = unset
        self.rows = unsupported.ROWS[draft.kind]
        self.idle: tuple[str, ...] = unsupported.IDLE[draft.kind]
        self.unclear: set[Path_] = set()

    def values(self, node: Node, path: Path_, pattern: str) -> object:
        if isinstance(node, Scalar):
            if node.is_null:
                return None
            return self.text(node.text, path) if "$" in node.text else node.text
        if isinstance(node, Sequence):
            return [
                self.values(item, (*path, index), f"{pattern}[]") for index, item in enumerate(node.items)
            ]
        read: dict[str, object] = {}
        for key, entry in node.entries.items():
            below = f"{pattern}.{key}" if pattern else key
            if (not path and key.startswith("x-")) or self.taken_out(key, entry.value, (*path, key), below):
                continue
            read[key] = self.values(entry.value, (*path, key), below)
        return read

    def taken_out(self, key: str, value: Node, path: Path_, pattern: str) -> bool:
        """Whether this version leaves the property alone, after saying so."""
        draft = self.draft
        if isinstance(value, Scalar) and value.is_null:
            return pattern in self.rows or pattern in self.idle
        if pattern in self.idle:
            summary = f"`{key}` does nothing here"
            draft.diagnostics.append(
                draft.diagnostic(
                    "ORCH191", path, summary, key=True, severity=Severity.WARNING, hint="remove it"
                )
            )
            return True
        if draft.kind == "fleet" and pattern == "ssh_config":
            draft.broken |= {"ssh_config", "nodes"}
            draft.diagnostics.append(
                draft.diagnostic(
                    "ORCH201",
                    path,
                    "this version provisions local nodes only, it does not take existing hosts",
                    key=True,
                    hint="write `backend: local` and `nodes`",
                )
            )
            return True
        if pattern not in self.rows:
            return False
        draft.broken.add(str(path[0]))
        draft.diagnostics.append(
            draft.diagnostic(
                "ORCH118",
                path,
                f"`{key}` is not supported by this version",
                key=True,
                hint=self.rows[pattern],
            )
        )
        return True

    def text(self, text: str, path: Path_) -> str:
        """The text with `${{ env.X }}` filled in, its references checked."""
        rule = Rule.FIXED if path == ("type",) else _RULES.get((self.draft.kind, str(path[0])), Rule.READ)
        draft = self.draft
        try:
            for reference in interpolate.references(text, rule):
                interpolate.check(reference, rule)
        except Problem as problem:
            self.unclear.add(path)
            draft.diagnostics.append(
                draft.diagnostic(
                    problem.code, path, problem.summary, hint=problem.hint, detail=problem.detail
                )
            )
            return text
        filled, unset = interpolate.fill_environment(text, rule, self.environ)
        for name in unset:
            self.unclear.add(path)
            draft.diagnostics.append(
                draft.diagnostic(
                    "ORCH173",
                    path,
                    f"environment variable {name} is not set",
                    severity=self.unset,
                    hint="export it or use `--env`",
                )
            )
        return filled


def _validate(draft: Draft, values: dict[str, object], unclear: set[Path_]) -> None:
    model = MODELS[draft.kind]
    for key, chosen in model.spellings.items():
        if values.get(key) is not None and values.get(chosen) is not None:
            draft.diagnostics.append(
                draft.diagnostic(
                    "ORCH157",
                    (key,),
                    f"`{key}` and `{chosen}` are the same property",
                    key=True,
                    hint="keep one of them",
                    related=(Related(draft.span((chosen,), key=True), "the other one"),),
                )
            )
            del values[key]
    try:
        draft.partial = model.model_validate(values, by_alias=True, by_name=False)
        draft.broken |= {str(path[0]) for path in unclear}
    except ValidationError as error:
        told, bad = _explain(draft, model, error.errors(include_url=False), unclear)
        draft.diagnostics += told
        draft.broken |= bad | {str(path[0]) for path in unclear}
        rest = {
            key: value for key, value in values.items() if model.spellings.get(key, key) not in draft.broken
        }
        try:
            draft.partial = model.model_validate(rest, by_alias=True, by_name=False)
        except ValidationError:
            draft.partial = None
        return
    if not any(diagnostic.severity is Severity.ERROR for diagnostic in draft.diagnostics):
        draft.model = draft.partial


def _explain(
    draft: Draft, model: type[Section], errors: list[ErrorDetails], unclear: set[Path_]
) -> tuple[list[Diagnostic], set[str]]:
    """Diagnostics for what validation found, and the top-level properties that are not to be relied on."""
    told: list[Diagnostic] = []
    bad: set[str] = set()
    guessed: set[Path_] = set()
    for error in errors:
        if error["type"] == "extra_forbidden":
            at = error["loc"]
            diagnostic, meant = unknown_property(draft, model, at)
            told.append(diagnostic)
            guessed |= {(*at[:-1], name) for name in meant}
            bad |= {str(at[0]), *(meant if len(at) == 1 else ())}
    for error in errors:
        at = error["loc"]
        if error["type"] == "extra_forbidden":
            continue
        bad.add(draft_property(model, at))
        if error["type"] == "missing":
            if at not in guessed:
                told.append(_missing(draft, model, at))
            continue
        cause = error.get("ctx", {}).get("error")
        problems = (
            cause.problems if isinstance(cause, Problems) else (cause,) if isinstance(cause, Problem) else ()
        )
        for problem in problems:
            path = (*at, *problem.at)
            if not any(path[: len(known)] == known for known in unclear):
                told.append(
                    draft.diagnostic(
                        problem.code,
                        path,
                        problem.summary,
                        key=problem.code == "ORCH110",
                        detail=problem.detail,
                        hint=problem.hint,
                        replacement=problem.replacement,
                    )
                )
        if not problems:
            told.append(draft.diagnostic("ORCH112", at, f"this value does not fit `{property_path(at)}`"))
    return told, bad


def draft_property(model: type[Section], at: Path_) -> str:
    """The top-level property that a path lies in."""
    name = str(at[0]) if at else ""
    return model.spellings.get(name, name)


def _missing(draft: Draft, model: type[Section], at: Path_) -> Diagnostic:
    owner = section_at(model, at[:-1])
    noun = owner.noun if owner else "this"
    return draft.diagnostic("ORCH113", at[:-1], f"{noun} needs `{at[-1]}`", hint=f"add `{at[-1]}: …`")
