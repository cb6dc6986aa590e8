"""A server on this machine that answers as an API server of Kubernetes is told to, over TLS."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import socket
import ssl
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError

from orch.rehearsal.kubernetes.certificates import Authority

Doc = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One request."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def words(self) -> dict[str, str]:
        return dict(self.query)

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """What it answers. `pieces`: a body that comes bit by bit; `cut`: the connection ends in the middle."""

    document: Any = field(default_factory=dict)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: Iterator[bytes] | None = None
    cut: bool = False


def status(code: int, reason: str, message: str, **details: Any) -> Answer:
    """A refusal, as an API server words it."""
    document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return Answer({**document, "reason": reason, "details": details}, code)


class Streams:
    """A WebSocket of a test's server."""

    def __init__(self, connection: socket.socket, protocol: WSConnection) -> None:
        self.socket, self._protocol = connection, protocol
        self._lock = threading.Lock()

    def send(self, stream: int, content: bytes) -> None:
        with self._lock:
            self.socket.sendall(self._protocol.send(BytesMessage(bytes([stream]) + content)))

    def close(self) -> None:
        with self._lock, suppress(OSError):
            self.socket.sendall(self._protocol.send(CloseConnection(code=1000)))

    def end(self, code: int = 0, **more: Any) -> None:
        """Tell how the command ended, and close."""
        document: Doc = {"metadata": {}, "status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            document = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
        self.send(3, json.dumps({**document, **more}).encode())
        self.close()

    def messages(self) -> Iterator[tuple[int, bytes]]:
        parts = bytearray()
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
                    parts += event.data if isinstance(event.data, (bytes, bytearray)) else event.data.encode()
                    if event.message_finished and parts:
                        whole, parts = bytes(parts), bytearray()
                        yield whole[0], whole[1:]
                elif isinstance(event, Ping):
                    with self._lock, suppress(OSError):
                        self.socket.sendall(self._protocol.send(event.response()))
                elif isinstance(event, CloseConnection):
                    return
            if not content:
                return


Stream = Callable[[Call, Streams], None]


def pod(name: str = "p", uid: str = "u-1", container: str = "job", **state: Doc) -> Doc:
    """A pod whose container is in a state, running if none is given."""
    row = {"name": container, "state": state or {"running": {"startedAt": "2026-11-27T00:00:00Z"}}}
    status: Doc = {"phase": "Running", "containerStatuses": [row]}
    return {"kind": "Pod", "metadata": {"name": name, "uid": uid}, "status": status}


def run_command(call: Call, streams: Streams) -> None:
    """Do what a kubelet does with a request for a command: run it, here, and carry its streams."""
    words = [text for name, text in call.query if name == "command"]
    wants = {name for name, text in call.query if text == "true"}
    if "tty" in wants:
        _run_on_a_terminal(words, streams)
        return
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE if "stdin" in wants else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )

    def feed() -> None:
        assert process.stdin is not None
        with suppress(OSError, ValueError):
            for stream, content in streams.messages():
                if stream == 0:
                    with suppress(BrokenPipeError):
                        process.stdin.write(content)
                        process.stdin.flush()
                elif stream == 255 and content == b"\0":
                    process.stdin.close()
        with suppress(OSError, ValueError):
            process.stdin.close()

    def carry(stream: int, source: Any) -> None:
        with suppress(OSError, LocalProtocolError):  # the other side has closed
            while content := source.read1(65536):
                streams.send(stream, content)

    work = [(carry, (1, process.stdout)), (carry, (2, process.stderr))]
    threads = [threading.Thread(target=each, args=given, daemon=True) for each, given in work]
    if "stdin" in wants:
        threading.Thread(target=feed, daemon=True).start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    code = process.wait()
    with suppress(OSError, LocalProtocolError):
        streams.end(code if code >= 0 else 128 - code)


def _run_on_a_terminal(words: list[str], streams: Streams) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(["setsid", "-cw", *words], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)

    def feed() -> None:
        with suppress(OSError):
            for stream, content in streams.messages():
                if stream == 0:
                    os.write(ours, content)
                elif stream == 4:
                    size = json.loads(content)
                    rows = struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
                    fcntl.ioctl(ours, termios.TIOCSWINSZ, rows)
        process.kill()

    threading.Thread(target=feed, daemon=True).start()
    with suppress(OSError, LocalProtocolError):
        while content := os.read(ours, 65536):
            streams.send(1, content)
    code = process.wait()
    with suppress(OSError, LocalProtocolError):
        streams.end(code if code >= 0 else 128 - code)


