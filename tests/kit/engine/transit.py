"""Keys of states that cost nothing to open: a transit service, as `secrets_provider: hashivault://` asks for.

The engine makes the key of a state from its passphrase in a million rounds, by design: a third of a second of
CPU in each of its processes, in half of them most of it. States of tests have a data key
that this service opens instead, unless `passphrase` is among the test's fixtures: whatever is about secrets.
The service answers as Vault documents its transit engine: `PUT /v1/transit/{encrypt,decrypt}/KEY`.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, cast

from cryptography.fernet import Fernet, InvalidToken

if TYPE_CHECKING:
    from orch.stacks.stack.state import StackState

PROVIDER = "hashivault://orch-tests"
URL, TOKEN = "VAULT_SERVER_URL", "VAULT_SERVER_TOKEN"


class Transit(ThreadingHTTPServer):
    """The service, at an address of its own."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.key = Fernet(Fernet.generate_key())
        self.token = base64.b32encode(os.urandom(10)).decode()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """What engines need to find it."""
        return {URL: f"http://127.0.0.1:{self.server_port}", TOKEN: self.token}


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        service = cast(Transit, self.server)
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("X-Vault-Token") != service.token:
            self._answer(403, {"errors": ["permission denied"]})
            return
        try:
            match self.path.split("/"):
                case ["", "v1", "transit", "encrypt", _]:
                    sealed = service.key.encrypt(base64.b64decode(asked["plaintext"]))
                    self._answer(200, {"data": {"ciphertext": f"vault:v1:{sealed.decode()}"}})
                case ["", "v1", "transit", "decrypt", _]:
                    opened = service.key.decrypt(asked["ciphertext"].removeprefix("vault:v1:"))
                    self._answer(200, {"data": {"plaintext": base64.b64encode(opened).decode()}})
                case _:
                    self._answer(404, {"errors": []})
        except (InvalidToken, KeyError, ValueError) as error:
            self._answer(400, {"errors": [repr(error)]})

    def _answer(self, status: int, data: dict[str, object]) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def use() -> None:
    """From here on, stacks that this process makes have a data key where the service is told of."""
    from orch.stacks.stack import command

    made = command.plain

    def plain(stack: StackState, words: list[str], stdin: str | None = None) -> object:
        if words == ["stack", "init"] and os.environ.get(URL):
            words = [*words, "--secrets-provider", PROVIDER]
        return made(stack, words, stdin)

    command.plain = plain  # type: ignore[assignment]


if __name__ == "<run_path>":  # in a process that forks commands: forkserver.py
    use()
