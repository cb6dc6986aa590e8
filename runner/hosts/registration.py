"""What orch puts on an existing host and takes away again: a folder of its own, and the fleet's public keys.

Never Docker, drivers or settings of the host. Several fleets, also of several people, may be registered on
one host; the last one to leave takes the folder with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from orch.runner.node.claims import LEFT_AFTER_S
from orch.runner.node.commands import NODE_HOME, Command, as_root
from orch.templates import render

BUSY = 40
"""Exit code of `leave` when jobs run on the host; its output is the claim of one of them."""

FORCED = "ORCH_FORCED"
"""Set where hosts are to be left although jobs run on them: those jobs are ended."""


def registration_id(stack: str) -> str:
    """The mark of a stack on its hosts: 12 hex digits."""
    return hashlib.sha256(stack.encode()).hexdigest()[:12]


def mark(stack: str) -> str:
    """What ends the lines of the stack's public keys on its hosts (`host-authorize.sh.j2`)."""
    return f"orch:{registration_id(stack)}"


def enter(stack: str, user: str, authorized_keys: Sequence[str]) -> Command:
    """Register the stack on a host and let its keys in. Repeating it changes nothing."""
    text = render(
        "host-register.sh.j2",
        home=NODE_HOME,
        registration=registration_id(stack),
        label=stack,
        user=user,
        authorized_keys=tuple(authorized_keys),
    )
    return Command(as_root(text), "register the host")


def leave(stack: str, user: str, *, force: bool = False) -> Command:
    """Take the stack off a host and leave it as it was found; exit code BUSY when jobs run on it.

    With `force` those jobs are ended, unless the host stays in other fleets.
    """
    text = render(
        "host-unregister.sh.j2",
        home=NODE_HOME,
        registration=registration_id(stack),
        user=user,
        authorized_keys=(),
        busy=BUSY,
        left_after_s=LEFT_AFTER_S,
        force=force,
    )
    return Command(as_root(text), "leave the host", timeout_s=120.0)
