"""From the paths of a task to trees that are kept: what `submit` does before a run is written down."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orch.runner.errors import BadTask
from orch.runner.launch.run_plan import RunPlan
from orch.runner.upload.repository import Repository, check_repository, repository
from orch.runner.upload.selection import Selection, Source, messages, resolve_source, select_entries
from orch.runner.upload.snapshot import Snapshots

if TYPE_CHECKING:
    from orch.spec.models import Task


def check_sources(base: Path, task: Task) -> None:
    """Raises BadTask that names every path of `files` missing on this machine, or for a repository that is
    not there, or refuses the caller."""
    _check([resolve_source(base, item.local_path).path for item in task.files])
    for repo in task.repos:
        check_repository(base, repo)


@contextmanager
def repository_of(dot: Path, base: Path, task: Task) -> Iterator[Repository | None]:
    """The task's repository, fetched; it does not change before the end of the block. Raises BadTask."""
    if not task.repos:
        yield None
        return
    (repo,) = task.repos
    single = task.single_branch
    if single is None:
        single = repo.single_branch or "single_branch" not in repo.model_fields_set
    with repository(dot, base, repo, single_branch=single) as found:
        yield found


def _check(paths: Sequence[Path]) -> None:
    missing = [str(path) for path in paths if not os.path.lexists(path)]
    if missing:
        raise BadTask(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not here",
            hint="`files` are looked for beside the file that names them",
        )


def keep_files(dot: Path, plan: RunPlan, repo: Repository | None = None) -> tuple[RunPlan, tuple[str, ...]]:
    """Keep what a run takes along: its plan with the trees, and `LEVEL: TEXT` lines for the user.

    Raises BadTask for what cannot be sent, LedgerUnusable when `.orch` cannot be written.
    """
    if not plan.files:
        return plan, ()
    _check([Path(item.source) for item in plan.files if item.if_exists is None])
    snapshots = Snapshots(dot)
    selections: list[Selection] = []
    key_files: list[str] = []
    files = []
    for item in plan.files:
        if item.if_exists is not None and repo is not None:
            selection = repo.selection
        else:
            selection = select_entries(Source(Path(item.source), item.pattern))
        kept = snapshots.keep(selection.entries)
        selections.append(selection)
        key_files += kept.key_files
        folder = any(stat.S_ISDIR(entry.status.st_mode) for entry in selection.entries)
        files.append(item.model_copy(update={"tree": kept.tree.id, "folder": folder}))
    notes = repo.notes if repo else ()
    return plan.model_copy(update={"files": tuple(files)}), (*messages(selections, key_files), *notes)
