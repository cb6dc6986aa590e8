"""What providers of machines in an account do alike: a gang is waited for in one resource, and the account is
logged in to once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

from pulumi.provider.experimental import provider as api
from pulumi.provider.experimental.property_value import PropertyValue

from orch.providers.orch.handler import Handler, Inputs, State
from orch.providers.orch.serving import HandlerProvider
from orch.providers.orch.values import UNKNOWN, plain_map, sendable, wire_map

Client = TypeVar("Client")


class GangHandler(ABC, Generic[Client]):
    """Machines that are waited for together: a gang in one resource, asked for by one call a look.

    Inputs: `name`, and `instances`, node -> id. `machines`: what the cloud assigned to each node.
    """

    computed: ClassVar[frozenset[str]] = frozenset({"machines"})
    secrets: ClassVar[frozenset[str]] = frozenset()
    tools: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, client: Callable[[], Client], *, pause_s: float) -> None:
        self._client, self._pause_s = client, pause_s

    @abstractmethod
    def wait(self, instances: Mapping[str, Any]) -> State:
        """Wait until all of these run: what is assigned, by node. Raises as soon as one does not come up: the
        others are of no use alone."""

    def check(self, inputs: Inputs) -> list[tuple[str, str]]:
        return [(key, "must be set") for key in ("name", "instances") if inputs.get(key) in (None, "")]

    def replaces(self, key: str, old: Any, new: Any) -> bool:
        return key == "name"

    def create(self, inputs: Inputs) -> tuple[str, State]:
        return inputs["name"], {"machines": self.wait(inputs["instances"])}

    def read(self, resource_id: str, state: State) -> State | None:
        return {"machines": state["machines"]}

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        return {"machines": self.wait(inputs["instances"])}

    def delete(self, resource_id: str, state: State) -> None:
        """Nothing of it is in the cloud."""


class AccountProvider(HandlerProvider, Generic[Client]):
    """Dispatches each request to the handler of its type, of an account that it is configured with.

    `parts`: what its configuration consists of; `log_in` gives the client of those that are there; `gang`:
    the type of a gang.
    """

    def __init__(
        self,
        handlers: Callable[[Callable[[], Client]], Mapping[str, Handler]],
        log_in: Callable[[Mapping[str, str]], Client],
        *,
        parts: Sequence[str],
        gang: str,
    ) -> None:
        self._log_in, self._parts, self._gang = log_in, parts, gang
        self._client: Client | None = None
        super().__init__(handlers(self._account).__getitem__)

    def _account(self) -> Client:
        assert self._client is not None  # the engine configures a provider before it asks for a resource
        return self._client

    async def diff(self, request: api.DiffRequest) -> api.DiffResponse:
        """A gang that has fewer machines than before waits for none: that is no change of it."""
        before, now = (each.get("instances") for each in (request.old_state, request.new_inputs))
        if request.type.endswith(self._gang) and before is not None and now is not None:
            kept = {name: each for name, each in _entries(before).items() if name in _entries(now)}
            request.old_state = {**request.old_state, "instances": PropertyValue(kept)}
        return await super().diff(request)

    async def update(self, request: api.UpdateRequest) -> api.UpdateResponse:
        """Update a resource. In a preview a gang's machines are unknown: they are known once it has waited
        for them, and the engine itself would refuse a plan with the earlier ones."""
        answer = await super().update(request)
        if request.preview and request.type.endswith(self._gang):
            unknown = wire_map({"machines": UNKNOWN}, frozenset())
            return api.UpdateResponse(properties={**(answer.properties or {}), **unknown})
        return answer

    async def check_config(self, request: api.CheckRequest) -> api.CheckResponse:
        return api.CheckResponse(inputs=sendable(request.new_inputs))

    async def diff_config(self, request: api.DiffRequest) -> api.DiffResponse:
        """Another key leads to the same resources."""
        old, new = plain_map(request.old_state), plain_map(request.new_inputs)
        changed = [part for part in self._parts if old.get(part) != new.get(part)]
        return api.DiffResponse(changes=bool(changed), diffs=changed)

    async def configure(self, request: api.ConfigureRequest) -> api.ConfigureResponse:
        args = plain_map(request.args)
        self._client = self._log_in({part: str(args[part]) for part in self._parts if part in args})
        return api.ConfigureResponse(
            accept_secrets=True, supports_preview=True, accept_resources=True, accept_outputs=True
        )


def _entries(value: PropertyValue) -> Mapping[str, PropertyValue]:
    return cast("Mapping[str, PropertyValue]", value.value) if isinstance(value.value, Mapping) else {}
