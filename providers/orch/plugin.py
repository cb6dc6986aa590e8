"""Serves the handlers to the Pulumi engine: the executable `pulumi-resource-orch`."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from pulumi.provider.experimental import provider as api

from orch import __version__
from orch.providers.orch.handler import Handler, LeftBehind, differences, now_secret
from orch.providers.orch.serving import one_line, serve, warn
from orch.providers.orch.values import UNKNOWN, plain_map, sendable, wire_map
from orch.spec.errors import OrchError

# Type -> module and class. The engine starts this provider twice for each command, mostly for one type only:
# Docker's library and SSH's are loaded for who needs them.
HANDLERS = {
    "orch:index:Keys": ("keys", "KeysHandler"),
    "orch:local:Network": ("local_network", "LocalNetworkHandler"),
    "orch:local:Node": ("local_node", "LocalNodeHandler"),
    "orch:local:Volume": ("local_volume", "LocalVolumeHandler"),
    "orch:ssh:Host": ("ssh_host", "SshHostHandler"),
}


# The most that `parallel` may be in a file. The engine asks for no more at once, and a thread is made when it
# is needed. The event loop's own are six on a machine with two cores: too few where each waits for a host.
AT_ONCE = 1024

T = TypeVar("T")

_handlers: dict[str, Handler] = {}
_handlers_lock = threading.Lock()


def handler(token: str) -> Handler:
    """What manages resources of a type: one object, whichever thread asks. Raises KeyError."""
    module, name = HANDLERS[token]
    with _handlers_lock:
        if token not in _handlers:
            handlers = importlib.import_module(f"orch.providers.orch.{module}")
            _handlers[token] = getattr(handlers, name)()
        return _handlers[token]


class OrchProvider(api.Provider):
    """Dispatches each request to the handler of its type, off the event loop. `warn` tells the engine.

    `handlers` gives the handler of a type, and raises KeyError: another package of ours has its own.
    """

    def __init__(
        self,
        warn: Callable[[str, str], None] = warn,
        handlers: Callable[[str], Handler] = handler,
    ) -> None:
        self._warn, self._handlers = warn, handlers
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="orch-work")

    async def _work(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _handler(self, token: str) -> Handler:
        token = token.rsplit("$", 1)[-1]  # a child's type comes behind its parents'
        try:
            return self._handlers(token)
        except KeyError:
            raise OrchError(
                f"this orch ({__version__}) has no resource {token}",
                hint="the state was written by a newer orch: upgrade this one",
            ) from None

    async def check(self, request: api.CheckRequest) -> api.CheckResponse:
        failures = self._handler(request.type).check(plain_map(request.new_inputs))
        return api.CheckResponse(
            inputs=sendable(request.new_inputs),
            failures=[api.CheckFailure(path, reason) for path, reason in failures],
        )

    async def diff(self, request: api.DiffRequest) -> api.DiffResponse:
        changes = differences(
            self._handler(request.type), plain_map(request.old_state), plain_map(request.new_inputs)
        ) or now_secret(request.old_state, request.new_inputs)
        kinds = api.PropertyDiffKind
        return api.DiffResponse(
            changes=bool(changes),
            replaces=[d.path for d in changes if d.replaces],
            diffs=[d.path for d in changes],
            # Names and addresses are taken by the old one until it is gone.
            delete_before_replace=True,
            detailed_diff={
                d.path: api.PropertyDiff(
                    kind=kinds.UPDATE_REPLACE if d.replaces else kinds.UPDATE, input_diff=not d.drifted
                )
                for d in changes
            },
        )

    async def create(self, request: api.CreateRequest) -> api.CreateResponse:
        handler = self._handler(request.type)
        if request.preview:
            unknown = wire_map(dict.fromkeys(handler.computed, UNKNOWN), handler.secrets)
            return api.CreateResponse(resource_id="", properties={**sendable(request.properties), **unknown})
        resource_id, outputs = await self._work(partial(handler.create, plain_map(request.properties)))
        return api.CreateResponse(
            resource_id=resource_id, properties={**request.properties, **wire_map(outputs, handler.secrets)}
        )

    async def read(self, request: api.ReadRequest) -> api.ReadResponse:
        handler = self._handler(request.type)
        outputs = await self._work(partial(handler.read, request.resource_id, plain_map(request.properties)))
        if outputs is None:
            return api.ReadResponse(resource_id="")
        return api.ReadResponse(
            resource_id=request.resource_id,
            properties={**request.properties, **wire_map(outputs, handler.secrets)},
            inputs=request.inputs,
        )

    async def update(self, request: api.UpdateRequest) -> api.UpdateResponse:
        handler = self._handler(request.type)
        if request.preview:
            computed = {key: value for key, value in request.olds.items() if key in handler.computed}
            return api.UpdateResponse(properties=sendable({**computed, **request.news}))
        outputs = await self._work(
            partial(handler.update, request.resource_id, plain_map(request.olds), plain_map(request.news))
        )
        return api.UpdateResponse(properties={**request.news, **wire_map(outputs, handler.secrets)})

    async def delete(self, request: api.DeleteRequest) -> None:
        handler = self._handler(request.type)
        try:
            await self._work(partial(handler.delete, request.resource_id, plain_map(request.properties)))
        except LeftBehind as left:
            await self._work(partial(self._warn, request.urn, one_line(left)))


def main() -> None:
    """Serve until the engine ends."""
    serve(OrchProvider(), "pulumi-resource-orch")


if __name__ == "__main__":
    main()
