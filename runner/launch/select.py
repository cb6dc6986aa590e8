"""Which launcher a task asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orch.runner.launch.launcher import Launcher
from orch.runner.launch.mpirun import MpirunLauncher
from orch.runner.launch.plain import Plain
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
