"""Registration of an existing host: orch adds its own folder and the fleet's public keys, and removes both.

Never Docker, drivers or settings of the host. Several fleets, also of several people, may be registered on
one host; the last one to leave takes the folder with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from orch.runner.node_api.claims import ABANDONED_AFTER_S
from orch.runner.node_api.commands import NODE_HOME, Command, as_root
from orch.runner.preparation.mounts import unmount
from orch.templates import render

BUSY = 40
"""Exit code of `leave` when jobs run on the host; its output is the claim of one of them."""

FORCED = "ORCH_FORCED"
"""Environment variable: hosts are unregistered although jobs run on them; the jobs are stopped."""


def registration_id(stack: str) -> str:
    """The id of a stack on its hosts: 12 hex digits."""
    return hashlib.sha256(stack.encode()).hexdigest()[:12]


def mark(stack: str) -> str:
    """The comment at the end of the stack's public keys on its hosts (`host-authorize.sh.j2`)."""
    return f"orch:{registration_id(stack)}"


def enter(stack: str, user: str, authorized_keys: Sequence[str]) -> Command:
    """Register the stack on a host and authorize its keys. Idempotent."""
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
    """Unregister the stack and remove all that it added to the host. Exit code BUSY when jobs run there.

    With `force` those jobs are stopped, unless the host stays in other fleets.
    """
    text = render(
        "host-unregister.sh.j2",
        home=NODE_HOME,
        registration=registration_id(stack),
        user=user,
        authorized_keys=(),
        busy=BUSY,
        left_after_s=ABANDONED_AFTER_S,
        force=force,
        unmount=unmount(registration_id(stack)),
    )
    return Command(as_root(text), "leave the host", timeout_s=120.0)
