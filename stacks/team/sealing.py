"""A stack's state under another key, or in another place: read in clear into memory, and written encrypted.

`pulumi stack import` encrypts by the secrets provider that the deployment names, so that one is made first,
by an empty stack in a scratch folder: the engine then knows its salt, or its data key. Nothing in clear
touches a disk. A new passphrase seals all stacks of a project anew.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from orch.runner.private import write_private
from orch.spec.errors import OrchError
from orch.spec.suggest import counted
from orch.stacks.errors import ProjectError, StackError
from orch.stacks.project import Project
from orch.stacks.pulumi.leases import refuse_leased, release, take
from orch.stacks.pulumi.locks import subject
from orch.stacks.pulumi.operation import Activity, Listener, init, plain
from orch.stacks.pulumi.recovery import recover
from orch.stacks.state import StackState, match_settings, settings_file, stacks
from orch.stacks.team.change_log import undertaken
from orch.stacks.team.passphrase import UNREADABLE, VARIABLES, is_given, new_file


@dataclass(frozen=True)
class Seal:
    """A key for the secrets of a stack: the stack's settings file, and what its state says of it."""

    settings: str
    provider: Mapping[str, Any]


def new_seal(project: Project, stack: str) -> Seal:
    """A key for a stack: of the project's secrets provider, else of its passphrase. Raises StackError."""
    with tempfile.TemporaryDirectory(prefix="seal-", dir=project.dot) as name:
        scratch = replace(project, root=Path(name), state_url=f"file://{name}/state")
        scratch.prepare()
        if project.passphrase_file.exists():
            shutil.copy(project.passphrase_file, scratch.passphrase_file)
        init(StackState(scratch, stack))
        settings = settings_file(scratch, stack).read_text("utf-8")
    return Seal(settings, _provider(settings, stack))


def _provider(settings: str, stack: str) -> Mapping[str, Any]:
    found = yaml.safe_load(settings) or {}
    if "encryptionsalt" in found:
        return {"type": "passphrase", "state": {"salt": found["encryptionsalt"]}}
    if "encryptedkey" in found and "secretsprovider" in found:
        return {
            "type": "cloud",
            "state": {"url": found["secretsprovider"], "encryptedkey": found["encryptedkey"]},
        }
    raise StackError(
        f"the engine made no key for the stack {stack}", detail=", ".join(found) or "no settings"
    )


def read_clear(stack: StackState) -> dict[str, Any]:
    """A stack's state with its secrets in clear. Raises StackError."""
    return json.loads(plain(stack, ["stack", "export", "--show-secrets"]).stdout)


def write_sealed(stack: StackState, clear: Mapping[str, Any], seal: Seal) -> None:
    """Write a state under a key, and make the stack where it is not there. Raises StackError."""
    write_private(settings_file(stack.project, stack.name), seal.settings)
    if not stack.exists:
        init(stack)
    deployment = {**clear["deployment"], "secrets_providers": seal.provider}
    write_clear(stack, {**clear, "deployment": deployment})


def write_clear(stack: StackState, clear: Mapping[str, Any]) -> None:
    """Write a state under the key that it names. Raises StackError."""
    plain(stack, ["stack", "import"], stdin=json.dumps(clear))


def require_equal(stack: StackState, clear: Mapping[str, Any]) -> None:
    """Raises StackError where a stack is not as it was read, in clear."""
    written, wanted = (_comparable(each) for each in (read_clear(stack), clear))
    if written != wanted:
        raise StackError(
            f"the state of {stack.name} is not as it was read",
            where=stack.project.state_url,
            hint="the former state is unchanged; please report this",
        )


def _comparable(clear: Mapping[str, Any]) -> dict[str, Any]:
    """What of a state is the same wherever it lies."""
    left_out = ("manifest", "secrets_providers", "metadata")
    kept = {key: value for key, value in clear["deployment"].items() if key not in left_out}
    return {key: value for key, value in kept.items() if value}


def resources_of(clear: Mapping[str, Any]) -> dict[str, str]:
    """Urn -> id of what a state has."""
    found = clear["deployment"].get("resources") or ()
    return {str(each["urn"]): str(each.get("id", "")) for each in found}


