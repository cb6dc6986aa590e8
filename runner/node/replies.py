"""What a node answers is a stranger's text: what of it is read as a word or a number is checked first."""

from __future__ import annotations

import re

from orch.runner.errors import RunFailed
from orch.runner.ssh.transport import Completed

# What Docker calls the states of a container, and our word for none.
STATES = frozenset({"created", "running", "paused", "restarting", "removing", "exited", "dead", "absent"})
NUMBER = re.compile(r"[0-9]{1,9}")


def number(done: Completed, key: str, text: str, least: int, most: int) -> int:
    """A number that a node said. Raises RunFailed."""
    if not NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise RunFailed(
            f"node {done.node} answered with something else than what was asked",
            where=done.node,
            detail=f"it said {key}={text[:80]}: a number from {least} to {most} is expected",
            hint="look for what changes the output of commands there, such as a wrapper of its shell",
            reason="creating_container_error",
        )
    return int(text)