class KubeServer:
    """`answer` makes an answer of a call, `stream` does what a WebSocket is for; `calls` is what came."""

    def __init__(
        self, folder: Path, *, hosts: tuple[str, ...] = ("127.0.0.1", "localhost"), encrypted: bool = True
    ) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.pair = self.authority.issue("server", hosts=hosts)
        self.answer: Callable[[Call], Answer] = lambda call: Answer()
        self.stream: Stream | None = None
        self.protocols: tuple[str, ...] = ("v5.channel.k8s.io", "v4.channel.k8s.io")
        self.calls: list[Call] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.pair.certificate, self.pair.key)
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"lab": self}))
        self._server.context = context if encrypted else None
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self, name: str = "config", *, user: Doc | None = None, **cluster: Any) -> Path:
        """A kubeconfig that leads here; `user` and `cluster`: other words of it (None leaves one out)."""
        ca = base64.b64encode(self.authority.certificate.read_bytes()).decode()
        words = {
            "server": f"https://127.0.0.1:{self.port}",
            "certificate-authority-data": ca,
            **{key.replace("_", "-"): value for key, value in cluster.items()},
        }
        document = {
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": "space"}}],
            "clusters": [{"name": "c", "cluster": {k: v for k, v in words.items() if v is not None}}],
            "users": [{"name": "u", "user": {"token": "sesame-open"} if user is None else user}],
        }
        path = self.folder / name
        path.write_text(yaml.safe_dump(document))
        return path


@contextmanager
def kube_server(folder: Path, **words: Any) -> Iterator[KubeServer]:
    server = KubeServer(folder, **words)
    try:
        yield server
    finally:
        server.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    context: ssl.SSLContext | None

    def finish_request(self, request: Any, client_address: Any) -> None:
        with suppress(OSError):
            whole = request if self.context is None else self.context.wrap_socket(request, server_side=True)
            super().finish_request(whole, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    lab: KubeServer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length", "0"))
        call = Call(
            self.command,
            url.path,
            tuple(parse_qsl(url.query, keep_blank_values=True)),
            {key.lower(): value for key, value in self.headers.items()},
            self.rfile.read(length),
        )
        self.lab.calls.append(call)
        if call.headers.get("upgrade", "").lower() == "websocket":
            self._upgrade(call)
            return
        answer = self.lab.answer(call)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.pieces is not None:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in answer.pieces:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            if not answer.cut:
                self.wfile.write(b"0\r\n\r\n")
            else:
                self.close_connection = True
            return
        body = answer.document if isinstance(answer.document, bytes) else json.dumps(answer.document).encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if answer.cut else body)
        self.close_connection = self.close_connection or answer.cut

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _upgrade(self, call: Call) -> None:
        protocol = WSConnection(ConnectionType.SERVER)
        head = [f"{self.command} {self.path} HTTP/1.1", *(f"{k}: {v}" for k, v in self.headers.items())]
        self.close_connection = True
        protocol.receive_data(("\r\n".join(head) + "\r\n\r\n").encode())
        request = next(iter(protocol.events()))
        assert isinstance(request, Request)
        chosen = next((each for each in request.subprotocols if each in self.lab.protocols), None)
        answer = self.lab.answer(call)
        if answer.status < 400 and chosen is None:
            answer = Answer(b"no protocol of these", 403)
        if answer.status >= 400:
            body = (
                answer.document
                if isinstance(answer.document, bytes)
                else json.dumps(answer.document).encode()
            )
            headers = [(b"content-length", str(len(body)).encode())]
            refused = RejectConnection(status_code=answer.status, headers=headers, has_body=True)
            self.connection.sendall(protocol.send(refused) + protocol.send(RejectData(data=body)))
            return
        self.connection.sendall(protocol.send(AcceptConnection(subprotocol=chosen)))
        if self.lab.stream is not None:
            with suppress(OSError):
                self.lab.stream(call, Streams(self.connection, protocol))
