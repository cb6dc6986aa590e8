"""From the paths of a task to trees that are kept: what `submit` does before a run is written down."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orch.runner.errors import BadTask, about_property
from orch.runner.launch.run_plan import RunPlan
from orch.runner.upload.repository import Repository, check_repository, repository
from orch.runner.upload.selection import Selection, Source, messages, resolve_source, select_entries
from orch.runner.upload.snapshot import Snapshots

if TYPE_CHECKING:
    from orch.spec.models import Task


def check_sources(base: Path, task: Task) -> None:
    """Raises BadTask that names every path of `files` missing on this machine, or for a repository that is
    not there, or refuses the caller."""
    paths: list[Path] = []
    for index, item in enumerate(task.files):
        with about_property(f"files.{index}"):
            paths.append(resolve_source(base, item.local_path).path)
    _check(paths)
    for repo in task.repos:
        with about_property("repos.0"):
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
    with ExitStack() as stack:
        with about_property("repos.0"):
            found = stack.enter_context(repository(dot, base, repo, single_branch=single))
        yield found


def _check(paths: Sequence[Path]) -> None:
    """Raises BadTask for paths of `files`, in their order, that are not there."""
    missing = [index for index, path in enumerate(paths) if not os.path.lexists(path)]
    if missing:
        names = ", ".join(str(paths[index]) for index in missing)
        raise BadTask(
            f"{names} {'is' if len(missing) == 1 else 'are'} not here",
            hint="`files` are looked for beside the file that names them",
            path=f"files.{missing[0]}",
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
    repositories = sum(1 for item in plan.files if item.if_exists is not None)
    for index, item in enumerate(plan.files):
        # The repository comes first, then `files` in their order.
        path = "repos.0" if item.if_exists is not None else f"files.{index - repositories}"
        with about_property(path):
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
