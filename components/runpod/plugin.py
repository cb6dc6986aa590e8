"""Serves RunPod's resources to the Pulumi engine: the executable `pulumi-resource-orch-runpod`.

It is configured with the API key, which the state keeps as a secret. `resource_handlers.py` is what it does.
"""

from __future__ import annotations

from collections.abc import Callable

from pulumi.provider.experimental import provider as api

from orch.components.runpod.account.client import CLUSTER, POD, VOLUME, Login, RunpodClient
from orch.components.runpod.explain import PACKAGE
from orch.components.runpod.resource_handlers import (
    PAUSE_S,
    SETTLE_S,
    UP_S,
    ClusterHandler,
    PodHandler,
    ReadyHandler,
    VolumeHandler,
)
from orch.providers.orch.handler import Handler
from orch.providers.orch.serving import HandlerProvider, serve
from orch.providers.orch.values import plain_map, sendable

NAME = f"pulumi-resource-{PACKAGE}"


class RunpodProvider(HandlerProvider):
    """Dispatches each request to the handler of its type. `connect`: the client of a login."""

    def __init__(
        self,
        connect: Callable[[Login], RunpodClient] = RunpodClient,
        *,
        pause_s: float = PAUSE_S,
        settle_s: float = SETTLE_S,
        up_s: float = UP_S,
    ) -> None:
        self._connect = connect
        self._client: RunpodClient | None = None
        handlers: dict[str, Handler] = {
            "Pod": PodHandler(POD, self._account, pause_s=pause_s, settle_s=settle_s),
            "Cluster": ClusterHandler(CLUSTER, self._account, pause_s=pause_s, settle_s=settle_s),
            "NetworkVolume": VolumeHandler(VOLUME, self._account, pause_s=pause_s, settle_s=settle_s),
            "Ready": ReadyHandler(POD, self._account, pause_s=pause_s, up_s=up_s),
        }
        by_type = {f"{PACKAGE}:index:{name}": each for name, each in handlers.items()}
        super().__init__(by_type.__getitem__)

    def _account(self) -> RunpodClient:
        assert self._client is not None  # the engine configures a provider before it asks for a resource
        return self._client

    async def check_config(self, request: api.CheckRequest) -> api.CheckResponse:
        return api.CheckResponse(inputs=sendable(request.new_inputs))

    async def diff_config(self, request: api.DiffRequest) -> api.DiffResponse:
        """Another key leads to the same resources."""
        changed = plain_map(request.old_state).get("key") != plain_map(request.new_inputs).get("key")
        return api.DiffResponse(changes=changed, diffs=["key"] if changed else [])

    async def configure(self, request: api.ConfigureRequest) -> api.ConfigureResponse:
        self._client = self._connect(Login(str(plain_map(request.args).get("key") or "")))
        return api.ConfigureResponse(
            accept_secrets=True, supports_preview=True, accept_resources=True, accept_outputs=True
        )


def main() -> None:
    """Serve until the engine ends."""
    serve(RunpodProvider(), NAME)


if __name__ == "__main__":
    main()
