"""Services that are not the cloud which is asked: a proxy, a captive portal, a load balancer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Answer = tuple[int, str, str]
"""Status, type of the content, and the content."""

HTML = "text/html; charset=utf-8"
JSON = "application/json"
PORTAL = "<!DOCTYPE html><html><body><h1>Please log in to this network</h1></body></html>"


@contextmanager
def answering(status: int, body: str, kind: str = JSON) -> Iterator[str]:
    """Serve one answer to each request, and yield the service's address."""
    with serving(lambda path, headers, sent: (status, kind, body)) as url:
        yield url


@contextmanager
def serving(answer: Callable[[str, Mapping[str, str], str], Answer]) -> Iterator[str]:
    """Serve what `answer` returns for a path, headers and a body, and yield the service's address."""

    class Handler(BaseHTTPRequestHandler):
        def reply(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            status, kind, body = answer(self.path, dict(self.headers), sent)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = reply

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
