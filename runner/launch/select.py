"""Which launcher a task asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from orch.runner.launch.hostfile import Dialect
from orch.runner.launch.launcher import LaunchContext, Launcher
from orch.runner.launch.mpirun import MpirunLauncher
from orch.runner.launch.torchrun import TorchrunLauncher
from orch.spec.grammar.interpolate import render_args

if TYPE_CHECKING:
    from orch.spec.models import Task


def launcher_of(task: Task, values: Mapping[str, str], run_args: Sequence[str]) -> Launcher:
    """The launcher of `task` with its arguments rendered for one job (`values`: interpolate.JOB_VALUES)."""
    if task.torchrun is not None:
        return TorchrunLauncher(task.torchrun, render_args(task.torchrun.args, values, run_args))
    if task.mpirun is not None:
        return MpirunLauncher(
            task.mpirun, render_args(task.mpirun.args, values, run_args), task_env=tuple(task.env)
        )
    return Plain("commands" if task.commands else "image")


@dataclass(frozen=True)
class Plain:
    """`name` tells whether there are commands to run or the image starts what it holds."""

    name: Literal["commands", "image"] = "commands"
    counts_slots: bool = False
    dialect: Dialect = "openmpi"
    ssh_between: bool = False
    startup_order: None = None
    stop_criteria: None = None

    def tasks_per_node(self, gpus: int) -> int:
        return max(1, gpus)

    def script(self, context: LaunchContext) -> str | None:
        del context
        return None
