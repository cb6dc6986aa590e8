"""Nodes, fleets and plans of runs that no machine stands behind."""

from __future__ import annotations

from pathlib import Path

from orch.runner.launch.compile import CompiledRun, compile_run
from orch.runner.launch.run_request import RunRequest
from orch.runner.placement.placement import place_task
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeState


def node(index: int, **more: object) -> NodeState:
    given: dict[str, object] = {
        "index": index,
        "name": f"n{index}",
        "address": "127.0.0.1",
        "user": "root",
        "host_key": "ssh-ed25519 AAAA",
        "internal_ip": f"10.0.0.{index + 1}",
        "cpus": 8,
        "memory_mib": 16384,
    }
    return NodeState.model_validate(given | more)


def fleet(*nodes: NodeState, name: str = "lab", placement: str = "cluster", **more: object) -> FleetState:
    given = {"name": name, "stack": name, "backend": "local", "placement": placement, "nodes": nodes}
    return FleetState.model_validate(given | more)


def compiled(on: FleetState, **task: object) -> CompiledRun:
    read = Task.model_validate(task)
    seats = place_task(read, on)
    return compile_run(RunRequest(read, "job", 1, on, seats, "image", Path("/base")))
