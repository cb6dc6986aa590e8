"""The variables of a task: those that nobody sets, and those that no process can have. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from orch.runner.errors import BadTask
from orch.spec.grammar.interpolate import fill_secrets

if TYPE_CHECKING:
    from orch.runner.placement.rank_groups import RankGroup
    from orch.spec.models import Task

# MAX_ARG_STRLEN of Linux, 32 pages, less the byte that ends `NAME=value`: execve(2) refuses a process with a
# longer one ("Limits on size of arguments and environment").
_MOST_BYTES = 32 * 4096 - 1


def set_variables(env: Mapping[str, str | None], caller_env: Mapping[str, str]) -> dict[str, str]:
    """The task's variables, still to be rendered; bare names take the caller's value, escaped.

    Raises BadTask for unset ones.
    """
    unset = [name for name, value in env.items() if value is None and name not in caller_env]
    if unset:
        raise BadTask(
            f"environment variable{'s' if len(unset) > 1 else ''} {', '.join(unset)} "
            f"{'are' if len(unset) > 1 else 'is'} not set here",
            hint=f"export {unset[0]}, or use `--env {unset[0]}=VALUE`",
            code="ORCH173",
            path=f"env.{unset[0]}",
        )
    return {
        name: caller_env[name].replace("$", "$$") if value is None else value for name, value in env.items()
    }


def check_sizes(
    environment: Mapping[str, str], group: RankGroup, *, given: Mapping[str, str], task: Task, fleet: str
) -> None:
    """Raises BadTask (ORCH421) for a variable of a rank of `group` that no process can have.

    `environment` is text for `fill_secrets`; secrets count with their names. `given`: those of the command
    line.
    """
    for name, text in environment.items():
        if len(name) + len(text) < _MOST_BYTES // 4:  # a character has four bytes at most
            continue
        size = len(f"{name}={fill_secrets(text, {})}".encode(errors="surrogateescape"))
        if size <= _MOST_BYTES:
            continue
        own = name in group.env and name not in given
        source = "" if own else " of `--env`" if name in given else f" of fleet {fleet}"
        of_group = group.env.get(name) != task.env.get(name)
        raise BadTask(
            f"the variable {name}{source} is too large: {size:,} bytes with its name, a process can have "
            f"{_MOST_BYTES:,}",
            hint="write it into a file, and send that with `files`",
            code="ORCH421",
            path="" if not own else f"{group.place if of_group else ''}env.{name}",
        )
