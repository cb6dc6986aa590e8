"""Scripts in containers, by a shell of root that waits in each of them.

`docker exec` costs a tenth of a second of CPU: a client, two starts of runc and a shim's work, for a script
that takes a millisecond. Here one shell for each container takes one script after the other, and starts a
shell of its own for each of them, so that scripts do not see each other.
"""

from __future__ import annotations

import functools
import os
import secrets
import selectors
import shlex
import subprocess
import threading
from typing import IO


class ShellEnded(Exception):
    """The container ended, or its shell. `began`: the script may have done something before."""

    def __init__(self, began: bool, printed: str, told: str) -> None:
        super().__init__("the container's shell ended")
        self.began, self.printed, self.told = began, printed, told


class ContainerShell:
    """One shell in a container. One thread at a time has a script run there."""

    def __init__(self, container: str) -> None:
        self._lock = threading.Lock()
        self._words = ["docker", "exec", "--interactive", container, "sh"]
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, script: str) -> tuple[int, str, str]:
        """Exit code, what it printed, what it told. Its stdin is empty.

        Where there is no such container, or it does not run, the code is 1 and Docker's reason is told. A
        script during which the container ends has code 137. The container must not be paused.
        """
        with self._lock:
            try:
                return self._ask(script)
            except ShellEnded as ended:
                if ended.began:
                    return 137, ended.printed, ended.told
            try:  # the container has been started anew since
                return self._ask(script)
            except ShellEnded as ended:
                return 137 if ended.began else 1, ended.printed, ended.told

    def _ask(self, script: str) -> tuple[int, str, str]:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = subprocess.Popen(
                self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        assert process.stdin
        assert process.stdout
        assert process.stderr
        mark = secrets.token_hex(8)
        text = f"echo {mark}; sh -c {shlex.quote(script)} < /dev/null; echo {mark} $?; echo {mark} >&2\n"
        try:
            process.stdin.write(text.encode())
            process.stdin.flush()
        except BrokenPipeError:
            pass  # what it told says why
        try:
            printed, told, ended = _read(process.stdout, process.stderr, mark.encode())
        except BaseException:  # an interrupt, the test's own time limit: the script still runs
            self._end(process)
            raise
        # Before the first mark is what earlier scripts' background processes printed.
        _, began, rest = printed.partition(f"{mark}\n".encode())
        if ended:
            self._end(process)
            raise ShellEnded(bool(began), rest.decode(), told.decode())
        said, _, code = rest.rpartition(f"{mark} ".encode())
        return int(code), said.decode(), told.rpartition(mark.encode())[0].decode()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        process.kill()
        process.communicate()


def _read(out: IO[bytes], err: IO[bytes], mark: bytes) -> tuple[bytes, bytes, bool]:
    """What both streams hold up to their marks, and whether one ended before."""
    # Of stdout the second one counts, with the code behind it.
    texts = {out: bytearray(), err: bytearray()}
    marks = {out: mark + b" ", err: mark + b"\n"}
    ended = False
    with selectors.DefaultSelector() as selector:
        for stream in texts:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                stream = key.fileobj
                assert not isinstance(stream, int)
                more = os.read(key.fd, 1 << 16)
                text = texts[stream]  # type: ignore[index]
                text += more
                ended = ended or not more
                _, found, rest = text.rpartition(marks[stream])  # type: ignore[index]
                if not more or (found and (stream is err or rest.endswith(b"\n"))):
                    selector.unregister(stream)
    return bytes(texts[out]), bytes(texts[err]), ended


@functools.cache
def shell_of(container: str) -> ContainerShell:
    """The one of this process for a container's name."""
    return ContainerShell(container)


def inside(container: str, script: str, check: bool = True) -> str:
    """What a shell of root in a container prints, without the space around it."""
    code, printed, told = shell_of(container).run(script)
    if check and code:
        raise AssertionError(f"{container}: {script}: exit code {code}: {told}")
    return printed.strip()
