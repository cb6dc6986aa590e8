"""File systems that hold data: the engine deletes or replaces none without the user's word.

Each is registered with Pulumi's `protect`, so that the engine refuses too, whoever calls it. What the user
has agreed to lose is unprotected first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from orch.components.deployment import Deployment
from orch.components.file_systems import gone, words_of
from orch.components.request import DATA_TYPES
from orch.spec.findings import PlanErrors
from orch.stacks.errors import EngineFailed, StackError
from orch.stacks.events.changes import changes
from orch.stacks.plans.program import program
from orch.stacks.provisioning.shared_networks import preview_shared
from orch.stacks.pulumi.operation import EngineCall, engine, require_confirmed
from orch.stacks.stack.command import plain
from orch.stacks.stack.state import StackState

PROTECTED = ("it is protected", "marked for protection")
"""The engine's words where it refuses to delete or to replace a protected resource."""


def unprotect(stack: StackState, urns: Collection[str]) -> None:
    """Let the engine delete these resources. Raises StackError, StackLocked, OtherAccount."""
    protected = {each["urn"] for each in stack.resources if each.get("protect")}
    if chosen := sorted(protected & set(urns)):
        require_confirmed(stack, lambda _: None)
    for urn in chosen:
        plain(stack, ["state", "unprotect", urn, "--yes"])


def unprotect_agreed(stack: StackState, lose_data: Collection[str]) -> None:
    """Let the engine delete the file systems at these paths, as the user has agreed."""
    unprotect(stack, [each.urn for each in stack.file_systems if each.path in lose_data])


def is_protected(stack: StackState) -> bool:
    """Return True if a fleet is protected; file systems with data always are."""
    return any(each.get("protect") and each["type"] not in DATA_TYPES for each in stack.resources)


def compare(
    stack: StackState, compiled: Deployment, words: list[str], lose_data: Collection[str], run: EngineCall
) -> None:
    """Have the engine plan what `compiled` changes, after a refresh: `run` gets the events.

    Raises StackError when a recorded file system would be deleted or replaced, and PlanErrors when one is
    gone and would be made anew, unless the paths `lose_data` have it; and what the engine raises.
    """
    recorded = {each.urn: each for each in stack.file_systems}
    if compiled.shared is not None:
        preview_shared(stack, compiled.shared, run)
    with explained(stack):
        engine(stack, ["preview", *words], run, program(compiled))
    for change in changes(run.events):
        each = recorded.get(change.urn)
        if each is None or each.path in lose_data:
            continue
        if change.op == "create":
            raise PlanErrors([gone(each.path, "mounts")])
        if change.op in ("delete", "replace"):
            raise _refused(stack, f"{words_of(each)} would be {change.op}d, and all data on it lost", None)


@contextmanager
def explained(stack: StackState) -> Iterator[None]:
    """Say of an engine's refusal to touch a protected file system what it would have done."""
    known = {each.urn: each for each in stack.file_systems}
    try:
        yield
    except EngineFailed as failed:
        for text in failed.errors.values():
            if any(words in text for words in PROTECTED):
                for urn, each in known.items():
                    if urn in text:
                        lost = f"{words_of(each)} would be deleted or replaced, and all data on it lost"
                        raise _refused(stack, lost, failed.detail) from failed
        raise


def _refused(stack: StackState, summary: str, detail: str | None) -> StackError:
    return StackError(
        summary,
        detail=detail,
        hint="write in `mounts` what the file system has now (`orch drift` tells what differs); "
        f"`orch down {stack.name}` deletes the fleet with its data",
        code="ORCH275",
    )
