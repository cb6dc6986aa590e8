"""No launcher: the task's commands, or the image's own program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orch.runner.launch.hostfile import Dialect
from orch.runner.launch.launcher import LaunchContext


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
