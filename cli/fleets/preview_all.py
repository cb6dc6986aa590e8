"""A plan for each stack of a file or folder, several at once, for `orch preview` of a folder and for reviews.

A stack that has no plan is told in its place, and the others go on. Each is planned in a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from orch.cli.context import project_at
from orch.cli.errors import as_bug, tell, worst
from orch.cli.fleets import side_by_side
from orch.cli.fleets.prune import Undescribed, found_undescribed
from orch.cli.output.files import refuse_overwriting
from orch.spec.errors import ExitCode, OrchError
from orch.stacks.plans.waves import Stack, in_waves

if TYPE_CHECKING:
    from orch.ci.programs import Reviewed
    from orch.review.model import StackReview
    from orch.spec.diagnostics import Diagnostic
    from orch.spec.loader.load import Document, Loaded
    from orch.spec.models import Fleet
    from orch.stacks.plans.saved_plan import StackPlan, Terms
    from orch.stacks.project.project import Project
    from orch.stacks.pulumi.progress import Progress

SCHEMA = 1


@dataclass(frozen=True)
class Wanted:
    """How stacks are previewed. `saves`: a saved plan is made of them, which is valid for `expires_s`
    seconds, None: as long as the project says; `basis`: what they stand on is told; `terms` are the saved
    plan's; `keyless`: no secret of the state is decrypted. `base`: a commit of Git; `reviewed`: the project
    with the programs that are as in it.
    """

    rehearse: bool = False
    accept_new_host_keys: bool = False
    verbose: bool = False
    saves: bool = False
    expires_s: int | None = None
    basis: bool = False
    terms: Terms | None = None
    owner: str | None = None
    keyless: bool = False
    base: str | None = None
    reviewed: Reviewed | None = None


@dataclass(frozen=True)
class Job:
    """A stack to preview: a fleet or a volume of a document."""

    kind: str
    name: str
    document: Document

    @property
    def where(self) -> str:
        span = self.document.span()
        return f"{span.file}:{span.line}"


@dataclass(frozen=True)
class Previewed:
    """What became of a job: the review, what a terminal shows and is told, the JSON, the exit code, its part
    of a saved plan.

    `findings`: what reports of findings have, with the names of policies as codes.
    """

    review: StackReview
    data: dict[str, Any]
    code: ExitCode = ExitCode.OK
    shown: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    pending: bool = False
    saved: StackPlan | None = None
    findings: tuple[Diagnostic, ...] = ()


@dataclass
class _Notes:
    """A listener that keeps what is told beside the plan."""

    texts: list[str] = field(default_factory=list[str])

    def __call__(self, event: Progress) -> None:
        from orch.stacks.pulumi.progress import Note

        if isinstance(event, Note):
            self.texts.append(event.text)


@dataclass(frozen=True)
class Previews:
    """What became of all stacks of a file or folder, in the order in which they are told. `code`: the worst
    exit code of them; `terms`: those of the saved plan, where one is wanted; `undescribed`: fleets that are
    up and that no file describes."""

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
    from orch.cli.fleets.saved_plans import terms_of
    from orch.spec.diagnostics import render_human
    from orch.spec.models import Fleet, Volume
    from orch.stacks.errors import ProjectError

    project = project_at(
        None if target == "-" else target,
        rehearse=wanted.rehearse,
        owner=wanted.owner,
        keyless=wanted.keyless,
    )
    if wanted.base is not None:
        from orch.ci.programs import reviewed

        wanted = replace(wanted, reviewed=reviewed(project, wanted.base))
        project = wanted.reviewed.project if wanted.reviewed is not None else project
    loaded = read(target, backends=[each.type for each in project.backends])
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
    found = found_undescribed(project) if os.path.isdir(target) else ()
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
        return [_previewed(job, project, loaded, wanted) for job in jobs]
    from orch.spec.models import Fleet

    models = [job.document.model for job in jobs]
    side_by_side.import_before([each for each in models if isinstance(each, Fleet)], project)

    def told(job: Job, done: Previewed, count: int) -> None:
        tell(f"planned {count} of {len(jobs)}: {job.kind} {job.name}")

    work = side_by_side.Work(
        lambda job: _previewed(job, side_by_side.own_project(project), loaded, wanted), _ended, told
    )
    return [each for each in side_by_side.run(jobs, work, most) if each is not None]


def _ended(job: Job, code: int | None) -> Previewed:
    from orch.stacks.errors import StackError

    error = StackError(
        f"the process that planned the {job.kind} {job.name} ended ({code})",
        hint="run it alone; the system's log may tell what ended it",
        code="ORCH346",
    )
    return _failed(job, error)


# One stack


def _previewed(job: Job, project: Project, loaded: Loaded, wanted: Wanted) -> Previewed:
    """One stack: no error of it reaches the others."""
    from orch.cli.output.redaction import mask

    try:
        result = (_fleet if job.kind == "fleet" else _volume)(job, project, loaded, wanted)
    except OrchError as error:
        result = _failed(job, error)
    except KeyboardInterrupt:
        result = replace(_failed(job, OrchError("interrupted")), code=ExitCode.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - a bug with one stack is told in its place
        result = _failed(job, as_bug(error))
    return _cleaned(result, mask())


def _fleet(job: Job, project: Project, loaded: Loaded, wanted: Wanted) -> Previewed:
    from orch.cli.output.plan import (
        key_lines,
        plan_json,
        plan_line,
        plan_lines,
        reason_lines,
        run_lines,
        warning_lines,
    )
    from orch.cli.output.review import judged_with_runs, on_nodes_that_go
    from orch.components.request import Approvals
    from orch.policies.settings import finding_of
    from orch.review.assess import FleetSubject, fleet_review
    from orch.review.model import PolicyResult
    from orch.spec.diagnostics import render_human
    from orch.spec.findings import PlanError
    from orch.spec.models import Fleet
    from orch.stacks.plans.marks import serial_of
    from orch.stacks.plans.recorder import Recorder
    from orch.stacks.plans.request import FleetRequest
    from orch.stacks.provisioning import operations
    from orch.stacks.saved_plans.fingerprint import Origin, fleet_plan

    document, fleet, notes = job.document, job.document.model, _Notes()
    if not isinstance(fleet, Fleet):
        raise TypeError(f"{job.name} is no fleet")
    if (
        (held := wanted.reviewed) is not None
        and held.kubeconfig is not None
        and _on_kubernetes(fleet, project)
    ):
        # No failure: the required check of a pull request would never let it be merged.
        return replace(_failed(job, held.refusal(f"the fleet {fleet.name}")), code=ExitCode.OK)
    warnings = document.effective()
    file = document.file.absolute() if document.file.name != "<stdin>" else None
    approvals = Approvals(unseen="all" if wanted.accept_new_host_keys else "none")
    request = FleetRequest(fleet, document.directory.absolute(), approvals, file)
    terms = wanted.terms
    recorder = Recorder() if terms is not None else None
    try:
        plan = operations.preview(project, request, notes, recorder=recorder)
    except PlanError as error:
        raise error.placed(document) from error
    saved = None
    if recorder is not None and terms is not None:
        origin = Origin(job.where, document.file.absolute(), terms)
        saved = fleet_plan(project, request, plan, recorder, origin)
    occupants = on_nodes_that_go(project, plan, notes)
    plan = judged_with_runs(plan, project, request, occupants)
    left_out = wanted.reviewed.findings if wanted.reviewed is not None else ()
    found = [*warnings, *(each.placed(document) for each in (*plan.findings, *left_out))]
    violated = [finding_of(each).placed(document) for each in plan.policies]
    named = zip(violated, (each.rule.name for each in plan.policies), strict=True)
    data = plan_json(plan, document, occupants)
    prepared = plan.prepared
    review = fleet_review(
        FleetSubject(
            plan,
            fleet,
            job.where,
            prepared.compiled if prepared else None,
            prepared.stack.nodes if prepared else (),
            occupants,
            [*_warnings_of(document, loaded), *found],
            [PolicyResult.of(each) for each in data["policies"]],
            _prices({each.backend for each in prepared.compiled.priced} if prepared else set()),
        )
    )
    if wanted.basis and prepared is not None:
        review = replace(review, serial=saved.serial if saved else serial_of(prepared.stack))
    shown = [*found, *violated]
    told = [*notes.texts, *([render_human(shown)] if shown else []), *warning_lines(plan.warnings)]
    refused = any(each.refuses for each in plan.policies)
    return Previewed(
        review,
        data,
        ExitCode.POLICY if refused else ExitCode.HOSTS if plan.problems else ExitCode.OK,
        (
            *plan_lines(plan, colour=False, verbose=wanted.verbose),
            *key_lines(plan.new_keys),
            *reason_lines(plan, colour=False, verbose=wanted.verbose),
            plan_line(plan),
            *run_lines(occupants),
        ),
        (*told, *(each.text() for each in plan.problems)),
        plan.is_due,
        saved,
        (*found, *(replace(each, code=name) for each, name in named)),
    )


def _volume(job: Job, project: Project, loaded: Loaded, wanted: Wanted) -> Previewed:
    from orch.cli.output.volumes import outcome_json, outcome_lines
    from orch.review.assess import volume_review
    from orch.spec.diagnostics import render_human
    from orch.spec.findings import PlanError
    from orch.spec.models import Volume
    from orch.stacks.plans.marks import serial_of
    from orch.stacks.plans.recorder import Recorder
    from orch.stacks.record.volumes import stack_of
    from orch.stacks.saved_plans.fingerprint import Origin, volume_plan
    from orch.stacks.volumes.operations import preview_volume

    document, volume, notes = job.document, job.document.model, _Notes()
    if not isinstance(volume, Volume):
        raise TypeError(f"{job.name} is no volume")
    warnings = document.effective()
    terms = wanted.terms
    recorder = Recorder() if terms is not None else None
    try:
        outcome = preview_volume(project, volume, notes, recorder=recorder)
    except PlanError as error:
        raise error.placed(document) from error
    saved = None
    if recorder is not None and terms is not None:
        origin = Origin(job.where, document.file.absolute(), terms)
        saved = volume_plan(project, outcome, recorder, origin)
    found = [*warnings, *(each.placed(document) for each in outcome.findings)]
    review = volume_review(outcome, job.where, [*_warnings_of(document, loaded), *found])
    if wanted.basis:
        review = replace(review, serial=saved.serial if saved else serial_of(stack_of(project, volume.name)))
    told = (*notes.texts, *([render_human(found)] if found else []))
    shown = tuple(outcome_lines(outcome, verbose=wanted.verbose))
    return Previewed(
        review, outcome_json(outcome), ExitCode.OK, shown, told, outcome.pending, saved, tuple(found)
    )


def _on_kubernetes(fleet: Fleet, project: Project) -> bool:
    from orch.spec.models.backends import effective

    return "kubernetes" in effective(fleet.written_backends, tuple(each.type for each in project.backends))


def _failed(job: Job, error: OrchError) -> Previewed:
    from orch.cli.output.plan import refused_json
    from orch.review.assess import failed_review
    from orch.spec.loader.load import InvalidConfiguration

    problems = getattr(error, "problems", ())
    data = refused_json(job.name, error, problems)
    if isinstance(error, InvalidConfiguration):
        data["diagnostics"] = [each.as_dict() for each in error.diagnostics]
    if job.kind == "volume":
        data = {"schema": SCHEMA, "volume": job.name, "summary": None, "diagnostics": data["diagnostics"]}
    review = failed_review(job.kind, job.name, job.where, error)
    shown = (f"{job.kind} {job.name}", "plan: none, see the message")
    found = (
        error.diagnostics
        if isinstance(error, InvalidConfiguration)
        else (
            job.document.diagnostic(
                error.code or "ORCH346", "", error.summary, detail=error.detail, hint=error.hint
            ),
        )
    )
    return Previewed(review, data, ExitCode(error.exit_code), shown, (error.text(),), findings=tuple(found))


def _warnings_of(document: Document, loaded: Loaded) -> list[Diagnostic]:
    """Warnings of the file that are about this document."""
    span = document.draft.node.span
    return [
        each
        for each in loaded.diagnostics
        if each.span.file == span.file and span.line <= each.span.line <= span.end_line
    ]


def _prices(backends: set[str]) -> str:
    """Which price lists the prices are from, and of when."""
    from orch.catalog.load import catalog

    lists = [catalog().lists[each] for each in sorted(backends) if each in catalog().lists]
    return ", ".join(
        f"list of {each.backend}, {each.as_of}{' (fetched to this machine)' if each.refreshed else ''}"
        for each in lists
    )


def _cleaned(value: Any, mask: Callable[[str], str]) -> Any:
    """The same with all text masked, however deep it is. A saved plan has been made without secrets; its
    words for people are masked."""
    from orch.stacks.plans.saved_plan import StackPlan

    if isinstance(value, Enum):
        return value
    if isinstance(value, StackPlan):
        return value.model_copy(update={"reasons": tuple(map(mask, value.reasons))})
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {_cleaned(key, mask): _cleaned(item, mask) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_cleaned(item, mask) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{each.name: _cleaned(getattr(value, each.name), mask) for each in fields(value)}
        )
    return value
