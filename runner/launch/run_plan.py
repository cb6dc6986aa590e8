"""The complete plan of a run: what each rank runs, where and how.

`compile.py` makes it, the ledger stores it, `runs/driver.py` carries it out. It holds no environment values
and no keys: those may be secret and stay in files of mode 0600 (`ledger/run_folder.py`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, field_validator

from orch.runner.errors import BadRunName, RunnerError
from orch.runner.launch.hostfile import Dialect
from orch.runner.ledger.records import RunRow
from orch.runner.ledger.run_names import RunName
from orch.spec.state import NodeState
from orch.spec.volume_state import VolumeState


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunMount(_Frozen):
    """A directory of the node in the container; `optional` ones are left out where the node has none.

    `presence`: what else happens where it has none: Docker makes it, we make it so that any user may write
    there (`make`), or the rank does not start (`require`).
    """

    source: str
    target: str
    read_only: bool = False
    optional: bool = False
    presence: Literal["", "make", "require"] = ""


class RunVolume(_Frozen):
    """A volume that a rank's node must have. `folder`: where the node has it.

    `by_folder`: the node has it already; else it is attached, and mounted at `folder`.
    """

    state: VolumeState
    folder: str
    by_folder: bool = False
    read_only: bool = False


class FabricAccess(_Frozen):
    """What a container needs to use the nodes' interconnect.

    `mounts` as Docker writes them, SOURCE:TARGET; `ulimits`: soft and hard alike, -1 for none.
    """

    devices: tuple[str, ...] = ()
    optional_devices: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    ulimits: dict[str, int] = {}


class StagedFile(_Frozen):
    """A file or folder of this machine and where it goes in the container."""

    source: str
    target: str


class RankPlan(_Frozen):
    """One rank: its node, the blocks it takes there, and the shell text it runs."""

    rank: int
    node: NodeState
    blocks: int
    script: str
    working_dir: str | None = None
    mounts: tuple[RunMount, ...] = ()
    volumes: tuple[RunVolume, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the rank has all of its node."""
        return self.blocks >= self.node.blocks


class RunPlan(_Frozen):
    """Everything about one attempt of a run except its environment."""

    run: str
    number: int
    attempt: int = 0
    run_id: str
    fleet: str
    backend: str
    simulated: bool = False
    interconnect: str = "ethernet"
    unreachable_grace_s: float = 120.0
    image: str
    ranks: tuple[RankPlan, ...]
    launcher: Literal["commands", "torchrun", "mpirun", "image"]
    startup_order: Literal["any", "master-first", "workers-first"] = "any"
    stop_criteria: Literal["all-done", "master-done"] = "all-done"
    max_duration_s: int | None = None
    # None: a rank is never killed for taking its time.
    stop_duration_s: int | None = 300
    shell: str = "bash"
    entrypoint: tuple[str, ...] = ()
    user: str | None = None
    privileged: bool = False
    shm_size_mib: int | None = None
    hostfile: str
    dialect: Dialect = "openmpi"
    ssh_between: bool = False
    slurm: bool = False
    # How often `commands` start on each node, when no launcher does.
    tasks_per_node: int = 1
    files: tuple[StagedFile, ...] = ()
    fabric: FabricAccess = FabricAccess()

    @field_validator("run", "run_id")
    @classmethod
    def _fits_a_node(cls, text: str) -> str:
        try:
            return RunName.from_ledger(text)
        except BadRunName as error:
            raise ValueError(error.summary) from error

    def container(self, rank: int) -> str:
        """The name of a rank's container, claim and stage directory, unique to this job.

        Run names are unique in one ledger only, and people with ledgers of their own share servers.
        """
        return f"orch-{self.run}-{self.attempt}-{rank}-{self.run_id[:8]}"

    @property
    def nodes(self) -> tuple[NodeState, ...]:
        """The nodes in rank order."""
        return tuple(rank.node for rank in self.ranks)


def plan_of(row: RunRow) -> RunPlan:
    """The plan a run was submitted with.

    Raises BadRunName for a run that no node can hold, RunnerError for a plan this orch cannot read.
    """
    RunName.from_ledger(row.name)
    try:
        plan = RunPlan.model_validate_json(row.plan)
    except ValueError as error:
        raise RunnerError(
            f"the plan of run {row.name} cannot be read", detail="it was written by another version of orch"
        ) from error
    if (plan.run, plan.number) != (row.name, row.id):
        raise RunnerError(
            f"the plan of run {row.name} cannot be read",
            detail=f"it is of run {plan.run}, number {plan.number}",
        )
    return plan
