"""The secrets of a project: a stack of their own in its state, encrypted as the state's other secrets are.

The stack has no resources. Its output `values` holds all values as one secret, `set_at` tells in clear which
names there are and since when. Only a program that the engine runs under the stack's lock changes them, from
what the stack then has: of two changes at once none is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from orch import __version__
from orch.spec.confidential import remember
from orch.spec.errors import ExitCode
from orch.spec.grammar.interpolate import check_secret_name, fill_secrets, secret_names
from orch.spec.grammar.values import Problem, shown
from orch.spec.models import Fleet
from orch.spec.models.backends.base import BackendSettings
from orch.spec.state import SCHEMA
from orch.spec.suggest import hint_for
from orch.stacks.errors import EngineFailed, ProjectError, StackError, StackLocked
from orch.stacks.project import Project, find
from orch.stacks.pulumi.operation import EngineCall, Listener, engine, init
from orch.stacks.pulumi.recovery import recover, when_free
from orch.stacks.state import StackState, in_plain_files, refuse_newer, secret_output

STACK = "orch.secrets"
"""The name of the stack. No fleet's name has a dot."""

LARGEST = 64 * 1024
"""Bytes of the largest value in UTF-8. Linux takes no variable of more than 128 KiB (MAX_ARG_STRLEN)."""

Values = dict[str, str]


class BadSecret(StackError):
    """A name or value that no secret can have."""

    exit_code = ExitCode.USAGE


class NoSuchSecret(ProjectError):
    """The project's store has no secret of that name (ORCH172)."""


class SecretStore:
    """The store of one project. A rehearsal uses that of the project it rehearses, and sets nothing."""

    def __init__(self, project: Project) -> None:
        self.project = find(project.root) if project.rehearsal else project
        self._stack = StackState(self.project, STACK)
        self._decrypted: tuple[object, Values] | None = None

    @property
    def set_at(self) -> dict[str, str]:
        """The secrets' names, sorted, each with the time (RFC 3339) at which it was set. Needs no key."""
        recorded: dict[str, str] = self._stack.outputs.get("set_at") or {}
        return dict(sorted(recorded.items()))

    def values(self, names: Iterable[str]) -> Values:
        """The values of these secrets, decrypted as they are now; takes half a second.

        Raises NoSuchSecret, StackError (ORCH354) when the key of the state is missing or another one.
        """
        names = sorted(set(names))
        if not names:
            return {}
        self._stack.invalidate()
        known = self.set_at
        for name in names:
            if name not in known:
                raise no_such_secret(name, known, self.project)
        encrypted = self._stack.outputs.get("values")
        if self._decrypted is None or self._decrypted[0] != encrypted:
            text = secret_output(self.project, STACK, "values", "the secrets", "--json", of="this project")
            self._decrypted = (encrypted, json.loads(text))
        values = {name: self._decrypted[1][name] for name in names}
        remember(values.values())
        return values

    def set(self, name: str, value: str, listener: Listener) -> bool:
        """Set a secret; True when there was none of that name. Raises BadSecret, StackLocked, StackError."""
        _check(name, value)
        remember([value])
        is_new = name not in self.set_at
        moment = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")

        def change(values: Values, set_at: Values) -> None:
            values[name], set_at[name] = value, moment

        self._change(change, listener)
        return is_new

    def delete(self, name: str, listener: Listener) -> None:
        """Delete a secret. Raises NoSuchSecret, StackLocked, StackError."""
        if name not in self.set_at:
            raise no_such_secret(name, self.set_at, self.project)

        def change(values: Values, set_at: Values) -> None:
            values.pop(name, None)
            set_at.pop(name, None)

        self._change(change, listener)

    def _change(self, change: Callable[[Values, Values], None], listener: Listener) -> None:
        """Apply a change while the engine holds the stack."""
        stack = self._stack

        def up() -> None:
            recover(stack, listener)
            if not stack.exists:
                init(stack)
            words = ["up", "--yes", "--skip-preview", "--refresh=false"]
            engine(stack, words, EngineCall(listener, planning=True), lambda: _register(change))

        try:
            when_free(stack, listener, up)
        except StackLocked as error:
            raise StackLocked(
                "the secrets of this project are being changed by somebody else",
                where=error.where,
                hint=error.hint,
                code=error.code,
            ) from error
        except EngineFailed as error:
            raise _not_changed(error) from error


