"""Files of strangers are data: each use of something outside the repository is reported and not followed.

A pull request's configuration is read by a pipeline that has credentials. With `--untrusted` nothing of the
environment is filled in, no path leads out of the repository (links resolved without a look outside), and no
setting of orch.yml is followed that reaches out or has programs run. `--allow` names variables and paths that
may be named; they are not looked at either.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, cast, get_args, get_origin

from orch.spec.diagnostics import Diagnostic, Severity
from orch.spec.document.draft import Draft, Path_, folder_of
from orch.spec.document.fence import Fence
from orch.spec.document.yaml_nodes import Mapping, Scalar, Sequence
from orch.spec.grammar.interpolate import ReferenceSite, fill_environment, references
from orch.spec.grammar.values import Problem, shown
from orch.spec.models import MODELS
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.parsing import Here, Reaches, marked


def outside_uses(draft: Draft) -> Iterator[Diagnostic]:
    """Diagnostics of what a document would use outside its repository, except for references in its texts.

    Taken from the nodes, so that a property is reported also when it, or another one, is invalid.
    """
    fence = draft.context.fence
    if fence is None or draft.kind not in MODELS:
        return
    for use in dict.fromkeys(_uses(draft.node, MODELS[draft.kind], ())):
        if use.kind is Here and use.text is not None and not _references(use.text):
            yield from _outside(draft, fence, use.path, use.text)
        elif use.kind is Reaches:
            yield draft.diagnostic(
                "ORCH178",
                use.path,
                f"`{use.path[-1]}` is not followed in files that are not trusted",
                key=True,
                severity=Severity.NOTE,
                hint="it takes effect where the file is trusted: look at it closely",
            )
        elif use.kind is Env and use.text is not None:
            yield variable_refused(draft, use.path, use.text)


def variable_refused(draft: Draft, path: Path_, name: str) -> Diagnostic:
    """The diagnostic for a document that uses a variable of the environment."""
    fence = draft.context.fence
    allowed = fence is not None and name in fence.allowed
    return draft.diagnostic(
        "ORCH176",
        path,
        f"environment variable {shown(name)} is not read for files that are not trusted",
        severity=Severity.NOTE if allowed else Severity.ERROR,
        hint=None if allowed else f"write the value here; who trusts the use adds `--allow {name}`",
    )


def _references(text: str) -> bool:
    """Return True if a path as written has references, which the loader reports. An escaped one is a name."""
    try:
        return bool(references(text, ReferenceSite.READ))
    except Problem:
        return False


def _outside(draft: Draft, fence: Fence, path: Path_, written: str) -> Iterator[Diagnostic]:
    value = fill_environment(written, ReferenceSite.READ, {})[0]
    allowed = bool(fence.allowed) and bool({value, os.path.expanduser(value)} & fence.allowed)
    if not value.startswith("~") and fence.holds(folder_of(draft) / value):
        return
    yield draft.diagnostic(
        "ORCH177",
        path,
        f"{shown(value)} is no file of the repository: files that are not trusted lead nowhere else",
        severity=Severity.NOTE if allowed else Severity.ERROR,
        hint=None if allowed else f"name a file of the repository; who trusts the use adds `--allow {value}`",
    )


class Env:
    """A variable without a value."""


@dataclass(frozen=True)
class _Use:
    kind: type[Here] | type[Reaches] | type[Env]
    path: Path_
    text: str | None = None


def _uses(node: object, model: type[Section], at: Path_) -> Iterator[_Use]:
    """In a block: nodes of the file, or the plain values that a short form of it stands for."""
    if isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            yield from _uses(item, model, (*at, index))
        return
    if isinstance(node, Scalar):
        if node.is_null or not model.short:
            return
        try:
            node = model.expand(node.text)
        except Problem:
            return  # told when it was read
    entries: dict[str, object] = {}
    if isinstance(node, Mapping):
        entries = {key: entry.value for key, entry in node.entries.items()}
    elif isinstance(node, dict):
        entries = cast("dict[str, object]", node)
    names = model.properties()
    for key, value in entries.items():
        name = names.get(model.spellings.get(key, key))
        if name is not None and not (isinstance(value, Scalar) and value.is_null):
            yield from _use(value, model, name, (*at, key))


def _use(value: object, model: type[Section], name: str, at: Path_) -> Iterator[_Use]:
    info = model.model_fields[name]
    if marked(info, Reaches):
        yield _Use(Reaches, at)  # and nothing below it is
        return
    if marked(info, Here):
        yield _Use(Here, at, _text(value))
    if name == "env":
        yield from (_Use(Env, (*at, key), str(variable)) for key, variable in _bare(value))
    for block in _sections_in(info.annotation):
        if get_origin(_plain(info.annotation)) is dict and isinstance(value, Mapping):
            for key, entry in value.entries.items():
                yield from _uses(entry.value, block, (*at, key))
        else:
            yield from _uses(value, block, at)


def _bare(value: object) -> Iterator[tuple[str | int, str]]:
    """Variables without a value, each with its key or its place in the list."""
    if isinstance(value, Mapping):
        for key, entry in value.entries.items():
            if isinstance(entry.value, Scalar) and entry.value.is_null:
                yield key, key
    elif isinstance(value, Sequence):
        for index, item in enumerate(value.items):
            if isinstance(item, Scalar) and "=" not in item.text and "${{" not in item.text:
                yield index, item.text


def _text(value: object) -> str | None:
    text = value.text if isinstance(value, Scalar) else value
    return text if isinstance(text, str) else None


@cache
def _sections_in(annotation: Any) -> tuple[type[Section], ...]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation.variants()
    return tuple(dict.fromkeys(block for part in get_args(annotation) for block in _sections_in(part)))


def _plain(annotation: Any) -> Any:
    return annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation
