"""The root of every error that may reach a user, and the exit codes of design.

An error says what is wrong (`summary`), where (`where`: file:line:col, a host, a resource), why (`detail`)
and what to do (`hint`). `code` is an ORCHnnn code where one is assigned. The command line turns it into one
block of text and an exit code; a bug is any other exception.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    OK = 0
    BUG = 1
    USAGE = 2
    CONFIG = 3
    POLICY = 4
    PROVISION = 5
    RUN_FAILED = 6
    HOSTS = 7
    VERIFY = 8
    CONFLICT = 9
    CHANGES = 10
    INTERRUPTED = 130


class OrchError(Exception):
    """One cause, told whole. Each package has one subclass as its root, each cause a subclass of that."""

    exit_code: ClassVar[ExitCode] = ExitCode.BUG

    def __init__(
        self,
        summary: str,
        *,
        where: str | None = None,
        detail: str | None = None,
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(summary)
        self.summary = summary
        self.where = where
        self.detail = detail
        self.hint = hint
        self.code = code

    def text(self) -> str:
        """All of it for people: what, where, why and what to do, in that order."""
        head = f"error {self.code}: {self.summary}" if self.code else f"error: {self.summary}"
        lines = [f"{self.where}: {head}" if self.where else head]
        lines += [f"  {line}" for line in (self.detail or "").splitlines()]
        lines += [f"  hint: {self.hint}"] if self.hint else []
        return "\n".join(lines)
