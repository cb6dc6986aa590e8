"""Reading one document: its type, and its plain values with references checked and filled in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from orch.spec.diagnostics import Diagnostic, Severity
from orch.spec.document.context import LoadContext
from orch.spec.document.draft import Draft, Path_
from orch.spec.document.reference_scopes import scope_of
from orch.spec.document.text import Source
from orch.spec.document.yaml_nodes import Mapping, Node, Scalar, Sequence
from orch.spec.grammar import interpolate
from orch.spec.grammar.hosts import folded_size
from orch.spec.grammar.values import Problem, check_name, shown
from orch.spec.loader.untrusted import variable_refused
from orch.spec.loader.validation_errors import validate
from orch.spec.models import BACKEND_MODELS, KINDS, MODELS, Fleet
from orch.spec.models.selection import has_no_driver
from orch.spec.suggest import hint_for, listed

MAX_HOSTS = 20_000


class DraftReader:
    """Reads the documents of one text."""

    def __init__(self, source: Source, context: LoadContext) -> None:
        self.source = source
        self.context = context
        self.folded = 0

    def read(self, node: Node, index: int) -> Draft:
        draft = Draft(self.source, index, node, self.context)
        if not isinstance(node, Mapping):
            draft.diagnostics.append(
                draft.diagnostic(
                    "ORCH108",
                    (),
                    f"a document is a mapping, this is {'a list' if isinstance(node, Sequence) else 'text'}",
                    hint=_JOB_SCRIPT
                    if _is_job_script(self.source)
                    else "begin with its type: `type: fleet` or `type: task`",
                )
            )
            return draft
        draft.kind = _kind(draft, node)
        if not draft.kind:
            return draft
        if self.context.common is not None:
            draft.node = node = self.context.common.completed(draft.kind, node)
        walk = _Walk(draft)
        values = cast("dict[str, object]", walk.values(node, ()))
        if draft.kind in ("fleet", "volume") and "name" not in draft.broken and not draft.written("name"):
            _name_after_file(draft, values)
        validate(draft, values, walk.unclear, lambda: as_written(draft, values))
        self._count_hosts(draft)
        return draft

    def _count_hosts(self, draft: Draft) -> None:
        """Bounds the number of hosts that folded names of a whole file stand for."""
        fleet = draft.partial
        if not isinstance(fleet, Fleet) or fleet.ssh_config is None or "ssh_config" in draft.broken:
            return
        self.folded += sum(folded_size(host.hostname) for host in fleet.ssh_config.hosts)
        if self.folded > MAX_HOSTS:
            draft.broken.add("ssh_config")
            summary = f"the hosts of this file are more than {MAX_HOSTS:,}"
            hint = "use several files"
            draft.diagnostics.append(draft.diagnostic("ORCH105", ("ssh_config", "hosts"), summary, hint=hint))


_JOB_SCRIPT = "this is a job script: docs/migrate-from-slurm.md says how to write it as a task"


def _is_job_script(source: Source) -> bool:
    """Return True if a text starts as a script does, or has an option of `sbatch` in its first 50 lines."""
    head = source.lines[:50]
    return bool(head) and (head[0].startswith("#!") or any(line.startswith("#SBATCH") for line in head))


# Types of documents that dstack knows and orch does not run.
_NOT_RUN = {
    "service": ("services need an always-on proxy: not supported", "use a task with `ports`, or Kubernetes"),
    "gateway": ("gateways need an always-on proxy: not supported", "use a task with `ports`, or Kubernetes"),
    "preset": ("presets are part of services: not supported", "use a task with `ports`, or Kubernetes"),
}


def _kind(draft: Draft, node: Mapping) -> str:
    """A key of `MODELS`; empty (and told) when the document is none of them."""
    entry = node.entries.get("type")
    if os.path.basename(draft.source.file) in ("orch.yml", "orch.yaml"):
        if entry is not None:
            summary = "this file is the project's own and holds no other documents"
            hint = "move the document to a file of another name"
            draft.diagnostics.append(draft.diagnostic("ORCH110", ("type",), summary, key=True, hint=hint))
            return ""
        return "project"
    if entry is None or (isinstance(entry.value, Scalar) and entry.value.is_null):
        if "projects" in node.entries:
            draft.diagnostics.append(_belongs_to_project(draft, ("projects",), key=True))
            return "project"
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
    if word in BACKEND_MODELS:
        draft.diagnostics.append(_belongs_to_project(draft, ("type",)))
        return word
    draft.diagnostics.append(_no_type(draft, word))
    return ""


def _no_type(draft: Draft, word: str) -> Diagnostic:
    if has_no_driver(word):
        summary = f"orch has no driver for {word}: this document is left out"
        return draft.diagnostic("ORCH190", ("type",), summary, severity=Severity.WARNING)
    if "${{" in word:
        summary = "nothing is interpolated in `type`"
        return draft.diagnostic("ORCH133", ("type",), summary, hint=f"write {listed(KINDS)}")
    if word in _NOT_RUN:
        summary, hint = _NOT_RUN[word]
        return draft.diagnostic("ORCH114", ("type",), summary, hint=hint)
    hint = hint_for(word, (*KINDS, *BACKEND_MODELS)) or f"write {listed(KINDS)}"
    return draft.diagnostic("ORCH111", ("type",), f"{shown(word)} is not a type of document", hint=hint)


def _belongs_to_project(draft: Draft, path: Path_, *, key: bool = False) -> Diagnostic:
    return draft.diagnostic(
        "ORCH194",
        path,
        "backends are read from `orch.yml`, this file is only checked",
        key=key,
        severity=Severity.NOTE,
        hint="move it into `orch.yml`, under `backends`",
    )


_KNOWN = frozenset(name for model in KINDS.values() for name in model.written())


def _untyped(draft: Draft, node: Mapping) -> Diagnostic:
    keys = set(node.entries)
    close = next((key for key in node.entries if key not in _KNOWN and hint_for(key, ("type",))), None)
    if close:
        summary, hint = "this document has no `type`", "did you mean 'type'?"
        return draft.problem(
            Problem("ORCH113", summary, hint=hint, replacement="type", on_key=True), (close,)
        )
    if keys & {"project", "state", "backends"} and not keys & {"nodes", "placement", "commands", "resources"}:
        hint = "the project and its backends belong in a file named `orch.yml`"
    elif keys & {"commands", "torchrun", "mpirun", "image", "files", "working_dir"}:
        hint = "begin with `type: task`"
    elif keys & {"placement", "ssh_config", "nodes", "backends", "backend"}:
        hint = "begin with `type: fleet`"
    else:
        hint = "begin with `type: fleet` or `type: task`"
    return draft.diagnostic("ORCH113", (), "this document has no `type`", hint=hint)


def _name_after_file(draft: Draft, values: dict[str, object]) -> None:
    """An unnamed fleet or volume is named after its file, so that its identity is stable."""
    file = draft.source.file
    stem = os.path.basename(file)
    for ending in (".yml", ".yaml", ".dstack"):
        stem = stem.removesuffix(ending)
    stem = stem or Path(file).absolute().parent.name
    try:
        if file == "<stdin>":
            what = MODELS[draft.kind].noun
            raise Problem("ORCH113", f"{what} from standard input needs a name", hint="add `name: NAME`")
        values["name"] = check_name(stem)
    except Problem as problem:
        draft.broken.add("name")
        summary = problem.summary
        if problem.code == "ORCH115":
            summary = (
                f"this {draft.kind} has no name, and its file's, {shown(stem)}, cannot be one: {summary}"
            )
        hint = f"add `name: {problem.replacement}`" if problem.replacement else "add `name: NAME`"
        draft.diagnostics.append(draft.diagnostic(problem.code, (), summary, hint=hint))


# Accepted for the sake of existing files; they do nothing (ORCH191).
_IDLE = {"task": ("dstack", "setup", "home_dir"), "dev-environment": ("dstack", "setup", "home_dir")}


def as_written(draft: Draft, values: dict[str, object]) -> dict[str, object]:
    """The document with references to the environment as they stand in it."""
    written = cast("dict[str, object]", _written(draft.node))
    return {key: written.get(key, value) for key, value in values.items()}


def _written(node: Node) -> object:
    if isinstance(node, Scalar):
        return None if node.is_null else node.text
    if isinstance(node, Sequence):
        return [_written(item) for item in node.items]
    return {key: _written(entry.value) for key, entry in node.entries.items()}


class _Walk:
    """Nodes to plain values; references are checked and those to the environment filled in."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.idle = _IDLE.get(draft.kind, ())
        self.unclear: set[Path_] = set()

    def values(self, node: Node, path: Path_) -> object:
        if isinstance(node, Scalar):
            if node.is_null:
                return None
            return self.text(node.text, path) if "$" in node.text else node.text
        if isinstance(node, Sequence):
            return [self.values(item, (*path, index)) for index, item in enumerate(node.items)]
        return {
            key: self.values(entry.value, (*path, key))
            for key, entry in node.entries.items()
            if path or not (key.startswith("x-") or self.is_idle(key, entry.value))
        }

    def is_idle(self, key: str, value: Node) -> bool:
        """Return True if a property has no effect, after reporting it as a warning (ORCH191)."""
        if key not in self.idle:
            return False
        if not (isinstance(value, Scalar) and value.is_null):
            draft, severity = self.draft, Severity.WARNING
            summary = f"`{key}` does nothing here"
            draft.diagnostics.append(
                draft.diagnostic("ORCH191", (key,), summary, key=True, severity=severity, hint="remove it")
            )
        return True

    def text(self, text: str, path: Path_) -> str:
        """The text with `${{ env.X }}` filled in, its references checked."""
        draft, context = self.draft, self.draft.context
        scope = scope_of(draft.kind, path)
        try:
            for reference in interpolate.references(text, scope.site):
                interpolate.check(reference, scope.site, scope.namespaces)
                self.check_secret(reference, path)
        except Problem as problem:
            self.unclear.add(path)
            draft.diagnostics.append(
                draft.diagnostic(
                    problem.code, path, problem.summary, hint=problem.hint, detail=problem.detail
                )
            )
            return text
        filled, variables, unset = interpolate.fill_environment(text, scope.site, context.environ)
        for name in unset:
            self.unclear.add(path)
            if context.fence is not None:
                draft.diagnostics.append(variable_refused(draft, path, name))
                continue
            draft.diagnostics.append(draft.unset(name, path))
        if variables:
            draft.env_values[path] = variables
            context.env_values.update(variables)
        return filled

    def check_secret(self, reference: interpolate.Reference, path: Path_) -> None:
        """Adds a diagnostic for a secret that the store does not have, where its names are known."""
        if reference.namespace != "secrets":
            return
        known, name = self.draft.context.secrets(), reference.name
        if known is None or name in known:
            return
        longer = next((other for other in sorted(known) if other.startswith(name)), None)
        close = f"did you mean '{longer}'?" if longer else hint_for(name, sorted(known))
        self.draft.diagnostics.append(
            self.draft.diagnostic(
                "ORCH172",
                path,
                f"secret {shown(name)} is not set",
                severity=self.draft.missing,
                hint=f"{close} Else `orch secret set {name}`"
                if close
                else f"set it: `orch secret set {name}`",
            )
        )
