"""What every provider of ours does alike: errors as one line, an end with the engine, the gRPC server.

A provider that outlives a killed engine would go on creating what nobody records.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf import empty_pb2
from pulumi.provider.experimental import provider as api
from pulumi.provider.experimental.server import ProviderServicer
from pulumi.runtime._grpc_settings import _GRPC_CHANNEL_OPTIONS
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, provider_pb2_grpc

from orch import __version__
from orch.providers.orch.handler import Handler, LeftBehind, differences, now_secret
from orch.providers.orch.values import UNKNOWN, plain_map, sendable, wire_map
from orch.spec.errors import OrchError

# The most that `parallel` may be in a file. The engine asks for no more at once, and a thread is made when it
# is needed. The event loop's own are six on a machine with two cores: too few where each waits for a host.
AT_ONCE = 1024

WARN_S = 10.0
"""How long the engine may take to hear of something."""


T = TypeVar("T")


class CodedServicer(ProviderServicer):
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

    async def Configure(self, request: Any, context: Any) -> Any:
        return await self._told(super().Configure, request, context)

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

    async def Invoke(self, request: Any, context: Any) -> Any:
        return await self._told(super().Invoke, request, context)


def one_line(error: OrchError) -> str:
    """An error as the engine shows it: code, where, what, why, what to do."""
    head = " ".join(part for part in (error.code, error.summary) if part)
    where = f"{error.where}: " if error.where else ""
    tail = "".join(f"; {part}" for part in (error.detail, error.hint) if part)
    return f"{where}{head}{tail}"


def warn(urn: str, text: str) -> None:
    """Tell the engine that started this provider of what is amiss with a resource and no error."""
    severity = engine_pb2.LogSeverity.WARNING
    said = engine_pb2.LogRequest(severity=severity, message=text, urn=urn)
    # An engine that does not hear of it ends soon, and what is done is done.
    with grpc.insecure_channel(_engine_address()) as channel, suppress(grpc.RpcError):
        engine_pb2_grpc.EngineStub(channel).Log(said, timeout=WARN_S)


def _engine_address() -> str:
    """The engine passes its own address as the only positional argument; nothing where none did."""
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


class HandlerProvider(api.Provider):
    """Dispatches each request to the handler of its type, off the event loop. `warn` tells the engine.

    `handlers` gives the handler of a type, and raises KeyError.
    """

    def __init__(self, handlers: Callable[[str], Handler], warn: Callable[[str, str], None] = warn) -> None:
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


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.25)
    os._exit(0)


async def _serve(engine_address: str, provider: api.Provider, version: str) -> None:
    server = grpc.aio.server(options=_GRPC_CHANNEL_OPTIONS)
    servicer = CodedServicer(sys.argv[1:], version, provider, engine_address=engine_address)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


def serve(provider: api.Provider, name: str, version: str = __version__) -> None:
    """Serve until the engine ends."""
    address = _engine_address()
    if not address:
        sys.exit(f"{name} is started by the Pulumi engine, not by hand")
    gc.freeze()  # what is imported by now is no garbage
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        asyncio.run(_serve(address, provider, version))
    except KeyboardInterrupt:
        # Ctrl-C reaches the whole group; the engine decides when a provider ends.
        return
