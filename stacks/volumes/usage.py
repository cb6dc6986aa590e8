"""Who uses the volumes of a project, and which nobody has used for long."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from orch.components.volumes import DiskVolumes, volumes_of
from orch.runner.launch.volumes import VolumeUse, volume_uses
from orch.runner.ledger.ledger import open_ledger
from orch.spec.volume_state import VolumeState
from orch.stacks.errors import Conflict, ProjectError
from orch.stacks.project import Project
from orch.stacks.state import StackState
from orch.stacks.volumes.program import account_of
from orch.stacks.volumes.state import created_at, exists, is_recorded, stack_of, volume_of


@dataclass(frozen=True)
class VolumeUsage:
    """A volume that is up, and the runs of the ledger that use it or did.

    `created`: when the engine recorded its creation. `now`: seconds since the epoch. `complete`: whether the
    ledger has the runs of everybody who may use the volume.
    """

    state: VolumeState
    created: datetime | None
    uses: Sequence[VolumeUse]
    now: float
    complete: bool = True

    @property
    def active(self) -> tuple[VolumeUse, ...]:
        """Runs that use it now."""
        return tuple(each for each in self.uses if each.ended is None)

    @property
    def idle_s(self) -> float | None:
        """Seconds since a run used it, or since it was created; None while one does."""
        if self.active:
            return None
        moments = [each.ended for each in self.uses if each.ended is not None]
        moments += [self.created.timestamp()] if self.created else []
        return max(0.0, self.now - max(moments)) if moments else None

    @property
    def is_due(self) -> bool:
        """Whether its `auto_cleanup_duration` is over. One that existed before orch is never due, nor is one
        whose users are not all known."""
        limit = self.state.auto_cleanup_s
        return (
            limit is not None
            and self.complete
            and not self.state.external
            and (self.idle_s or 0.0) >= limit
            and not self.active
        )


def knows_all_runs(project: Project) -> bool:
    """Whether the ledger has the runs of everybody who shares the project's state.

    A state on a server is shared, and a SQLite ledger is of this machine alone. Where the state is files
    outside `.orch`, whoever shares them has to share the ledger too.
    """
    ledger = project.local_ledger
    if ledger is None:
        return True
    if project.local_state is None:
        return False
    return not (project.shares_files and ledger.is_relative_to(project.dot))


def usages(project: Project, stacks: Mapping[str, StackState]) -> list[VolumeUsage]:
    """Those of `stacks`, by the names of their volumes, that are up. Raises StackError, Conflict,
    LedgerUnusable."""
    uses, now, complete = _uses(project, active_only=False), time.time(), knows_all_runs(project)
    return [
        VolumeUsage(volume_of(stack), created_at(stack), uses.get(name, ()), now, complete)
        for name, stack in stacks.items()
        if is_recorded(stack)
    ]


def require_all_runs_known(project: Project) -> None:
    """Raises ProjectError when others may use volumes whose runs this machine's ledger does not have."""
    if knows_all_runs(project):
        return
    raise ProjectError(
        "which volumes nobody has used for long is not known here",
        where=str(project.root),
        detail=f"the state is shared ({project.state_url}), and the ledger of runs is of this machine alone: "
        "others may use what no run here has used",
        hint="give the project a ledger that all share, `ledger: postgresql://…` in orch.yml, or delete a "
        "volume by its name: `orch volume delete NAME`",
    )


def require_unused(project: Project, name: str) -> None:
    """Raises Conflict (ORCH386) when a run of the ledger uses a volume, or a machine has its disk."""
    users = [f"{each.run} on {each.node}" for each in _uses(project).get(name, ())]
    if users:
        raise Conflict(
            f"volume {name} is in use",
            detail=f"active runs: {', '.join(users)}",
            hint="wait for them, or end them with `orch stop RUN`",
            code="ORCH386",
        )
    stack = stack_of(project, name)
    if not is_recorded(stack) or not exists(stack):
        return
    state = volume_of(stack)
    volumes = volumes_of(state.backend)
    if state.external or not isinstance(volumes, DiskVolumes):
        return
    # Runs of other ledgers, and disks that a killed call has left attached.
    if machines := volumes.users(account_of(project), state):
        raise Conflict(
            f"volume {name} is attached to {', '.join(machines)}",
            detail="no run of this project's ledger uses it; one of another ledger may",
            hint="`orch ps` gives back what ended runs have left attached; else detach it: "
            f"`{volumes.detach_hint(state, machines[0])}`",
            code="ORCH386",
        )


def _uses(project: Project, *, active_only: bool = True) -> Mapping[str, Sequence[VolumeUse]]:
    """Runs of the ledger by the volume that they use."""
    project.prepare()
    ledger = open_ledger(project.ledger_url)
    try:
        return volume_uses(ledger, active_only=active_only)
    finally:
        ledger.close()
