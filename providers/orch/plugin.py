"""Serves the handlers to the Pulumi engine: the executable `pulumi-resource-orch`.

Errors reach the engine as one coded message, not as a Python trace. The process ends when the engine does: a
provider
that outlives a killed engine would go on creating what nobody records.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from typing import Any

import grpc
import grpc.aio
from google.protobuf import empty_pb2
from pulumi.provider.experimental import provider as api
from pulumi.provider.experimental.server import ProviderServicer
from pulumi.runtime._grpc_settings import _GRPC_CHANNEL_OPTIONS
from pulumi.runtime.proto import provider_pb2_grpc

from orch import __version__
from orch.providers.orch.handler import Handler, differences
from orch.providers.orch.keys import KeysHandler
from orch.providers.orch.local_network import LocalNetworkHandler
from orch.providers.orch.local_node import LocalNodeHandler
from orch.providers.orch.ssh_host import SshHostHandler
from orch.providers.orch.values import UNKNOWN, plain_map, sendable, wire_map
from orch.spec.errors import OrchError

HANDLERS: dict[str, Handler] = {
    "orch:index:Keys": KeysHandler(),
    "orch:local:Network": LocalNetworkHandler(),
    "orch:local:Node": LocalNodeHandler(),
    "orch:ssh:Host": SshHostHandler(),
}


class OrchProvider(api.Provider):
    """Dispatches each request to the handler of its type, off the event loop."""

    def _handler(self, token: str) -> Handler:
        token = token.rsplit("$", 1)[-1]  # a child's type comes behind its parents'
        try:
            return HANDLERS[token]
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
        found = differences(
            self._handler(request.type), plain_map(request.old_state), plain_map(request.new_inputs)
        )
        kinds = api.PropertyDiffKind
        return api.DiffResponse(
            changes=bool(found),
            replaces=[d.path for d in found if d.replaces],
            diffs=[d.path for d in found],
            # Names and addresses are taken by the old one until it is gone.
            delete_before_replace=True,
            detailed_diff={
                d.path: api.PropertyDiff(
                    kind=kinds.UPDATE_REPLACE if d.replaces else kinds.UPDATE, input_diff=not d.drifted
                )
                for d in found
            },
        )

    async def create(self, request: api.CreateRequest) -> api.CreateResponse:
        handler = self._handler(request.type)
        if request.preview:
            unknown = wire_map(dict.fromkeys(handler.computed, UNKNOWN), handler.secrets)
            return api.CreateResponse(resource_id="", properties={**sendable(request.properties), **unknown})
        resource_id, outputs = await asyncio.to_thread(handler.create, plain_map(request.properties))
        return api.CreateResponse(
            resource_id=resource_id, properties={**request.properties, **wire_map(outputs, handler.secrets)}
        )

    async def read(self, request: api.ReadRequest) -> api.ReadResponse:
        handler = self._handler(request.type)
        outputs = await asyncio.to_thread(handler.read, request.resource_id, plain_map(request.properties))
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
            kept = {key: value for key, value in request.olds.items() if key in handler.computed}
            return api.UpdateResponse(properties=sendable({**kept, **request.news}))
        outputs = await asyncio.to_thread(
            handler.update, request.resource_id, plain_map(request.olds), plain_map(request.news)
        )
        return api.UpdateResponse(properties={**request.news, **wire_map(outputs, handler.secrets)})

    async def delete(self, request: api.DeleteRequest) -> None:
        handler = self._handler(request.type)
        await asyncio.to_thread(handler.delete, request.resource_id, plain_map(request.properties))


class OrchServicer(ProviderServicer):
    """The stock servicer, with errors a person can read and with Attach (one provider for a whole test
    session)."""

    async def Attach(self, request: Any, context: Any) -> empty_pb2.Empty:
        return empty_pb2.Empty()

    async def _told(self, method: Any, request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            # `__wrapped__`-less decorator of the SDK turns every exception into text with a trace; the cause
            # is kept.
            return await method(request, context)
        except Exception as error:
            cause = error.__context__ if isinstance(error.__context__, OrchError) else error
            if not isinstance(cause, OrchError):
                raise
            await context.abort(grpc.StatusCode.UNKNOWN, one_line(cause))

    async def Check(self, request: Any, context: Any) -> Any:
        return await self._told(super().Check, request, context)

    async def Diff(self, request: Any, context: Any) -> Any:
        return await self._told(super().Diff, request, context)

    async def Create(self, request: Any, context: Any) -> Any:
        return await self._told(super().Create, request, context)

    async def Read(self, request: Any, context: Any) -> Any:
        return await self._told(super().Read, request, context)

    async def Update(self, request: Any, context: Any) -> Any:
        return await self._told(super().Update, request, context)

    async def Delete(self, request: Any, context: Any) -> Any:
        return await self._told(super().Delete, request, context)


def one_line(error: OrchError) -> str:
    """An error as the engine shows it: code, where, what, why, what to do."""
    head = " ".join(part for part in (error.code, error.summary) if part)
    where = f"{error.where}: " if error.where else ""
    tail = "".join(f"; {part}" for part in (error.detail, error.hint) if part)
    return f"{where}{head}{tail}"


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.25)
    os._exit(0)


async def _serve(engine_address: str) -> None:
    server = grpc.aio.server(options=_GRPC_CHANNEL_OPTIONS)
    servicer = OrchServicer(sys.argv[1:], __version__, OrchProvider(), engine_address=engine_address)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


def main() -> None:
    """Serve until the engine ends. The engine passes its own address as the only positional argument."""
    addresses = [word for word in sys.argv[1:] if not word.startswith("-")]
    if not addresses:
        sys.exit("pulumi-resource-orch is started by the Pulumi engine, not by hand")
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        asyncio.run(_serve(addresses[0]))
    except KeyboardInterrupt:
        # Ctrl-C reaches the whole group; the engine decides when a provider ends.
        return


if __name__ == "__main__":
    main()
