"""FleetState: the one contract between provisioning and running.

Written by `stacks` from a stack's outputs, read by `runner`. An AWS instance, an on-prem server and a local
container look the same here. As it is recorded it holds no secret: `identity` is the path of a private key
file, never its text, and `env` is a secret output beside it, filled in for runs alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from orch.spec.access import Access, Hop, SshAccess, resolved

SCHEMA = 5
"""5: nodes have `scratch`, fleets `mounts`.
4: nodes have `machine`.
3: nodes have `arch` and `disk_mib`.
2: variables are no part of the recorded fleet; who knows only 1 would start jobs without them."""


_SSH = frozenset(SshAccess.model_fields) - {"kind"}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Gpus(_Frozen):
    """Accelerators of one node. `memory_mib` is per device.

    Without `toolkit` the node's Docker has no runtime for them: a job is given devices and driver as files.
    """

    count: int = 0
    vendor: str | None = None
    name: str | None = None
    memory_mib: int | None = None
    toolkit: bool = True


class NodeScratch(_Frozen):
    """The folder of a node in which each job gets one of its own, at the same path in its container.

    `check`: what has to be at `path` first: a mount point, a folder, or nothing, and it is made. Without that
    a job starts without scratch, or not at all where it is `required`. `clean`: a job's folder is removed
    with the job.
    """

    path: str
    check: Literal["mount", "folder", "none"] = "mount"
    clean: bool = True
    required: bool = False


class FleetMount(_Frozen):
    """A shared file system of a fleet, at the same path in every container.

    `check`: what has to be at `path` of a node: a mount point, or a folder. Without that no job starts there,
    or one that is `optional` is left out.
    """

    path: str
    check: Literal["mount", "folder"] = "mount"
    read_only: bool = False
    optional: bool = False


class FleetHealth(_Frozen):
    """Health settings of a fleet's nodes, from `health` of its file.

    `gate`: what a node must pass before its first job, and again after each boot. `interval_s`: how old a
    look at it may be before whoever reconciles takes another. `min_busbw`: GB/s that its interconnect must
    reach.
    """

    gate: Literal["light", "none", "dcgm", "nccl"] = "light"
    interval_s: int = 60
    min_busbw: int | None = None
    auto_replace: bool = False
    max_replacements: int = 2


WATCHED = FleetHealth()
"""How nodes are watched where the file says nothing."""


class FleetSpares(_Frozen):
    """The spares of a fleet: `count` of the `of` nodes that it is to have. Which ones they are changes: those
    that runs have left idle.

    `least`: nodes of this index and above end themselves when they are idle; None where none does.
    """

    count: int
    of: int
    least: int | None = None


class NodeState(_Frozen):
    """One node as provisioning left it.

    `access`: how it is reached, by kind; `runtime`: how a job is started there. Those of a node over SSH with
    Docker are recorded as they were before there were kinds, `address`, `port` and so on beside the others.
    `env` reaches every job on the node; it is text that waits for secrets (spec/grammar/interpolate.py).
    `disk_mib`: the size of what jobs write to, a cloud's root disk, or where a host's Docker keeps its data.
    `rack` orders ranks before `topology` does. `made_by`: the resource of the stack that made it, where it is
    none of its own. `made_for`: the mark of the run that it was made for, and that alone has it. `machine`:
    the cloud's id of the machine that showed its host key through the cloud, where it makes its own. `spot`:
    bought at the spot market. `reservation`: the cloud's id or name of the reservation it is in.
    """

    index: int
    name: str
    access: Access
    runtime: str = "docker"
    internal_ip: str | None = None
    cpus: float | None = None
    memory_mib: int | None = None
    arch: Literal["x86", "arm"] | None = None
    disk_mib: int | None = None
    gpus: Gpus = Gpus()
    blocks: int = 1
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    rack: str | None = None
    topology: tuple[str, ...] = ()
    env: dict[str, str] = {}
    price_hourly: float | None = None
    made_by: str | None = None
    machine: str | None = None
    made_for: str | None = None
    spot: bool = False
    reservation: str | None = None
    scratch: NodeScratch | None = None

    @property
    def published_port(self) -> int:
        """The port of this machine that leads to it, where it is a container here."""
        return self.ssh.port

    @property
    def is_pod(self) -> bool:
        """Return True if it is a container that its cloud created, without a host of ours: a job is a process
        there."""
        return self.runtime == "process"

    @property
    def ssh(self) -> SshAccess:
        """The way over SSH. Raises TypeError for a node that is reached in another way."""
        if isinstance(self.access, SshAccess):
            return self.access
        raise TypeError(f"node {self.name} is not reached over SSH: its access is {self.access.kind!r}")

    def reached(self, **changes: object) -> NodeState:
        """The same node, some of its access changed."""
        return self.model_copy(update={"access": self.access.model_copy(update=changes)})

    @model_validator(mode="before")
    @classmethod
    def _ssh_without_a_kind(cls, record: Any) -> Any:
        if not isinstance(record, Mapping) or "access" in record:
            return record  # pyright: ignore[reportUnknownVariableType]
        fields: dict[str, Any] = {str(key): value for key, value in record.items()}  # pyright: ignore
        return {
            "access": {key: fields.pop(key) for key in _SSH if key in fields},
            **fields,
        }

    @model_serializer(mode="wrap")
    def _as_before_kinds(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write nodes of the first kind without the newer properties, so that earlier versions read them and
        stacks show no change."""
        data = write(self)
        if data.get("runtime") == "docker":
            del data["runtime"]
        for name in ("made_for", "spot", "reservation", "scratch"):
            if not data.get(name):
                data.pop(name, None)
        if isinstance(self.access, SshAccess) and isinstance(data.get("access"), dict):
            access: dict[str, Any] = data.pop("access")
            access.pop("kind", None)
            return {"index": data.pop("index"), "name": data.pop("name"), **access, **data}
        return data


