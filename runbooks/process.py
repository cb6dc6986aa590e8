"""Programs that do steps: a command of orch, a shell on this machine, or one on a node.

Their output goes to a file, which is shown while they run: a step outlives the process that began it, and who
goes on with its run waits for it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType

from orch.runbooks.plan import Action, PlannedStep

PAUSE_S = 0.1
KILL_S = 10
TIMED_OUT = 124
"""The exit code of `timeout`, for what was ended because it took too long."""

# The program begins when it is told to: by then it is written down which process it is. Where whoever would
# tell it is killed before, the pipe ends, and nothing is done.
_WAITING = 'IFS= read -r go < "/dev/fd/$1" || exit 125; shift; exec "$@"'

# The values come first on the input, and nothing else: `ps` shows words of commands to every user.
_VALUES = 'eval "$(cat)"; exec < /dev/null\n'


@dataclass(frozen=True)
class Program:
    """`group`: it gets a process group of its own, which ends as a whole, and no terminal. `given`: what it
    reads as its input."""

    words: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    timeout_s: int | None = None
    group: bool = False
    given: bytes = b""


def program_of(
    planned: PlannedStep,
    action: Action,
    folder: Path,
    more_words: Callable[[tuple[str, ...]], tuple[str, ...]] = tuple,
    timeout_s: int | None = None,
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Program:
    """Return the program that does an action of a step.

    A shell has the values in its environment. Where sudo or a login keeps none, it reads them from its input,
    each quoted. `environment`: what shells on this machine have besides.
    """
    if action.words is not None:
        return Program(orch_words(action.words), {}, folder, timeout_s)
    own = {} if planned.host is not None else environment
    if planned.host is None and not planned.step.sudo:
        variables = {**search_path(), **own, **dict(action.environment)}
        return Program(("/bin/sh", "-euc", action.script), variables, folder, timeout_s, group=True)
    values = [f"export {name}={shlex.quote(value)}\n" for name, value in (*own.items(), *action.environment)]
    given = "".join(values).encode("utf-8", "surrogateescape")
    script = f"{_VALUES if given else ''}{action.script}"
    if planned.host is None:
        words = ("sudo", "-n", "/bin/sh", "-euc", script)
        return Program(words, {}, folder, timeout_s, group=True, given=given)
    text = f"/bin/sh -euc {shlex.quote(script)}"
    limited = f"timeout -k 5 {timeout_s} {text}" if timeout_s else text
    on_node = f"sudo -n {limited}" if planned.step.sudo else limited
    words = more_words(("ssh", planned.host))
    # A little longer than the node takes to end it.
    wait = None if timeout_s is None else timeout_s + 30
    return Program(orch_words((*words, "--", on_node)), {}, folder, wait, group=True, given=given)


def orch_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a program that is this orch."""
    script = _script()
    return (sys.executable, "-m", "orch.cli.main", *words) if script is None else (str(script), *words)


def _script() -> Path | None:
    """The console script that this process is, or the one beside its interpreter."""
    found = (Path(sys.argv[0]), Path(sys.executable).parent / "orch")
    return next((each.absolute() for each in found if each.name == "orch" and each.is_file()), None)


def search_path() -> dict[str, str]:
    """The variable with which a shell finds this orch before any other."""
    folder = (_script() or Path(sys.executable)).parent
    return {"PATH": os.pathsep.join((str(folder), os.environ.get("PATH", os.defpath)))}


def run(program: Program, log: Path, began: Callable[[int], None], show: Callable[[bytes], None]) -> int:
    """Run a program to its end, and return its exit code, or 128 and the signal's number.

    `log` gets its output, `show` pieces of it as they come, `began` its process number before it does
    anything. An interrupt of this process is passed on, and raised when the program has ended. Raises OSError
    when it cannot be started.
    """
    reading, writing = os.pipe()
    terminal = not program.group and sys.stdin is not None and sys.stdin.isatty()
    with log.open("ab", buffering=0) as out, log.open("rb") as shown, TemporaryFile(dir=log.parent) as given:
        shown.seek(0, os.SEEK_END)
        given.write(program.given)
        given.seek(0)
        try:
            child = subprocess.Popen(
                ["/bin/sh", "-c", _WAITING, "sh", str(reading), *program.words],
                cwd=program.folder,
                env={**os.environ, **program.environment},
                stdin=None if terminal else given if program.given else subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=(reading,),
                start_new_session=program.group,
            )
        finally:
            os.close(reading)
        try:
            began(child.pid)
            os.write(writing, b"go\n")
        finally:
            os.close(writing)
        return _followed(child, program, lambda: show(shown.read()))


def _followed(child: subprocess.Popen[bytes], program: Program, show: Callable[[], None]) -> int:
    interrupts = 0
    end = None if program.timeout_s is None else time.monotonic() + program.timeout_s
    timed_out = False
    while True:
        try:
            try:
                code = child.wait(PAUSE_S)
            except subprocess.TimeoutExpired:
                show()
                if end is not None and time.monotonic() > end:
                    _signal(child, program, signal.SIGKILL if timed_out else signal.SIGTERM)
                    timed_out, end = True, time.monotonic() + KILL_S
                continue
            show()
            break
        except KeyboardInterrupt:
            interrupts += 1
            _signal(child, program, signal.SIGKILL if interrupts > 2 else signal.SIGINT)
    if interrupts:
        raise KeyboardInterrupt
    return TIMED_OUT if timed_out else code if code >= 0 else 128 - code


def _signal(child: subprocess.Popen[bytes], program: Program, number: signal.Signals) -> None:
    try:
        if program.group:
            os.killpg(child.pid, number)
        else:
            child.send_signal(number)
    except ProcessLookupError:
        pass
