"""The environment of one rank: a pure function of what is known about the run.

Three values are known only on the nodes: the interface that carries the internal address, its subnet, and a
free rendezvous port on rank 0. The entry script adds those (`SET_ON_NODE`) unless they are set here.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from orch.runner.errors import BadTask
from orch.spec.grammar.hosts import fold

MPI_HOSTFILE = "/run/orch/hostfile"
SSH_PORT = 10022
FIRST_RENDEZVOUS_PORT = 29500
SET_ON_NODE = ("MASTER_PORT", "ORCH_IFNAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")

RENDEZVOUS = frozenset({"MASTER_ADDR", "NODE_RANK", "NNODES", "NPROC_PER_NODE", "WORLD_SIZE", *SET_ON_NODE})

_ARRAY = tuple(f"ARRAY_{each}" for each in ("JOB_ID", "TASK_ID", "TASK_COUNT", "TASK_MIN", "TASK_MAX"))
_SLURM_ARRAY = frozenset(f"SLURM_{name}" for name in _ARRAY)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
_ADDRESS = re.compile(r"[0-9.]+")
_RUN_NAMESPACE = uuid.UUID("6f0e3a52-6a0a-4b6e-9d0c-0f7d5f1f2a11")


@dataclass(frozen=True)
class ArrayPlace:
    """The place of a run in its array: the array's number, the run's index, and how many indexes the array
    has, the lowest and the highest."""

    number: int
    index: int
    count: int
    lowest: int
    highest: int


@dataclass(frozen=True)
class RankNode:
    """What the environment needs of a rank's node. `tasks`: the processes the launcher starts there."""

    name: str
    internal_ip: str
    gpus: int = 0
    tasks: int = 1
    cpus: float | None = None
    region: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class RunNodes:
    """The nodes of the run `run`, in rank order, and what every rank is told of all of them.

    The environment of one rank names all nodes. Each value is computed once for a run, so that the
    environments of N ranks take N steps and share their text (a rank of 4,096 nodes names 40 KiB of
    addresses).
    """

    run: str
    ranks: tuple[RankNode, ...]

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, rank: int) -> RankNode:
        return self.ranks[rank]

    @cached_property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.ranks)

    @cached_property
    def tasks(self) -> int:
        return sum(node.tasks for node in self.ranks)

    @cached_property
    def addresses(self) -> str:
        """The internal addresses, one a line."""
        return "\n".join(node.internal_ip for node in self.ranks)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        return host_names(self.run, [node.name for node in self.ranks])

    @cached_property
    def folded_hosts(self) -> str:
        return fold(self.hosts)


@dataclass(frozen=True)
class RunFacts:
    """What the environment needs of a run.

    `node_env`, `fleet_env`, `task_env` and `working_dir` are rendered for the rank that is asked for.
    `resumes`: an attempt before this one may have left something in `checkpoint_dir`.
    """

    number: int
    run_id: str
    fleet: str
    backend: str
    nodes: RunNodes
    attempt: int = 0
    interconnect: str = "ethernet"
    launcher: str = "commands"
    slurm: bool = False
    ntasks_per_node: int | None = None
    working_dir: str | None = None
    repo_id: str | None = None
    fabric_env: Mapping[str, str] = field(default_factory=dict[str, str])
    fleet_env: Mapping[str, str] = field(default_factory=dict[str, str])
    node_env: Mapping[str, str] = field(default_factory=dict[str, str])
    task_env: Mapping[str, str] = field(default_factory=dict[str, str])
    cli_env: Mapping[str, str] = field(default_factory=dict[str, str])
    master_port: int | None = None
    ifname: str | None = None
    checkpoint_dir: str | None = None
    resumes: bool = False
    array: ArrayPlace | None = None

    @property
    def name(self) -> str:
        return self.nodes.run


@dataclass(frozen=True)
class Environment:
    """Values by name, and the protected names that a user tried to set (warning 193); those are ignored."""

    values: dict[str, str]
    ignored: tuple[str, ...] = ()


def run_identifier(stack: str, number: int, name: str, token: str) -> str:
    """RUN_ID. `token` distinguishes runs of equal name and number: people may share a fleet of servers."""
    return str(uuid.uuid5(_RUN_NAMESPACE, f"{stack}/{number}/{name}/{token}"))


def rank_environment(run: RunFacts, rank: int) -> Environment:
    """The environment of rank `rank`, without the variables that its image sets.

    A later source overrides an earlier one: rendezvous values (MASTER_ADDR and the like), fabric, fleet,
    node, task, command line, protected variables. So a user may override the rendezvous.
    """
    protected = {**_identity(run, rank), **(_slurm(run, rank) if run.slurm else {})}
    values = dict(_rendezvous(run, rank))
    ignored: dict[str, None] = {}
    for layer in (run.fabric_env, run.fleet_env, run.node_env, run.task_env, run.cli_env):
        for key, value in layer.items():
            if is_protected(key, slurm=run.slurm) or (run.array is not None and key in _SLURM_ARRAY):
                ignored[key] = None
            else:
                values[key] = value
    values.update(protected)
    return Environment(values, tuple(ignored))


def is_protected(name: str, *, slurm: bool) -> bool:
    """Whether only orch may set `name`: jobs rely on these values."""
    return name.startswith(("DSTACK_", "ORCH_")) or (slurm and name.startswith("SLURM_"))


def is_set_by_orch(name: str) -> bool:
    """Whether orch sets this variable of a job itself: its value is not secret."""
    return is_protected(name, slurm=True) or name in RENDEZVOUS


def is_name(name: str) -> bool:
    """Whether a shell can export `name`."""
    return _NAME.fullmatch(name) is not None


