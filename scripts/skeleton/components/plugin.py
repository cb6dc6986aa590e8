"""Serves the resources to the Pulumi engine: the executable `pulumi-resource-orch-newcloud`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from orch.components.cloud.rest.handler import NamedHandler, wait_for_all
from orch.components.marks.marked import cloud_name
from orch.components.newcloud.account.client import PARTS, Login, NewcloudClient
from orch.components.newcloud.account.errors import NewcloudRefused
from orch.components.newcloud.account.facts import Machine
from orch.components.newcloud.explain import GANG, INSTANCE, PACKAGE
from orch.providers.orch.gang import AccountProvider, GangHandler
from orch.providers.orch.handler import Handler, Inputs, State
from orch.providers.orch.serving import serve

NAME = f"pulumi-resource-{PACKAGE}"

UP_S = 1800.0
"""How long a machine may boot."""

PAUSE_S, SETTLE_S = 5.0, 30.0
"""Seconds between two looks, and those until a machine is listed whose create got no answer."""

MOST_NAME = 63
"""Characters of a machine's name. Cite the source."""


class InstanceHandler(NamedHandler[NewcloudClient]):
    """Machines. One that failed is no node: it is replaced.

    Inputs beside the others: `user_data`, for the first boot; `layout`, of which another value replaces the
    machine. `waits`: a create waits until the machine runs, for a fleet that keeps what it got.
    """

    tools: ClassVar[frozenset[str]] = frozenset({"waits"})

    def __init__(
        self, client: Callable[[], NewcloudClient], *, pause_s: float = PAUSE_S, settle_s: float = SETTLE_S
    ) -> None:
        super().__init__(client, pause_s=pause_s, settle_s=settle_s)

    def name_of(self, inputs: Inputs) -> str:
        return cloud_name(inputs["name"], inputs["mark"], inputs["spec"], most=MOST_NAME)

    def own(self, inputs: Inputs) -> str | None:
        """Return the id of the machine of this name. Lost answers may leave several: the oldest stays."""
        name = self.name_of(inputs)
        named = [each for each in self._client().machines() if each.name == name]
        named.sort(key=lambda each: (each.created, each.id))
        for surplus in named[1:]:
            self._client().delete(surplus.id)
        return named[0].id if named else None

    def begin(self, inputs: Inputs) -> tuple[str, State]:
        user_data = inputs.get("user_data", "")
        return self._client().launch(self.name_of(inputs), inputs["spec"], user_data), {}

    def create(self, inputs: Inputs) -> tuple[str, State]:
        machine, state = super().create(inputs)
        if inputs.get("waits"):
            try:
                until_running(self._client(), {inputs["name"]: machine}, self._pause_s)
            except NewcloudRefused:
                self.remove(machine)
                raise
        return machine, state

    def remove(self, resource_id: str) -> None:
        self._client().remove(resource_id)

    def look(self, resource_id: str, state: State) -> State | None:
        found = self._client().machine(resource_id)
        if found is None:
            return None
        return {"status": "failed" if found.status == "failed" else "running"} if "status" in state else {}


class NewcloudGang(GangHandler[NewcloudClient]):
    """`instances`: node -> its id, empty for one that failed in a fleet that keeps what it got."""

    def wait(self, instances: Mapping[str, str]) -> State:
        there = {node: each for node, each in instances.items() if each}
        return {
            node: {"id": each.id, "address": each.address, "public": each.public_address}
            for node, each in until_running(self._client(), there, self._pause_s).items()
        }


def until_running(client: NewcloudClient, machines: Mapping[str, str], pause_s: float) -> dict[str, Machine]:
    """Wait until all of these run, and return them by node. `machines`: node -> id.

    Raises NewcloudRefused as soon as one of them fails: the others are of no use alone.
    """

    def look() -> Mapping[str, Machine]:
        known = {each.id: each for each in client.machines()} if machines else {}
        found: dict[str, Machine] = {}
        for node, machine in machines.items():
            seen = known.get(machine) or client.machine(machine)
            if seen is None or seen.status in ("failed", "gone"):
                status = seen.status if seen else "gone"
                raise NewcloudRefused(f"bring {node} up", "transient", f"the machine {machine} is {status}")
            if seen.status == "running" and seen.address and seen.public_address:
                found[node] = seen
        return found

    def late(names: str) -> NewcloudRefused:
        message = f"{names} do not run after {UP_S / 60:.0f} minutes"
        return NewcloudRefused("bring the machines up", "transient", message)

    return wait_for_all(machines, look, late, for_s=UP_S, pause_s=pause_s)


class NewcloudProvider(AccountProvider[NewcloudClient]):
    """The resources of an account. `connect`: the client of a login."""

    def __init__(
        self,
        connect: Callable[[Login], NewcloudClient] = NewcloudClient,
        *,
        pause_s: float = PAUSE_S,
        settle_s: float = SETTLE_S,
    ) -> None:
        def handlers(account: Callable[[], NewcloudClient]) -> dict[str, Handler]:
            return {
                INSTANCE: InstanceHandler(account, pause_s=pause_s, settle_s=settle_s),
                GANG: NewcloudGang(account, pause_s=pause_s),
            }

        def log_in(parts: Mapping[str, str]) -> NewcloudClient:
            return connect(Login(**{part: parts.get(part, "") for part in PARTS}))

        super().__init__(handlers, log_in, parts=PARTS, gang=GANG)


def main() -> None:
    """Serve until the engine ends."""
    serve(NewcloudProvider(), NAME)


if __name__ == "__main__":
    main()
