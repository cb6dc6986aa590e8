"""The contexts that acting on runs needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orch.runner.events import Processor, Silent
from orch.runner.launch.volumes import Volumes
from orch.runner.ledger.records import RunRow
from orch.runner.ledger.run_folder import RunFolder, find_folder
from orch.runner.node.runtime import JobRuntime
from orch.runner.node.runtimes import RUNTIMES, runtime_of
from orch.runner.node.volumes import NO_VOLUMES, VolumeAttacher
from orch.runner.node_api.connector import Connector
from orch.runner.plan.run_names import RunName
from orch.runner.runs.run_secrets import Secrets, no_store
from orch.runner.runs.seats.early_look import EarlyLook
from orch.runner.runs.seats.recent_statuses import RecentStatuses
from orch.spec.state import FleetState, NodeState

if TYPE_CHECKING:
    from orch.runner.ledger.ledger import Ledger
    from orch.spec.models import Task


class Provisioned(Protocol):
    """What of a project is up at this moment, for attempts that begin after their run was submitted."""

    def fleet(self, stack: str, run: int) -> FleetState | None:
        """A fleet with its variables, by its stack, without nodes that were made for other runs than this
        one; None for one that is not up. Raises OrchError."""
        ...

    def volumes(self) -> Volumes:
        """The volumes, and the active runs that use them. Raises OrchError."""
        ...

    def make_nodes(self, runner: RunContext, task: Task, fleet: FleetState, lost: Collection[str]) -> bool:
        """Make the nodes that a fleet lacks for a task, without asking anybody. False: it lacks none, or may
        have no more. `lost`: names of nodes that the run has lost. Raises OrchError."""
        ...

    def attempt_ended(self, row: RunRow) -> None:
        """Remove the nodes that were made for the run alone: its latest attempt has ended. Raises
        OrchError."""
        ...


@dataclass(frozen=True)
class RunContext:
    """What the driver of one run needs: ledger, connector, the run's folder, and the processor of events.

    `provisioned`: None where nothing is known of the project but what a run was submitted with.
    `recent_statuses`: where one process looks for nodes for many runs.
    """

    ledger: Ledger
    connector: Connector
    folder: RunFolder
    processor: Processor
    runtimes: Mapping[str, JobRuntime] = field(default_factory=lambda: RUNTIMES)
    secrets: Secrets = no_store
    volumes: VolumeAttacher = NO_VOLUMES
    provisioned: Provisioned | None = None
    recent_statuses: RecentStatuses | None = None

    def runtime(self, node: NodeState) -> JobRuntime:
        """The job runtime of a node. Raises RunnerError."""
        return runtime_of(node, self.runtimes)

    def of_attempt(self, attempt: int) -> RunContext:
        """The same for another attempt of the run."""
        return replace(self, folder=self.folder.of_attempt(attempt))


@dataclass(frozen=True)
class RunnerContext:
    """A project as the runner sees it: its `.orch` folder (`dot`), ledger, connector, and event processor.

    `runtimes`: job runtimes by name (`NodeState.runtime`). `secrets` gives the values of the project's
    secrets, as they are when it is asked. `volumes` attaches disks of clouds to nodes. `provisioned`,
    `recent_statuses`: as in `RunContext`. `early_look`: one at a fleet's nodes that has begun.
    """

    dot: Path
    ledger: Ledger
    connector: Connector
    processor: Processor = field(default_factory=Silent)
    runtimes: Mapping[str, JobRuntime] = field(default_factory=lambda: RUNTIMES)
    secrets: Secrets = no_store
    volumes: VolumeAttacher = NO_VOLUMES
    provisioned: Provisioned | None = None
    recent_statuses: RecentStatuses | None = None
    early_look: EarlyLook | None = None

    def runtime(self, node: NodeState) -> JobRuntime:
        """The job runtime of a node. Raises RunnerError."""
        return runtime_of(node, self.runtimes)

    def context(self, row: RunRow) -> RunContext:
        return RunContext(
            self.ledger,
            self.connector,
            find_folder(self.dot, RunName.from_ledger(row.name), row.id, row.array).of_attempt(row.attempt),
            self.processor,
            self.runtimes,
            self.secrets,
            self.volumes,
            self.provisioned,
            self.recent_statuses,
        )