class PodQueue(_Frozen):
    """Request for pods of a Kubernetes fleet, which has no nodes of its own: each run brings its pods.

    `kubeconfig` is the path of a file, None for the user's own or the cluster that orch runs in; `context` is
    one of it, None for its current one. `gang`: what starts all pods of a run together: Kueue, whose
    `local_queue` takes them, the scheduler's own PodGroup, or a job that orch takes back whole when not all
    of its pods start within `start_limit_s`. `pods`: the most of one run.

    `cpus`, `memory_mib` and `gpus` are those of one node, `requests` what a pod asks for to have it whole, in
    Kubernetes' words ("nvidia.com/gpu": "8"); `gpu_resource` is the key of its accelerators. `fabric` names
    its kind of fabric (catalog/kubernetes_fabrics.yml), None for one without RDMA, `fabric_resource` the key
    that was found allocatable, `networks` the NetworkAttachmentDefinitions that such a pod joins, each as
    often as it does: by them it gets its devices as interfaces. `topology_key`: the label whose value the
    pods of a run are to share; `topology_required`: or do not start. `priority_classes`: those that its queue
    knows, by name, with their values. `mark`: of the fleet's stack, as a label's value: all that its runs
    have in the cluster bears it. `cluster`: which cluster it is (the UID of its namespace kube-system), None
    where that could not be read.
    """

    context: str | None = None
    kubeconfig: str | None = None
    namespace: str
    gang: Literal["kueue", "podgroup", "job"]
    local_queue: str | None = None
    service_account: str | None = None
    pods: int
    cpus: float | None = None
    memory_mib: int | None = None
    gpus: Gpus = Gpus()
    requests: dict[str, str] = {}
    gpu_resource: str | None = None
    fabric: str | None = None
    fabric_resource: str | None = None
    networks: tuple[str, ...] = ()
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, str], ...] = ()
    topology_key: str | None = None
    topology_required: bool = False
    priority_classes: dict[str, int] = {}
    start_limit_s: int = 300
    price_hourly: float | None = None
    mark: str = ""
    cluster: str | None = None

    def located(self, folder: Path) -> PodQueue:
        """The same with the path of its kubeconfig made absolute, a relative one from `folder`."""
        return self.model_copy(update={"kubeconfig": resolved(self.kubeconfig, folder)})


