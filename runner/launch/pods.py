"""What a task may ask for and a job on a pod cannot have: its cloud makes the container. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch.runner.errors import BadTask
from orch.runner.launch.run_plan import RunPlan

if TYPE_CHECKING:
    from orch.spec.models import Task


def check_pods(task: Task, plan: RunPlan) -> None:
    """Raises BadTask (ORCH423) where nodes of the plan are containers themselves and cannot do this."""
    pods = [rank for rank in plan.ranks if rank.node.runtime == "process"]
    if not pods:
        return
    name = pods[0].node.name
    if task.privileged or task.docker:
        raise _refusal(
            name,
            "docker" if task.docker else "privileged",
            "its container is not privileged, and has no Docker",
            "leave it out, or run the task on a fleet of machines",
        )
    for index, mount in enumerate(task.volumes):
        if mount.kind in ("folder", "managed"):
            raise _refusal(
                name,
                f"volumes.{index}",
                "there is no host whose folders could be mounted",
                "use a network volume, or a path of the container itself",
            )
    if any(plan.starts_image(rank.rank) for rank in pods):
        raise _refusal(
            name,
            "commands",
            "its first process is orch's SSH server, in place of the image's program",
            "write what the image would start as `commands`",
        )
    if task.registry_auth is not None:
        raise _refusal(
            name,
            "registry_auth",
            "its cloud pulled the image when it made the pod",
            "name an image that needs no log-in",
        )
    if any(rank.node.blocks > 1 for rank in pods):
        raise _refusal(name, "", "a job has all of it", "leave `blocks` out of its fleet")


def _refusal(node: str, path: str, why: str, hint: str) -> BadTask:
    what = f"`{path.partition('.')[0]}`" if path else "`blocks`"
    return BadTask(
        f"node {node} is a pod, which has no {what}", detail=why, hint=hint, code="ORCH423", path=path
    )
