"""Serves Nebius's resources to the Pulumi engine: the executable `pulumi-resource-orch-nebius`.

It is configured with the parts of a service account's key, or with nothing where the SDK finds the way.
"""

from __future__ import annotations

from collections.abc import Callable

from pulumi.provider.experimental import provider as api

from orch.components.nebius.account import client as kinds
from orch.components.nebius.account.client import NebiusClient
from orch.components.nebius.account.session import PARTS, Session
from orch.components.nebius.explain import PACKAGE
from orch.components.nebius.resource_handlers import GangHandler, InstanceHandler, NebiusHandler
from orch.providers.orch.handler import Handler
from orch.providers.orch.plugin import OrchProvider
from orch.providers.orch.serving import serve
from orch.providers.orch.values import plain_map, sendable

NAME = f"pulumi-resource-{PACKAGE}"

PAUSE_S = 2.0

# Type -> the kind of its resources.
KINDS = {
    f"{PACKAGE}:index:Network": kinds.NETWORK,
    f"{PACKAGE}:index:Subnet": kinds.SUBNET,
    f"{PACKAGE}:index:SecurityGroup": kinds.SECURITY_GROUP,
    f"{PACKAGE}:index:SecurityRule": kinds.SECURITY_RULE,
    f"{PACKAGE}:index:GpuCluster": kinds.GPU_CLUSTER,
}


class NebiusProvider(OrchProvider):
    """Dispatches each request to the handler of its type. `connect`: the client of a session."""

    def __init__(
        self, connect: Callable[[Session], NebiusClient] = NebiusClient, *, pause_s: float = PAUSE_S
    ) -> None:
        self._connect = connect
        self._client: NebiusClient | None = None
        handlers: dict[str, Handler] = {
            token: NebiusHandler(kind, self._account, pause_s=pause_s) for token, kind in KINDS.items()
        }
        handlers[f"{PACKAGE}:index:Instance"] = InstanceHandler(self._account, pause_s=pause_s)
        handlers[f"{PACKAGE}:index:Gang"] = GangHandler(self._account, pause_s=pause_s)
        super().__init__(handlers=handlers.__getitem__)

    def _account(self) -> NebiusClient:
        assert self._client is not None  # the engine configures a provider before it asks for a resource
        return self._client

    async def check_config(self, request: api.CheckRequest) -> api.CheckResponse:
        return api.CheckResponse(inputs=sendable(request.new_inputs))

    async def diff_config(self, request: api.DiffRequest) -> api.DiffResponse:
        """Another key leads to the same resources."""
        old, new = plain_map(request.old_state), plain_map(request.new_inputs)
        changed = [part for part in PARTS if old.get(part) != new.get(part)]
        return api.DiffResponse(changes=bool(changed), diffs=changed)

    async def configure(self, request: api.ConfigureRequest) -> api.ConfigureResponse:
        args = plain_map(request.args)
        key = {part: str(args[part]) for part in PARTS if part in args}
        self._client = self._connect(Session(key))
        return api.ConfigureResponse(
            accept_secrets=True, supports_preview=True, accept_resources=True, accept_outputs=True
        )


def main() -> None:
    """Serve until the engine ends."""
    serve(NebiusProvider(), NAME)


if __name__ == "__main__":
    main()
