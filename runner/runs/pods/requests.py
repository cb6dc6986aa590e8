"""What a run asks a cluster for: its gang, as the task says it. Pure but for the log-in to a registry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orch.runner.kubernetes.gangs.objects import gang
from orch.runner.kubernetes.gangs.request import Claim, GangRequest, HostFolder, PodResources, RegistryLogin
from orch.runner.launch.volumes import Volumes, instance_volume
from orch.runner.node.registry import HUB, registry_of
from orch.runner.node_api.commands import NODE_HOME
from orch.runner.placement.rank_groups import rank_groups
from orch.runner.plan.run_plan import RunPlan
from orch.templates import render

if TYPE_CHECKING:
    from orch.runner.launch.launch_record import LaunchRecord
    from orch.runner.node.registry import RegistryLogin as Login
    from orch.spec.models import Task
    from orch.spec.models.resources import Resources
    from orch.spec.state import FleetState, PodQueue

BEGINS_WITHIN_S = 1800
"""How long a pod waits for its job where all pods of its run start together: who begins that may look only
every so many minutes."""
LONGEST_STOP_S = 3600
"""How long a pod that the cluster takes may save, where the task sets no limit."""
KEPT_S = 300
"""How long a pod stays for what its job has left, where nobody collects it."""
BETWEEN_OUTPUTS_S = 10
"""How long a pod that the cluster takes waits for the next output to be fetched after one was."""


def gang_request(
    record: LaunchRecord,
    fleet: FleetState,
    plan: RunPlan,
    *,
    volumes: Volumes,
    login: Login | None,
    attempt: int,
) -> GangRequest:
    """The gang of a run's next attempt. `plan` is the run's plan so far, `login` that of `registry_auth`."""
    task, queue = record.task, fleet.queue
    if queue is None:
        raise TypeError(f"fleet {fleet.name} takes no pods")
    group = rank_groups(task)[0]
    waits = queue.start_limit_s + 60 if queue.gang == "job" else BEGINS_WITHIN_S
    script = render(
        "pod-hold.sh.j2",
        home=NODE_HOME,
        image=record.image,
        start_within_s=waits,
        kept_for_s=KEPT_S,
        between_s=BETWEEN_OUTPUTS_S,
    )
    pods = len(plan.ranks)
    return GangRequest(
        queue=queue,
        project=queue.mark,
        fleet=fleet.name,
        run=plan.run,
        token=plan.run_id,
        attempt=attempt,
        pods=pods,
        image=record.image,
        script=script,
        resources=_resources(group.resources, queue),
        privileged=task.privileged,
        needs_fabric=pods > 1 and queue.fabric is not None,
        priority=task.priority,
        max_duration_s=task.max_duration_s,
        tags=dict(task.tags),
        mounts=tuple(_mounts(task, fleet, volumes)),
        registry=None if login is None else _registry(record.image, login),
        zones=task.availability_zones,
        instance_types=task.instance_types,
        stops_within_s=LONGEST_STOP_S if task.stop_duration_s is None else task.stop_duration_s,
    )


def check_request(record: LaunchRecord, fleet: FleetState, plan: RunPlan, volumes: Volumes) -> None:
    """Raises BadTask for what the fleet's queue cannot give: before anything is asked for."""
    gang(gang_request(record, fleet, plan, volumes=volumes, login=None, attempt=0))


def gpus_of(task: Task, queue: PodQueue) -> int:
    """The accelerators of each pod of a run."""
    wanted = _resources(rank_groups(task)[0].resources, queue).gpus
    return queue.gpus.count if wanted is None else wanted


def _resources(asked: Resources, queue: PodQueue) -> PodResources:
    """What a task says of one node; of what it leaves open a pod has all that the node has."""
    said = asked.model_fields_set
    most = asked.gpu.count.max
    return PodResources(
        gpus=None if most is None or most >= queue.gpus.count else int(most),
        cpus=_number(asked.cpu.count.min) if "cpu" in said else None,
        memory_mib=_mib(asked.memory_mib.min) if "memory_mib" in said else None,
        cpus_limit=_number(asked.cpu.count.max),
        memory_limit_mib=_mib(asked.memory_mib.max),
        disk_mib=_mib(asked.disk_mib.min) if "disk_mib" in said else None,
        shm_mib=_mib(asked.shm_size_mib),
    )


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _mib(value: float | None) -> int | None:
    return None if value is None else int(value)


def _mounts(task: Task, fleet: FleetState, volumes: Volumes) -> Iterator[HostFolder | Claim]:
    for mount in task.volumes:
        if mount.kind == "folder":
            yield HostFolder(mount.instance_path, mount.path, mount.read_only, mount.optional)
        elif mount.kind == "managed":
            folder = instance_volume(fleet.name, mount.names[0])
            yield HostFolder(folder, mount.path, mount.read_only, optional=True)
        else:
            known = next((volumes.known[name] for name in mount.names if name in volumes.known), None)
            if known is not None:
                read_only = mount.read_only or known.state.read_only
                yield Claim(known.state.volume_id or known.state.name, mount.path, read_only)


def _registry(image: str, login: Login) -> RegistryLogin:
    registry = registry_of(image)
    return RegistryLogin(login.username, login.password, None if registry == HUB else registry)
