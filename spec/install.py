"""How to install what an extra of orch brings, without the name of orch: no index has it yet."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires

NAME = "orch-fleet"
"""The distribution. Nobody owns this name at an index, so no hint and no workflow installs it by name."""

UPGRADE = "upgrade orch the way it was installed: a newer wheel, or `git pull` in its checkout"


def requirements(extras: Iterable[str]) -> Iterator[str]:
    """Yield the requirements of orch and those that the extras add (`boto3>=1.35`); nothing if orch is not
    installed."""
    wanted = {*extras}
    try:
        listed = requires(NAME) or ()
    except PackageNotFoundError:
        return
    for each in listed:
        requirement, _, marker = each.partition(";")
        extra = re.search(r"extra\s*==\s*[\"']([\w-]+)[\"']", marker)
        if extra is None or extra[1] in wanted:
            yield requirement.strip()


def install_hint(extra: str) -> str:
    """The command that installs what an extra brings."""
    own = [each for each in requirements([extra]) if each not in {*requirements(())}]
    checkout = f"pip install -e '.[{extra}]'"
    return (
        f"pip install {shlex.join(own)}; in a checkout: {checkout}" if own else f"in a checkout: {checkout}"
    )
