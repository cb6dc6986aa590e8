"""Lets the engine bring up what is there already: a provider in the middle, whose `create` finds and reads.

The engine plans, checks and records as in any `up`, so that the state is the one that an `up` writes. All
that it asks goes on to the real provider, but for the creation of resources: nothing is made. The engine
reaches us as it reaches a provider that a debugger runs (PULUMI_DEBUG_PROVIDERS).

The provider in the middle has the caller's credentials and listens on a port of this machine, so it passes on
only what a look needs (`PASSED_ON`), and answers only processes of the same user. Where the system does not
tell whose a connection is (no /proc/net, as on macOS), other users of the machine may read by it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2, struct_pb2
from pulumi.runtime._grpc_settings import _GRPC_CHANNEL_OPTIONS
from pulumi.runtime.proto import plugin_pb2, provider_pb2

from orch.spec.errors import OrchError
from orch.stacks.engine import install as engines
from orch.stacks.engine.process import call
from orch.stacks.errors import StackError
from orch.stacks.events.notation import name_of, type_of
from orch.stacks.project.project import Project

VARIABLE = "PULUMI_DEBUG_PROVIDERS"
KEYS = "orch:index:Keys"
MISSING = "orch-lost-"
"""How the id begins of what was not found; it is recorded until the engine has ended."""
_SERVICE = "/pulumirpc.ResourceProvider/"
PASSED_ON = frozenset(
    (
        *("Handshake", "Attach", "Parameterize", "GetSchema", "GetPluginInfo", "GetMapping", "GetMappings"),
        *("CheckConfig", "DiffConfig", "Configure", "Check", "Diff", "Read", "Cancel"),
    )
)
"""Methods of a provider that change nothing. `Create` is answered here; `Delete`, `Update`, `Invoke`, `Call`,
`Construct` and what later versions of the protocol add are refused."""
_CONNECTIONS = Path("/proc/net")
_THREADS = 256
_START_S = 60.0

Inputs = Mapping[str, Any]
Identify = Callable[[str, str, Inputs], "str | None"]
"""Type, name and inputs of a resource -> its id as `pulumi import` takes it; None where it was not found."""


@dataclass(frozen=True)
class Adopted:
    """A resource of the program and what it is in the cloud; `id` is None where that is gone."""

    type: str
    name: str
    id: str | None


@dataclass
class Adoption:
    """Resources that an `up` is to adopt, and has adopted. `key`: the client's private key and its public
    half, if known."""

    identify: Identify
    key: tuple[str, str] | None = None
    adopted: list[Adopted] = field(default_factory=list[Adopted])
    made: list[Adopted] = field(default_factory=list[Adopted])
    """What is new, such as keys."""

    @contextmanager
    def served(self, project: Project, packages: Sequence[str]) -> Iterator[dict[str, str]]:
        """Serve providers of these packages; yields what the engine must find in its environment."""
        engine = engines.require()
        environment = {**os.environ, **project.environment(engine)}
        with ExitStack() as stack:
            ports: list[str] = []
            for package in packages:
                command = _executable(package, project, environment)
                ports.append(f"{package}:{stack.enter_context(_serve(self, command, environment))}")
            others = [
                each
                for each in os.environ.get(VARIABLE, "").split(",")
                if each and each.partition(":")[0] not in packages
            ]
            yield {VARIABLE: ",".join([*others, *ports])}


def _executable(package: str, project: Project, environment: Mapping[str, str]) -> str:
    """The provider's own program, installed where it is not there. Raises StackError."""
    name = f"pulumi-resource-{package}"
    on_path = shutil.which(name, path=environment["PATH"])
    if on_path is not None:
        return on_path
    version = metadata.version(f"pulumi-{package}")
    home = Path(environment.get("PULUMI_HOME") or Path.home() / ".pulumi")
    file = home / "plugins" / f"resource-{package}-v{version}" / name
    if not file.exists():
        result = call(
            engines.require(),
            ["plugin", "install", "resource", package, f"v{version}"],
            folder=project.dot,
            environment=environment,
        )
        if result.code:
            raise StackError(
                f"the provider {package} {version} cannot be installed",
                detail=result.stderr.strip()[-600:],
                code="ORCH346",
            )
    return str(file)


class _Plugin:
    """A real provider, as the engine starts one."""

    def __init__(self, command: str, engine_address: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [command, engine_address],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        timer = threading.Timer(_START_S, self._process.kill)
        timer.start()
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        timer.cancel()
        if not port.isdigit():
            self._process.kill()
            raise StackError(f"the provider {Path(command).name} does not start", code="ORCH346")
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_GRPC_CHANNEL_OPTIONS)

    def call(self, method: str, request: bytes) -> bytes:
        return self._channel.unary_unary(method)(request)

    def close(self) -> None:
        self._channel.close()
        self._process.kill()
        self._process.wait()


