"""A RunPod fleet in the real engine, on a simulated account, and nodes for runs that are made without a run.

As a program it makes nodes for a run as `orch run` does, in a process that may be killed:
`python runpod_engine.py FOLDER FLEET NODES`.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.clouds.cloud_engine import CloudStack, quiet

from orch.rehearsal.project import rehearse
from orch.rehearsal.runpod.account import RunpodCloud
from orch.rehearsal.scenario import Knobs
from orch.spec.models import Task
from orch.spec.state import FleetState, own_nodes
from orch.stacks.plans.plan import Plan
from orch.stacks.plans.request import FleetRequest
from orch.stacks.project.project import find
from orch.stacks.provisioning import operations
from orch.stacks.provisioning.nodes_with_runs import give_up, make_way, making, remove_unused
from orch.stacks.pulumi.progress import Progress
from orch.stacks.record.fleets import find_fleet, fleet_state
from orch.stacks.runs.nodes_for_runs import Growth, growth_for, make_nodes, plan_growth

IMAGE = "pytorch/pytorch:2.8.0"


@dataclass(frozen=True)
class Stack(CloudStack):
    """A rehearsal of one RunPod fleet in a folder."""

    cloud: RunpodCloud

    def state(self) -> FleetState:
        """The fleet with the nodes that exist."""
        return fleet_state(self.project, self.name)

    def task(self, nodes: int, **more: Any) -> Task:
        written = {"type": "task", "nodes": nodes, "image": IMAGE, "commands": ["true"], **more}
        return Task.model_validate(written)

    def growth(self, nodes: int, **more: Any) -> Growth | None:
        return growth_for(self.project, self.task(nodes, **more), self.state(), ())

    def grow(self, nodes: int, told: list[str] | None = None) -> tuple[str, list[str]]:
        """Make nodes for a run: its mark, and their machines."""

        def listen(event: Progress) -> None:
            if told is not None:
                told.append(str(getattr(event, "text", "")))

        growth = self.growth(nodes)
        assert growth is not None
        assert growth.request.made_for is not None
        reason: str | None = ""
        while reason is not None:
            plan = plan_growth(self.project, growth, quiet)
            reason = operations.outdated(plan, growth.request, quiet)
        with making(self.project, growth.request.made_for):
            make_nodes(self.project, growth, plan, listen)
        return growth.request.made_for, self.machines(growth.request.made_for)

    def make_way(self) -> None:
        """As `orch run` does first: what nobody needs goes."""
        make_way(self.project, [self.state()], lambda: nullcontext(quiet))

    def machines(self, mark: str) -> list[str]:
        return [str(node.machine) for node in own_nodes(self.state(), mark).nodes]

    def end(self, *marks: str) -> tuple[str, ...]:
        """Their runs will not come; what is removed for that."""
        for mark in marks:
            give_up(mark)
        return remove_unused(self.project, self.name, quiet).removed

    def end_all(self) -> None:
        """None of the runs that nodes are made for here will come."""
        self.end(*{node.made_for for node in self.state().nodes if node.made_for})

    def plan_of_file(self) -> Plan:
        _, fleet = find_fleet(self.project.root, self.name)
        return operations.preview(self.project, FleetRequest(fleet, self.folder), quiet)


def stack(folder: Path, name: str = "lab") -> Stack:
    """A fleet of a rehearsal that exists, without machines behind the pods."""
    rehearsal = rehearse(find(folder), nodes=False).project
    account = rehearsal.cloud("runpod")
    assert isinstance(account, RunpodCloud)
    return Stack(folder, rehearsal, name, account)


def begin(folder: Path, **knobs: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "orch.yml").write_text("project: tests\n")
    RunpodCloud.create(folder / ".orch" / "rehearsal" / "runpod.db", knobs=Knobs(**knobs)).store.close()


if __name__ == "__main__":
    _, machines = stack(Path(sys.argv[1]), sys.argv[2]).grow(int(sys.argv[3]))
    print(*machines)
