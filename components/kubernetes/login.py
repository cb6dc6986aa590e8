"""Which kubeconfig is asked by: the file of orch.yml, or one that is written of the text given there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import yaml

from orch.runner.kubernetes.kubeconfig import context_names, kubeconfig_files
from orch.runner.private import private_folder, write_private
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models.backends.kubernetes import KubernetesSettings
from orch.spec.suggest import few, hint_for

_WORDS = re.compile(r"[^\w./@+~-]+")


def kubeconfig_file(settings: KubernetesSettings, root: Path) -> Path | None:
    """The file; None for the user's own kubeconfig. A path is relative to the project `root`.

    Text is kept in a private file of the project, `.orch/kubernetes/`, for programs take files alone.
    Raises OSError where it cannot be written.
    """
    given = settings.kubeconfig
    if given is None:
        return None
    if given.filename is not None:
        return (root / Path(given.filename).expanduser()).absolute()
    text = given.data or ""
    file = root.absolute() / ".orch" / "kubernetes" / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.yml"
    if not file.exists():
        private_folder(file.parent)
        write_private(file, text)
    return file


def require_contexts(settings: KubernetesSettings, root: Path, contexts: Iterable[str | None]) -> None:
    """Look whether the kubeconfig that orch.yml names is there, and has those of these contexts that orch.yml
    names.

    Raises InvalidConfiguration (ORCH460) with the places in the project's orch.yml, BadKubeconfig for a file
    that does not read, OSError as `kubeconfig_file`.
    """
    from orch.spec.loader.load import InvalidConfiguration, load_paths
    from orch.spec.models.project import ProjectSettings

    if not (wrong := list(_unusable(settings, root, frozenset(contexts)))):
        return
    file, here = (root / "orch.yml").absolute(), Path.cwd()
    file = file.relative_to(here) if file.is_relative_to(here) else file
    for document, project in load_paths([file]).of(ProjectSettings):
        types = [each.type for each in project.configured]
        if settings.type in types:
            entry = f"backends[{types.index(settings.type)}]"
            if project.chosen is not None and not project.all_backends:
                entry = f"projects[{project.projects.index(project.chosen)}].{entry}"
            placed = [replace(each, path=f"{entry}.{each.path}").placed(document) for each in wrong]
            raise InvalidConfiguration(placed)
    raise PlanErrors([replace(each, path="backends") for each in wrong])


def _unusable(settings: KubernetesSettings, root: Path, contexts: frozenset[str | None]) -> Iterator[Finding]:
    """What of the settings leads nowhere, each at its property."""
    file = kubeconfig_file(settings, root)
    if file is not None and not file.exists():
        hint = "is the path right? It is relative to the project"
        yield Finding("ORCH460", "kubeconfig.filename", f"there is no kubeconfig {file}", hint=hint)
        return
    written = [(f"contexts[{at}]", each.name) for at, each in enumerate(settings.contexts)]
    written += [(f"regions[{at}]", name) for at, name in enumerate(settings.regions)]
    asked = [(path, name) for path, name in written if name in contexts]
    known = context_names(None if file is None else str(file)) if asked else ()
    if known is None:
        return  # logging in tells where one is looked for
    for path, name in asked:
        if name not in known:
            has = f"it has {few(known)}" if known else "it has none"
            close = hint_for(name, known)
            hint = f"{close} ({has})" if close else has
            yield Finding("ORCH460", path, f"the kubeconfig has no context {name}", hint=hint)


def named_files(configured: Sequence[KubernetesSettings], root: Path) -> Iterator[Path]:
    """Yield the kubeconfigs of these settings, the user's own for none, and the files and folders that they
    name: programs, their arguments and variables, certificates, keys and tokens.

    Paths start at the kubeconfig, or where the program is called. `root`: the project's folder.
    """
    for given in [each.kubeconfig for each in configured] or [None]:
        if given is not None and given.data is not None:
            yield from _named(given.data, root / ".orch" / "kubernetes", root)
            continue
        name = None if given is None else given.filename
        for file in kubeconfig_files(None if name is None else str(root / Path(name).expanduser())):
            yield file.absolute()
            try:
                yield from _named(file.read_text("utf-8"), file.absolute().parent, root)
            except (OSError, UnicodeDecodeError):  # logging in reports it
                continue


def _named(text: str, *folders: Path) -> Iterator[Path]:
    """Yield the files and folders that texts of a kubeconfig name, whole or as words of a command.

    A word without a slash names no folder: names of contexts are often those of folders.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError:
        return
    for each in _texts(document):
        for word in dict.fromkeys((each, *_WORDS.split(each))):
            for folder in (*folders, Path.cwd()) if word else ():
                try:
                    path = folder / Path(word).expanduser()
                    if path.is_file() or ("/" in word and path.is_dir()):
                        yield path
                except (OSError, ValueError, RuntimeError):  # no path of this system
                    continue


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list)):
        items = cast("Mapping[object, object]", value).values() if isinstance(value, Mapping) else value
        for each in cast("Iterable[object]", items):
            yield from _texts(each)