class _Proxy(grpc.GenericRpcHandler):
    """Each connection of the engine is one provider of its own, with its own configuration."""

    def __init__(self, adoption: Adoption, command: str, environment: Mapping[str, str]) -> None:
        self._adoption, self._command, self._environment = adoption, command, environment
        self.port = 0
        self._lock = threading.Lock()
        self._plugins: dict[str, _Plugin] = {}

    def service(self, handler_call_details: Any) -> Any:
        method = str(handler_call_details.method)
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._answer(method, request, context)
        )

    def _answer(self, method: str, request: bytes, context: Any) -> bytes:
        name = method.removeprefix(_SERVICE)
        if owner_of(context.peer(), self.port) not in (None, os.getuid()):
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "this provider answers its own user alone")
        if name != "Create" and name not in PASSED_ON:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"a look makes no changes: {name} is refused")
        try:
            plugin = self._plugin(method, request, context.peer())
            if name == "Attach":
                return empty_pb2.Empty().SerializeToString()
            if name == "Create":
                return self._create(plugin, request)
            return plugin.call(method, request)
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())
        except OrchError as error:
            context.abort(grpc.StatusCode.UNKNOWN, error.text())
        raise AssertionError("an aborted call goes on")

    def _plugin(self, method: str, request: bytes, peer: str) -> _Plugin:
        with self._lock:
            if peer not in self._plugins:
                address = ""
                if method == f"{_SERVICE}Attach":
                    address = plugin_pb2.PluginAttach.FromString(request).address
                elif method == f"{_SERVICE}Handshake":
                    address = provider_pb2.ProviderHandshakeRequest.FromString(request).engine_address
                self._plugins[peer] = _Plugin(self._command, address, self._environment)
            return self._plugins[peer]

    def _create(self, plugin: _Plugin, request: bytes) -> bytes:
        create = provider_pb2.CreateRequest.FromString(request)
        if create.preview:
            return plugin.call(f"{_SERVICE}Create", request)
        kind, name = type_of(create.urn), name_of(create.urn)
        if kind == KEYS:
            return self._keys(plugin, request, kind, name)
        inputs = plain(create.properties)
        identifier = self._adoption.identify(kind, name, inputs)
        read = None if identifier is None else self._read(plugin, create, identifier)
        if read is None or not read.id:
            self._adoption.adopted.append(Adopted(kind, name, None))
            lost = provider_pb2.CreateResponse(id=f"{MISSING}{name}", properties=create.properties)
            return lost.SerializeToString()
        self._adoption.adopted.append(Adopted(kind, name, read.id))
        response = provider_pb2.CreateResponse(id=read.id, properties=read.properties)
        # As after a creation, what the program wrote stands as written. The refresh of the next plan finds
        # what differs.
        for key, value in create.properties.fields.items():
            response.properties.fields[key].CopyFrom(value)
        return response.SerializeToString()

    def _read(self, plugin: _Plugin, create: Any, identifier: str) -> Any:
        """A resource as an import reads it. One of a provider of ours needs what it was made with."""
        request = provider_pb2.ReadRequest(id=identifier, urn=create.urn, name=create.name, type=create.type)
        if type_of(create.urn).startswith("orch"):
            request.properties.CopyFrom(create.properties)
            request.inputs.CopyFrom(create.properties)
        answer = plugin.call(f"{_SERVICE}Read", request.SerializeToString())
        return provider_pb2.ReadResponse.FromString(answer)

    def _keys(self, plugin: _Plugin, request: bytes, kind: str, name: str) -> bytes:
        response = provider_pb2.CreateResponse.FromString(plugin.call(f"{_SERVICE}Create", request))
        if self._adoption.key is not None:
            private, public = self._adoption.key
            for output, text in (("client_private_key", private), ("client_public_key", public)):
                set_text(response.properties.fields[output], text)
        self._adoption.made.append(Adopted(kind, name, None))
        return response.SerializeToString()

    def close(self) -> None:
        for plugin in self._plugins.values():
            plugin.close()


@contextmanager
def _serve(adoption: Adoption, command: str, environment: Mapping[str, str]) -> Iterator[int]:
    proxy = _Proxy(adoption, command, environment)
    server = grpc.server(futures.ThreadPoolExecutor(_THREADS), options=_GRPC_CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers((proxy,))
    proxy.port = port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(grace=0).wait()
        proxy.close()


def owner_of(peer: str, port: int, connections: Path = _CONNECTIONS) -> int | None:
    """Return the user id at the other end of a loopback connection; None if the system does not tell.

    `peer`: gRPC's name of the other end, `ipv4:127.0.0.1:PORT`; `port`: ours. Source: proc_net_tcp(5): local
    and remote address in hexadecimal, the user id in the eighth column. A socket of IPv6 may hold the
    connection: its address ends with that of IPv4.
    """
    other = peer.rpartition(":")[2]
    try:
        lines = [line for name in ("tcp", "tcp6") for line in _lines(connections / name)]
    except OSError:
        return None
    near, far = (f"0100007F:{int(each):04X}" if each.isdigit() else "?" for each in (other, str(port)))
    for row in map(str.split, lines):
        if len(row) > 7 and row[1].endswith(near) and row[2].endswith(far):
            return int(row[7])
    return -1


def _lines(file: Path) -> list[str]:
    """The lines of a file of the kernel; none of one that this kernel does not have beside others."""
    return file.read_text("ascii").splitlines()[1:] if file.exists() or file.name == "tcp" else []


_SECRET = "4dabf18193072939515e22adb298388d"


def plain(properties: struct_pb2.Struct) -> dict[str, Any]:
    """Inputs as plain values; secrets without their mark."""
    return {key: _value(each) for key, each in properties.fields.items()}


def _value(value: struct_pb2.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        fields = value.struct_value.fields
        return _value(fields["value"]) if _SECRET in fields else plain(value.struct_value)
    if kind == "list_value":
        return [_value(each) for each in value.list_value.values]
    return None if kind in (None, "null_value") else getattr(value, kind)


def set_text(value: struct_pb2.Value, text: str) -> None:
    """Put a text in the place of another one, which may be a secret."""
    if value.WhichOneof("kind") == "struct_value":
        value.struct_value.fields["value"].string_value = text
    else:
        value.string_value = text
