"""The provider in the middle of an import: what it passes on, and to whom it answers."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf import struct_pb2
from pulumi.runtime.proto import provider_pb2

from orch.stacks.states.adopting import PASSED_ON, Adoption, _serve, owner_of

SERVICE = "/pulumirpc.ResourceProvider/"
PROVIDER = f"""\
#!{sys.executable}
# A provider that writes down what it is asked.
import sys, time
from concurrent import futures
import grpc

class Any(grpc.GenericRpcHandler):
    def service(self, details):
        with open(LOG, "a") as log:
            log.write(details.method.rpartition("/")[2] + "\\n")
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

LOG = __file__ + ".log"
server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((Any(),))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
time.sleep(300)
"""


@pytest.fixture
def provider(tmp_path: Path) -> Path:
    program = tmp_path / "provider"
    program.write_text(PROVIDER)
    program.chmod(0o755)
    return program


@pytest.fixture
def channel(provider: Path) -> Iterator[grpc.Channel]:
    adoption = Adoption(lambda kind, name, inputs: None)
    with (
        _serve(adoption, str(provider), dict(os.environ)) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield channel


def test_an_import_passes_on_nothing_that_changes_a_cloud(channel: grpc.Channel, provider: Path) -> None:
    for method in ("Delete", "Update", "Invoke", "Call", "Construct", "StreamInvoke", "Anything"):
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(f"{SERVICE}{method}")(b"", timeout=60)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert f"{method} is refused" in refused.value.details()
    for method in sorted(PASSED_ON - {"Attach"}):
        channel.unary_unary(f"{SERVICE}{method}")(b"", timeout=60)
    # What is created is looked for.
    urn = "urn:pulumi:s::p::aws:ec2/instance:Instance::n0"
    asked = provider_pb2.CreateRequest(urn=urn, properties=struct_pb2.Struct())
    answer = channel.unary_unary(f"{SERVICE}Create")(asked.SerializeToString(), timeout=60)
    assert provider_pb2.CreateResponse.FromString(answer).id == "orch-lost-n0"
    passed = Path(f"{provider}.log").read_text().split()
    assert sorted(passed) == sorted(PASSED_ON - {"Attach"})


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells whose a connection is")
def test_an_import_answers_its_own_user_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def owner_of_next() -> int | None:
            connection, address = server.accept()
            with connection:
                return owner_of(f"ipv4:127.0.0.1:{address[1]}", port)

        with socket.create_connection(("127.0.0.1", port)):
            assert owner_of_next() == os.getuid()
        assert owner_of("ipv4:127.0.0.1:1", port) == owner_of("unix:", port) == -1
        assert owner_of("ipv4:127.0.0.1:1", port, Path("/nonexistent")) is None
        if os.getuid():
            return
        child = os.fork()
        if not child:
            try:
                os.setuid(65534)
                with socket.create_connection(("127.0.0.1", port)) as other:
                    other.recv(1)
            finally:
                os._exit(0)
        try:
            assert owner_of_next() == 65534
        finally:
            os.waitpid(child, 0)
