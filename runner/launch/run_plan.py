"""The complete plan of a run: what each rank runs, where and how.

`compile.py` makes it, the ledger stores it, `runs/driver.py` carries it out. It holds no environment values
and no keys: those may be secret and stay in files of mode 0600 (`ledger/run_folder.py`).
"""

from __future__ import annotations

import json
import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, field_validator

from orch.runner.errors import BadRunName, RunnerError
from orch.runner.launch.launcher import Dialect, Elastic
from orch.runner.ledger.records import RunRow
from orch.runner.ledger.run_names import RunName
from orch.runner.node.accelerators import device_access
from orch.runner.placement.slots import KIND
from orch.spec.state import NodeState, hourly_price
from orch.spec.volume_state import VolumeState


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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


def watched(plan: RunPlan, rank: RankPlan) -> bool:
    """Whether the use of a rank's GPUs can be read: those of simulated nodes are a number alone."""
    access = device_access(rank.node.gpus)
    return not plan.simulated and access is not None and access.use is not None


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


def groups_and_tags(row: RunRow) -> tuple[dict[int, str], dict[str, str]]:
    """Rank -> its group, and the tags of a run; none where the plan has none or cannot be read.

    Most plans have neither, which their text shows without reading it all.
    """
    if '"group":"' not in row.plan and '"tags":{"' not in row.plan:
        return {}, {}
    try:
        plan = plan_of(row)
    except RunnerError:
        return {}, {}
    return {rank.rank: rank.group for rank in plan.ranks if rank.group is not None}, plan.tags


def waits_for_pods(plan: str) -> bool:
    """Whether the nodes of a plan stand for pods that are not there yet (placement/slots.py). By its text,
    for there may be many plans."""
    of_pods = re.search(f'"kind": ?"{KIND}"', plan) is not None
    return of_pods and not re.search(r'"made_for": ?"', plan)


def hourly_of(plan: str) -> float | None:
    """What the nodes of a plan cost in US dollars an hour, of a shared node the part of its blocks.

    By the prices that were recorded when they were made; None where one is not known. Plans of other versions
    have that too, and the rest of a plan is not looked at, for there may be many.
    """
    try:
        told = json.loads(plan)
        backend, ranks = str(told["backend"]), list(told["ranks"])
        parts = [
            (hourly_price(backend, each["node"]["price_hourly"]), each["blocks"], each["node"]["blocks"])
            for each in ranks
        ]
        if any(price is None for price, _, _ in parts):
            return None
        return sum(float(price or 0.0) * taken / max(1, of) for price, taken, of in parts)
    except (ValueError, TypeError, KeyError):
        return None


def cost_of(row: RunRow) -> float | None:
    """What the nodes of a run have cost in US dollars while its commands ran, earlier attempts included; None
    where a price is not known."""
    spans = [(each.plan, each.started_at, each.finished_at) for each in row.attempts]
    if all(each.attempt != row.attempt for each in row.attempts):
        spans.append((row.plan, row.started_at, row.finished_at or row.now))
    hourly = [hourly_of(plan) for plan, _, _ in spans]
    if any(price is None for price in hourly):
        return None
    seconds = (0.0 if began is None else max(0.0, ended - began) for _, began, ended in spans)
    return sum((price or 0.0) * each / 3600 for price, each in zip(hourly, seconds, strict=True))
