"""The complete plan of a run: what each rank runs, where and how.

`compile.py` makes it, the ledger stores it, `runs/driver.py` carries it out. It holds no environment values
and no keys: those may be secret and stay in files of mode 0600 (`ledger/run_folder.py`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, field_validator

from orch.runner.errors import BadRunName
from orch.runner.plan.run_names import RunName
from orch.spec.state import NodeState
from orch.spec.volume_state import VolumeState


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Dialect = Literal["openmpi", "deepspeed", "mpich", "intel", "plain"]


class RunMount(_Frozen):
    """A directory of the node in the container; `optional` ones are left out where the node has none.

    `check`: what has to be at `source`. `none`: nothing, Docker makes a folder. `make`: nothing, we make one
    in which any user may write. `volume`: the folder of a volume. `folder`, `mount`: a folder or a mount
    point of the fleet's `mounts`. `made`: a mount point of the node itself, which is the job's container.
    """

    source: str
    target: str
    read_only: bool = False
    optional: bool = False
    check: Literal["none", "make", "volume", "folder", "mount", "made"] = "none"


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
    """A file or folder of this machine and where it goes in the container.

    `pattern`: of a folder only what it matches. `tree` is the content that was kept when the run was
    submitted (`upload/tree.py`), empty before that and in plans of earlier versions.
    """

    source: str
    target: str
    pattern: str | None = None
    folder: bool = True
    tree: str = ""
    # Of a repository alone: what becomes of a job that finds something where it goes.
    if_exists: Literal["error", "skip"] | None = None


class OutputPlan(_Frozen):
    """A path of every job that is collected when it ends, and the folder of this machine it goes to."""

    path: str
    to: str | None = None


class RankPort(_Frozen):
    """A port of a rank's job, which is its node's, and the port of the caller's machine that leads to it.

    `local` is None for any free port.
    """

    job: int
    local: int | None = None


class RankPlan(_Frozen):
    """One rank: its node, the blocks it takes there, and the shell text it runs.

    `idle_after_s`: of a node that was made for this run, how long it waits for another job at most.
    `max_cpus`, `max_memory_mib`: upper ends of the task's `resources`, limits of the container beside those
    of its blocks. `group`: the group of the task that it is of, where that has groups; then `shm_size_mib` is
    the group's.
    """

    rank: int
    node: NodeState
    blocks: int
    script: str
    working_dir: str | None = None
    mounts: tuple[RunMount, ...] = ()
    volumes: tuple[RunVolume, ...] = ()
    max_cpus: float | None = None
    max_memory_mib: int | None = None
    ports: tuple[RankPort, ...] = ()
    group: str | None = None
    shm_size_mib: int | None = None
    idle_after_s: int | None = None

    @property
    def whole(self) -> bool:
        """Whether the rank has all of its node."""
        return self.blocks >= self.node.blocks


class RetryPlan(_Frozen):
    """When a run is tried again: on which events, for how long, in how many attempts (None: no bound)."""

    on_events: tuple[Literal["no-capacity", "error", "interruption"], ...]
    duration_s: int | None = None
    max_attempts: int | None = None


class SignalPlan(_Frozen):
    """What is sent to the processes of a rank ahead of its end; `shell_only`: to the shell of `commands`."""

    name: str
    before_s: int
    shell_only: bool = False


class UtilizationPlan(_Frozen):
    """Ends a run of which a GPU was used less than `min_gpu_utilization` percent for `window_s`."""

    min_gpu_utilization: int
    window_s: int


class DevPlan(_Frozen):
    """What a dev environment has beside a task.

    `inactivity_s`: it ends when nobody was connected to it by SSH for so long.
    """

    ide: Literal["vscode", "cursor", "windsurf", "zed"] | None = None
    inactivity_s: int | None = None


class Elastic(_Frozen):
    """A run that goes on without some of its ranks.

    `least` of them must be left, and `rendezvous_rank` among them: its node holds what they meet by.
    """

    least: int
    rendezvous_rank: int = 0


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
    signal: SignalPlan | None = None
    utilization: UtilizationPlan | None = None
    shell: str = "bash"
    entrypoint: tuple[str, ...] = ()
    user: str | None = None
    privileged: bool = False
    shm_size_mib: int | None = None
    hostfile: str
    dialect: Dialect = "openmpi"
    ssh_between: bool = False
    elastic: Elastic | None = None
    retry: RetryPlan | None = None
    dev: DevPlan | None = None
    slurm: bool = False
    # How often `commands` start on each node, when no launcher does.
    tasks_per_node: int = 1
    files: tuple[StagedFile, ...] = ()
    outputs: tuple[OutputPlan, ...] = ()
    fabric: FabricAccess = FabricAccess()
    tags: dict[str, str] = {}
    # It examines its nodes: their health keeps it from none.
    examines: bool = False

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

    def starts_image(self, rank: int) -> bool:
        """Whether a rank starts the image's own program: nothing else of the task runs there."""
        return self.launcher == "image" or (
            self.ranks[rank].group is not None and not self.ranks[rank].script
        )

    @property
    def has_keys(self) -> bool:
        """Whether its containers have SSH servers."""
        return self.ssh_between or self.dev is not None

    @property
    def rehearsed(self) -> bool:
        """Whether its nodes stand in for machines of a cloud. Local nodes may count accelerators that are not
        there, and are themselves all the same."""
        return self.simulated and self.backend != "local"

    @property
    def on_containers(self) -> bool:
        """Whether the nodes are containers on somebody's machine: local ones, and those of a rehearsal."""
        return self.simulated or self.backend == "local"

    @property
    def names_hosts(self) -> bool:
        """Whether jobs know the run's nodes by name."""
        return self.slurm or len(self.ranks) > 1

    @property
    def nodes(self) -> tuple[NodeState, ...]:
        """The nodes in rank order."""
        return tuple(rank.node for rank in self.ranks)