def _register(change: Callable[[Values, Values], None]) -> None:
    """The program of the stack: what it has, changed."""
    import pulumi

    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    answer = pulumi.runtime.invoke("pulumi:pulumi:readStackOutputs", {"name": name}).value or {}
    outputs: dict[str, Any] = refuse_newer(answer.get("outputs") or {})
    values, set_at = dict(outputs.get("values") or {}), dict(outputs.get("set_at") or {})
    change(values, set_at)
    pulumi.export("orch", {"version": __version__, "schema": SCHEMA})
    pulumi.export("set_at", set_at)
    pulumi.export("values", pulumi.Output.secret(values))


def _not_changed(error: EngineFailed) -> StackError:
    if "passphrase" in (error.detail or ""):
        return StackError(
            "the secrets of this project cannot be decrypted, so none can be set",
            detail=error.detail,
            hint="the passphrase or secrets provider of the state is needed",
            code="ORCH354",
        )
    return StackError(
        "the secrets of this project were not changed", detail=error.detail, hint=error.hint, code=error.code
    )


def _check(name: str, value: str) -> None:
    try:
        check_secret_name(name)
    except Problem as problem:
        raise BadSecret(problem.summary, hint=problem.hint, code=problem.code) from problem
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise BadSecret(
            f"the value of {name} is no text in UTF-8",
            hint="set its base64 form, and decode it in the job",
        ) from None
    if not value:
        raise BadSecret(f"the value of {name} is empty", hint="`orch secret delete` removes a secret")
    if "\0" in value:
        raise BadSecret(
            f"the value of {name} holds a NUL character, which no variable can",
            hint="set its base64 form, and decode it in the job",
        )
    if size > LARGEST:
        raise BadSecret(
            f"the value of {name} has {size:,} bytes, a secret has {LARGEST:,} at most",
            hint="keep large files elsewhere, and set the key to them as the secret",
        )


def no_such_secret(name: str, known: Collection[str], project: Project) -> NoSuchSecret:
    """The error for a secret that is not set."""
    close = hint_for(name, known)
    set_it = f"`orch secret set {name}`"
    return NoSuchSecret(
        f"secret {shown(name)} is not set in this project",
        where=str(project.root),
        hint=f"{close} Else {set_it}" if close else f"set it: {set_it}",
        code="ORCH172",
    )


def known_names(project: Project, *, local_only: bool = False) -> frozenset[str] | None:
    """Names of the secrets of a project. `local_only`: without the engine or a network, None where the state
    is not in files of this machine."""
    store = SecretStore(project)
    if local_only:
        state = store.project.local_state
        if state is None or not state.is_dir() or not in_plain_files(store.project, STACK):
            return None
    return frozenset(store.set_at)


def with_secrets(project: Project, fleet: Fleet) -> Fleet:
    """A fleet with the secrets that its nodes are made with: in variables of `init` and options of mounts.

    Those in `env` stay references: jobs get them when they start. A name that is not set stays one too;
    where it matters, loading the file has refused it. Raises StackError.
    """
    texts = [text for step in fleet.init for text in step.env.values() if text is not None]
    texts += [mount.options for mount in fleet.mounts if mount.options is not None]
    if not any("${{" in text for text in texts):
        return fleet
    store = SecretStore(project)
    values = store.values(secret_names(*texts) & set(store.set_at))

    def fill(text: str | None) -> str | None:
        return None if text is None else fill_secrets(text, values)

    init_steps = tuple(
        step.model_copy(update={"env": {key: fill(text) for key, text in step.env.items()}})
        for step in fleet.init
    )
    mounts = tuple(mount.model_copy(update={"options": fill(mount.options)}) for mount in fleet.mounts)
    return fleet.model_copy(update={"init": init_steps, "mounts": mounts})


def backends_with_secrets(project: Project) -> tuple[BackendSettings, ...]:
    """The backends of a project with the secrets that their credentials name.

    In a rehearsal they stay references: simulated clouds look at no key. Raises NoSuchSecret, StackError.
    """
    if project.rehearsal:
        return project.backends
    names = frozenset[str]().union(*(secret_names(*_texts(each)) for each in project.backends))
    if not names and not any("${{" in text for each in project.backends for text in _texts(each)):
        return project.backends
    values = SecretStore(project).values(names)
    return tuple(_filled(each, values) for each in project.backends)


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
