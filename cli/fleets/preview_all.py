"""A plan for each stack of a file or folder, several at once, for `orch preview` of a folder and for reviews.

A stack that has no plan is told in its place, and the others go on. Each is planned in a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orch.cli.context import project_at
from orch.cli.errors import tell, worst
from orch.cli.fleets import side_by_side
from orch.cli.fleets.preview_stack import SCHEMA, Job, Previewed, Wanted, failed, previewed
from orch.cli.fleets.prune import Undescribed, found_undescribed
from orch.cli.output.files import refuse_overwriting
from orch.spec.errors import ExitCode
from orch.stacks.plans.waves import Stack, in_waves

if TYPE_CHECKING:
    from orch.spec.diagnostics import Diagnostic
    from orch.spec.loader.load import Loaded
    from orch.stacks.plans.saved_plan import Terms
    from orch.stacks.project.project import Project


@dataclass(frozen=True)
class Previews:
    """Previews of all stacks of a file or folder, in the order in which they are shown. `code`: the worst
    exit code of them; `terms`: those of the saved plan, if one is wanted; `undescribed`: fleets that are up
    and that no file describes."""

    target: str
    project: Project
    loaded: Loaded
    done: tuple[Previewed, ...]
    code: ExitCode
    terms: Terms | None
    undescribed: tuple[Undescribed, ...] = ()

    @property
    def stacks(self) -> list[Stack]:
        """The stacks that can be planned, in the order in which `up` goes."""
        return in_waves(self.project, self.loaded.documents)


def preview_all(target: str, wanted: Wanted, files: Sequence[str | None] = ()) -> Previews:
    """Preview all stacks of a file or folder. `files`: those that will be written.

    Raises ProjectError when it has neither a fleet nor a volume, UsageError for a file that is one of those
    that are read.
    """
    from orch.cli.diagnostics import read, tell_of_folders_below
    from orch.cli.fleets.preview_files import terms_of
    from orch.spec.diagnostics import render_human
    from orch.spec.models import Fleet, Volume
    from orch.stacks.errors import ProjectError

    project = project_at(
        None if target == "-" else target,
        rehearse=wanted.rehearse,
        owner=wanted.owner,
        keyless=wanted.keyless,
    )
    trusted = True
    if wanted.base is not None:
        from orch.ci.workflows.programs import EVERY, reviewed

        held = reviewed(project, wanted.base)
        wanted, project = replace(wanted, reviewed=held), held.project
        # A state that the change selects is not asked.
        trusted = EVERY not in held.settings
    loaded = read(target, backends=[each.type for each in project.backends], secrets=trusted)
    if loaded.diagnostics:
        tell(render_human(loaded.diagnostics))
    if os.path.isdir(target):
        tell_of_folders_below([target])
    jobs = [
        Job("fleet" if isinstance(each.model, Fleet) else "volume", each.model.name, each)
        for each in loaded.documents
        if isinstance(each.model, Fleet | Volume)
    ]
    broken = list(_broken(loaded))
    if not jobs and not broken:
        raise ProjectError("there is no fleet in it", where=target, hint="a fleet begins with `type: fleet`")
    refuse_overwriting(loaded, files, project.root / "orch.yml")
    jobs.sort(key=lambda each: (each.name, each.kind, each.where))
    if wanted.saves:
        titles = [f"{each.kind} {each.name}" for each in jobs]
        wanted = replace(wanted, terms=terms_of(project, wanted.expires_s, titles))
    done = (*broken, *_run(jobs, project, loaded, wanted))
    code = worst(each.code for each in done)
    found = found_undescribed(project) if trusted and os.path.isdir(target) else ()
    return Previews(target, project, loaded, done, code, wanted.terms, found)


def _broken(loaded: Loaded) -> Iterator[Previewed]:
    """A failure for each file with errors; its valid documents are previewed all the same."""
    from orch.review.assess import failed_review
    from orch.spec.diagnostics import Severity
    from orch.spec.loader.load import InvalidConfiguration

    of_file: dict[str, list[Diagnostic]] = {}
    for each in loaded.diagnostics:
        of_file.setdefault(each.span.file, []).append(each)
    for file, diagnostics in of_file.items():
        first = next((each for each in diagnostics if each.severity is Severity.ERROR), None)
        if first is None:
            continue
        review = failed_review("file", file, f"{file}:{first.span.line}", InvalidConfiguration(diagnostics))
        data = {"schema": SCHEMA, "file": file, "diagnostics": [each.as_dict() for each in diagnostics]}
        yield Previewed(review, data, ExitCode.CONFIG)


# Processes


def _run(jobs: Sequence[Job], project: Project, loaded: Loaded, wanted: Wanted) -> list[Previewed]:
    """The jobs in their order, a few at a time. One that ends without an answer is a failure."""
    most = side_by_side.at_once(len(jobs))
    if most < 2 or not side_by_side.can_fork():
        return [previewed(job, project, loaded, wanted) for job in jobs]
    from orch.spec.models import Fleet

    models = [job.document.model for job in jobs]
    side_by_side.import_before([each for each in models if isinstance(each, Fleet)], project)

    def told(job: Job, done: Previewed, count: int) -> None:
        tell(f"planned {count} of {len(jobs)}: {job.kind} {job.name}")

    work = side_by_side.Work(
        lambda job: previewed(job, side_by_side.own_project(project), loaded, wanted), _ended, told
    )
    return [each for each in side_by_side.run(jobs, work, most) if each is not None]


def _ended(job: Job, code: int | None) -> Previewed:
    from orch.stacks.errors import StackError

    error = StackError(
        f"the process that planned the {job.kind} {job.name} ended ({code})",
        hint="run it alone; the system's log may tell what ended it",
        code="ORCH346",
    )
    return failed(job, error)
