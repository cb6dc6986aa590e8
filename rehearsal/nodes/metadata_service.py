"""The instance metadata service of a rehearsed node, once its cloud has announced something.

python3 metadata_service.py aws|gcp FOLDER [ADDRESS PORT]

The node runs this file by itself, with the few modules that its Python has. It serves the files of a folder
by their paths, and asks for the headers that its cloud asks for. Sources: EC2 user guide, "Use the Instance
Metadata Service"; Compute Engine documentation, "View and query VM metadata".
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

TOKEN = "token-of-this-node"
REASONS = {200: "OK", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found"}


def answer(cloud: str, folder: Path, method: str, target: str, headers: dict[str, str]) -> tuple[int, str]:
    """Status and text of an answer; header names are in lower case."""
    address = urlsplit(target)
    if method == "PUT":
        granted = cloud == "aws" and address.path == "/latest/api/token"
        granted = granted and "x-aws-ec2-metadata-token-ttl-seconds" in headers
        return (200, TOKEN) if granted else (403, "")
    if cloud == "aws" and headers.get("x-aws-ec2-metadata-token") != TOKEN:
        return 401, ""
    if cloud == "gcp" and headers.get("metadata-flavor") != "Google":
        return 403, ""
    file = folder / address.path.lstrip("/")
    query = {name: values[-1] for name, values in parse_qs(address.query).items()}
    if cloud == "gcp" and query.get("wait_for_change") == "true":
        end = time.monotonic() + float(query.get("timeout_sec", "3600"))
        while etag(_read(file)) == query.get("last_etag") and time.monotonic() < end:
            time.sleep(0.1)
    text = _read(file)
    return (404, "") if text is None else (200, text)


def etag(text: str | None) -> str:
    return sha256((text or "").encode()).hexdigest()[:16]


def _read(file: Path) -> str | None:
    return file.read_text() if file.is_file() else None


def serve(caller: socket.socket, cloud: str, folder: Path) -> None:
    """Answer one question."""
    with caller, caller.makefile("rb") as asked:
        method, target, *_ = asked.readline().decode().split()
        headers: dict[str, str] = {}
        while (line := asked.readline().decode().strip()) != "":
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        status, text = answer(cloud, folder, method, target, headers)
        lines = [f"HTTP/1.0 {status} {REASONS[status]}", f"Content-Length: {len(text.encode())}"]
        lines += [f"ETag: {etag(text)}", "Connection: close", "", text]
        caller.sendall("\r\n".join(lines).encode())


def main() -> None:
    """Serve until the end of the node, and say on which port."""
    cloud, folder = sys.argv[1], Path(sys.argv[2])
    address, port = sys.argv[3:5] if len(sys.argv) > 3 else ("169.254.169.254", "80")
    with socket.create_server((address, int(port))) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            caller, _ = listener.accept()
            threading.Thread(target=serve, args=(caller, cloud, folder), daemon=True).start()


if __name__ == "__main__":
    main()
