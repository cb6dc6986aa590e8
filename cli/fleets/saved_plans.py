"""Applies saved plans: `orch up --plan`.

All stacks of one are compared before the first one is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from orch.cli.errors import UsageError, end, print_json, say, tell
from orch.cli.fleets.node_gates import pass_gate, require_healthy
from orch.spec.errors import ExitCode, OrchError
from orch.stacks.plans.waves import Stack, in_waves, refuse_missing

if TYPE_CHECKING:
    from orch.components.request import Approvals
    from orch.spec.loader.load import Document
    from orch.spec.models import Fleet, Volume
    from orch.stacks.plans.request import FleetRequest
    from orch.stacks.plans.saved_plan import SavedPlan, StackPlan
    from orch.stacks.project.project import Project
    from orch.stacks.pulumi.operation import Listener
    from orch.stacks.saved_plans.applying import Approved
    from orch.stacks.saved_plans.result import Progress


@dataclass(frozen=True)
class Job:
    """A stack of a saved plan with its document as it is now."""

    stack: Stack
    approved: Approved

    @property
    def project(self) -> Project:
        return self.stack.project

    @property
    def document(self) -> Document:
        return self.stack.document

    @property
    def model(self) -> Fleet | Volume:
        return self.stack.model

    @property
    def title(self) -> str:
        return self.approved.plan.title

    def request(self, approvals: Approvals) -> FleetRequest:
        from orch.spec.models import Fleet
        from orch.stacks.plans.request import FleetRequest

        if not isinstance(self.model, Fleet):
            raise TypeError(f"{self.title} is no fleet")
        keys = {each.host: each.key for each in self.approved.plan.new_keys}
        return FleetRequest(
            self.model,
            self.document.directory.absolute(),
            replace(approvals, keys=keys),
            self.document.file.absolute(),
            decided=self.approved.plan.trusted_decisions,
        )


Documents = Callable[[str], "tuple[Project, tuple[Document, ...]]"]
"""Reads the documents of a file or folder, with the project that it belongs to."""


@dataclass(frozen=True)
class ApplyMeans:
    """Settings of applying a saved plan. `result`: a file that gets the result; `lease_s`: duration of the
    leases that are taken on its stacks, None: none are taken; `check`: the nodes of a wave are checked before
    the next one."""

    force: bool
    as_json: bool
    rehearse: bool
    result: str | None = None
    lease_s: int | None = None
    check: bool = True


def apply_saved(plan: str, file: str | None, documents: Documents, means: ApplyMeans) -> None:
    """Apply a saved plan exactly, or refuse it. `file`: the file or folder that it is of, by default as the
    plan names it.

    Raises ProjectError for a file that is no plan or of another project, Conflict for one that has expired,
    was begun before or is not what `up` would do now, Leased where another owner has a lease.
    """
    from orch.stacks.saved_plans.result import recorded

    with recorded(None if means.result is None else Path(means.result)) as progress:
        _apply_all(plan, file, documents, progress, means)
    if progress.is_unfit:
        end(ExitCode.HOSTS)


def _apply_all(
    plan: str, file: str | None, documents: Documents, progress: Progress, means: ApplyMeans
) -> None:
    from orch.stacks.plans.saved_plan import read

    saved = read(Path(plan))
    progress.plan, progress.waiting = saved.id, [each.title for each in saved.stacks]
    _refuse_outdated(saved, plan)
    target = file or saved.path
    if target == "-":
        raise UsageError("a saved plan is of a file", hint="name the file or folder that it was made of")
    jobs = _jobs(saved, plan, target, documents, rehearse=means.rehearse)
    with _leased(jobs, progress, means):
        _apply_jobs(jobs, progress, means)


def _apply_jobs(jobs: Sequence[Job], progress: Progress, means: ApplyMeans) -> None:
    """Compare all stacks, then apply one after the other."""
    from orch.components.request import Approvals

    approvals, as_json = Approvals(force=means.force), means.as_json
    if len(jobs) > 1:
        _compare_all(jobs, approvals, as_json=as_json)
    own: set[str] = set()
    for at, job in enumerate(jobs):
        now = replace(job, approved=replace(job.approved, own=frozenset(own)))
        progress.waiting = [each.title for each in jobs[at:]]
        try:
            if means.check and at and jobs[at - 1].stack.wave != job.stack.wave:
                stacks = [each.stack for each in jobs]
                require_healthy(stacks, jobs[at - 1].stack.wave, unfit=progress.is_unfit)
            progress.waiting = progress.waiting[1:]
            progress.is_unfit |= _apply(now, approvals, as_json=as_json)
        except OrchError as error:
            if len(jobs) > 1:
                done, rest = progress.applied, progress.waiting
                told = (
                    f"applied before it: {', '.join(done) or 'none'}; not begun: {', '.join(rest) or 'none'}"
                )
                error.detail = f"{error.detail}\n{told}" if error.detail else told
            raise
        progress.applied.append(job.title)
        own.update(set(job.approved.plan.states) - {job.approved.plan.stack})


@contextmanager
def _leased(jobs: Sequence[Job], progress: Progress, means: ApplyMeans) -> Iterator[None]:
    """With the leases of all stacks, where they are asked for. New ones are given back when the plan is
    refused, before anything was begun."""
    from orch.cli.output.progress import watching
    from orch.stacks.pulumi import leasing
    from orch.stacks.stack.state import StackState

    taken: tuple[leasing.Taken, ...] = ()
    try:
        if means.lease_s is not None:
            for job in jobs:
                job.project.prepare()
            stacks = [StackState(job.project, job.approved.plan.stack) for job in jobs]
            with watching(as_json=means.as_json) as listener:
                taken = leasing.take_all(stacks, means.lease_s, listener)
        yield
    except OrchError as error:
        if progress.result(error).is_refused:
            with watching(as_json=means.as_json) as listener:
                leasing.give_back(taken, listener)
        raise


def _refuse_outdated(saved: SavedPlan, plan: str) -> None:
    """Raises Conflict for a plan that has expired or is of other versions, ProjectError for one that lacks
    stacks."""
    from orch import __version__
    from orch.stacks.engine.install import require
    from orch.stacks.errors import Conflict, ProjectError
    from orch.stacks.plans.guard import AGAIN
    from orch.stacks.plans.saved_plan import stamp
    from orch.stacks.saved_plans.compare import Difference, rows

    terms = saved.terms
    if terms.is_expired(datetime.now(timezone.utc)):
        raise Conflict(
            f"plan {saved.id} has expired; nothing was changed",
            where=plan,
            detail=f"it was made at {stamp(terms.made)} and was valid until {stamp(terms.expires)}",
            hint=AGAIN,
            code="ORCH394",
        )
    if saved.unplanned:
        raise ProjectError(
            f"plan {saved.id} cannot be applied: it lacks stacks",
            where=plan,
            detail="\n".join(f"{each.where}: {each.title}: {each.summary}" for each in saved.unplanned),
            hint=f"mend them, then {AGAIN}",
            code="ORCH392",
        )
    if terms.stacks != tuple(each.title for each in saved.stacks):
        raise ProjectError(
            f"plan {saved.id} was edited",
            where=plan,
            detail=f"it was made of {', '.join(terms.stacks)}",
            hint=AGAIN,
            code="ORCH392",
        )
    versions = {"orch": (terms.orch, __version__), "engine": (terms.engine, require().version)}
    if other := [Difference(name, *each) for name, each in versions.items() if each[0] != each[1]]:
        raise Conflict(
            f"plan {saved.id} was made with other versions; nothing was changed",
            where=plan,
            detail=rows(other),
            hint=f"apply it with the versions that it was made with, or {AGAIN}",
            code="ORCH393",
        )


def _jobs(saved: SavedPlan, plan: str, target: str, read: Documents, *, rehearse: bool) -> list[Job]:
    """The stacks of the plan in waves, each with its document. Raises ProjectError, NoSuchFleet, Conflict."""
    from orch.spec.loader.load import InvalidConfiguration
    from orch.stacks.errors import Conflict, ProjectError
    from orch.stacks.plans.guard import AGAIN
    from orch.stacks.saved_plans.applying import Approved
    from orch.stacks.saved_plans.fingerprint import Origin

    if not Path(target).exists():
        raise ProjectError(
            f"what plan {saved.id} was made of is not here",
            where=target,
            hint="call it where `orch preview` was called, or name it: `orch up FILE --plan PLAN`",
            code="ORCH392",
        )
    terms = saved.terms
    if terms.rehearsal != rehearse:
        raise ProjectError(
            f"plan {saved.id} is {'of a rehearsal' if terms.rehearsal else 'of no rehearsal'}",
            where=plan,
            hint="add `--rehearse`" if terms.rehearsal else "leave `--rehearse` out",
            code="ORCH392",
        )
    try:
        project, documents = read(target)
    except InvalidConfiguration as error:
        raise Conflict(
            f"the files of plan {saved.id} are not as they were planned; nothing was changed",
            where=target,
            detail=error.text(),
            hint=AGAIN,
            code="ORCH393",
        ) from error
    if project.name != terms.project:
        raise ProjectError(
            f"plan {saved.id} is of the project {terms.project}, this one is {project.name}",
            where=plan,
            hint="name the file that it was made of: `orch up FILE --plan PLAN`",
            code="ORCH392",
        )
    stacks = in_waves(project, documents)
    found = {each.title: each for each in stacks}
    missing = [each.title for each in saved.stacks if each.title not in found]
    if missing:
        raise ProjectError(
            f"plan {saved.id} is of other files",
            where=target,
            detail=f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not described there",
            hint="name the file or folder that it was made of: `orch up FILE --plan PLAN`",
            code="ORCH392",
        )
    if beside := sorted(found.keys() - {each.title for each in saved.stacks}):
        tell(f"note: {', '.join(beside)} {'is' if len(beside) == 1 else 'are'} not in the plan")

    def job(plan: StackPlan) -> Job:
        stack = found[plan.title]
        if warnings := stack.document.effective():
            from orch.spec.diagnostics import render_human

            tell(render_human(warnings))
        origin = Origin(plan.where, stack.document.file.absolute(), terms)
        return Job(stack, Approved(plan, origin))

    refuse_missing(stacks)
    order = list(found)
    return [job(each) for each in sorted(saved.stacks, key=lambda each: order.index(each.title))]


def _compare_all(jobs: Sequence[Job], approvals: Approvals, *, as_json: bool) -> None:
    """Compare all stacks. Raises Conflict with the rows of all that differ."""
    from orch.cli.output.progress import watching
    from orch.spec.findings import PlanError
    from orch.spec.models import Volume
    from orch.stacks.errors import Conflict
    from orch.stacks.saved_plans.applying import fleet_agreed, volume_agreed

    def compare(job: Job, listener: Listener) -> None:
        if isinstance(job.model, Volume):
            with volume_agreed(job.project, job.model, job.approved, listener):
                return
        with fleet_agreed(job.project, job.request(approvals), job.approved, listener):
            return

    refused: list[Conflict] = []
    for job in jobs:
        try:
            with watching(as_json=as_json) as listener:
                compare(job, listener)
        except Conflict as error:
            refused.append(error)
        except PlanError as error:
            raise error.placed(job.document) from error
    if len(refused) == 1:
        raise refused[0]
    if refused:
        raise Conflict(
            f"{len(refused)} of {len(jobs)} stacks are not what was approved; nothing was changed",
            detail="\n".join(each.text() for each in refused),
            hint=refused[0].hint,
            code="ORCH393",
        )


def _apply(job: Job, approvals: Approvals, *, as_json: bool) -> bool:
    """Apply one stack and say what was done; whether hosts of it are unfit."""
    from orch.cli.output.host_keys import planned
    from orch.cli.output.plan import counts, plan_json
    from orch.cli.output.progress import watching
    from orch.cli.output.review import tell_problems
    from orch.cli.output.volumes import outcome_json
    from orch.spec.findings import PlanError
    from orch.spec.models import Volume
    from orch.stacks.saved_plans.applying import apply_fleet, apply_volume

    if isinstance(job.model, Volume):
        try:
            with watching(as_json=as_json) as listener:
                outcome = apply_volume(job.project, job.model, job.approved, listener)
        except PlanError as error:
            raise error.placed(job.document) from error
        if as_json:
            print_json(outcome_json(outcome))
        else:
            say(f"{job.title}: {counts(outcome.changes, done=True)}")
        return False
    request = job.request(approvals)
    with watching(as_json=as_json) as listener:
        result = planned(
            job.document, lambda: apply_fleet(job.project, request, job.approved, listener), as_json=as_json
        )
    if as_json:
        print_json(plan_json(result, job.document))
        return pass_gate(job.project, result) or bool(result.problems)
    say(f"{job.title}: {counts(result.changes, done=True)}")
    tell_problems(result, job.document)
    return pass_gate(job.project, result) or bool(result.problems)
