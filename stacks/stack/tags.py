"""Tags of a stack: short texts that lie beside the state, wherever that is, for every machine."""

from __future__ import annotations

import json
from collections.abc import Mapping

from orch.stacks.stack.state import StackState
from orch.stacks.stack.unguarded import run_command


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
    return json.loads(run_command(stack, ["stack", "tag", "ls", "--json"]).stdout or "{}")
