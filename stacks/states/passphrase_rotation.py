"""A new passphrase for a project: the secrets in the states of all its stacks are encrypted anew.

A stack has the new passphrase when its salt proves it, never because it could be read: the record of a stack
without secrets is read with any passphrase. The former passphrase is kept until each stack of the project is
seen to have the new one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from orch.runner.private import write_private
from orch.runner.processes import here
from orch.spec.suggest import counted
from orch.stacks.errors import ProjectError, StackError
from orch.stacks.project.passphrase import (
    UNREADABLE,
    VARIABLES,
    former_file,
    is_given,
    key_file,
    new_file,
    opens,
)
from orch.stacks.project.project import Project
from orch.stacks.pulumi.leasing import release, take
from orch.stacks.pulumi.progress import Activity, Listener
from orch.stacks.pulumi.recovery import recover, when_free
from orch.stacks.record.change_log import Journal, undertaken
from orch.stacks.stack.leases import ROTATION, refuse_leased
from orch.stacks.stack.locks import break_dead_locks, subject
from orch.stacks.stack.state import HOLD, StackState, match_settings, stacks
from orch.stacks.states.holding import HOLD_S, Hold, state_held
from orch.stacks.states.sealing import new_seal, read_clear, require_equal, write_sealed

_MADE = "new passphrase"


def plan_rotation(project: Project) -> tuple[str, ...]:
    """The stacks whose secrets get the new passphrase. Raises ProjectError (none encrypts them), Leased."""
    if project.secrets_provider is not None:
        raise ProjectError(
            "no passphrase encrypts the secrets of this state",
            where=project.secrets_provider,
            hint="rotate that key where it is kept; what it encrypts need not be written anew",
            code="ORCH301",
        )
    own = _as_rotation(project)
    names = tuple(stacks(project))
    for name in (HOLD, *names):
        refuse_leased(StackState(own, name))
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
    plan_rotation(project)
    own = _as_rotation(project)
    with (
        undertaken(project, "rotate passphrase", project.name, holds=("state",)) as journal,
        state_held(own, listener) as hold,
    ):
        _require_readable(own, given)
        if given is None:
            journal.step("", _MADE, lambda: _make_passphrase(project))
        new = given if given is not None else _new_passphrase(project)
        sealed = _seal_all(own, new, journal, hold, listener)
        if given is None:
            _keep_passphrase(project)
            # Only now are all seen to have it: also what a `pulumi` by hand has made meanwhile.
            sealed |= _seal_all(own, new, journal, hold, listener)
            former_file(project).unlink(missing_ok=True)
        if project.local_state is None:
            for name in sealed:  # one that was killed has left its leases
                _release(StackState(own, name), new, listener)
        journal.result = f"{counted(len(sealed), 'stack')} encrypted anew"
    return project.passphrase_file if given is None else None


def _require_readable(own: Project, given: str | None) -> None:
    """Raises StackError (ORCH354) where a stack cannot be read with what is here, before any is changed: two
    clones could else encrypt some stacks each, and neither could finish."""
    for name in stacks(own):
        stack = StackState(own, name)
        if _has_key(stack, given):
            continue
        try:
            match_settings(stack)
            read_clear(stack)  # one without secrets is read with any passphrase
        except StackError:
            stack.invalidate()  # the engine that a killed call left behind may have encrypted it meanwhile
            if not _has_key(stack, given):
                raise


def _has_key(stack: StackState, given: str | None) -> bool:
    """Return True if a passphrase that is here is proved to be the stack's; with `given`, only that one
    counts."""
    if given is not None:
        return _has(stack, given)
    return stack.salt is None or key_file(stack.project, stack.salt) is not None


def _as_rotation(project: Project) -> Project:
    """The project with the rotation as who changes its stacks: one that was killed holds them still."""
    return replace(project, owner=f"{ROTATION} by {here()} in {project.root}")


def _make_passphrase(project: Project) -> None:
    """Make the new passphrase, kept beside the old one until all is encrypted with it."""
    if not new_file(project).exists() and not former_file(project).exists():
        write_private(new_file(project), secrets.token_urlsafe(32))


def _new_passphrase(project: Project) -> str:
    """The new passphrase. A call that was killed later had put it in the place of the old one."""
    file = new_file(project)
    return (file if file.exists() else project.passphrase_file).read_text("utf-8").strip()


def _keep_passphrase(project: Project) -> None:
    """Put the new passphrase in the place of the old one, which stays beside it."""
    if new_file(project).exists():
        if not former_file(project).exists():
            write_private(former_file(project), project.passphrase_file.read_text("utf-8"))
        new_file(project).replace(project.passphrase_file)


def _seal_all(own: Project, new: str, journal: Journal, hold: Hold, listener: Listener) -> frozenset[str]:
    """Encrypt all stacks that do not have the new passphrase, until none is left; the names of all."""
    while True:
        names = stacks(own)
        left = [name for name in names if not _has(StackState(own, name), new)]
        if not left:
            return frozenset(names)
        for name in left:
            hold.extend()
            listener(Activity(f"encrypting the {subject(name)} anew"))
            step, seal = f"seal {name}", partial(_seal_anew, StackState(own, name), new, listener)
            # One that is done may have been made anew since: the salt tells, not the journal.
            if journal.is_done("", step):
                seal()
            else:
                journal.step("", step, seal)


def _has(stack: StackState, passphrase: str) -> bool:
    """Return True if the salt of a stack proves the passphrase. A stack that is gone, or has a key of a
    secrets provider, needs none."""
    recorded = stack.recorded
    if recorded is None or (recorded.get("secrets_providers") or {}).get("type") not in (None, "passphrase"):
        return True
    return stack.salt is not None and opens(passphrase, stack.salt)


def _seal_anew(stack: StackState, new: str, listener: Listener) -> None:
    """Encrypt a stack anew, unless the engine that a killed call left behind has done so meanwhile."""
    renewed = _renewed(stack, new)
    with _left_alone(stack, new, listener):
        match_settings(stack)
        recover(stack, listener)
        stack.invalidate()
        if _has(stack, new):
            return
        try:
            clear = read_clear(stack)
            seal = new_seal(renewed.project, stack.name)
            write_sealed(renewed, clear, seal)
            require_equal(renewed, clear, seal)
        except StackError as error:
            stack.invalidate()
            match_settings(stack)
            if error.code != UNREADABLE or not _has(stack, new):
                raise


def _renewed(stack: StackState, new: str) -> StackState:
    """The stack as the engine opens it with the new passphrase."""
    variables = {**stack.project.variables, VARIABLES[0]: new}
    return StackState(replace(stack.project, variables=variables), stack.name)


@contextmanager
def _left_alone(stack: StackState, new: str, listener: Listener) -> Iterator[None]:
    """Wait for who is at work on a stack. The hold of the state keeps others away from one in files; another
    state tells it by a lease of the stack."""
    if stack.project.local_state is not None:
        when_free(stack, listener, lambda: break_dead_locks(stack.project, stack.name))
        yield
        return
    take(stack, stack.project.owner, HOLD_S, listener)
    try:
        yield
    finally:
        _release(stack, new, listener)


def _release(stack: StackState, new: str, listener: Listener) -> None:
    """Release the lease of a stack, with whichever passphrase it has now."""
    stack.invalidate()
    match_settings(stack)
    release(_renewed(stack, new) if _has(stack, new) else stack, stack.project.owner, listener)