@contextmanager
def with_passphrase(text: str | None) -> Iterator[None]:
    """The passphrase of the environment while the block runs; None: that of the project's file."""
    before = {name: os.environ.pop(name) for name in VARIABLES if name in os.environ}
    if text is not None:
        os.environ[VARIABLES[0]] = text
    try:
        yield
    finally:
        for name in VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(before)


# As long as a rotation of the passphrase may take at most: a lease of it that nobody releases is over then.
_ROTATION_S = 3600


def plan_rotation(project: Project) -> tuple[str, ...]:
    """The stacks whose secrets get the new passphrase. Raises ProjectError (none encrypts them), Leased."""
    if project.secrets_provider is not None:
        raise ProjectError(
            "no passphrase encrypts the secrets of this state",
            where=project.secrets_provider,
            hint="rotate that key where it is kept; what it encrypts need not be written anew",
            code="ORCH301",
        )
    names = tuple(stacks(project))
    for name in names:
        refuse_leased(StackState(_as_rotation(project), name))
    return names


def rotate_passphrase(project: Project, given: str | None, listener: Listener) -> Path | None:
    """Encrypt the secrets of all stacks with a new passphrase; the file that has it, None for a given one.

    `given`: the new one, where the environment has the old one. The same call goes on with one that was
    killed. Raises Leased, StackLocked, StackError, ProjectError.
    """
    if (given is not None) != is_given():
        raise ProjectError(
            "the passphrase comes from the environment, and the new one does not"
            if given is None
            else "the passphrase is a file of this folder, and so is the new one",
            where=next((name for name in VARIABLES if is_given()), str(project.passphrase_file)),
            hint="`--new-from FILE` has the new one" if given is None else "leave out `--new-from`",
            code="ORCH301",
        )
    names = plan_rotation(project)
    own = _as_rotation(project)
    with undertaken(project, "rotate passphrase", project.name, holds=("state",)) as journal:
        if given is None:
            journal.step("", "new passphrase", lambda: _make_passphrase(project))
        new = given if given is not None else _new_passphrase(project)
        for name in names:
            stack = StackState(own, name)
            listener(Activity(f"encrypting the {subject(name)} anew"))
            journal.step("", f"seal {name}", lambda s=stack: _seal_anew(s, new, listener))
        if given is None:
            journal.step("", "keep", lambda: _keep_passphrase(project))
        journal.result = f"{counted(len(names), 'stack')} encrypted anew"
    return project.passphrase_file if given is None else None


def _as_rotation(project: Project) -> Project:
    """The project with the rotation as who changes its stacks: one that was killed has its leases still."""
    return replace(project, owner="the rotation of the passphrase")


def _make_passphrase(project: Project) -> None:
    """Make the new passphrase, kept beside the old one until all is encrypted with it."""
    if not new_file(project).exists():
        write_private(new_file(project), secrets.token_urlsafe(32))


def _new_passphrase(project: Project) -> str:
    """The new passphrase. A call that was killed at its very end had put it in the place of the old one."""
    file = new_file(project)
    return (file if file.exists() else project.passphrase_file).read_text("utf-8")


def _keep_passphrase(project: Project) -> None:
    if new_file(project).exists():
        new_file(project).replace(project.passphrase_file)


def _seal_anew(stack: StackState, new: str, listener: Listener) -> None:
    """Encrypt a stack anew, unless a call that was killed has done so, or the engine that it left behind."""
    match_settings(stack)
    if not _readable(stack, new):
        taken = False
        try:
            recover(stack, listener)
            take(stack, stack.project.owner, _ROTATION_S, listener)
            taken = True
            clear = read_clear(stack)
            with with_passphrase(new):
                write_sealed(stack, clear, new_seal(stack.project, stack.name))
                require_equal(stack, clear)
        except OrchError as error:
            stack.invalidate()
            match_settings(stack)
            if not _readable(stack, new):
                if taken:
                    release(stack, stack.project.owner, listener)
                raise
            if error.code != UNREADABLE:  # else it was written anew since it was read
                raise
    # Also by an engine that a killed call left behind, a moment ago.
    stack.invalidate()
    match_settings(stack)
    with with_passphrase(new):
        release(stack, stack.project.owner, listener)


def _readable(stack: StackState, passphrase: str) -> bool:
    with with_passphrase(passphrase):
        try:
            read_clear(stack)
        except StackError as error:
            if error.code != UNREADABLE:
                raise
            return False
    return True
