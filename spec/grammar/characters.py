"""Which characters a text may hold.

What ends up as one word of a command, one line of a configuration or one field of a cloud's API is one line
of visible characters, and no option: `image: --privileged` asks Docker for something else than an image.
Commands and scripts are several lines, values of variables anything that the system takes.
"""

from __future__ import annotations

import re
import unicodedata

from orch.spec.grammar.values import Problem, shown

LONGEST = 4096
"""The longest path Linux takes; names of clouds and images are far shorter."""

_CONTAINER_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?")
_IMAGE = re.compile(r"(?:\[[0-9A-Fa-f:.]+\](?::[0-9]+)?/)?[A-Za-z0-9][A-Za-z0-9._/:@+-]*")
JOINERS = "\u200c\u200d"
"""Names of files in Persian and Hindi are spelled with them, and emoji are joined by them."""


def check_characters(text: str) -> str:
    """Several lines of anything but what no file and no argument of a program can hold. Raises Problem."""
    for char in text:
        if char == "\0":
            raise Problem("ORCH162", "this text holds a null character", hint="remove it")
        if unicodedata.category(char) == "Cs":
            summary = f"U+{ord(char):04X} is half of a character"
            raise Problem("ORCH162", summary, hint="write the character itself")
    return text


def check_line(text: str, invisible: str = "") -> str:
    """One line of visible characters, and of those in `invisible`. Raises Problem."""
    if len(text) > LONGEST:
        raise Problem("ORCH162", f"this text is longer than {LONGEST:,} characters", hint="shorten it")
    if text.isascii() and text.isprintable():
        return text
    for char in text:
        if char not in invisible and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            what = "a line break" if char in "\n\r\v\f\x85\u2028\u2029" else "an invisible character"
            summary = f"this text holds {what} (U+{ord(char):04X}), one line of visible ones is expected"
            raise Problem("ORCH162", summary, hint="remove it")
    return text


def check_word(text: str) -> str:
    """One line that no program takes for an option. Raises Problem."""
    if text.lstrip().startswith("-"):
        raise Problem(
            "ORCH162", f"{shown(text)} begins with a dash: it would be an option", hint="remove the dash"
        )
    return check_line(text)


def check_path(text: str) -> str:
    """A path. Raises Problem."""
    if text.startswith("-"):
        hint = f"write `./{text}`" if len(text) < 60 else "begin with `./`"
        raise Problem("ORCH162", f"{shown(text)} begins with a dash: it would be an option", hint=hint)
    return check_line(text, JOINERS)


def check_mounted(path: str) -> str:
    """A path on either side of a mount, whose sides Docker tells apart by colons. Raises Problem."""
    if ":" in path:
        raise Problem(
            "ORCH129", f"{shown(path)} holds a colon, which no mount can", hint="use another folder"
        )
    return path


def check_image(text: str) -> str:
    """The name of a container image. Raises Problem."""
    if not _IMAGE.fullmatch(check_word(text)):
        hint = "such as `ghcr.io/example/train:1.4`"
        raise Problem("ORCH162", f"{shown(text)} is not the name of an image", hint=hint)
    return text


def check_container_user(text: str) -> str:
    """`user[:group]`, by name or number. Raises Problem."""
    if not _CONTAINER_USER.fullmatch(check_word(text)):
        raise Problem("ORCH162", f"{shown(text)} is not a user", hint="such as `1000:1000` or `nobody`")
    return text


def check_program(text: str) -> str:
    """One program, by name or path, without arguments. Raises Problem."""
    if re.search(r"\s", check_word(text)):
        hint = "a name such as `bash`, or a path"
        raise Problem("ORCH162", f"{shown(text)} is more than the name of a program", hint=hint)
    return text
