"""What a run asks a cluster for: its gang, what each pod of it has of a node, and what is refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from orch.runner.errors import BadTask
from orch.runner.kubernetes.gangs.fabric import FabricPod, queue_fabric
from orch.runner.kubernetes.gangs.names import (
    ATTEMPT,
    CODE,
    FLEET,
    GANG,
    LABEL_VALUE,
    MANAGED_BY,
    PROJECT,
    RUN,
    check_labels,
    gang_name,
)
from orch.runner.plan.environment import check_names
from orch.spec.grammar.quantities import MIB, quantity
from orch.spec.state import PodQueue


@dataclass(frozen=True)
class PodResources:
    """What a task asks for of one node; None: all that the node has. `shm_mib`: the size of /dev/shm."""

    gpus: int | None = None
    cpus: float | None = None
    memory_mib: int | None = None
    cpus_limit: float | None = None
    memory_limit_mib: int | None = None
    disk_mib: int | None = None
    shm_mib: int | None = None


@dataclass(frozen=True)
class HostFolder:
    """A folder of the node at `path` of the pod. `optional`: the pod starts without it too."""

    source: str
    path: str
    read_only: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Claim:
    """A PersistentVolumeClaim of the namespace at `path` of the pod."""

    name: str
    path: str
    read_only: bool = False


@dataclass(frozen=True)
class RegistryLogin:
    """Who pulls the image. `registry`: its host, None for Docker Hub."""

    username: str
    password: str = field(repr=False)
    registry: str | None = None


@dataclass(frozen=True)
class GangRequest:
    """A gang: N pods that start together, each for one rank of an attempt of a run.

    `project` is the mark of the project, `token` what tells this run from others of its name. `script` is run
    by `/bin/sh -c` as each pod's first process. `env` has no secrets: who may read pods there reads it.
    `needs_fabric`: the pods use the cluster's interconnect and do not start without. `lost_after_s`: how long
    a node may be silent before its pod counts as lost, None: as long as the cluster says. `regions`, `zones`,
    `instance_types`: nodes with one of these alone. `stops_within_s`: how long the first process may take to
    end.
    """

    queue: PodQueue
    project: str
    fleet: str
    run: str
    token: str
    attempt: int
    pods: int
    image: str
    script: str = field(repr=False)
    resources: PodResources = PodResources()
    privileged: bool = False
    needs_fabric: bool = False
    priority: int = 0
    max_duration_s: int | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    mounts: tuple[HostFolder | Claim, ...] = ()
    registry: RegistryLogin | None = None
    service_account: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict[str, str])
    tolerations: tuple[Mapping[str, str], ...] = ()
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    lost_after_s: int | None = None
    stops_within_s: int = 30

    @property
    def name(self) -> str:
        return gang_name(self.run, self.project, self.token, self.attempt)

    @property
    def labels(self) -> dict[str, str]:
        """What tells its objects from others', beside its tags."""
        return {
            MANAGED_BY: "orch",
            PROJECT: self.project,
            FLEET: self.fleet,
            RUN: self.run,
            ATTEMPT: str(self.attempt),
            GANG: self.name,
        }

    @property
    def gpus(self) -> int:
        """The accelerators of each pod."""
        wanted = self.resources.gpus
        return self.queue.gpus.count if wanted is None else wanted

    @property
    def priority_class(self) -> str | None:
        """Kueue's class whose value is the run's priority."""
        classes = self.queue.priority_classes
        return next((name for name, value in classes.items() if value == self.priority), None)

    @property
    def fabric(self) -> FabricPod | None:
        """What its pods have because of the interconnect; None where they do without."""
        return queue_fabric(self.queue) if self.needs_fabric else None


