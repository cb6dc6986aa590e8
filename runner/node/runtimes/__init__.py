"""What starts jobs, by the name that a node's record has for it (`NodeState.runtime`).

`docker.py` is for nodes that have Docker, `process.py` for nodes that are containers themselves. Both are the
protocol of `node/runtime.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from orch.runner.errors import RunnerError
from orch.runner.node.runtime import JobRuntime
from orch.runner.node.runtimes.docker import DockerRuntime
from orch.runner.node.runtimes.process import ProcessRuntime
from orch.spec.state import NodeState

RUNTIMES: Mapping[str, JobRuntime] = {"docker": DockerRuntime(), "process": ProcessRuntime()}


def runtime_of(node: NodeState, runtimes: Mapping[str, JobRuntime]) -> JobRuntime:
    """What starts jobs on a node. Raises RunnerError."""
    runtime = runtimes.get(node.runtime)
    if runtime is None:
        raise RunnerError(
            f"nobody here starts jobs on node {node.name}",
            where=node.name,
            detail=f"its runtime is {node.runtime!r}, this orch has {', '.join(runtimes)}",
            hint="upgrade orch on this machine",
        )
    return runtime
