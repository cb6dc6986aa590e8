"""What a launcher is, and quoting for the shell text it makes."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Literal, Protocol

from orch.runner.launch.hostfile import Dialect
from orch.templates import ShellText

_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})")


@dataclass(frozen=True)
class LaunchContext:
    """What a launcher may know: addresses and processes per node in rank order, and its own rank."""

    rank: int
    addresses: tuple[str, ...]
    slots: tuple[int, ...]
    run: str
    interconnect: str
    export: tuple[str, ...] = ()


class Launcher(Protocol):
    """One way to start a task's processes."""

    @property
    def name(self) -> Literal["commands", "torchrun", "mpirun", "image"]: ...

    @property
    def counts_slots(self) -> bool:
        """Whether hostfile lines carry a process count even without accelerators."""
        ...

    @property
    def dialect(self) -> Dialect: ...

    @property
    def ssh_between(self) -> bool:
        """Whether ranks log in to each other, so that the run needs keys of its own."""
        ...

    @property
    def startup_order(self) -> Literal["any", "master-first", "workers-first"] | None:
        """The order the launcher needs, whatever the task says."""
        ...

    @property
    def stop_criteria(self) -> Literal["all-done", "master-done"] | None:
        """What the launcher takes for the run's end, whatever the task says."""
        ...

    def tasks_per_node(self, gpus: int) -> int:
        """Processes started on a node with `gpus` accelerators for this job."""
        ...

    def script(self, context: LaunchContext) -> str | None:
        """POSIX shell text that follows the task's commands on one rank; None adds nothing."""
        ...


def quote_words(*words: str) -> ShellText:
    """Words as `quote_word` quotes them, spaces between."""
    return ShellText(" ".join(map(quote_word, words)))


def quote_word(word: str) -> ShellText:
    """`word` as shell text: all literal except `$NAME` and `${NAME}`, which the job's environment fills.

    So that `--out $ORCH_CHECKPOINT_DIR` means what its writer expects, while `$(…)`, backquotes and spaces
    stay text.
    """
    parts: list[str] = []
    end = 0
    for match in _VARIABLE.finditer(word):
        if match.start() > end:
            parts.append(shlex.quote(word[end : match.start()]))
        parts.append(f'"{match.group()}"')
        end = match.end()
    if end < len(word) or not word:
        parts.append(shlex.quote(word[end:]))
    return ShellText("".join(parts))
