"""The program that does a step: a command of orch, a shell on this machine, or one on a node."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from orch.runbooks.plan import Action, PlannedStep
from orch.runbooks.process import Program, orch_words, search_path

# The values come first on the input, and nothing else: `ps` shows words of commands to every user.
_VALUES = 'eval "$(cat)"; exec < /dev/null\n'


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
