"""A fleet as a user asks for it, planned with what its stack decided before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from orch.components.deployment import Deployment
from orch.components.registry import compile_fleet
from orch.components.request import NO_CONSENT, Approvals, PlanRequest, PriorState
from orch.spec.models import Fleet
from orch.stacks.lockfile import read_lock
from orch.stacks.program import scope_of
from orch.stacks.project import Project
from orch.stacks.state import StackState, begun


@dataclass(frozen=True)
class FleetRequest:
    """A fleet as a user asks for it: its model, its file, and what is agreed to beyond it.

    `folder` is the file's; `file` is None where it came from standard input.
    """

    fleet: Fleet
    folder: Path
    approvals: Approvals = NO_CONSENT
    file: Path | None = None

    @property
    def name(self) -> str:
        return self.fleet.name

    def files(self, project: Project) -> dict[str, tuple[int, int] | None]:
        """The files that a plan is made from, as they are now: when each was written, and its size."""
        scripts = [self.folder / Path(step.file).expanduser() for step in self.fleet.init if step.file]
        files = (project.root / "orch.yml", project.lock_file, self.file, *scripts)
        return {str(file): _mark(file) for file in files if file is not None}


def compile_for(stack: StackState, request: FleetRequest) -> Deployment:
    """Plan a fleet with what its stack decided before. Raises PlanError, Conflict (a newer orch's state)."""
    project = stack.project
    previous = replace(
        PriorState.of_outputs(stack.outputs),
        unfinished=begun(stack.recorded),
        locked=read_lock(project.lock_file, request.name),
        existing_nodes=frozenset(stack.makers),
    )
    return compile_fleet(
        PlanRequest(
            request.fleet,
            project.backends,
            previous,
            scope_of(project),
            root=project.root,
            folder=request.folder,
            consent=request.approvals,
            session=project.session,
            stack=lambda name: PriorState.of_outputs(stack.beside(name).outputs),
            tags=project.tags,
        )
    )


def _mark(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
