"""Commands of the engine on a stack that are no operations on resources; refused while its state is held."""

from __future__ import annotations

from orch.stacks.engine.process import ProcessResult
from orch.stacks.stack.leases import refuse_held, refuse_new
from orch.stacks.stack.lock_holders import changes_stack
from orch.stacks.stack.state import StackState
from orch.stacks.stack.unguarded import run_command


def plain(stack: StackState, words: list[str], stdin: str | None = None) -> ProcessResult:
    """Run a command of the engine that is no operation on resources.

    Raises Leased, StackLocked, StackError.
    """

    def refuse() -> None:
        # Elsewhere it is a network call: operations look, and `init`.
        if stack.project.local_state is not None and changes_stack(words):
            refuse_held(stack)

    return run_command(stack, words, stdin, before=refuse)


def init(stack: StackState) -> None:
    """Create a stack. Raises Leased while a move or a rotation holds the state, StackLocked, StackError."""
    provider = stack.project.secrets_provider
    made = plain(stack, ["stack", "init", *(["--secrets-provider", provider] if provider else [])])
    if stack.project.local_state is None and not made.code:
        refuse_new(stack)
        stack.tags_read = {}


def set_tag(stack: StackState, name: str, value: str) -> None:
    """Raises StackError."""
    plain(stack, ["stack", "tag", "set", name, value])
    stack.tags_read = None


def remove_tag(stack: StackState, name: str) -> None:
    """Raises StackError."""
    plain(stack, ["stack", "tag", "rm", name])
    stack.tags_read = None
