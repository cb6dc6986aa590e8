"""A new passphrase for a project: the secrets in the states of all its stacks are encrypted anew."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from orch.runner.private import write_private
from orch.spec.errors import OrchError
from orch.spec.suggest import counted
from orch.stacks.errors import ProjectError, StackError
from orch.stacks.project import Project
from orch.stacks.pulumi.leases import refuse_leased, release, take
from orch.stacks.pulumi.locks import subject
from orch.stacks.pulumi.operation import Activity, Listener
from orch.stacks.pulumi.recovery import recover
from orch.stacks.state import StackState, match_settings, stacks
from orch.stacks.team.change_log import undertaken
from orch.stacks.team.passphrase import UNREADABLE, VARIABLES, is_given, new_file
from orch.stacks.team.sealing import new_seal, read_clear, require_equal, write_sealed

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
