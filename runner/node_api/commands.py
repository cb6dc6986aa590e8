"""Commands for a node, as values: shell text with a rendering that is safe to show.

A command never carries a secret in its text, for that is visible to everyone on the node; secrets and files
travel in `stdin`, which is not part of the rendering.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from orch.templates import ShellText

# The state of runs on a node: `claims/BLOCK` and `runs/CONTAINER/`.
NODE_HOME = "/var/lib/orch"
# How long a node waits for another job, in seconds, where the run that it was made for says so.
IDLE_AFTER = f"{NODE_HOME}/idle-after"


@dataclass(frozen=True)
class Command:
    """One POSIX shell text for one node.

    `stdin` is bytes, or a source that can be iterated anew for a second try.
    """

    text: str
    label: str = ""
    stdin: bytes | StdinSource | None = field(default=None, repr=False)
    timeout_s: float | None = 60.0

    def __str__(self) -> str:
        text = self.label or self.text
        return f"{text} (with input)" if self.stdin is not None else text


@dataclass(frozen=True)
class StdinSource:
    """Input that is produced while it is sent, such as an image of gigabytes."""

    chunks: Iterable[bytes]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.chunks)


def argv(*words: str | int) -> ShellText:
    """Words as one shell-quoted text."""
    return ShellText(shlex.join(str(word) for word in words))


def as_root(script: str) -> str:
    """`script` run by root's `sh`: directly, or through `sudo` where the login is somebody else.

    The claims and stage directories of a node are root's, and so is the Docker socket on most hosts.
    Messages are in English, for some are read.
    """
    quoted = shlex.quote(f"LC_ALL=C; export LC_ALL\n{script}")
    return f'if [ "$(id -u)" = 0 ]; then exec sh -c {quoted}; else exec sudo -n sh -c {quoted}; fi'


LOOKUP = ShellText(
    """\
# One at a time looks at the trees or changes them, where the host has flock(1).
locked=
lock() { ! command -v flock >/dev/null 2>&1 || { exec 6>"$F/lock" && flock -w 120 6 && locked=1; }; }
unlock() { [ -z "$locked" ] || exec 6>&-; }
boot() { cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo none; }
# Whether a tree is on the disk as it was sent: written since the machine started, or before it was told so.
whole() { [ -e "$1/synced" ] || [ "$(cat "$1/boot" 2>/dev/null)" = "$(boot)" ]; }
"""
)
"""Shell functions of scripts that look at the trees of files on a node (`upload/send.py` brings them)."""
