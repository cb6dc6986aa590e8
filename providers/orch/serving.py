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
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
from google.protobuf import empty_pb2
from pulumi.provider.experimental import provider as api
from pulumi.provider.experimental.server import ProviderServicer
from pulumi.runtime._grpc_settings import _GRPC_CHANNEL_OPTIONS
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, provider_pb2_grpc

from orch import __version__
from orch.spec.errors import OrchError

WARN_S = 10.0
"""How long the engine may take to hear of something."""


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
