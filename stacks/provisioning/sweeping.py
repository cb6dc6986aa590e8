"""What nobody is there to remove: fleets whose time is over, and what killed calls left."""

from __future__ import annotations

import time
from dataclasses import dataclass

from orch.components.lifetime import is_over
from orch.spec.errors import OrchError
from orch.stacks import operations
from orch.stacks.errors import Interrupted
from orch.stacks.project import Project
from orch.stacks.provisioning.kept_data import is_protected
from orch.stacks.pulumi.locks import locks
from orch.stacks.pulumi.operation import Listener
from orch.stacks.pulumi.recovery import recover
from orch.stacks.state import StackState, stacks


@dataclass(frozen=True)
class Swept:
    """What a sweep did to a fleet, or why it could not."""

    fleet: str
    done: str
    error: OrchError | None = None


def sweep(project: Project, listener: Listener) -> tuple[Swept, ...]:
    """Remove fleets whose time is over, and what killed calls left of others; those that nobody changes now.

    A fleet that is protected stays, and so does one with file systems of its own: data goes by the user's
    word alone.
    """
    done: list[Swept] = []
    for name in stacks(project):
        if "." in name:
            continue
        stack, present = StackState(project, name), locks(project, name)
        if any(not lock.dead for lock in present):
            continue
        try:
            if is_over(stack.outputs.get("pins") or {}, time.time()) and not is_protected(stack):
                if stack.file_systems:
                    done.append(Swept(name, f"its time is over; `orch down {name}` removes it with its data"))
                    continue
                recover(stack, listener)
                operations.down(project, name, listener)
                done.append(Swept(name, "its time is over: removed"))
            elif present or (stack.recorded or {}).get("pending_operations"):
                recover(stack, listener)
                done.append(Swept(name, "what a killed call left is cleared"))
        except Interrupted:
            raise
        except OrchError as error:
            done.append(Swept(name, "not swept", error))
    return tuple(done)
