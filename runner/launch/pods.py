"""What a task may ask for and a job on a pod cannot have: its cloud makes the container. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from orch.runner.errors import BadTask
from orch.runner.placement.rank_groups import rank_groups
from orch.runner.placement.slots import is_of_cluster
from orch.runner.plan.run_plan import RunPlan

if TYPE_CHECKING:
    from orch.spec.models import Task

CODE = "ORCH423"


class _Refusal(NamedTuple):
    path: str
    why: str
    hint: str


def check_task_for_pods(task: Task, *, of_cluster: bool = False) -> None:
    """Raises BadTask (ORCH423) for what no pod can do: also before there is one. `of_cluster`: it is one of
    Kubernetes, which is asked for with all that the task says."""
    for path, why, hint in _cluster_refusals(task) if of_cluster else _refusals(task):
        raise BadTask(f"a pod {why}", path=path, hint=hint, code=CODE)


def check_pods(task: Task, plan: RunPlan) -> None:
    """Raises BadTask (ORCH423) where nodes of the plan are pods and cannot do this."""
    pods = [rank.node for rank in plan.ranks if rank.node.is_pod]
    if not pods:
        return
    check_task_for_pods(task, of_cluster=any(map(is_of_cluster, pods)))
    if any(node.blocks > 1 for node in pods):
        raise BadTask(
            f"node {pods[0].name} is a pod, of which a job has all",
            hint="leave `blocks` out of its fleet",
            code=CODE,
        )


def _refusals(task: Task) -> Iterator[_Refusal]:
    machines = "use a fleet of machines"
    if task.privileged:
        yield _Refusal("privileged", "is not privileged", f"remove it, or {machines}")
    if task.docker:
        yield _Refusal("docker", "has no Docker for its job", f"remove it, or {machines}")
    yield from _volume_refusals(task, machines)
    yield from _command_refusals(task, "orch's SSH server")
    if task.registry_auth is not None:
        yield _Refusal(
            "registry_auth",
            "has its image from its cloud, which gets no log-in of orch",
            "name an image that needs no log-in",
        )


def _cluster_refusals(task: Task) -> Iterator[_Refusal]:
    if task.docker:
        yield _Refusal("docker", "has no Docker for its job", "remove it, or use a fleet of machines")
    yield from _command_refusals(task, "what waits for the run's job")
    for index, mount in enumerate(task.volumes):
        if any("${{" in text for text in (*mount.names, mount.path, mount.instance_path or "")):
            hint = "write the name and the path as they are: all pods of a run are made alike"
            yield _Refusal(f"volumes.{index}", "has its volumes before its run has ranks", hint)
    groups = rank_groups(task)
    if any(group.resources != groups[0].resources for group in groups):
        yield _Refusal(
            "groups",
            "is made as all others of its run are",
            "give all groups the same `resources`, or use a fleet of machines",
        )


def _command_refusals(task: Task, first: str) -> Iterator[_Refusal]:
    launches = task.torchrun or task.mpirun or task.entrypoint
    if not (launches or all(group.commands for group in rank_groups(task))):
        yield _Refusal(
            "commands",
            f"runs {first} first, in place of the image's own program",
            "write what the image would start as `commands`",
        )


def _volume_refusals(task: Task, machines: str) -> Iterator[_Refusal]:
    """A pod is made with its volume: one, whole, at one path, before a rank has a name."""
    for index, mount in enumerate(task.volumes):
        path = f"volumes.{index}"
        if mount.kind != "network":
            keep = "name a volume of its cloud, keep what the job makes by `outputs`"
            yield _Refusal(path, "has no host whose folders it could mount", f"{keep}, or {machines}")
        elif index:
            yield _Refusal(path, "has one volume at most", f"put all of it on the first one, or {machines}")
        elif mount.read_only:
            yield _Refusal(path, "has its volume for writing", f"remove `read_only`, or {machines}")
        elif any("${{" in text for text in (*mount.names, mount.path)):
            hint = "write the name and the path as they are: all pods of a run have the same volume"
            yield _Refusal(path, "has its volume before its run has names and ranks", hint)