def wants_slurm(setting: str | bool, texts: Sequence[str]) -> bool:
    """Whether SLURM_* is set: asked for, or `auto` and the task's text mentions it."""
    if isinstance(setting, bool):
        return setting
    return any("SLURM_" in text for text in texts)


def _identity(run: RunFacts, rank: int) -> dict[str, str]:
    node = run.nodes[rank]
    common = {
        "RUN_ID": run.run_id,
        "JOB_ID": str(uuid.uuid5(_RUN_NAMESPACE, f"{run.run_id}/{run.attempt}/{rank}")),
        "RUN_NAME": run.name,
        "NODES_NUM": str(len(run.nodes)),
        "NODE_RANK": str(rank),
        "GPUS_PER_NODE": str(node.gpus),
        "GPUS_NUM": str(run.nodes.gpus),
        "MASTER_NODE_IP": run.nodes[0].internal_ip,
        "NODES_IPS": run.nodes.addresses,
        "MPI_HOSTFILE": MPI_HOSTFILE,
    }
    if run.working_dir is not None:
        common["WORKING_DIR"] = run.working_dir
    if run.repo_id is not None:
        common["REPO_ID"] = run.repo_id
    values = {f"{prefix}{key}": value for key, value in common.items() for prefix in ("DSTACK_", "ORCH_")}
    values |= {
        "ORCH_FLEET": run.fleet,
        "ORCH_INSTANCE": node.name,
        "ORCH_BACKEND": run.backend,
        "ORCH_ATTEMPT": str(run.attempt),
        "ORCH_INTERCONNECT": run.interconnect,
    }
    if node.region is not None:
        values["ORCH_REGION"] = node.region
    if node.group is not None:
        values["ORCH_GROUP"] = node.group
    if run.ifname is not None:
        values["ORCH_IFNAME"] = run.ifname
    if run.checkpoint_dir is not None:
        values["ORCH_CHECKPOINT_DIR"] = run.checkpoint_dir
    if run.resumes:
        values["ORCH_RESUME"] = "1"
    if run.array is not None:
        own = run.array
        numbers = (own.number, own.index, own.count, own.lowest, own.highest)
        for name, number in zip(_ARRAY, numbers, strict=True):
            values[f"ORCH_{name}"] = values[f"SLURM_{name}"] = str(number)
    return values


def _rendezvous(run: RunFacts, rank: int) -> dict[str, str]:
    distributed = len(run.nodes) > 1
    if not distributed and run.launcher != "torchrun":
        return {}
    node = run.nodes[rank]
    values = {
        "MASTER_ADDR": run.nodes[0].internal_ip,
        "NODE_RANK": str(rank),
        "NNODES": str(len(run.nodes)),
        "NPROC_PER_NODE": str(node.tasks),
    }
    if run.master_port is not None:
        values["MASTER_PORT"] = str(run.master_port)
    if distributed:
        # Not on one node: code that reads it would wait for ranks nobody starts.
        values["WORLD_SIZE"] = str(run.nodes.tasks)
        if run.ifname is not None:
            values["NCCL_SOCKET_IFNAME"] = values["GLOO_SOCKET_IFNAME"] = run.ifname
    return values


def host_names(run: str, nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a run's nodes inside its jobs, by rank; all resolve to internal addresses."""
    return tuple(host_name(run, rank, name) for rank, name in enumerate(nodes))


def host_name(run: str, rank: int, node: str) -> str:
    """Return the host name of a rank's job: the node's own name, or `RUN-RANK` for one that is an address, or
    no host name (RFC 1123, 63 characters)."""
    if _HOST_NAME.fullmatch(node) and not _ADDRESS.fullmatch(node):
        return node
    return f"{run.replace('_', '-')}-{rank}"


def _slurm(run: RunFacts, rank: int) -> dict[str, str]:
    node = run.nodes[rank]
    count = len(run.nodes)
    gpus = run.nodes.gpus
    if run.ntasks_per_node is not None:
        per_node, total = run.ntasks_per_node, count * run.ntasks_per_node
    elif gpus:
        per_node, total = node.gpus, gpus
    else:
        per_node, total = 1, count
    names = run.nodes.folded_hosts
    values = {
        # Never SLURM_JOBID: alone it makes Open MPI 4.1 refuse its hostfile.
        "SLURM_JOB_ID": str(run.number),
        "SLURM_JOB_NAME": run.name,
        "SLURM_JOB_PARTITION": run.fleet,
        "SLURM_JOB_NUM_NODES": str(count),
        "SLURM_NNODES": str(count),
        "SLURM_NODEID": str(rank),
        "SLURMD_NODENAME": run.nodes.hosts[rank],
        "SLURM_NODELIST": names,
        "SLURM_JOB_NODELIST": names,
        "SLURM_NTASKS": str(total),
        "SLURM_NTASKS_PER_NODE": str(per_node),
        "SLURM_PROCID": str(rank * (run.ntasks_per_node or 1)),
        "SLURM_LOCALID": "0",
        "SLURM_GPUS_ON_NODE": str(node.gpus),
        "SLURM_RESTART_COUNT": str(run.attempt),
    }
    if node.cpus is not None:
        values["SLURM_CPUS_ON_NODE"] = str(max(1, int(node.cpus)))
    if run.working_dir is not None:
        values["SLURM_SUBMIT_DIR"] = run.working_dir
    return values


def check_names(environment: Mapping[str, str]) -> None:
    """Raises BadTask for what a shell cannot export."""
    invalid = [name for name in environment if not is_name(name)]
    if invalid:
        raise BadTask(
            f"{invalid[0]!r} is not the name of an environment variable", hint="letters, digits and _ only"
        )
