"""What nobody is there to remove: fleets whose time is over, what is left of nodes that ended themselves, and
what killed calls left."""

from __future__ import annotations

import time
from dataclasses import dataclass

from orch.components.idleness import resources_of
from orch.components.lifetime import is_over
from orch.runner.launch.environment import fold
from orch.spec.errors import OrchError
from orch.stacks import operations
from orch.stacks.errors import Interrupted
from orch.stacks.project import Project
from orch.stacks.provisioning.kept_data import is_protected
from orch.stacks.pulumi.changes import name_of
from orch.stacks.pulumi.locks import locks
from orch.stacks.pulumi.operation import Activity, EngineCall, ExpectedNodes, Listener, engine
from orch.stacks.pulumi.recovery import recover
from orch.stacks.request import ended_nodes_if_told
from orch.stacks.state import StackState, stacks


@dataclass(frozen=True)
class Swept:
    """What a sweep did to a fleet, or why it could not."""

    fleet: str
    done: str
    error: OrchError | None = None


def sweep(project: Project, listener: Listener) -> tuple[Swept, ...]:
    """Remove fleets whose time is over, and of others the nodes that ended themselves, which may still cost
    (GCP keeps a stopped instance with its disk), and what killed calls left; those that nobody changes now.

    A fleet that is protected stays, and so does one with file systems of its own: data goes by the user's
    word alone. Where a cloud does not tell which nodes ended, as without credentials, they stay.
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
                continue
            if present or (stack.recorded or {}).get("pending_operations"):
                recover(stack, listener)
                done.append(Swept(name, "what a killed call left is cleared"))
            if not is_protected(stack) and (ended := ended_nodes_if_told(stack)):
                _remove_rest(project, name, ended, listener)
                which = fold(sorted(ended))
                done.append(
                    Swept(name, f"what is left of {which} is removed: ended when idle, or taken back")
                )
        except Interrupted:
            raise
        except OrchError as error:
            done.append(Swept(name, "not swept", error))
    return tuple(done)


def _remove_rest(project: Project, name: str, ended: frozenset[str], listener: Listener) -> None:
    """Forget those nodes that are gone, and delete what is there of the others."""
    project.prepare()
    recover(StackState(project, name), listener)
    listener(ExpectedNodes(ended))
    listener(Activity(f"removing what is left of {fold(sorted(ended))}"))
    for command in ("refresh", "destroy"):
        stack = StackState(project, name)
        urns = [each["urn"] for each in stack.resources if name_of(each["urn"]) in resources_of(ended)]
        if urns:
            targets = [word for urn in urns for word in ("--target", urn)]
            run = EngineCall(listener, planning=False)
            engine(stack, [command, "--yes", "--skip-preview", *targets], run)
