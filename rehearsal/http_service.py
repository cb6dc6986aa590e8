"""A simulated account as an HTTP service on this machine, for clouds that are asked by REST."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit

from orch.rehearsal.account import AnswerLost, Refusal
from orch.rehearsal.store import Doc


@dataclass(frozen=True)
class Answer:
    """`document` None: an answer without a body."""

    status: int
    document: Doc | None = None


class HttpRefusal(Refusal):
    """A refusal with an HTTP status. `headers` go with the answer."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(code, message)
        self.status, self.headers = status, dict(headers or {})

    def document(self) -> Doc:
        """The body of the answer."""
        raise NotImplementedError


class Account(Protocol):
    """What is served. `answer_headers` go with each answer."""

    answer_headers: ClassVar[Mapping[str, str]]

    @property
    def path(self) -> Path: ...

    def request(
        self, method: str, path: str, query_text: str, body: Any, headers: Mapping[str, str]
    ) -> Answer:
        """One call; names of headers in small letters. Raises HttpRefusal, and AnswerLost where it was done
        and nobody is told."""
        ...


class HttpService:
    """Serves an account at `url`, on the loopback interface alone, until it is stopped."""

    def __init__(self, cloud: Account) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(cloud))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="cloud", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(cloud: Account) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Calls are in the account's own log."""

        def _serve(self) -> None:
            url = urlsplit(self.path)
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                body = json.loads(text) if text else None
            except ValueError:
                self._send(400, {"title": "Bad Request", "status": 400, "detail": "body is not JSON"}, {})
                return
            try:
                headers = {name.lower(): value for name, value in self.headers.items()}
                answer = cloud.request(self.command, url.path, url.query, body, headers)
            except AnswerLost:
                self.close_connection = True
            except HttpRefusal as error:
                self._send(error.status, error.document(), error.headers)
            else:
                self._send(answer.status, answer.document, {})

        def _send(self, status: int, document: Any, headers: dict[str, str]) -> None:
            data = b"" if document is None else json.dumps(document).encode()
            self.send_response(status)
            sent = {"Content-Type": "application/json", **cloud.answer_headers, **headers}
            for name, value in sent.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve

    return Handler


_SERVED: dict[tuple[int, Path], HttpService] = {}
"""By process and account: a service does not live on in a fork."""


def url_of(cloud: Account) -> str:
    """Where this process serves an account; one service for each."""
    key = os.getpid(), cloud.path.resolve()
    if key not in _SERVED:
        _SERVED[key] = HttpService(cloud)
    return _SERVED[key].url
