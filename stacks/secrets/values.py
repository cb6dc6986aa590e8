"""The secrets of a project: a stack of their own in its state, encrypted as the state's other secrets are.

The stack has no resources. Its output `values` holds all values as one secret, `set_at` tells in clear which
names there are and since when. `keys/secret_store.py` changes them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from orch.components.registry.backends import tunnel_environment
from orch.spec.confidential import remember
from orch.spec.grammar.interpolate import fill_secrets, secret_names
from orch.spec.grammar.values import shown
from orch.spec.models import Fleet
from orch.spec.models.backends.base import BackendSettings
from orch.spec.suggest import hint_for
from orch.stacks.errors import ProjectError
from orch.stacks.project.project import Project, project_in
from orch.stacks.stack.state import StackState, in_plain_files, secret_output

STACK = "orch.secrets"
"""The name of the stack. No fleet's name has a dot."""

Values = dict[str, str]


class NoSuchSecret(ProjectError):
    """The project's store has no secret of that name (ORCH172)."""

    def __init__(self, summary: str, *, name: str, **told: str | None) -> None:
        super().__init__(summary, **told)
        self.name = name


class ProjectSecrets:
    """The secrets of one project. A rehearsal uses those of the project it rehearses."""

    def __init__(self, project: Project) -> None:
        self.project = project_in(project.root) if project.rehearsal else project
        self.stack = StackState(self.project, STACK)
        self._decrypted: tuple[object, Values] | None = None

    @property
    def set_at(self) -> dict[str, str]:
        """The secrets' names, sorted, each with the time (RFC 3339) at which it was set. Needs no key."""
        recorded: dict[str, str] = self.stack.outputs.get("set_at") or {}
        return dict(sorted(recorded.items()))

    def values(self, names: Iterable[str]) -> Values:
        """The values of these secrets, decrypted as they are now; takes half a second.

        Raises NoSuchSecret, StackError (ORCH354) when the key of the state is missing or another one.
        """
        names = sorted(set(names))
        if not names:
            return {}
        self.stack.invalidate()
        known = self.set_at
        for name in names:
            if name not in known:
                raise no_such_secret(name, known, self.project)
        encrypted = self.stack.outputs.get("values")
        if self._decrypted is None or self._decrypted[0] != encrypted:
            text = secret_output(self.project, STACK, "values", "the secrets", "--json", of="this project")
            self._decrypted = (encrypted, json.loads(text))
        values = {name: self._decrypted[1][name] for name in names}
        remember(values.values())
        return values


def no_such_secret(name: str, known: Collection[str], project: Project) -> NoSuchSecret:
    """The error for a secret that is not set."""
    close = hint_for(name, known)
    set_it = f"`orch secret set {name}`"
    return NoSuchSecret(
        f"secret {shown(name)} is not set in this project",
        where=str(project.root),
        hint=f"{close} Else {set_it}" if close else f"set it: {set_it}",
        code="ORCH172",
        name=name,
    )


def known_names(project: Project, *, local_only: bool = False) -> frozenset[str] | None:
    """Names of the secrets of a project. `local_only`: without the engine or a network, None where the state
    is not in files of this machine."""
    secrets = ProjectSecrets(project)
    if local_only:
        state = secrets.project.local_state
        if state is None or not state.is_dir() or not in_plain_files(secrets.project, STACK):
            return None
    return frozenset(secrets.set_at)


def with_secrets(project: Project, fleet: Fleet) -> Fleet:
    """A fleet with the secrets that its nodes are made with: in variables of `init` and options of mounts.

    Those in `env` stay references: jobs get them when they start. A name that is not set stays one too;
    where it matters, loading the file has refused it. Raises StackError.
    """
    texts = [text for step in fleet.init for text in step.env.values() if text is not None]
    texts += [mount.options for mount in fleet.mounts if mount.options is not None]
    if project.keyless or not any("${{" in text for text in texts):
        return fleet
    secrets = ProjectSecrets(project)
    values = secrets.values(secret_names(*texts) & set(secrets.set_at))

    def fill(text: str | None) -> str | None:
        return None if text is None else fill_secrets(text, values)

    init_steps = tuple(
        step.model_copy(update={"env": {key: fill(text) for key, text in step.env.items()}})
        for step in fleet.init
    )
    mounts = tuple(mount.model_copy(update={"options": fill(mount.options)}) for mount in fleet.mounts)
    return fleet.model_copy(update={"init": init_steps, "mounts": mounts})


def backends_with_secrets(
    project: Project, used: Collection[str] | None = None
) -> tuple[BackendSettings, ...]:
    """The backends of a project with the secrets that their credentials name.

    `used`: those that are asked, all without it; others may name secrets that are not set, and keep them as
    references. In a rehearsal all stay references: simulated clouds look at no key. Raises NoSuchSecret,
    StackError.
    """
    if project.rehearsal:
        return project.backends
    names = {each.type: secret_names(*_texts(each)) for each in project.backends}
    if not any("${{" in text for each in project.backends for text in _texts(each)):
        return project.backends
    secrets = ProjectSecrets(project)
    known = set(secrets.set_at) if any(names.values()) else set[str]()
    needed = (each for kind, each in names.items() if used is None or kind in used or each <= known)
    try:
        values = secrets.values(frozenset[str]().union(*needed))
    except NoSuchSecret as error:
        error.where = _place_of_reference(project, error.name) or error.where
        raise
    return tuple(
        _filled(each, values) if names[each.type] <= values.keys() else each for each in project.backends
    )


def _place_of_reference(project: Project, secret: str) -> str | None:
    """Return the place at which orch.yml names a secret."""
    from orch.spec.document.draft import scalars
    from orch.spec.loader.load import load_paths

    documents = load_paths([project.root / "orch.yml"]).require().documents
    places = (
        str(document.span(path))
        for document in documents
        for path, scalar in scalars(document.draft.node)
        if path[:1] != ("defaults",) and secret in secret_names(scalar.text)
    )
    return next(places, None)


_HOLDERS = ("creds", "kubeconfig")


def _texts(settings: BackendSettings) -> Iterable[str]:
    for holder in (getattr(settings, name, None) for name in _HOLDERS):
        for field in type(holder).model_fields if holder is not None else ():
            if isinstance(text := getattr(holder, field), str):
                yield text


def _filled(settings: BackendSettings, values: Mapping[str, str]) -> BackendSettings:
    changes: dict[str, object] = {}
    for name in _HOLDERS:
        holder = getattr(settings, name, None)
        if holder is None:
            continue
        texts = {field: getattr(holder, field) for field in type(holder).model_fields}
        update = {field: fill_secrets(text, values) for field, text in texts.items() if isinstance(text, str)}
        changes[name] = holder.model_copy(update=update)
    return settings.model_copy(update=changes)


def tunnels(project: Project) -> Mapping[str, str]:
    """Environment variables for tunnel commands (SSM, IAP), from keys of orch.yml. Raises StackError."""
    used = [each.type for each in project.backends if tunnel_environment([each])]
    return tunnel_environment(backends_with_secrets(project, used))
