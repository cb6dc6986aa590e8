"""Rules between the properties of `orch.yml`, and against secrets in plain text."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import cast

from orch.spec.diagnostics import Related, Severity
from orch.spec.document.draft import Draft, Path_, scalars
from orch.spec.document.yaml_nodes import Mapping, Scalar, Sequence
from orch.spec.grammar.values import shown
from orch.spec.models import BackendSettings, ProjectSettings
from orch.spec.models.selection import has_no_driver
from orch.spec.rules.rule import Findings, Rule
from orch.spec.suggest import few, hint_for


def secrets_are_references(draft: Draft) -> Findings:
    """A key in a file ends up in a repository. A reference or a file path does not hold it (C18)."""
    for path, scalar in scalars(draft.node):
        key = str(path[-1]) if path else ""
        inside = {"creds", "kubeconfig", "registry_auth"}.intersection(path[:-1])
        if not inside or scalar.is_null or "${{" in scalar.text:
            continue
        from orch.spec.models.backends.credentials import SECRETS

        if key not in SECRETS:
            continue
        name = _secret_name(draft, path, key)
        reference = f"${{{{ secrets.{name} }}}}"
        diagnostics = draft.diagnostic(
            "ORCH132",
            path,
            f"`{key}` stands here in plain text",
            severity=Severity.WARNING,
            hint=f"`orch secret set {name}`, then write `{reference}`",
        )
        yield replace(diagnostics, excerpt=None)  # the line is the secret


def _secret_name(draft: Draft, path: Path_, key: str) -> str:
    """A name for the secret: the backend's and the property's."""
    at = next((i for i, part in enumerate(path) if part in ("creds", "kubeconfig", "registry_auth")), 0)
    kind = draft.node_at((*path[:at], "type")) if "registry_auth" not in path else None
    owner = kind.text if isinstance(kind, Scalar) else "registry"
    return re.sub(r"[^A-Za-z0-9_]", "_", f"{owner}_{key}")


def foreign_backends(draft: Draft) -> Findings:
    for base in _backend_lists(draft):
        node = draft.node_at(base)
        for index, item in enumerate(node.items if isinstance(node, Sequence) else ()):
            kind = item.entries.get("type") if isinstance(item, Mapping) else None
            if kind and isinstance(kind.value, Scalar) and has_no_driver(kind.value.text):
                summary = f"orch has no driver for {kind.value.text}: this entry does nothing"
                yield draft.diagnostic("ORCH190", (*base, index, "type"), summary, severity=Severity.WARNING)


def backends_differ(draft: Draft) -> Findings:
    for base in _backend_lists(draft):
        first: dict[str, int] = {}
        node = draft.node_at(base)
        for index, item in enumerate(node.items if isinstance(node, Sequence) else ()):
            kind = item.entries.get("type") if isinstance(item, Mapping) else None
            if not kind or not isinstance(kind.value, Scalar):
                continue
            word = kind.value.text
            if word in first:
                yield draft.diagnostic(
                    "ORCH153",
                    (*base, index, "type"),
                    f"backend {word} is configured twice",
                    hint="keep one entry",
                    related=(Related(draft.span((*base, first[word], "type")), "configured here first"),),
                )
            first.setdefault(word, index)


def _backend_lists(draft: Draft) -> tuple[Path_, ...]:
    projects = draft.node_at(("projects",))
    count = len(projects.items) if isinstance(projects, Sequence) else 0
    return (("backends",), *(("projects", index, "backends") for index in range(count)))


def one_project(draft: Draft) -> Findings:
    """Report problems in `projects` of an `orch.yml`, such as duplicate names; a server's own file may list
    any number."""
    project = cast(ProjectSettings, draft.partial)
    if not project.projects or not is_settings(draft.source.file):
        return
    names = [each.name for each in project.projects]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield draft.diagnostic(
                "ORCH170",
                ("projects", index, "name"),
                f"there is another project named {shown(name)}",
                hint="give each its own name",
                related=(Related(draft.span(("projects", names.index(name), "name")), "the first one"),),
            )
    if project.all_backends:
        yield draft.diagnostic(
            "ORCH158",
            ("projects",),
            "backends stand under `backends` or under `projects`",
            key=True,
            hint="move all of them under `backends`",
            related=(Related(draft.span(("backends",), key=True), "the other ones"),),
        )
    elif project.project is None and len(names) > 1:
        yield draft.diagnostic(
            "ORCH113",
            ("projects",),
            "it is not said which of these projects this is",
            key=True,
            hint=f"add `project: {names[0]}`",
        )
    elif project.chosen is None:
        yield draft.diagnostic(
            "ORCH111",
            ("project",),
            f"{shown(project.project or '')} is none of `projects`",
            hint=hint_for(project.project or "", names) or f"its projects are {few(names)}",
        )


def shared_state_names_its_project(draft: Draft) -> Findings:
    """A state that other clones use: each of them would call the project by the name of its folder."""
    project = cast(ProjectSettings, draft.partial)
    if project.state is None or project.project is not None or project.projects:
        return
    if is_settings(draft.source.file):
        yield draft.diagnostic(
            "ORCH113",
            ("state",),
            "a state that others use needs the project's name",
            key=True,
            detail="without `project`, each clone calls it by the name of its folder, and finds nothing up",
            hint="add `project: NAME`",
        )


def profiles_differ(draft: Draft) -> Findings:
    first: dict[str, int] = {}
    default: int | None = None
    for index, profile in enumerate(cast(ProjectSettings, draft.partial).profiles):
        if profile.name in first:
            yield draft.diagnostic(
                "ORCH170",
                ("profiles", index, "name"),
                f"there is another profile named {shown(profile.name)}",
                hint="give each its own name",
                related=(Related(draft.span(("profiles", first[profile.name], "name")), "the first one"),),
            )
        first.setdefault(profile.name, index)
        if profile.default and default is not None:
            yield draft.diagnostic(
                "ORCH158",
                ("profiles", index, "default"),
                "two profiles are the default",
                hint="keep one of them",
                related=(Related(draft.span(("profiles", default, "default")), "the other one"),),
            )
        default = index if profile.default and default is None else default


def is_settings(file: str) -> bool:
    """Return True if a file is a project's own, `orch.yml`."""
    return os.path.basename(file) in ("orch.yml", "orch.yaml")


