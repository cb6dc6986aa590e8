"""Tags of a stack: short texts that lie beside the state, wherever that is, for every machine."""

from __future__ import annotations

import json
from collections.abc import Mapping

from orch.stacks.pulumi.operation import plain
from orch.stacks.state import StackState


def read_tags(stack: StackState) -> Mapping[str, str]:
    """The tags as they are now. A state in files has them in one of their own, any other is asked through the
    engine. Raises StackError."""
    stack.tags_read = _read(stack)
    return stack.tags_read


def last_tags(stack: StackState) -> Mapping[str, str]:
    """The tags as the operation under way has read them; read now where it has not. Raises StackError."""
    return read_tags(stack) if stack.tags_read is None else stack.tags_read


def _read(stack: StackState) -> Mapping[str, str]:
    checkpoint = stack.project.checkpoint(stack.name)
    if checkpoint is not None:
        try:
            data = json.loads(checkpoint.with_name(f"{stack.name}.pulumi-tags").read_text())
            return {str(key): str(value) for key, value in data["tags"].items()}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError):
            pass  # half written, or of another engine: that one reads it
    if not stack.exists:
        return {}
    return json.loads(plain(stack, ["stack", "tag", "ls", "--json"]).stdout or "{}")


def set_tag(stack: StackState, name: str, value: str) -> None:
    """Raises StackError."""
    plain(stack, ["stack", "tag", "set", name, value])
    stack.tags_read = None


def remove_tag(stack: StackState, name: str) -> None:
    """Raises StackError."""
    plain(stack, ["stack", "tag", "rm", name])
    stack.tags_read = None
