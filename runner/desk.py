"""What acting on one run needs, and the last act: bringing a rank's log home and leaving its node clean."""

from __future__ import annotations

from dataclasses import dataclass

from orch.runner import job, logs
from orch.runner.errors import RunnerError
from orch.runner.events import Processor
from orch.runner.ledger import Ledger
from orch.runner.plan import RunPlan
from orch.runner.store import RunFolder
from orch.runner.transport import Transport


@dataclass(frozen=True)
class Desk:
    """What driving needs: the ledger, the way to the nodes, the run's folder, and who is told."""

    ledger: Ledger
    transport: Transport
    folder: RunFolder
    processor: Processor


def collect_rank(desk: Desk, plan: RunPlan, rank: int, *, tell: bool, deadline_s: float = 10.0) -> None:
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
    done = desk.transport.run(node, job.release_command(plan, rank), deadline_s=deadline_s)
    if not done.ok:
        raise RunnerError(
            f"the container of rank {rank} could not be removed", where=node.name, detail=done.stderr
        )
