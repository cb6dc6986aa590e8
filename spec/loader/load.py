"""Files to documents: the way from text to models, and of every mistake back to its place.

All errors of all files are gathered at once. A bad value counts as absent for the checks that need it, so
that one mistake gives one message. Start at `load_paths`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from orch.spec.diagnostics import Diagnostic, Places, Severity, Span, ordered, render_human
from orch.spec.document.bounded import Collected
from orch.spec.document.compose import Parsed, parse
from orch.spec.document.context import LoadContext
from orch.spec.document.defaults import Common
from orch.spec.document.draft import Draft
from orch.spec.document.fence import Fence, fence_around
from orch.spec.document.text import read
from orch.spec.errors import ExitCode, OrchError
from orch.spec.loader import cross_file
from orch.spec.loader.parse import DraftReader
from orch.spec.loader.untrusted import outside_uses
from orch.spec.models import KINDS, MODELS, AnyModel, Fleet, Section, Task
from orch.spec.rules import check_document, environment
from orch.spec.rules.fleet import nodes_with_runs
from orch.spec.rules.unsupported import not_acted_on
from orch.spec.suggest import closest

Model = TypeVar("Model", bound=Section)
PathPart = str | int


class InvalidConfiguration(OrchError):
    """Files with errors. `diagnostics` holds all of them, and the warnings."""

    exit_code: ExitCode = ExitCode.CONFIG

    def __init__(self, diagnostics: Sequence[Diagnostic], exit_code: ExitCode = ExitCode.CONFIG) -> None:
        self.exit_code = exit_code
        self.diagnostics = tuple(diagnostics)
        errors = sum(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics)
        super().__init__(
            f"{errors} error{'s' if errors != 1 else ''} in the configuration",
            detail=render_human(diagnostics),
        )

    def text(self) -> str:
        """The diagnostics as they are, each beginning with its place: editors and `grep` read them."""
        return self.detail or self.summary


@dataclass(frozen=True)
class Document:
    """One valid document. `index` counts the documents of its file from 0."""

    file: Path
    index: int
    model: AnyModel
    draft: Draft = field(repr=False, compare=False)

    @property
    def kind(self) -> str:
        return self.draft.kind

    @property
    def directory(self) -> Path:
        """Folder that relative paths of the document start from."""
        return Path.cwd() if self.draft.source.file == "<stdin>" else self.file.parent

    def span(self, path: str | Sequence[PathPart] = (), *, key: bool = False) -> Span:
        """Place of a property (`resources.gpu`, `files[0].path`), or of what is nearest to it in the file.

        With `key`, of its name instead of its value.
        """
        return self.draft.span(_parts(path), key=key)

    def diagnostic(
        self,
        code: str,
        path: str | Sequence[PathPart],
        summary: str,
        *,
        severity: Severity = Severity.ERROR,
        detail: str | None = None,
        hint: str | None = None,
    ) -> Diagnostic:
        """A diagnostic on a property, for what is found out after loading (plans, hosts)."""
        return self.draft.diagnostic(code, _parts(path), summary, severity=severity, detail=detail, hint=hint)

    def effective(self) -> tuple[Diagnostic, ...]:
        """Warnings of properties without effect.

        Raises InvalidConfiguration for a property that this version does not act on: a plan would show less
        than the file says.
        """
        diagnostics = not_acted_on(self.draft)
        if any(each.severity is Severity.ERROR for each in diagnostics):
            raise InvalidConfiguration(diagnostics)
        return diagnostics


@dataclass(frozen=True)
class Loaded:
    """Contents of the files. `documents` are those without an error, in the order of writing."""

    documents: tuple[Document, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def failed(self) -> bool:
        return any(diagnostic.severity is Severity.ERROR for diagnostic in self.diagnostics)

    def of(self, model: type[Model]) -> tuple[tuple[Document, Model], ...]:
        """Documents of one kind, each with its model."""
        return tuple((each, each.model) for each in self.documents if isinstance(each.model, model))

    @property
    def fleets(self) -> tuple[Fleet, ...]:
        return tuple(model for _, model in self.of(Fleet))

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(model for _, model in self.of(Task))

    def require(self) -> Loaded:
        """Itself. Raises InvalidConfiguration when anything is wrong."""
        if self.failed:
            raise InvalidConfiguration(self.diagnostics)
        return self


def load_paths(
    paths: Sequence[Path | str],
    *,
    environ: Mapping[str, str] | None = None,
    secrets: Iterable[str] | Callable[[], Iterable[str] | None] | None = None,
    launch: bool | Iterable[str] = False,
    untrusted: Iterable[str] | None = None,
    backends: Iterable[str] = (),
    common: Callable[[str], Common | None] = lambda _: None,
) -> Loaded:
    """Reads files, directories (their YAML files that have a `type`) and `-` (standard input).

    Never raises for what a file holds: everything wrong is in `Loaded.diagnostics`, by file, line and
    column. `environ` serves `${{ env.X }}`, by default this process's environment; `secrets` are the names in
    the project's store, or read them at the first reference; None where it is not looked at. What is missing
    there is a warning. In documents of
    the kinds in `launch` (True: all) it is an error, and so is a property that this version does not act on.

    `untrusted` is given for files of strangers (see untrusted.py): what they may name outside. Nothing of the
    environment is read then, and no file outside the repository of each path. `backends` are those of the
    project's `orch.yml`, which hints name; `common` tells of a file (`-`: standard input) what its
    `orch.yml` says for all documents, which they are completed with.
    """
    allowed = None if untrusted is None else frozenset(untrusted)
    if allowed is not None:
        environ = dict[str, str]()
    environ = os.environ if environ is None else environ
    kinds = (MODELS if launch else ()) if isinstance(launch, bool) else launch
    context = LoadContext(
        environ,
        _read_once(secrets),
        frozenset(kinds),
        backends=tuple(dict.fromkeys(backends)),
    )
    messages = Collected()
    drafts: list[Draft] = []
    for parsed, fence in _parsed(paths, messages, allowed):
        file = parsed.source.file
        messages.extend(parsed.diagnostics, file)
        settings = common("-" if file == "<stdin>" else file)
        known_backends = context.backends or (settings.backends if settings else ())
        reader = DraftReader(
            parsed.source, replace(context, fence=fence, common=settings, backends=known_backends)
        )
        drafts += [reader.read(node, index) for index, node in enumerate(parsed.documents)]
    spoiled: set[int] = set()
    for draft in drafts:
        own = draft.diagnostics
        own += [*check_document(draft), *outside_uses(draft)]
        own += not_acted_on(draft) if draft.launched else ()
        if any(each.severity is Severity.ERROR and draft.is_inherited(each.span) for each in own):
            spoiled.add(id(draft))
        messages.extend(own, draft.source.file)
    messages.extend(cross_file.check_together(drafts))
    diagnostics = ordered([*_without_echoes(tuple(messages)), *messages.rest()])
    # No YAML, or more mistakes than are kept: its rest is unknown.
    broken = {each.span.file for each in diagnostics if each.code < "ORCH110"} | messages.unreliable
    bad = Places(each.span for each in diagnostics if each.severity is Severity.ERROR)
    documents = tuple(
        Document(Path(draft.source.file), draft.index, _settled(draft, draft.model, environ), draft)
        for draft in drafts
        if draft.model is not None
        and id(draft) not in spoiled
        and draft.source.file not in broken
        and not bad.within(draft.node.span)
    )
    return Loaded(documents, diagnostics)


def _read_once(
    secrets: Iterable[str] | Callable[[], Iterable[str] | None] | None,
) -> Callable[[], frozenset[str] | None]:
    """Return a function that gives the names of secrets and reads them at its first call only."""

    @cache
    def names() -> frozenset[str] | None:
        known = secrets() if callable(secrets) else secrets
        return None if known is None else frozenset(known)

    return names


def _settled(draft: Draft, model: AnyModel, environ: Mapping[str, str]) -> AnyModel:
    """A fleet's variables without a value are the caller's as it is read, a run's as it starts; nodes that
    are made with runs are none before."""
    if not isinstance(model, Fleet):
        return model
    filled = environment.filled(model, environ)
    nodes = nodes_with_runs(draft, filled)
    return filled if nodes is None else filled.model_copy(update={"nodes": nodes})


def _without_echoes(diagnostics: Sequence[Diagnostic]) -> Iterable[Diagnostic]:
    """Leaves out diagnostics of a value in which the YAML itself is wrong."""
    broken = Places(each.span for each in diagnostics if each.code < "ORCH110")
    return (each for each in diagnostics if each.code < "ORCH110" or not broken.within(each.span))


def _parsed(
    paths: Sequence[Path | str], diagnostics: Collected, allowed: frozenset[str] | None
) -> Iterable[tuple[Parsed, Fence | None]]:
    seen: set[str] = set()
    for path in map(str, paths):
        fence = None if allowed is None or "\0" in path else fence_around(path, allowed)
        if path != "-" and (fence is None or fence.holds(path)) and os.path.isdir(path):
            yield from ((parsed, fence) for parsed in _folder(path, seen, diagnostics, fence))
        elif (parsed := _file(path, seen, diagnostics, fence)) is not None:
            yield parsed, fence


def _file(path: str, seen: set[str], diagnostics: Collected, fence: Fence | None) -> Parsed | None:
    if fence is not None and path != "-" and not fence.holds(path):
        summary = "this lies outside the repository: it is not read, for nobody trusts its name"
        diagnostics.append(Diagnostic("ORCH177", Span(path, 1, 1, 1, 1), summary, hint="remove the link"))
        return None
    key = path if path == "-" else os.path.realpath(path) if "\0" not in path else path
    if key in seen:
        return None
    seen.add(key)
    source = read(path)
    if isinstance(source, Diagnostic):
        diagnostics.append(source)
        return None
    return parse(source)


def _folder(path: str, seen: set[str], diagnostics: Collected, fence: Fence | None) -> Iterable[Parsed]:
    """The configurations in a folder: `orch.yml`, and YAML files with a document that has a `type`."""
    try:
        names = sorted(name for name in os.listdir(path) if name.endswith((".yml", ".yaml")))
    except OSError as error:
        reason = (error.strerror or "the system refused it").lower()
        diagnostics.append(
            Diagnostic("ORCH100", Span(path, 1, 1, 1, 1), f"the folder cannot be read: {reason}")
        )
        return
    any_configuration = False
    for name in names:
        file = os.path.join(path, name)
        if (fence is None or fence.holds(file)) and not os.path.isfile(file):
            continue
        problems = Collected()
        parsed = _file(file, seen, problems, fence)
        if parsed is None:
            diagnostics.extend(problems)
            any_configuration = True
        elif is_project(name) or is_configuration(parsed.source.text):
            any_configuration = True
            yield parsed
    if not any_configuration:
        diagnostics.append(
            Diagnostic(
                "ORCH107",
                Span(path, 1, 1, 1, 1),
                "no configuration in this folder",
                hint="its YAML files with a `type` at the top are read",
            )
        )


_TYPED = re.compile(r"^([A-Za-z_]+)[ \t]*:(?:[ \t]+([a-z-]+)[ \t]*(?:#.*)?)?$", re.MULTILINE)


def is_configuration(text: str) -> bool:
    """Return True if a document of a file has a `type`, or a misspelt key whose value is a type.

    Charts of Helm and objects of Kubernetes may have a `type`, too; their `apiVersion` tells them apart.
    """
    return any(_is_of_orch(document) for document in re.split(r"^---", text, flags=re.MULTILINE))


def _is_of_orch(document: str) -> bool:
    if re.search(r"^type\s*:", document, re.MULTILINE):
        return not re.search(r"^apiVersion\s*:", document, re.MULTILINE)
    return any(word in KINDS and closest(key, ("type",)) for key, word in _TYPED.findall(document))


def is_project(file: str) -> bool:
    """Return True if a file is the project's own, `orch.yml`."""
    return os.path.basename(file) in ("orch.yml", "orch.yaml")


def _parts(path: str | Sequence[PathPart]) -> tuple[PathPart, ...]:
    if not isinstance(path, str):
        return tuple(path)
    return tuple(int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path))
