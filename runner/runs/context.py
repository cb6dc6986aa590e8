"""What acting on runs needs, and the last act: bringing a rank's log home and leaving its node clean."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from orch.runner.errors import RunnerError
from orch.runner.events import Processor, Silent
from orch.runner.launch.run_plan import RunPlan
from orch.runner.ledger.ledger import Ledger
from orch.runner.ledger.records import RunRow
from orch.runner.ledger.run_folder import RunFolder, find_folder
from orch.runner.ledger.run_names import RunName
from orch.runner.node import container, logs
from orch.runner.ssh.transport import Transport


@dataclass(frozen=True)
class RunContext:
    """What driving needs: the ledger, the way to the nodes, the run's folder, and who is told."""

    ledger: Ledger
    transport: Transport
    folder: RunFolder
    processor: Processor


@dataclass(frozen=True)
class RunnerContext:
    """A project as the runner sees it: its `.orch` folder, its ledger, the way to nodes, and who is told."""

    dot: Path
    ledger: Ledger
    transport: Transport
    processor: Processor = field(default_factory=Silent)

    def desk(self, row: RunRow) -> RunContext:
        return RunContext(
            self.ledger, self.transport, find_folder(self.dot, RunName.kept(row.name), row.id), self.processor
        )


def collect_rank(desk: RunContext, plan: RunPlan, rank: int, *, tell: bool, deadline_s: float = 10.0) -> None:
    """Complete a rank's log, then remove all of it from its node. Raises RunnerError."""
    node = plan.ranks[rank].node
    logs.fetch_rest(
        desk.transport,
        plan,
        rank,
        desk.folder,
        processor=desk.processor if tell else None,
        deadline_s=deadline_s,
    )
    done = desk.transport.run(node, container.release_command(plan, rank), deadline_s=deadline_s)
    if not done.ok:
        raise RunnerError(
            f"the container of rank {rank} could not be removed", where=node.name, detail=done.stderr
        )
