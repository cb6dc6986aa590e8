"""A node with gigabytes of images on a busy disk takes minutes to remove, and that is no failure."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from orch.providers.orch.handler import ProviderError
from orch.providers.orch.local_node import REMOVE_S, LocalNodeHandler


class SlowDocker(BaseHTTPRequestHandler):
    """Knows one container; to remove it takes until the test is over."""

    over = threading.Event()

    def do_GET(self) -> None:
        self._answer({"Id": "n0", "Name": "/n0", "ApiVersion": "1.44"})

    def do_DELETE(self) -> None:
        self.over.wait(60)
        self._answer({})

    def address_string(self) -> str:
        return "test"

    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def _answer(self, body: dict[str, str]) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def slow_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ThreadingUnixStreamServer(str(tmp_path / "docker.sock"), SlowDocker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
        yield
        SlowDocker.over.set()
        server.shutdown()


@pytest.mark.usefixtures("slow_docker")
def test_a_removal_that_takes_too_long_is_told_in_words_and_what_to_do() -> None:
    with pytest.raises(ProviderError) as failed:
        LocalNodeHandler(remove_s=1.0).delete("n0", {})
    assert "not told within 1 s that the node n0 is removed" in failed.value.summary
    assert "run the same command again" in (failed.value.hint or "")


def test_minutes_are_waited_for_before_that() -> None:
    assert REMOVE_S >= 600
