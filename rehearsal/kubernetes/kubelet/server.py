"""What the API server asks a kubelet for: logs, commands in containers, ports of pods."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)

from orch.rehearsal.kubernetes.control_plane import Kubelets
from orch.rehearsal.kubernetes.kubelet.kubelet import Kubelet

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
"""Channels of the protocol `channel.k8s.io`: the first byte of each message (5: 255 closes a channel)."""

EXEC = ("v5.channel.k8s.io", "v4.channel.k8s.io")
FORWARD = ("v4.channel.k8s.io",)
CLONE_NEWNET = 0x40000000
SILENT_S = 30.0
"""How long who asks a node that does not answer waits for a connection."""


def serve(kubelet: Kubelet, docker: Any, where: Kubelets) -> ThreadingHTTPServer:
    """A listening server, in threads of its own. Only the API server's certificate is let in."""
    handler = type("Handler", (_Handler,), {"kubelet": kubelet, "docker": docker})
    server = _Server(("127.0.0.1", where.port), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(where.serving.certificate, where.serving.key)
    context.load_verify_locations(where.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    server.context = context
    threading.Thread(target=server.serve_forever, daemon=True, name="kubelet").start()
    return server


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    context: ssl.SSLContext

    def finish_request(self, request: Any, client_address: Any) -> None:
        """The handshake is the connection's own thread's."""
        with suppress(OSError):
            super().finish_request(self.context.wrap_socket(request, server_side=True), client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kubelet: ClassVar[Kubelet]
    docker: ClassVar[Any]

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        url = urlsplit(self.path)
        words = [part for part in url.path.split("/") if part]
        query = parse_qs(url.query)
        if len(words) > 2 and self._is_lost(words[1], words[2]):
            self.close_connection = True
            return
        match words:
            case ["containerLogs", namespace, pod, container]:
                self._logs(self._container(namespace, pod, container), query)
            case ["exec", namespace, pod, container]:
                self._execute(self._container(namespace, pod, container), query)
            case ["portForward", namespace, pod]:
                self._forward(
                    namespace, pod, [int(port) for port in query.get("port", query.get("ports", []))]
                )
            case _:
                self.send_error(404)

    def _is_lost(self, namespace: str, pod: str) -> bool:
        """Whether the pod's node stays silent for as long as an API server waits for one."""
        ends = time.monotonic() + SILENT_S
        while self.kubelet.silent(namespace, pod):
            if time.monotonic() > ends:
                return True
            time.sleep(0.2)
        return False

    def _container(self, namespace: str, pod: str, container: str) -> str:
        worker = self.kubelet.worker(namespace, pod)
        return worker.container(container) if worker is not None else ""

    def _logs(self, container: str, query: dict[str, list[str]]) -> None:
        if not container:
            self._text(400, "container is waiting to start or gone")
            return
        flag = {name: query.get(name, ["false"])[0] == "true" for name in ("follow", "timestamps")}
        since: float | None = None
        if "sinceSeconds" in query:
            since = time.time() - float(query["sinceSeconds"][0])
        elif "sinceTime" in query:
            since = datetime.fromisoformat(query["sinceTime"][0].replace("Z", "+00:00")).timestamp()
        tail = int(query["tailLines"][0]) if "tailLines" in query else "all"
        left = int(query["limitBytes"][0]) if "limitBytes" in query else None
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        rows = self.docker.api.logs(
            container,
            stream=True,
            follow=flag["follow"],
            timestamps=flag["timestamps"],
            since=since,
            tail=tail,
        )
        try:
            for row in rows:
                part = row if left is None else row[:left]
                left = None if left is None else left - len(part)
                if part:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                    self.wfile.flush()
                if left == 0:
                    break
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
        finally:
            with suppress(Exception):
                rows.close()

    def _text(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _execute(self, container: str, query: dict[str, list[str]]) -> None:
        channel = self._upgrade(EXEC)
        if channel is None:
            return
        wants = {name for name in ("input", "tty") if query.get(name, [""])[0] in ("true", "1")}
        if not container:
            channel.send(ERROR, _status(None, "container not found"))
            channel.close()
            return
        api = self.docker.api
        process = api.exec_create(
            container, query["command"], stdin="input" in wants, stdout=True, stderr=True, tty="tty" in wants
        )
        stream = api.exec_start(process["Id"], tty="tty" in wants, socket=True)
        _Execution(api, process["Id"], getattr(stream, "_sock", stream), channel, tty="tty" in wants).run()
        stream.close()

    def _forward(self, namespace: str, pod: str, ports: list[int]) -> None:
        channel = self._upgrade(FORWARD)
        worker = self.kubelet.worker(namespace, pod)
        if channel is None:
            return
        if worker is None or not worker.sandbox:
            channel.close()
            return
        process = int(self.docker.api.inspect_container(worker.sandbox)["State"]["Pid"])
        _Forwards(channel, ports, process, worker.ip).run()

    def _upgrade(self, known: tuple[str, ...]) -> _Channel | None:
        """The request as a WebSocket, None where it is none or speaks no protocol that is known here."""
        connection = WSConnection(ConnectionType.SERVER)
        lines = [
            f"{self.command} {self.path} HTTP/1.1",
            *(f"{key}: {text}" for key, text in self.headers.items()),
        ]
        self.close_connection = True
        if self.headers.get("Upgrade", "").lower() != "websocket":
            self._text(400, "a rehearsed kubelet speaks WebSocket alone")
            return None
        connection.receive_data(("\r\n".join(lines) + "\r\n\r\n").encode())
        request = next(iter(connection.events()))
        assert isinstance(request, Request)
        protocol = next((each for each in known if each in request.subprotocols), None)
        if protocol is None:
            self.connection.sendall(connection.send(RejectConnection(status_code=403)))
            return None
        self.connection.sendall(connection.send(AcceptConnection(subprotocol=protocol)))
        return _Channel(self.connection, connection)


class _Channel:
    """A WebSocket with numbered streams."""

    def __init__(self, connection: socket.socket, protocol: WSConnection) -> None:
        self.socket, self._protocol = connection, protocol
        self._lock = threading.Lock()
        self._parts = bytearray()

    def send(self, stream: int, content: bytes) -> None:
        with self._lock, suppress(OSError):
            self.socket.sendall(self._protocol.send(BytesMessage(bytes([stream]) + content)))

    def close(self) -> None:
        with self._lock, suppress(Exception):
            self.socket.sendall(self._protocol.send(CloseConnection(code=1000)))
            self.socket.shutdown(socket.SHUT_WR)

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Messages of the other side until it closes."""
        while True:
            try:
                content = self.socket.recv(65536)
            except OSError:
                return
            with self._lock:
                self._protocol.receive_data(content or None)
                events = list(self._protocol.events())
            for event in events:
                if isinstance(event, (BytesMessage, TextMessage)):
                    text = event.data
                    self._parts += text.encode() if isinstance(text, str) else text
                    if event.message_finished and self._parts:
                        whole, self._parts = bytes(self._parts), bytearray()
                        yield whole[0], whole[1:]
                elif isinstance(event, Ping):
                    with self._lock, suppress(OSError):
                        self.socket.sendall(self._protocol.send(event.response()))
                elif isinstance(event, CloseConnection):
                    return
            if not content:
                return


class _Execution:
    """A command in a container, its streams on a channel."""

    def __init__(
        self, api: Any, process: str, stream: socket.socket, channel: _Channel, *, tty: bool
    ) -> None:
        self._api, self._process, self._stream, self._channel, self._tty = api, process, stream, channel, tty

    def run(self) -> None:
        threading.Thread(target=self._input, daemon=True).start()
        for stream, content in self._output():
            self._channel.send(stream, content)
        code = self._api.exec_inspect(self._process)["ExitCode"]
        self._channel.send(ERROR, _status(code, f"command terminated with exit code {code}"))
        self._channel.close()

    def _input(self) -> None:
        for stream, content in self._channel.messages():
            with suppress(OSError):
                if stream == STDIN:
                    self._stream.sendall(content)
                elif stream == CLOSE and content[:1] == bytes([STDIN]):
                    self._stream.shutdown(socket.SHUT_WR)
                elif stream == RESIZE:
                    size = json.loads(content)
                    with suppress(Exception):
                        self._api.exec_resize(self._process, height=size["Height"], width=size["Width"])
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_WR)

    def _output(self) -> Iterator[tuple[int, bytes]]:
        """What the command writes, by stream: Docker's frames have the stream and a length of four bytes."""
        if self._tty:
            while content := self._stream.recv(65536):
                yield STDOUT, content
            return
        while header := self._exactly(8):
            stream, size = header[0], struct.unpack(">I", header[4:])[0]
            content = self._exactly(size)
            if content:
                yield (STDERR if stream == 2 else STDOUT), content

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._stream.recv(size - len(parts))
            if not part:
                return b""
            parts += part
        return bytes(parts)


class _Forwards:
    """Ports of a pod: two channels each, data and errors; the first message of each is the port itself."""

    def __init__(self, channel: _Channel, ports: list[int], process: int, ip: str) -> None:
        self._channel, self._ports, self._process, self._ip = channel, ports, process, ip

    def run(self) -> None:
        sockets: dict[int, socket.socket] = {}
        for at, port in enumerate(self._ports):
            for stream in (2 * at, 2 * at + 1):
                self._channel.send(stream, struct.pack("<H", port))
            try:
                sockets[2 * at] = connected(self._process, self._ip, port)
            except OSError as error:
                self._channel.send(2 * at + 1, str(error).encode())
                continue
            threading.Thread(target=self._back, args=(2 * at, sockets[2 * at]), daemon=True).start()
        for stream, content in self._channel.messages():
            if stream in sockets:
                with suppress(OSError):
                    sockets[stream].sendall(content)
        for each in sockets.values():
            each.close()

    def _back(self, stream: int, source: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65536):
                self._channel.send(stream, content)
        self._channel.close()


def connected(process: int, ip: str, port: int) -> socket.socket:
    """A connection to a port of a pod's loopback, which takes root; else of its address. Raises OSError."""
    if os.geteuid() != 0:
        return socket.create_connection((ip, port), timeout=10)
    found: list[socket.socket | OSError] = []

    def connect() -> None:  # a thread of its own: it stays in the pod's network
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/proc/{process}/ns/net") as namespace:
                if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            found.append(socket.create_connection(("127.0.0.1", port), timeout=10))
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    if isinstance(found[0], OSError):
        raise found[0]
    found[0].settimeout(None)
    return found[0]


def _status(code: int | None, message: str) -> bytes:
    """The status document that ends a command."""
    if code == 0:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    document: dict[str, Any] = {"metadata": {}, "status": "Failure", "message": message}
    if code is None:
        document |= {"reason": "InternalError", "code": 500}
    else:
        document |= {
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }
    return json.dumps(document).encode()
