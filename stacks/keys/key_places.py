"""Where the keys of a fleet lie while they are rotated: its state, its nodes and the local key file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Protocol

from orch.runner.private import private_folder, write_private
from orch.spec.errors import OrchError
from orch.spec.state import NodeState
from orch.stacks.keys.key_plan import planned, with_machines
from orch.stacks.plans.plan import Plan
from orch.stacks.plans.request import refuse_changed, request_of
from orch.stacks.project.project import Project
from orch.stacks.provisioning import operations
from orch.stacks.pulumi.leasing import release, take
from orch.stacks.pulumi.progress import Listener
from orch.stacks.pulumi.recovery import recover
from orch.stacks.record.change_log import is_over
from orch.stacks.record.fleets import fleet_of
from orch.stacks.secrets.identity import key_file
from orch.stacks.secrets.key_pairs import KeyPair, State
from orch.stacks.stack.state import StackState, match_settings
from orch.stacks.states.sealing import read_clear, write_clear

# As long as a rotation may take at most: a lease of it that nobody releases is over then.
_LEASE_S = 1800


class KeyPlace(Protocol):
    """Place where the keys of a fleet are recorded, and its nodes."""

    def held(self) -> AbstractContextManager[None]:
        """Keep others from changing the fleet while the block lasts."""
        ...

    def read(self) -> State:
        """The fleet's state in clear."""
        ...

    def write(self, clear: State) -> None:
        """Write the fleet's state."""
        ...

    def nodes(self) -> tuple[NodeState, ...]:
        """The nodes as they are now, reached with the fleet's own key."""
        ...

    def planned(self) -> Plan:
        """Return the plan of bringing the fleet up."""
        ...

    def bring_up(self, plan: Plan) -> None:
        """Apply a plan."""
        ...

    def remove_bastion(self) -> None:
        """Remove the fleet's own bastion: bringing the fleet up makes it anew."""
        ...

    def key_file(self, name: str, pair: KeyPair) -> AbstractContextManager[str]:
        """A private key as a file, while the block lasts."""
        ...


class FleetPlace:
    """The keys of a fleet in its stack. `content`: of its file when the rotation was planned."""

    def __init__(self, project: Project, name: str, listener: Listener, content: str = "") -> None:
        # A lease of its own: the caller's other commands are kept from changing the fleet, too.
        self._project = replace(project, owner=f"{project.owner}, who rotates its SSH keys")
        self._listener, self._content = listener, content
        self._stack = StackState(self._project, name)

    @contextmanager
    def held(self) -> Iterator[None]:
        """See `KeyPlace.held`. After a kill the lease lasts: the same user's next call has it."""
        stack, owner = self._stack, self._project.owner
        match_settings(stack)
        recover(stack, self._listener)
        take(stack, owner, _LEASE_S, self._listener)
        try:
            yield
        except OrchError as error:
            if not is_over(error):
                with suppress(OrchError):
                    release(stack, owner, self._listener)
            raise
        release(stack, owner, self._listener)

    def read(self) -> State:
        """See `KeyPlace.read`."""
        return read_clear(self._stack)

    def write(self, clear: State) -> None:
        """See `KeyPlace.write`."""
        write_clear(self._stack, clear)

    def nodes(self) -> tuple[NodeState, ...]:
        """See `KeyPlace.nodes`."""
        state = fleet_of(self._stack)
        return with_machines(self._project, state.nodes, state)

    def planned(self) -> Plan:
        """See `KeyPlace.planned`. Raises Conflict where the file was changed since."""
        request = request_of(self._project, self._stack.name)
        refuse_changed(request, self._content, "what new nodes are made with is not brought up")
        return planned(self._stack, self._listener)

    def bring_up(self, plan: Plan) -> None:
        """See `KeyPlace.bring_up`."""
        request = request_of(self._project, self._stack.name)
        operations.up(self._project, request, self._listener, plan=plan)

    def remove_bastion(self) -> None:
        """See `KeyPlace.remove_bastion`."""
        operations.remove_bastion(self._project, self._stack.name, self._listener)
        self._stack.invalidate()

    @contextmanager
    def key_file(self, name: str, pair: KeyPair) -> Iterator[str]:
        """See `KeyPlace.key_file`."""
        own = key_file(self._project, self._stack.name)
        file = private_folder(own.parent) / f"{own.name}.{name}"
        write_private(file, pair.private.strip() + "\n")
        try:
            yield str(file)
        finally:
            file.unlink(missing_ok=True)
