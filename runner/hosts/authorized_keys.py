"""Public keys that open a node, changed on the node itself: a new one beside the old one, and the old one
taken away. The keys of others in the same files are left as they are."""

from __future__ import annotations

from typing import Literal

from orch.runner.node_api.commands import Command, as_root
from orch.templates import render

LACKS = 44
"""Exit code: no file that says who may log in has either key."""

ALONE = 45
"""Exit code: a file has the key that is to go, and not the one that is to stay."""

_OTHERS = ("/etc/orch/authorized_keys", "/var/lib/orch/ssh/authorized_keys")
"""Where nodes that are containers have theirs: their sshd is told so on its command line."""


def look(user: str, present: str) -> Command:
    """Whether a file of a node has this public key for this login: exit code 0, or LACKS."""
    return _command("look", "look for the key", user, present, present)


def add(user: str, present: str, new: str) -> Command:
    """Let a new key in wherever the present one is. Idempotent; exit code LACKS where it is nowhere."""
    return _command("add", "let the new key in", user, present, new)


def remove(user: str, old: str, stays: str) -> Command:
    """Take a key away wherever it is. Idempotent; exit code ALONE where the one that stays is not beside it,
    and then nothing is changed there."""
    return _command("remove", "take the old key away", user, old, stays)


def _command(
    what: Literal["look", "add", "remove"], label: str, user: str, present: str, other: str
) -> Command:
    text = render(
        "host-key-change.sh.j2",
        what=what,
        user=user,
        present=_blob(present),
        other=_blob(other),
        line=other.strip(),
        others=_OTHERS,
        lacks=LACKS,
        alone=ALONE,
    )
    return Command(as_root(text), label, timeout_s=60.0)


def _blob(line: str) -> str:
    """What tells a public key from others: its second word."""
    return line.split()[1]
