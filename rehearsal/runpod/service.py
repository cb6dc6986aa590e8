"""The account as an HTTP service on this machine: paths, statuses and headers as RunPod's."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from orch.rehearsal.runpod.api.errors import AnswerLost, RunpodError

if TYPE_CHECKING:
    from orch.rehearsal.runpod.account import RunpodCloud

POLICY = '"minute";q=60;w=60, "hour";q=3000;w=3600, "day";q=50000;w=86400'


class RunpodService:
    """Serves an account at `url`, on the loopback interface alone, until it is stopped."""

    def __init__(self, cloud: RunpodCloud) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(cloud))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="runpod", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(cloud: RunpodCloud) -> type[BaseHTTPRequestHandler]:
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
                query = dict(parse_qsl(url.query))
                answer = cloud.request(self.command, url.path, query, body, headers)
            except AnswerLost:
                self.close_connection = True
            except RunpodError as error:
                self._send(
                    error.status,
                    error.problem(),
                    {"Content-Type": "application/problem+json", **error.headers},
                )
            else:
                self._send(answer.status, answer.document, {})

        def _send(self, status: int, document: Any, headers: dict[str, str]) -> None:
            data = b"" if document is None else json.dumps(document).encode()
            self.send_response(status)
            sent = {"Content-Type": "application/json", "RateLimit-Policy": POLICY, **headers}
            for name, value in sent.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve

    return Handler


@dataclass(frozen=True)
class Session:
    """A login to the simulated account."""

    key: str = field(repr=False)
    url: str


_SERVED: dict[tuple[int, Path], RunpodService] = {}
"""By process and account: a service does not live on in a fork."""


def url_of(cloud: RunpodCloud) -> str:
    """Where this process serves an account; one service for each."""
    key = os.getpid(), cloud.path.resolve()
    if key not in _SERVED:
        _SERVED[key] = RunpodService(cloud)
    return _SERVED[key].url
