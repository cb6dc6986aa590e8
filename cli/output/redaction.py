"""Values masked in messages and traces: those of variables for jobs, and the caller's own secrets."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

MASK = "(secret)"

SHORTEST = 6
"""Characters of the shortest value that is masked: shorter ones occur anywhere by chance."""

_VALUED = frozenset({"--name", "-n", "--fleet", "--profile", "-P"})
"""Other options of verbs with `--env` that take the next word."""

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY", re.I)


def masked(
    text: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    more: Iterable[str] = (),
) -> str:
    """The text with secrets masked: values of `--env`, of variables named like secrets, and those in `more`.

    `argv` and `environ` are this process's own by default.
    """
    variables = [*_env_options(sys.argv if argv is None else argv)]
    environ = os.environ if environ is None else environ
    values = [environ.get(item, "") if "=" not in item else item.partition("=")[2] for item in variables]
    values += [value for name, value in environ.items() if _SECRET_NAME.search(name)]
    values += more
    forms = {form for value in values if len(value) >= SHORTEST for form in _forms(value)}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


def _env_options(argv: Sequence[str]) -> Iterator[str]:
    """The values of `--env` and `-e` in every form that the command line takes."""
    words = iter(argv)
    for word in words:
        if word == "--":
            return
        if word in _VALUED:
            next(words, "")  # whatever it is: `--` too
        elif word == "--env":
            yield next(words, "")
        elif word.startswith("--"):
            if word.startswith("--env="):
                yield word.removeprefix("--env=")
        elif word.startswith("-"):
            for at, letter in enumerate(word[1:], 2):
                if letter == "e":
                    yield word[at:].removeprefix("=") or next(words, "")
                elif f"-{letter}" in _VALUED:
                    if not word[at:]:
                        next(words, "")
                else:
                    continue  # a flag; others may stand behind it
                break


def _forms(value: str) -> set[str]:
    """A value as it is, and as Python, JSON and a shell write it, also inside of one another."""
    once = _written(value)
    return {value, shlex.quote(value), *once, *(again for each in once for again in _written(each))}


def _written(value: str) -> set[str]:
    """Within quotes: which of them is escaped depends on what stands around the value."""
    escaped = "".join(each if each in "'\"" else repr(each)[1:-1] for each in value)
    return {escaped, escaped.replace("'", "\\'"), escaped.replace('"', '\\"'), json.dumps(value)[1:-1]}


def cover_arguments() -> None:
    """Overwrite the values of `--env K=V` where the kernel shows this process's command line to all users.

    As mysql does with a password. They are seen until then, a moment; a run, or what drives it in the
    background, may last for days. On Linux only.
    """
    variables = [item for item in _env_options(sys.argv) if item.partition("=")[2]]
    if not variables:
        return
    try:
        # Fields 48 and 49 of proc(5), counted from behind the name, which may hold anything.
        numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(numbers[45]), int(numbers[46])
        line = Path("/proc/self/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return
    if not start or end - start != len(line):
        return  # another form than proc(5) tells
    covered = line
    for item in variables:
        name, _, value = item.partition("=")
        argument = os.fsencode(f"{name}={value}")
        covered = covered.replace(
            argument + b"\0", os.fsencode(name) + b"=" + b"*" * len(os.fsencode(value)) + b"\0"
        )
    ctypes.memmove(start, covered, len(covered))