def check_request(request: GangRequest) -> None:
    """Raises BadTask for what the queue cannot give, and for tags that are no labels."""
    queue = request.queue
    if not 1 <= request.pods <= queue.pods:
        raise BadTask(
            f"the run has {request.pods} nodes, and fleet {request.fleet} gives {queue.pods} at most",
            path="nodes",
            hint=f"write `nodes: {queue.pods}` or less, or more nodes into the fleet",
            code=CODE,
        )
    if request.gpus > queue.gpus.count:
        raise BadTask(
            f"the run asks for {request.gpus} GPUs a node, and nodes of fleet {request.fleet} have "
            f"{queue.gpus.count}",
            path="resources.gpu",
            code=CODE,
        )
    if request.needs_fabric and queue.fabric is None:
        raise BadTask(
            f"the run needs an interconnect, and no node of fleet {request.fleet} offers one",
            hint="a device plugin says what nodes offer, in `status.allocatable`; after that, `orch up`",
            code=CODE,
        )
    fabric = request.fabric
    lacks = queue.fabric_resource is not None and queue.fabric_resource not in queue.requests
    if fabric is not None and (lacks or (fabric.keyed and not any(map(fabric.asks, queue.requests)))):
        raise BadTask(
            f"the pods would ask for no device of their interconnect ({fabric.title})",
            hint="run `orch up`, which reads what the nodes offer",
            code=CODE,
        )
    if request.priority and request.priority_class is None:
        known = ", ".join(f"{value} ({name})" for name, value in queue.priority_classes.items())
        raise BadTask(
            f"the queue of fleet {request.fleet} has no class for the priority {request.priority}",
            path="priority",
            hint=f"write one of {known}, or none"
            if known
            else "remove it: who is first is the cluster's to say",
            code=CODE,
        )
    if (queue.gang == "kueue") != (queue.local_queue is not None):
        raise BadTask(
            f"fleet {request.fleet} names no queue of Kueue for its gangs", hint="run `orch up`", code=CODE
        )
    wanted = request.resources
    limit = wanted.memory_limit_mib
    if limit is not None and wanted.shm_mib is not None and wanted.shm_mib > limit:
        raise BadTask(
            f"/dev/shm has {wanted.shm_mib} MiB, which count as memory, of which the run has {limit} MiB",
            path="resources.shm_size",
            code=CODE,
        )
    check_labels(request.tags)
    for key, value in request.labels.items():
        if not LABEL_VALUE.fullmatch(value):
            raise BadTask(f"{value!r} cannot be a label of Kubernetes ({key})", code=CODE)
    check_names(request.env)
    taken = {"/dev/shm", *(str(each["mountPath"]) for each in (fabric.mounts if fabric else ()))}
    for at, each in enumerate(request.mounts):
        path = each.path.rstrip("/") or "/"
        if path in taken:
            raise BadTask(f"there is something else at {path} already", path=f"volumes.{at}", code=CODE)
        taken.add(path)


def asked(request: GangRequest) -> dict[str, str]:
    """What one pod requests, by Kubernetes' keys: the whole node, or the part of it that the task asks for.

    A task that asks for some of a node's GPUs gets the same part of what it says nothing of, and no more than
    its limits.
    """
    queue, wanted = request.queue, request.resources
    fabric = request.fabric
    share = _share(request)
    rows: dict[str, str] = {}
    for key, amount in queue.requests.items():
        if fabric is None and _is_fabric(queue, key):
            continue
        if key == queue.gpu_resource:
            if request.gpus:
                rows[key] = str(request.gpus)
        elif key in ("cpu", "memory") or (fabric is not None and fabric.divided and _is_fabric(queue, key)):
            rows[key] = scaled(key, amount, share)
        elif key == "ephemeral-storage":
            rows[key] = scaled("memory", amount, share)
        else:
            rows[key] = amount
    if wanted.cpus is not None:
        rows["cpu"] = _cpus(wanted.cpus)
    if wanted.memory_mib is not None:
        rows["memory"] = f"{wanted.memory_mib}Mi"
    if wanted.disk_mib is not None:
        rows["ephemeral-storage"] = f"{wanted.disk_mib}Mi"
    for key, most in limits_of(wanted).items():
        if key in rows and quantity(rows[key]) > quantity(most):
            rows[key] = most
    return rows


def limits_of(wanted: PodResources) -> dict[str, str]:
    """The most of CPUs and memory that a pod may use, where its task says it."""
    rows: dict[str, str] = {}
    if wanted.cpus_limit is not None:
        rows["cpu"] = _cpus(wanted.cpus_limit)
    if wanted.memory_limit_mib is not None:
        rows["memory"] = f"{wanted.memory_limit_mib}Mi"
    return rows


def scaled(key: str, amount: str, share: Fraction) -> str:
    """A part of an amount: CPUs in thousandths, memory in MiB, of all else whole pieces, one at least."""
    if share == 1:
        return amount
    part = quantity(amount) * share
    if key == "cpu":
        return f"{int(part * 1000)}m"
    if key == "memory" or key.startswith("hugepages-"):
        page = 1024 if key == "hugepages-1Gi" else 2
        return f"{int(part / MIB) // page * page}Mi"
    return str(max(int(part), 1))


def _share(request: GangRequest) -> Fraction:
    whole, wanted = request.queue.gpus.count, request.resources.gpus
    if not whole or not wanted:
        return Fraction(1)
    return min(Fraction(wanted, whole), Fraction(1))


def _is_fabric(queue: PodQueue, key: str) -> bool:
    """Whether pods ask for this key because of the cluster's interconnect."""
    row = queue_fabric(queue)
    return row is not None and (key == queue.fabric_resource or row.asks(key))


def fit_on_one(request: GangRequest) -> bool:
    """Whether a node has room for two pods of the gang."""
    whole = request.queue.requests
    rows = asked(request)
    return all(
        quantity(rows[key]) * 2 <= quantity(whole[key])
        for key in ("cpu", "memory", request.queue.gpu_resource)
        if key is not None and key in whole and key in rows
    )


def _cpus(count: float) -> str:
    return f"{count:g}" if count == int(count) else f"{round(count * 1000)}m"
