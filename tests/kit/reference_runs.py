"""Which tasks and dev environments of the reference documents `orch run` would take, and why not the others.

`PYTHONPATH=tests python -m kit.reference_runs` prints the table.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from kit import TESTS
from orch.components.local.facts import LocalFacts
from orch.components.local.plan import plan
from orch.components.request import PriorState
from orch.images import job_image
from orch.runner.errors import RunnerError
from orch.runner.launch.dev_environment import task_of
from orch.runner.placement.placement import place_task
from orch.spec.diagnostics import Diagnostic, Severity
from orch.spec.errors import OrchError
from orch.spec.loader.load import load_paths
from orch.spec.models import DevEnvironment, Fleet, Task
from orch.spec.models.backends.local import LocalSettings
from orch.spec.state import FleetState, NodeState

REFERENCE = TESTS / "spec" / "reference"
SIMULATED = ("A100:80GB:8", "H100:8")
"""What a laptop simulates so that each of these tasks has a fleet it fits."""


@dataclass(frozen=True)
class Verdict:
    """A block of the reference documents: what refuses it, one line each, and where it would run."""

    name: str
    kind: str
    nodes: int
    refusals: tuple[str, ...]
    gpus: int
    image: str

    def __str__(self) -> str:
        place = f"{self.nodes} x {self.gpus} GPUs, {self.image}"
        return "\n".join(
            [f"{self.name} ({self.kind}, {place}): {self.outcome}", *map("  {}".format, self.refusals)]
        )

    @property
    def outcome(self) -> str:
        return "refused" if self.refusals else "runs"


def verdicts() -> list[Verdict]:
    return [verdict for path in sorted(REFERENCE.glob("*.yml")) for verdict in _of_file(path)]


def local_fleet(task: Task | DevEnvironment) -> Fleet:
    """The fleet on this machine that such a task needs."""
    gpu = task.resources.gpu
    count = int(gpu.count.max or gpu.count.min or 0)
    name = f"{gpu.names[0]}:" if gpu.names else ""
    return Fleet.model_validate(
        {
            "name": "laptop",
            "backend": "local",
            "placement": "cluster",
            "nodes": str(task.nodes),
            "resources": {"gpu": f"{name}{count}"},
        }
    )


def _of_file(path: Path) -> list[Verdict]:
    # Variables that the reader is told to have: a value of the caller's own.
    environ = {"HF_TOKEN": "token"}
    launched = load_paths([path], environ=environ, launch=("task", "dev-environment")).diagnostics
    found: list[Verdict] = []
    for document in load_paths([path], environ=environ).documents:
        task = document.model
        if isinstance(task, Task | DevEnvironment):
            refusals = [_line(each) for each in launched if each.severity is Severity.ERROR]
            fleet = _state(local_fleet(task))
            run, _ = task_of(task)
            try:
                seats = place_task(run, fleet)
            except RunnerError as error:
                seats, refusals = (), [*refusals, f"{error.summary}: {error.detail}"]
            image = job_image(run, fleet, None, {}).reference
            gpus = seats[0].gpus if seats else 0
            found.append(Verdict(path.stem, document.kind, task.nodes, tuple(refusals), gpus, image))
    return found


def _state(fleet: Fleet) -> FleetState:
    """The fleet as `up` would leave it."""
    settings = LocalSettings.model_validate({"type": "local", "simulate_gpu": list(SIMULATED)})
    made = plan(fleet, LocalFacts(16, 64 << 10, "orch/node"), PriorState(), "abc", settings=settings)
    nodes = tuple(
        NodeState(
            index=each.index,
            name=each.name,
            address="127.0.0.1",
            user="root",
            host_key="k",
            internal_ip=f"10.0.0.{each.address_offset}",
            cpus=each.cpus,
            memory_mib=each.memory_mib,
            gpus=made.gpus,
            blocks=made.blocks,
        )
        for each in made.nodes
    )
    return FleetState(
        name=fleet.name, stack=fleet.name, backend="local", placement="cluster", simulated=True, nodes=nodes
    )


def _line(each: Diagnostic) -> str:
    return f"{each.span.line}: {each.code} {each.summary}"


if __name__ == "__main__":
    try:
        print("\n".join(map(str, verdicts())))
    except OrchError as error:
        sys.exit(error.text())
