"""Values masked in messages and traces: those of variables for jobs, and the caller's own secrets."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from orch.spec.confidential import SECRET_NAME, forms, hidden, without

_VALUED = frozenset({"--name", "-n", "--fleet", "--profile", "-P", "--port"})
"""Other options of verbs with `--env` that take the next word."""


def masked(
    text: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    more: Iterable[str] = (),
) -> str:
    """The text with secrets masked: values of `--env` and of `secret set`, of variables named like secrets,
    of the project's secrets that were decrypted, and those in `more`.

    `argv` and `environ` are this process's own by default.
    """
    argv = sys.argv if argv is None else argv
    variables = [*_env_options(argv)]
    environ = os.environ if environ is None else environ
    values = [environ.get(item, "") if "=" not in item else item.partition("=")[2] for item in variables]
    values += [value for name, value in environ.items() if SECRET_NAME.search(name)]
    values += [*_set_values(argv), *more]
    return hidden(without(text, {form for value in values for form in forms(value)}))


def mask() -> Callable[[str], str]:
    """Return a function that masks as `masked` does, with the values that this process knows now: quick for
    many texts."""
    values = [value for name, value in os.environ.items() if SECRET_NAME.search(name)]
    known = {form for value in values for form in forms(value)}
    return lambda text: hidden(without(text, known))


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


def _set_values(argv: Sequence[str]) -> Iterator[str]:
    """The value in `secret set NAME VALUE`, and whatever else stands behind the name."""
    if "set" not in argv[2:3] or argv[1] != "secret":
        return
    positional: list[str] = []
    words = iter(argv[3:])
    for word in words:
        if word == "--":
            positional += words
        elif word == "--from-file":
            next(words, "")
        elif not word.startswith("-"):
            positional.append(word)
    yield from positional[1:]


def cover_arguments() -> None:
    """Overwrite the values of `--env K=V` and `secret set NAME VALUE` where the kernel shows this process's
    command line to all users.

    As mysql does with a password. They are seen until then, a moment; a run, or what drives it in the
    background, may last for days. On Linux only.
    """
    variables = [item for item in _env_options(sys.argv) if item.partition("=")[2]]
    values = [*_set_values(sys.argv)]
    if not variables and not values:
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
    for value in filter(None, map(os.fsencode, values)):
        covered = covered.replace(b"\0" + value + b"\0", b"\0" + b"*" * len(value) + b"\0")
    ctypes.memmove(start, covered, len(covered))
