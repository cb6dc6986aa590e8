"""Names in a Lambda account: what tells whose something is. Pure.

Instances have tags, which bear the stack's mark too; SSH keys, file systems and firewall rules have a name or
a description alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any

from orch.components.cloud import marked

MOST = 60
"""Letters of a name. Source: Lambda Cloud API 1.10: 60 of a filesystem's, 64 of an instance's."""

TAG = "orch:stack"
"""The key of the tag with an instance's mark. Source: RequestedTagEntry, `^[a-z][a-z0-9-:]+$`."""

_SPELLED = re.compile(r"(?P<name>orch-.+)-(?P<scope>[0-9a-f]{6})-(?P<digest>[0-9a-f]{8})(-[0-9a-f]{6})?")
_OVERHEAD = len("-abc123-01234567-012345")


def cloud_name(name: str, mark: str, spec: Mapping[str, Any] | None = None) -> str:
    """The name in the account of what has a stack's mark: with its scope, a digest of the mark, and with
    `spec` one of what was asked for. A long name loses its end to a digest of itself."""
    most = MOST - _OVERHEAD
    if len(name) > most:
        name = f"{name[: most - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return marked.cloud_name(f"{name}-{mark.rpartition('/')[2]}", mark, spec)


def is_ours(name: str) -> bool:
    """Whether a name is one that orch gives."""
    return _SPELLED.fullmatch(name) is not None


def mark_of(name: str, project: str, marks: Collection[str] = ()) -> str | None:
    """The mark that a name bears: one of `marks`, or of a stack of the project that nobody knows any more;
    None where it is another project's, or none of orch's. A fleet's stack has its name."""
    found = _SPELLED.fullmatch(name)
    if found is None:
        return None
    words = found["name"].removeprefix("orch-").split("-")
    stacks = ("-".join(words[:count]) for count in range(len(words), 0, -1))
    spelled = (f"{project}/{stack}/{found['scope']}" for stack in stacks)
    return next((each for each in (*marks, *spelled) if marked.stack_digest(each) == found["digest"]), None)
