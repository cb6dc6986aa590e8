"""`type: task`: commands, or a launcher, on one node or many."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.grammar.values import check_group_name
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.json_schema import GROUP_NAME
from orch.spec.models.fields.sizes import MAX_NODES
from orch.spec.models.fields.types import CommandLine, Commands, Env, Names, checked, rows, whole
from orch.spec.models.launchers import Mpirun, Torchrun
from orch.spec.models.mounts import PortMapping
from orch.spec.models.resources import Resources
from orch.spec.models.run import Run
from orch.spec.models.scheduling import Array, Dependencies


class TaskGroup(Section):
    """Nodes of a run that are alike. The first node of the first group is the master."""

    noun: ClassVar[str] = "a group"

    name: Annotated[str, checked(check_group_name, GROUP_NAME)] | None = Field(
        default=None, description="What tables call it; its number if not given."
    )
    nodes: Annotated[int, whole(1, MAX_NODES)] = Field(default=1, description="How many.")
    resources: Resources = Field(
        default=Resources(), description="What each must have; not inherited from the task."
    )
    commands: Commands = Field(default=(), description="Run one after the other.")
    ports: Annotated[tuple[PortMapping, ...], rows("ports")] = Field(
        default=(), description="Forwarded to this machine while attached."
    )
    env: Env = Field(default={}, description="Variables besides the task's.")
    fleets: Names = Field(
        default=(), description="Fleets that may run it; all groups of a run go to one fleet."
    )

    @classmethod
    def form(cls) -> str:
        return "write `{nodes: 2, commands: [...]}`"


class Task(Run):
    """What runs, where, and how long."""

    noun: ClassVar[str] = "a task"

    type: Literal["task"] = Field(default="task", description="`task`.")
    commands: Commands = Field(
        default=(), description="Run one after the other; set-up steps before a launcher."
    )
    entrypoint: CommandLine | None = Field(default=None, description="Instead of the image's entrypoint.")
    groups: Annotated[tuple[TaskGroup, ...], rows("groups")] = Field(
        default=(), description="Unlike nodes in one run, in place of `nodes` and `commands`."
    )
    torchrun: Torchrun | None = Field(default=None, description="Start with torchrun on every node.")
    mpirun: Mpirun | None = Field(default=None, description="Start with mpirun over all nodes.")
    array: Array | None = Field(default=None, description="One run per index: `1-100%10`.")
    depends_on: Dependencies = Field(default=(), description="Runs that must end first.")

    @property
    def all_nodes(self) -> int:
        """Nodes of the run, its groups added up."""
        return sum(group.nodes for group in self.groups) if self.groups else self.nodes