def backends_are_whole(draft: Draft) -> Findings:
    """Properties of one backend that exclude or need each other."""
    project = cast(ProjectSettings, draft.partial)
    lists: list[tuple[Path_, tuple[BackendSettings, ...]]] = [(("backends",), project.all_backends)]
    lists += [(("projects", i, "backends"), each.backends) for i, each in enumerate(project.projects)]
    for base, backends in lists:
        places = _places(draft, base)
        if len(places) == len(backends):
            for path, backend in zip(places, backends, strict=True):
                yield from _backend(draft, path, backend)


def _places(draft: Draft, base: Path_) -> list[Path_]:
    """Return the paths of the entries that have a driver; the others are not in the model."""
    node = draft.node_at(base)
    result: list[Path_] = []
    for index, item in enumerate(node.items if isinstance(node, Sequence) else ()):
        kind = item.entries.get("type") if isinstance(item, Mapping) else None
        if not (kind and isinstance(kind.value, Scalar) and has_no_driver(kind.value.text)):
            result.append((*base, index))
    return result


def backend_is_whole(draft: Draft) -> Findings:
    """The same for a document of one backend."""
    yield from _backend(draft, (), cast(BackendSettings, draft.partial))


def _backend(draft: Draft, path: Path_, backend: BackendSettings) -> Findings:
    for each in backend.conflicts():
        yield draft.diagnostic("ORCH158", (*path, *each.at), each.summary, key=each.key, hint=each.hint)


BACKEND_RULES = (
    Rule((), secrets_are_references),
    Rule(("creds", "kubeconfig", "vpc_name", "vpc_ids"), backend_is_whole),
)

RULES = (
    Rule((), secrets_are_references),
    Rule((), foreign_backends),
    Rule((), backends_differ),
    Rule(("backends", "projects"), backends_are_whole),
    Rule(("backends", "projects", "project"), one_project),
    Rule(("state", "project", "projects"), shared_state_names_its_project),
    Rule(("profiles",), profiles_differ),
)
