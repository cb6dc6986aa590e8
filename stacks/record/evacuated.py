"""Zones that a fleet was moved out of: no new node goes there until somebody takes the zone back.

They are a tag of the fleet's stack, so that they lie beside any state, for every machine. What is there stays
there: `orch fleet evacuate` moves it.
"""

from __future__ import annotations

from collections.abc import Mapping

from orch.stacks.stack.command import remove_tag, set_tag
from orch.stacks.stack.state import StackState
from orch.stacks.stack.tags import last_tags, read_tags

TAG = "orch:evacuated"


def evacuated_zones(stack: StackState) -> frozenset[str]:
    """The zones as they are. Raises StackError."""
    return _zones(last_tags(stack))


def _zones(tags: Mapping[str, str]) -> frozenset[str]:
    return frozenset(tags.get(TAG, "").split())


def avoid(stack: StackState, zone: str) -> None:
    """Keep new nodes out of a zone. Raises StackError."""
    set_tag(stack, TAG, " ".join(sorted(_zones(read_tags(stack)) | {zone})))


def take_back(stack: StackState, zone: str) -> bool:
    """Let new nodes go to a zone again; False where they may already. Raises StackError."""
    zones = _zones(read_tags(stack))
    if zone not in zones:
        return False
    if others := zones - {zone}:
        set_tag(stack, TAG, " ".join(sorted(others)))
    else:
        remove_tag(stack, TAG)
    return True
