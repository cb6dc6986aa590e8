"""Loading the files of a verb and printing their warnings; the `orch.yml` that goes with them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from orch.cli.errors import tell

if TYPE_CHECKING:
    from orch.policies.settings import Settings
    from orch.spec.diagnostics import Diagnostic
    from orch.spec.document.defaults import Common
    from orch.spec.loader.load import Document, Loaded
    from orch.spec.models.backends.base import BackendSettings

SKIPPED_FOLDERS = {"node_modules", "__pycache__", "venv"}
# A hint is worth a moment: folders that are walked, bytes that are read of a file, folders that are named.
WALKED_FOLDERS = 1000
READ_BYTES = 1 << 16
SHOWN_FOLDERS = 5


def load(
    path: str,
    *,
    launch: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    untrusted: Iterable[str] | None = None,
    backends: Iterable[str] = (),
    profile: str | None = None,
) -> tuple[Document, ...]:
    """The documents of a file or folder. Warnings are told; errors are raised, all at once.

    Kinds in `launch` are about to be acted on: what they lack outside the file is an error there, and so is a
    property that this version would ignore. `untrusted`, `backends`: as in `load_paths`; `profile`: the one
    of orch.yml that tasks are read with. Raises UnknownProfile.
    """
    from orch.spec.diagnostics import render_human

    loaded = read(
        path, launch=launch, environ=environ, untrusted=untrusted, backends=backends, profile=profile
    ).require()
    if loaded.diagnostics:
        tell(render_human(loaded.diagnostics))
    return loaded.documents


def read(
    path: str,
    *,
    launch: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    untrusted: Iterable[str] | None = None,
    backends: Iterable[str] = (),
    profile: str | None = None,
    secrets: bool = True,
) -> Loaded:
    """Return the contents of a file or folder, as `load` reads it: the valid documents and all errors.

    Without `secrets` the state is not asked for their names. Raises UnknownProfile.
    """
    from orch.spec.loader.load import load_paths

    return load_paths(
        [path],
        launch=launch,
        environ=environ,
        untrusted=untrusted,
        backends=backends,
        secrets=partial(secrets_near, path) if secrets and untrusted is None else None,
        common=settings_near(profile=profile, untrusted=untrusted is not None),
    )


def secrets_near(path: str, *, local_only: bool = False) -> frozenset[str] | None:
    """Names of the secrets of the project of a file (`-`: of the folder here).

    `local_only`: without the engine or a network, None where that does not tell. Raises ProjectError,
    StackError."""
    from orch.stacks.project.project import find
    from orch.stacks.secrets.values import known_names

    return known_names(find(None if path == "-" else path), local_only=local_only)


def settings_near(*, profile: str | None = None, untrusted: bool = False) -> Callable[[str], Common | None]:
    """Return a function from a file to the settings for documents of the nearest `orch.yml` above it.

    For a stranger's file, it looks only within the repository. The function raises UnknownProfile, also if
    there is no `orch.yml`.
    """
    from orch.spec.document.defaults import Common, UnknownProfile, nearest_project_file
    from orch.spec.document.fence import fence_around

    known: dict[str, Common | None] = {}

    def settings(path: str) -> Common | None:
        file = nearest_project_file(path, fence_around(path, frozenset()) if untrusted else None)
        if file is not None and file not in known:
            known[file] = Common.in_file(file)
            if known[file] is None and (error := Common.read_error(file)) is not None:
                tell(
                    f"warning: {file}: {error.summary}; its `defaults` and `profiles` are left out\n"
                    f"  hint: `orch validate {file}` says what is wrong with it"
                )
        common = known[file] if file is not None else None
        if common is not None:
            return common.with_profile(profile)
        if profile is None:
            return None
        raise UnknownProfile(
            f"there is no profile {profile}", hint="profiles stand in `orch.yml`, under `profiles`"
        )

    return settings


def policies_near(*, untrusted: bool = False) -> Callable[[str], tuple[Settings, str]]:
    """Return a function from a file to the policies of the nearest `orch.yml` above it, and its folder.

    The function returns the defaults if there is no such file, or none that can be read: whoever reads that
    file reports it.
    """
    from orch.policies.settings import DEFAULTS, Settings
    from orch.spec.document.defaults import nearest_project_file
    from orch.spec.document.fence import fence_around
    from orch.spec.loader.load import load_paths
    from orch.spec.models.project import ProjectSettings

    known: dict[str, Settings] = {}

    def settings(path: str) -> tuple[Settings, str]:
        path = "-" if path == "<stdin>" else path
        file = nearest_project_file(path, fence_around(path, frozenset()) if untrusted else None)
        if file is None:
            return DEFAULTS, os.getcwd()
        if file not in known:
            loaded = load_paths([file], untrusted=() if untrusted else None)
            models = [model for _, model in loaded.of(ProjectSettings)]
            known[file] = Settings(models[0].policies) if models else DEFAULTS
        return known[file], os.path.dirname(file)

    return settings


def backend_settings(
    file: str, documents: Sequence[Document], *, untrusted: Iterable[str] | None = None
) -> tuple[BackendSettings, ...]:
    """Backends of the `orch.yml` among the documents of `file`, else of the nearest one upwards.

    `untrusted`: as in `load_paths`; only the repository is searched then, and warnings of its `orch.yml` are
    printed. Raises InvalidConfiguration for an `orch.yml` with errors.
    """
    from orch.spec.diagnostics import render_human
    from orch.spec.document.defaults import nearest_project_file
    from orch.spec.document.fence import fence_around
    from orch.spec.loader.load import load_paths
    from orch.spec.models.project import ProjectSettings

    projects = [each.model for each in documents if isinstance(each.model, ProjectSettings)]
    if not projects:
        path = nearest_project_file(file, None if untrusted is None else fence_around(file, frozenset()))
        loaded = load_paths([path] if path else [], untrusted=untrusted).require()
        if untrusted is not None and loaded.diagnostics:
            tell(render_human(loaded.diagnostics))
        projects = [model for _, model in loaded.of(ProjectSettings)]
    return tuple(backend for project in projects for backend in project.configured)


def found_in(loaded: Loaded, *, untrusted: bool) -> tuple[Diagnostic, ...]:
    """Return all findings in what was loaded: errors, refusals of a launch, and violations of policies."""
    from orch.spec.diagnostics import ordered

    advice = _advice(loaded.documents, names=not untrusted)
    policies = _policies(loaded.documents, untrusted=untrusted)
    return ordered((*loaded.diagnostics, *advice, *policies))


def _advice(documents: tuple[Document, ...], *, names: bool) -> Iterator[Diagnostic]:
    """Warnings of what a launch would refuse in valid documents; with `names`, of unknown names too.

    The catalogue's refreshed prices lie in the user's folder: files of strangers do without.
    """
    from orch.spec.diagnostics import Severity
    from orch.spec.models import BACKEND_MODELS
    from orch.spec.rules.unsupported import not_acted_on

    for document in documents:
        # A backend's own document is only ever checked, which is told.
        for each in not_acted_on(document.draft) if document.kind not in BACKEND_MODELS else ():
            yield replace(each, severity=Severity.WARNING) if each.severity is Severity.ERROR else each
        if names and document.kind == "fleet":
            from orch.catalog.errors import CatalogError
            from orch.offers.search import unknown_names

            try:
                yield from unknown_names(document)
            except CatalogError as error:  # a file is no worse for it
                names = False
                tell(f"note: names were not looked up in the catalogue: {error.text()}")


def _policies(documents: tuple[Document, ...], *, untrusted: bool) -> Iterator[Diagnostic]:
    """Yield errors in the policies of an `orch.yml`, and violations of policies by tasks."""
    from orch.policies.settings import check, today
    from orch.policies.task_verdicts import task_violations
    from orch.spec.models import Task

    settings = policies_near(untrusted=untrusted)
    for document in documents:
        yield from check(document, today()) if document.kind == "project" else ()
        if isinstance(document.model, Task):
            yield from task_violations(document, *settings(document.draft.source.file), today())


def tell_of_folders_below(paths: Sequence[str]) -> None:
    """Tell of folders with configurations that are not read, for they are in a folder that is."""
    if below := _below(paths):
        few = " ".join(shlex.quote(each) for each in below[:SHOWN_FOLDERS])
        more = f" and {len(below) - SHOWN_FOLDERS} more" if len(below) > SHOWN_FOLDERS else ""
        tell(f"note: folders in a folder are not read; configurations are in {few}{more}")


def _below(paths: Sequence[str]) -> tuple[str, ...]:
    """Folders below `paths` with configurations that only a command with their own name would read."""
    requested = {os.path.realpath(path) for path in paths}
    matches: list[str] = []
    walked = 0
    for path in paths:
        for folder, folders_inside, names in os.walk(path):
            folders_inside[:] = sorted(
                each for each in folders_inside if each[0] != "." and each not in SKIPPED_FOLDERS
            )
            walked += 1
            if walked > WALKED_FOLDERS:
                return tuple(matches)
            files = (os.path.join(folder, name) for name in names if name.endswith((".yml", ".yaml")))
            if os.path.realpath(folder) not in requested and any(map(_is_configuration, files)):
                matches.append(folder)
    return tuple(dict.fromkeys(matches))


def _is_configuration(file: str) -> bool:
    from orch.spec.loader.load import is_configuration

    try:
        if not os.path.isfile(file):
            return False
        with open(file, "rb") as opened:
            return is_configuration(opened.read(READ_BYTES).decode(errors="replace"))
    except OSError:
        return False
