"""The root of every error that may reach a user, and the exit codes of design.

An error says what is wrong (`summary`), where (`where`: file:line:col, a host, a resource), why (`detail`)
and what to do (`hint`). `code` is an ORCHnnn code where one is assigned. The command line turns it into one
block of text and an exit code; a bug is any other exception.
"""

from __future__ import annotations

import re
from enum import IntEnum

_COLOUR = re.compile(r"(\x1b\[(?:[0-4]|3[0-7]|9[0-7])m)")


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
    """An error with what, where, why and what to do. Each package has one subclass as its root, each cause a
    subclass of that."""

    exit_code: ExitCode = ExitCode.BUG
    # Whether its detail may be kept: it never has what a program of the user's wrote, which may be secret.
    detail_is_ours: bool = False

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

    def __reduce__(self) -> tuple[object, ...]:
        """For another process: causes have arguments of their own, and none is made anew."""
        return _remade, (type(self), self.args), self.__dict__

    def text(self) -> str:
        """Full message for people: what, where, why and what to do, in that order.

        Names and answers of hosts and files are in it: what would move a terminal's cursor, or begin a line
        that looks like another message, is shown as what it is.
        """
        summary = visible(self.summary)
        head = f"error {self.code}: {summary}" if self.code else f"error: {summary}"
        lines = [f"{visible(self.where)}: {head}" if self.where else head]
        lines += [f"  {visible(line)}" for line in _lines(self.detail)]
        hint = _lines(self.hint)
        lines += [f"  {'      ' if at else 'hint: '}{visible(line)}" for at, line in enumerate(hint)]
        return "\n".join(lines)


def _remade(kind: type[OrchError], words: tuple[object, ...]) -> OrchError:
    return kind.__new__(kind, *words)


def visible(text: str) -> str:
    """One line, in which every character that does not print is its number: `<1b>`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else "    " if each == "\t" else f"<{ord(each):02x}>" for each in text
    )


def visible_lines(text: str) -> str:
    """The same for text of several lines; line breaks and colours stay, for they hide nothing."""
    return "".join(
        part if at % 2 else "\n".join(map(visible, part.split("\n")))
        for at, part in enumerate(_COLOUR.split(text))
    )


def _lines(text: str | None) -> list[str]:
    return [line.removesuffix("\r") for line in (text or "").rstrip("\n").split("\n")] if text else []
