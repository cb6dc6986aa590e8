"""One document read: its type, its plain values, and what this version leaves out of it."""

from __future__ import annotations

import os
from collections.abc import Mapping as AnyMapping
from pathlib import Path
from typing import cast

from . import interpolate, unsupported
from .diagnostics import Diagnostic, Severity, property_path
from .draft import Draft, Path_
from .explain import validate
from .interpolate import Rule
from .models import KINDS
from .source import Mapping, Node, Scalar, Sequence
from .suggest import hint_for, listed
from .text import Source
from .values import Problem, check_name, shown

# Properties whose references are filled in when a job starts; all others are finished when the file is read.
_RULES: dict[tuple[str, str], Rule] = {
    ("task", "commands"): Rule.COMMAND,
    ("task", "env"): Rule.TEXT,
    ("task", "volumes"): Rule.TEXT,
    ("task", "working_dir"): Rule.TEXT,
}
_LAUNCHERS = ("torchrun", "mpirun")


def _rule(kind: str, path: Path_) -> Rule:
    """What a property does with references. Of a launcher, its arguments are the job's."""
    if kind == "task" and path[0] in _LAUNCHERS and (len(path) == 1 or path[1] == "args"):
        return Rule.TEXT
    return _RULES.get((kind, str(path[0])), Rule.READ)


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
        validate(draft, values, walk.unclear)
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
    if "${{" in word:
        code, summary, hint = "ORCH133", "nothing is interpolated in `type`", f"write {listed(KINDS)}"
    elif word in unsupported.NOT_RUN:
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


_KNOWN = frozenset(name for model in KINDS.values() for name in model.written())


def _untyped(draft: Draft, node: Mapping) -> Diagnostic:
    keys = set(node.entries)
    close = next((key for key in node.entries if key not in _KNOWN and hint_for(key, ("type",))), None)
    if close:
        hint = "did you mean 'type'?"
        return draft.diagnostic(
            "ORCH113", (close,), "this document has no `type`", key=True, hint=hint, replacement="type"
        )
    if keys & {"projects", "backends"} and not keys & {"nodes", "placement", "commands", "resources"}:
        hint = "the project and its backends belong in a file named `orch.yml`"
    elif keys & {"commands", "torchrun", "mpirun", "image", "files", "working_dir"}:
        hint = "begin with `type: task`"
    elif keys & {"placement", "ssh_config", "nodes", "backends", "backend"}:
        hint = "begin with `type: fleet`"
    else:
        hint = "begin with `type: fleet` or `type: task`"
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
            summary = f"this fleet has no name, and its file's, {shown(stem)}, cannot be one: {summary}"
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
                f"`{property_path(path)}` is not supported by this version",
                key=True,
                hint=self.rows[pattern],
            )
        )
        return True

    def text(self, text: str, path: Path_) -> str:
        """The text with `${{ env.X }}` filled in, its references checked."""
        rule = _rule(self.draft.kind, path)
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
