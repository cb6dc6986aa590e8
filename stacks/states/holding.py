"""A hold of the whole state: a move of it, and a rotation of its passphrase, read the list of stacks and
change all of them. What somebody else created meanwhile would be lost.

The hold is the lease of a stack of its own (`HOLD`; see `stacks/stack/leases.py`), which each command that
changes a stack looks at. A command that looked just before it was taken is waited for: in a state in files by
the note of its start, elsewhere by a pause in which it has taken the lock of its stack.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from orch.runner.processes import Process
from orch.spec.errors import OrchError
from orch.stacks.engine.process import pause
from orch.stacks.project.passphrase import VARIABLES
from orch.stacks.project.project import Project
from orch.stacks.pulumi.leasing import take
from orch.stacks.pulumi.progress import Activity, Listener
from orch.stacks.record.change_log import is_over
from orch.stacks.stack.command import plain
from orch.stacks.stack.leases import FOR_GOOD_S, lease_of
from orch.stacks.stack.lock_holders import SOON_S, starting
from orch.stacks.stack.locks import stack_locked, subject
from orch.stacks.stack.state import HOLD, StackState, settings_file

HOLD_S = 3600
"""How long a killed change holds the state. One at work extends it."""
SETTLE_S = 10.0
"""How long a state elsewhere is left alone after it was taken: an engine takes its lock in less time."""
PAUSE_S = 0.2


class Hold:
    """The hold of a state by the owner of its project."""

    def __init__(self, project: Project, listener: Listener) -> None:
        self._stack, self._listener = _hold_of(project), listener
        self._taken_at, self._for_good = 0.0, False

    def take(self) -> None:
        """Take the hold, or one's own for longer, and wait for calls that began before. Raises Leased,
        StackLocked, StackError."""
        self._take(HOLD_S)
        self._wait()

    def extend(self) -> None:
        """Extend the hold, once a quarter of it is over. Raises as `take`."""
        if time.time() > self._taken_at + HOLD_S / 4:  # as leases count: also while the machine sleeps
            self._take(HOLD_S)

    def keep_for_good(self) -> None:
        """Leave the hold where it is: the state has moved away. Raises as `take`."""
        self._take(FOR_GOOD_S)
        self._for_good = True

    def release(self) -> None:
        """Remove the hold, unless it is somebody else's by now: one's own had run out. Raises StackLocked,
        StackError."""
        self._stack.invalidate()
        lease = lease_of(self._stack)
        if self._stack.exists and (lease is None or lease.owner == self._stack.project.owner):
            plain(self._stack, ["stack", "rm", "--yes"])
            settings_file(self._stack.project, HOLD).unlink(missing_ok=True)

    @property
    def is_for_good(self) -> bool:
        """Return True if this process has moved the state away."""
        return self._for_good

    def _take(self, seconds: int) -> None:
        self._taken_at = time.time()
        take(self._stack, self._stack.project.owner, seconds, self._listener)
        self._stack.invalidate()

    def _wait(self) -> None:
        project = self._stack.project
        if project.local_state is None:
            self._listener(Activity("waiting for calls that began before"))
            pause(SETTLE_S)
            return
        ends = time.monotonic() + SOON_S
        while others := [each for each in starting(project) if each[0] != HOLD]:
            if time.monotonic() > ends:
                raise stack_locked(others[0][0], _words(others[0][1]))
            self._listener(Activity(f"waiting for the {subject(others[0][0])}: {_words(others[0][1])}"))
            pause(PAUSE_S)


def _hold_of(project: Project) -> StackState:
    """The stack of the hold. It has no secret: everybody opens it, whatever encrypts the others."""
    variables = {**project.variables, VARIABLES[0]: HOLD}
    return StackState(replace(project, secrets_provider=None, variables=variables), HOLD)


def _words(holder: Process) -> str:
    return f"process {holder.pid} has begun to change it"


@contextmanager
def state_held(project: Project, listener: Listener) -> Iterator[Hold]:
    """Hold the state for the project's owner while the block lasts: nobody else changes or creates a stack.

    A killed call leaves the hold, for its next call. Raises Leased, StackLocked, StackError.
    """
    hold = Hold(project, listener)
    hold.take()
    try:
        yield hold
    except OrchError as error:
        if not is_over(error):
            with suppress(OrchError):
                hold.release()
        raise
    if not hold.is_for_good:
        hold.release()


def forget_former_move(project: Project, listener: Listener) -> None:
    """Remove the hold that a move from here has left, where the state comes back. Raises StackError."""
    lease = lease_of(_hold_of(project))
    if lease is not None and lease.is_for_good:
        Hold(replace(project, owner=lease.owner), listener).release()
