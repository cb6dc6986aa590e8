"""A program on a terminal of its own, for tests of shells in pods."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

WAIT_S = 120.0


class Screen:
    """A program on a terminal of its own."""

    def __init__(self, words: list[str], *, rows: int = 33, columns: int = 91) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(rows, columns)
        self.process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env={**os.environ}
        )
        self.theirs = theirs
        self.text = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def shows(self, text: str) -> None:
        ends = time.monotonic() + WAIT_S
        while text.encode() not in self.text:
            assert time.monotonic() < ends, self.text
            if select.select([self.ours], [], [], 0.1)[0]:
                self.text += os.read(self.ours, 65536)
            elif self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode}: {self.text!r}")

    def code(self) -> int:
        return self.process.wait(WAIT_S)

    def cooked(self) -> bool:
        """Whether the terminal is as it was: a line at a time, and shown."""
        flags = termios.tcgetattr(self.theirs)[3]
        return bool(flags & termios.ICANON and flags & termios.ECHO)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)
