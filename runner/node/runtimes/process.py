"""Jobs on pods, nodes that are containers themselves: no host, no Docker, the image of the node.

A job is a process group there. Scripts of a node are the same as where Docker is (`container.py`); what they
ask of `docker` is answered by `templates/pod-docker.sh.j2`, which each of them brings along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

from orch.runner.errors import ImageUnavailable, PodGone
from orch.runner.events import Processor
from orch.runner.node.registry import RegistryLogin
from orch.runner.node.runtime import WHOLE_LOG, LogPart
from orch.runner.node.runtimes.docker import DockerRuntime
from orch.runner.node_api.commands import NODE_HOME, Command, argv
from orch.runner.node_api.connector import Completed, Connector, NodeResult
from orch.runner.plan.run_plan import RunPlan
from orch.spec.state import NodeState
from orch.templates import render

_PATH = f"PATH={NODE_HOME}/pod:$PATH; export PATH"


class ProcessRuntime(DockerRuntime):
    """As `DockerRuntime`, for nodes that are containers: a job has the node's own files, image and devices.

    What it changes of those stays for the next job. It runs in the environment of the node's first process,
    without what a cloud sets for launchers of its own and what its backend hides. What cannot be there is
    refused before (`runner/launch/pods.py`).
    """

    _in_pod = True

    def _run(self, connector: Connector, node: NodeState, command: Command, **how: Any) -> Completed:
        return connector.run(node, replace(command, text=f"{_begin()}\n{command.text}"), **how)

    def remove(
        self, connector: Connector, plan: RunPlan, rank: int, *, deadline_s: float | None = None
    ) -> None:
        """See `JobRuntime`: what a pod held went with it."""
        with suppress(PodGone):
            super().remove(connector, plan, rank, deadline_s=deadline_s)

    def read_log(
        self,
        connector: Connector,
        plan: RunPlan,
        rank: int,
        on_lines: Callable[[bytes], object],
        part: LogPart = WHOLE_LOG,
        **how: Any,
    ) -> bool:
        try:
            return super().read_log(connector, plan, rank, on_lines, part, **how)
        except PodGone:
            return False

    def provide_image(
        self,
        connector: Connector,
        nodes: Sequence[NodeState],
        image: str,
        processor: Processor,
        login: RegistryLogin | None = None,
    ) -> tuple[NodeResult[None], ...]:
        """See `JobRuntime`: there is nothing that could take one."""
        del connector, processor, login
        return tuple(
            NodeResult(
                node,
                error=ImageUnavailable(
                    f"node {node.name} cannot get the image {image}",
                    where=node.name,
                    detail="it is a container, and was made with its image",
                    hint="have its fleet made with this image",
                    reason="creating_container_error",
                ),
            )
            for node in nodes
        )

    def job_command(
        self, plan: RunPlan, rank: int, text: str, *, root: bool = False, terminal: bool = False
    ) -> str:
        return f"{_PATH}; {super().job_command(plan, rank, text, root=root, terminal=terminal)}"

    def job_process(self, plan: RunPlan, rank: int) -> str:
        return argv("env", f"PATH={NODE_HOME}/pod:/usr/bin:/bin", *super().job_process(plan, rank).split())

    def health_check(self) -> str:
        """See `JobRuntime`: of what scripts and jobs need there."""
        return (
            "for each in tar awk setsid mkfifo stat; do "
            'command -v "$each" >/dev/null || echo "the image of this pod has no $each"; done'
        )


@cache
def _begin() -> str:
    docker = render("pod-docker.sh.j2", home=NODE_HOME).rstrip("\n")
    return render("pod-begin.sh.j2", home=NODE_HOME, docker=docker)
