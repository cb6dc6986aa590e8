"""Errors to messages and exit codes. No traceback reaches a user."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from orch.cli.redaction import masked
from orch.spec.confidential import hidden
from orch.spec.errors import ExitCode, OrchError, visible_lines


class UsageError(OrchError):
    """A command line that contradicts itself or names something unknown."""

    exit_code = ExitCode.USAGE


WORST = (
    ExitCode.INTERRUPTED,
    ExitCode.BUG,
    ExitCode.PROVISION,
    ExitCode.CONFLICT,
    ExitCode.CONFIG,
    ExitCode.POLICY,
    ExitCode.HOSTS,
    ExitCode.CHANGES,
)
"""Exit codes, the worst first: what could not be looked at, then what is wrong or refused, then what is to
do."""


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    found = set(codes)
    return next((each for each in WORST if each in found), ExitCode.OK)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def print_json(data: dict[str, Any], *, indent: int | None = 2) -> None:
    """Print a JSON document of a verb on stdout; see `json_text`."""
    print(json_text(data, indent=indent), flush=True)


def json_text(data: dict[str, Any], *, indent: int | None = 2) -> str:
    """A JSON document of a verb, with the project that the command works in at its end."""
    if _commands.project is not None:
        name, folder = _commands.project
        data = {**data, "project": {"name": name, "folder": folder}}
    return json.dumps(data, indent=indent, ensure_ascii=indent is None)


def end(code: int) -> NoReturn:
    import typer

    raise typer.Exit(code)


def coloured(stream: IO[str]) -> bool:
    """Return True if output to a stream has colours."""
    return stream.isatty() and "NO_COLOR" not in os.environ


def tell(text: str) -> None:
    """A line for people, on stderr: stdout is for data. In one write: several threads tell something."""
    print(f"{visible_lines(hidden(_as_typed(text)))}\n", end="", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """The same on stdout: an answer that people read. What programs read is printed as it is."""
    print(visible_lines(hidden(_as_typed(text))))


@dataclass
class _Commands:
    """Project of the command, and how commands in texts, as `orch unlock lab`, get `--rehearse`."""

    complete: Callable[[str], str] | None = None
    rehearsed: bool = False
    # Name and root of the project that the command works in.
    project: tuple[str, str] | None = None


_commands = _Commands()


def rehearsal_begins() -> None:
    """From now on commands in texts are those of a rehearsal."""
    _commands.rehearsed = True


def project_begins(name: str, root: str) -> None:
    """From now on the command works in this project. It is told, once, where that is not the folder here."""
    if _commands.project == (name, root):
        return
    _commands.project = name, root
    if os.path.realpath(root) != os.getcwd():
        tell(f"project {name} ({root})")


def _as_typed(text: str) -> str:
    if _commands.rehearsed and _commands.complete is not None and "`orch " in text:
        return _commands.complete(text)
    return text


def run(app: Callable[[], object], rehearsed: Callable[[str], str] | None = None) -> NoReturn:
    """Call `app` (not in its standalone mode) and leave with an exit code of the table in docs/reference.

    `rehearsed`: a text for people with its commands as a rehearsal has them.
    """
    code: object = 0
    _commands.complete, _commands.project = rehearsed, None
    mask_threads()
    try:
        code = app()
    except OrchError as error:
        tell(error.text())
        sys.exit(int(error.exit_code))
    except (KeyboardInterrupt, EOFError):  # the end of the input is no answer
        tell("interrupted")
        sys.exit(int(ExitCode.INTERRUPTED))
    except BrokenPipeError:
        # The reader of a pipe has seen enough (`orch logs … | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    # Typer's come last: an interrupt may have come while Typer was being loaded.
    except _typer().Abort:  # the end of the input, as Typer passes it on
        tell("interrupted")
        sys.exit(int(ExitCode.INTERRUPTED))
    except _typer().exceptions.TyperException as error:
        context = getattr(error, "ctx", None)
        usage = f"{context.get_usage()}\n" if context else ""
        if message := error.format_message():  # without one, only the help was shown
            tell(f"{usage}error: {message}\n  hint: `{_command(context)} --help` shows what can be written")
        sys.exit(int(ExitCode.USAGE))
    except Exception as error:  # noqa: BLE001 - the border: a bug is told in one line, its trace goes to a file
        if isinstance(error, OSError) and error.errno in _FULL:
            place = f"{error.filename}: " if error.filename else ""
            tell(f"{place}error: nothing can be written: {error.strerror}")
            tell("  hint: make room (`df -h . /tmp`), then the same command again")
            sys.exit(int(ExitCode.CONFIG))
        tell(f"error: this is a bug in orch: {type(error).__name__}: {masked(str(error))}")
        trace = written_trace()
        tell(f"  the full trace is in {trace}; please report it with that file")
        sys.exit(int(ExitCode.BUG))
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, so that the terminal is restored and the end is told. While the
    engine runs, the signal is the engine's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _typer() -> Any:
    """Loaded where a command line is read: what an `except` names is asked for when there is an error."""
    import typer
    import typer.exceptions

    return typer


def mask_threads(more: Iterable[str] = ()) -> None:
    """Mask secrets in the traces of threads too. `more`: values to mask in addition to this process's own."""
    hidden = tuple(more)

    def print_trace(args: threading.ExceptHookArgs) -> None:
        if issubclass(args.exc_type, SystemExit):
            return
        trace = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
        tell(masked("".join(trace), more=hidden))

    threading.excepthook = print_trace


def _command(context: Any) -> str:
    return context.command_path if context else "orch"


def as_bug(error: Exception) -> OrchError:
    """A bug in one part of a command, to be told in its place while the others go on."""
    return OrchError(
        f"this is a bug in orch: {type(error).__name__}: {masked(str(error))}",
        hint=f"the full trace is in {written_trace()}; please report it with that file",
    )


def written_trace() -> str:
    """The file with the trace of the error that is being handled, without secrets."""
    trace = masked(traceback.format_exc())
    with tempfile.NamedTemporaryFile("w", prefix="orch-bug-", suffix=".txt", delete=False) as file:
        file.write(trace)
    return file.name
