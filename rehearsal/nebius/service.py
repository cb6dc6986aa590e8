"""The account as a gRPC service on this machine: what Nebius's own SDK calls.

Messages and services are those of the SDK, which carries the published proto: a request with a field that
Nebius does not have is no request.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from orch.rehearsal.nebius.account import PUBLIC_KEY, SERVICE_ACCOUNT, NebiusCloud
from orch.rehearsal.nebius.api.errors import NebiusError

AT_ONCE = 32
_DETAILS = "grpc-status-details-bin"


class NebiusService:
    """Serves an account at `address`, on the loopback interface alone, until it is stopped."""

    def __init__(self, cloud: NebiusCloud) -> None:
        # A client may ask as often as it likes whether the connection is alive: Nebius's SDK does.
        options = [("grpc.http2.max_ping_strikes", 0)]
        threads = futures.ThreadPoolExecutor(AT_ONCE, thread_name_prefix="nebius")
        self._server = grpc.server(threads, options=options)
        self._server.add_generic_rpc_handlers((_Handlers(cloud),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(grace=None)


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, cloud: NebiusCloud) -> None:
        self._cloud = cloud

    def service(self, handler_call_details: Any) -> Any:
        from nebius.api.nebius.common.v1 import REGISTRY

        _, service, method = str(handler_call_details.method).split("/")
        try:
            descriptor = REGISTRY.service_descriptor(service).methods_by_name[method]
        except LookupError:
            return None
        takes: Any = REGISTRY.message_class(descriptor.input_type.full_name)
        gives: Any = REGISTRY.message_class(descriptor.output_type.full_name)
        return grpc.unary_unary_rpc_method_handler(
            self._answer(service, method, gives),
            takes.FromString,
            _serialized,
        )

    def _answer(self, service: str, method: str, gives: Any) -> Callable[[Any, Any], Any]:
        def answer(message: Any, context: Any) -> Any:
            body = to_json(message)
            metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
            try:
                result = self._cloud.request(service, method, body, metadata)
            except NebiusError as error:
                context.set_trailing_metadata(((_DETAILS, _status(error)),))
                return context.abort(grpc.StatusCode[error.status], error.message)
            return to_message(public(result), gives())

        return answer


def _serialized(message: Any) -> bytes:
    return message.SerializeToString()


def to_json(message: Any) -> dict[str, Any]:
    from nebius.base.protos.json_format import message_to_dict

    return message_to_dict(message, preserving_proto_field_name=True)


def to_message(document: Any, message: Any) -> Any:
    from nebius.base.protos.json_format import parse_dict

    return parse_dict(document, message)


def public(document: Any) -> Any:
    """Without what is the account's own."""
    if isinstance(document, dict):
        return {key: public(value) for key, value in document.items() if not str(key).startswith("_")}
    return [public(each) for each in document] if isinstance(document, list) else document


def _status(error: NebiusError) -> bytes:
    from nebius.api.google.rpc import Status

    return to_message(error.rpc_status(), Status()).SerializeToString()


def sdk_of(cloud: NebiusCloud, address: str) -> Any:
    """Nebius's SDK, logged in to the account by the key of its service account."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from nebius.base.options import INSECURE
    from nebius.base.resolver import Constant
    from nebius.base.service_account.service_account import Reader, ServiceAccount
    from nebius.sdk import SDK

    key: Any = load_pem_private_key(cloud.private_key.encode(), password=None)

    class Key(Reader):
        def read(self) -> ServiceAccount:
            return ServiceAccount(key, PUBLIC_KEY, SERVICE_ACCOUNT)

    return SDK(
        resolver=Constant(address),
        options=[(INSECURE, True)],
        credentials=Key(),
        user_agent_prefix="orch-rehearsal",
    )


@dataclass(frozen=True)
class Session:
    """A login to the simulated account. Its provider needs no key: it finds the account by itself."""

    sdk: Any
    projects: Sequence[str] = ()
    key: Mapping[str, str] = field(default_factory=dict[str, str])


_SERVED: dict[tuple[int, Path], tuple[NebiusService, Any]] = {}
"""By process and account: a service and its clients do not live on in a fork."""


def sdk_at(cloud: NebiusCloud) -> Any:
    """The SDK, logged in to a service of this process for an account; one for each account."""
    key = os.getpid(), cloud.path.resolve()
    if key not in _SERVED:
        service = NebiusService(cloud)
        _SERVED[key] = service, sdk_of(cloud, service.address)
    return _SERVED[key][1]