class FleetState(_Frozen):
    """A provisioned fleet.

    `unreachable_grace_s`: how long a silent node may stay silent before its run is given up. `beside_hourly`:
    what it costs without its nodes, in US dollars an hour. `env`: as that of a node. `health`, `spares`:
    recorded beside the fleet, and not with it, so that a version that knows neither reads the fleet; None
    where nobody said how it is watched, and where it has none. `queue`: where runs bring their own pods.
    """

    schema_version: int = SCHEMA
    name: str
    stack: str
    backend: str
    placement: Literal["any", "cluster"] = "any"
    interconnect: str = "ethernet"
    simulated: bool = False
    image: str | None = None
    env: dict[str, str] = {}
    unreachable_grace_s: float = 120.0
    beside_hourly: float | None = None
    mounts: tuple[FleetMount, ...] = ()
    health: FleetHealth | None = Field(default=None, exclude=True)
    queue: PodQueue | None = None
    spares: FleetSpares | None = Field(default=None, exclude=True)
    nodes: tuple[NodeState, ...] = ()

    @model_serializer(mode="wrap")
    def _as_before_queues(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write fleets without a queue as before, so that earlier versions read them and stacks show no
        change."""
        data = write(self)
        if data.get("queue") is None:
            data.pop("queue", None)
        return data

    @field_validator("nodes")
    @classmethod
    def _no_commands_of_others(
        cls, nodes: tuple[NodeState, ...], info: ValidationInfo
    ) -> tuple[NodeState, ...]:
        """Existing hosts are recorded without commands: one that a former version recorded is not run.

        It came from the ~/.ssh/config of the first user, and everybody who reads the state would run it.
        """
        return tuple(map(without_commands, nodes)) if info.data.get("backend") == "ssh" else nodes


OF_THE_USER = ("local", "ssh", "kubernetes")
"""Backends whose nodes are the user's own: orch pays nobody for an hour of them."""


def hourly_price(backend: str, recorded: float | None) -> float | None:
    """Return the price of a node in US dollars an hour, from its recorded price; None if unknown.

    A user's own host costs nothing more for a run; a cluster may buy nodes for one, and reports no price.
    """
    return 0.0 if recorded is None and backend in ("local", "ssh") else recorded


def own_nodes(state: FleetState, mark: str | None) -> FleetState:
    """The fleet as a run sees it: without nodes that were made for others."""
    if not any(node.made_for for node in state.nodes):
        return state
    nodes = tuple(node for node in state.nodes if node.made_for in (None, mark))
    return state.model_copy(update={"nodes": nodes})


def new_nodes(before: FleetState, now: FleetState) -> frozenset[str]:
    """Names of the nodes of a fleet that were made since; one that was made anew under its name is one."""
    known = {(node.name, node.machine, node.access.machine) for node in before.nodes}
    return frozenset(
        node.name for node in now.nodes if (node.name, node.machine, node.access.machine) not in known
    )


def without_commands(node: NodeState) -> NodeState:
    """The same node with the names under which a command was found in place of the commands."""
    if not isinstance(node.access, SshAccess):
        return node
    jump = tuple(_without_command(hop, hop.address) for hop in node.access.jump)
    access = _without_command(node.access.model_copy(update={"jump": jump}), node.name)
    return node.model_copy(update={"access": access})


def machine_of(record: Mapping[str, Any]) -> str:
    """`NodeState.access.machine` of a node as a stack recorded it, which may be without the rest."""
    try:
        return NodeState.model_validate(record).access.machine
    except ValueError:
        return str(record.get("host_key") or "")


def _without_command(hop: Hop, name: str) -> Hop:
    if hop.proxy_command is None:
        return hop
    return hop.model_copy(update={"proxy_command": None, "ssh_alias": hop.ssh_alias or name})
