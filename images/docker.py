"""The `docker` command line, which uses the user's contexts, credentials and builder.

Images are built through it and not through the API, so that remote contexts, rootless Docker, Docker Desktop
and BuildKit work as they do for the user.
"""

from __future__ import annotations

import os
import queue
import shlex
import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orch.images.errors import DockerUnavailable

QUICK_S = 20.0
"""Timeout of a request that the daemon answers at once."""

HEARTBEAT_S = 10.0
"""A command without a message for this long is reported as still running."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class DockerResult:
    """Result of a logged command: its exit code, its last lines, and its duration."""

    code: int
    tail: tuple[str, ...]
    seconds: float


def ask(*args: str, timeout_s: float = QUICK_S) -> str | None:
    """Standard output of `docker ARGS`, None when it fails. Raises DockerUnavailable without the command."""
    try:
        result = subprocess.run(
            ["docker", *args],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        raise DockerUnavailable(
            "the `docker` command is not installed",
            hint="install it (Debian or Ubuntu: apt-get install docker.io; macOS: Docker Desktop)",
        ) from None
    except subprocess.TimeoutExpired:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def installed() -> bool:
    """Return True if there is a `docker` command."""
    return shutil.which("docker") is not None


def server_version() -> str | None:
    """Version of the daemon, None when it does not answer."""
    return ask("version", "--format", "{{.Server.Version}}") or None


def require_server() -> None:
    """Raises DockerUnavailable when the daemon does not answer."""
    if server_version() is None:
        raise DockerUnavailable(
            "the Docker daemon does not answer",
            detail="`docker version` got no answer from a server",
            hint="start it (Linux: systemctl start docker; macOS: open Docker Desktop); on Linux your user "
            "must also be in the group `docker`",
        )


def has_image(reference: str) -> bool:
    """Return True if the daemon holds an image of this name."""
    return ask("image", "inspect", "--format", "{{.Id}}", reference) is not None


def run_logged(
    args: Sequence[str],
    *,
    log: Path,
    progress: Progress,
    stdin: bytes | None = None,
    timeout_s: float | None = None,
    describe: Callable[[str], str | None] = lambda _line: None,
) -> DockerResult:
    """Run a long command. Its output goes to `log`; `describe` turns a line into a message for `progress`.

    A message goes to `progress` at least every HEARTBEAT_S. After `timeout_s` the command is
    killed, with code 124.
    """
    started = last_message = time.monotonic()
    tail: deque[str] = deque(maxlen=20)
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "BUILDKIT_PROGRESS": "plain", "DOCKER_CLI_HINTS": "false"}
    with (
        log.open("a", encoding="utf-8") as out,
        subprocess.Popen(
            list(args),
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
        ) as process,
    ):
        out.write(f"$ {shlex.join(args)}\n")
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        if stdin is not None:
            threading.Thread(target=_feed, args=(process, stdin), daemon=True).start()
        try:
            while True:
                try:
                    line = lines.get(timeout=1.0)
                except queue.Empty:
                    now = time.monotonic()
                    if timeout_s is not None and now - started > timeout_s:
                        process.kill()
                        return DockerResult(124, (*tail, f"no end after {timeout_s:.0f} s"), now - started)
                    if now - last_message > HEARTBEAT_S:
                        last_message = now
                        progress(
                            f"  still at it after {now - started:.0f} s: {tail[-1][:80] if tail else ''}"
                        )
                    continue
                if line is None:
                    break
                out.write(line + "\n")
                out.flush()
                if line.strip():
                    tail.append(line)
                message = describe(line)
                if message is not None:
                    last_message = time.monotonic()
                    progress(message)
        except BaseException:
            process.kill()
            raise
        code = process.wait()
    return DockerResult(code, tuple(tail), time.monotonic() - started)


def _read(process: subprocess.Popen[bytes], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for raw in process.stdout:
        lines.put(raw.decode(errors="replace").rstrip())
    lines.put(None)


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(data)
        process.stdin.close()
    except BrokenPipeError:
        pass  # the command ended early; its exit code tells
