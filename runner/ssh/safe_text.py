"""Texts of a fleet that become words of a shell or lines of an SSH configuration, and what they may not hold.

A shell reads a ProxyCommand, and its tokens may stand inside quotes of its own: no quoting of what is filled
in is right for all of them. So what a shell could take for more than a name is refused, as `ssh` does since
CVE-2023-51385 (OpenSSH 9.6, `valid_hostname` and `valid_ruser`; `$` is refused in users too, for a shell puts
the caller's own variables there).
"""

from __future__ import annotations

import unicodedata

from orch.runner.errors import UnsafeName

_SHELL = frozenset("'`\"$\\;&<>|(){}*?[]!#~,/")


def safe_host(text: str) -> bool:
    """Whether a host's name or address is nothing else to a shell, an option parser or a configuration."""
    return _safe(text)


def refuse_host(address: str) -> None:
    """Raises UnsafeName for an address that is not put into a command of a shell."""
    if not _safe(address):
        raise UnsafeName(
            f"the host name {address!r} is not put into a command",
            detail="a shell would take it for more than a name",
            hint="write a host's name or address",
        )


def refuse_user(user: str) -> None:
    """Raises UnsafeName for a user that is not put into a command of a shell.

    A `$` that ends a name is nothing to a shell.
    """
    if not _safe(user.removesuffix("$")):
        raise UnsafeName(
            f"the user {user!r} is not put into a command",
            detail="a shell would take it for more than a name",
            hint="write the name of a user on the host, or leave `%r` out of your ProxyCommand",
        )


def one_line(text: str, what: str) -> str:
    """The same text, fit to be the rest of a line. Raises UnsafeName."""
    if any(_is_line_break(letter) for letter in text) or text != text.strip():
        raise UnsafeName(f"{what} does not fit into one line of an SSH configuration: {text!r}")
    return text


def word(text: str, what: str) -> str:
    """A word of its own in an SSH configuration. Raises UnsafeName."""
    one_line(text, what)
    if not text or text.startswith("-") or any(letter.isspace() or letter in "'\"#" for letter in text):
        raise UnsafeName(f"{what} is no single word: {text!r}")
    return text


def quoted(path: str, what: str) -> str:
    """A path of this machine in an SSH configuration; `ssh` expands tokens and variables even in quotes.

    Raises UnsafeName for one that cannot be written there.
    """
    one_line(path, what)
    if '"' in path or "\\" in path or "${" in path:
        raise UnsafeName(
            f"{what} cannot be written into an SSH configuration: {path!r}",
            hint="use a path without quotes, backslashes and `${`",
        )
    return f'"{path.replace("%", "%%")}"'


def _safe(text: str) -> bool:
    return bool(text) and not text.startswith("-") and not any(map(_is_unsafe, text))


def _is_unsafe(letter: str) -> bool:
    return letter in _SHELL or letter.isspace() or _is_line_break(letter)


def _is_line_break(letter: str) -> bool:
    return unicodedata.category(letter) in ("Cc", "Zl", "Zp", "Cs")
