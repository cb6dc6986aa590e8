"""Previews one stack, a fleet or a volume, as a review, text, JSON and a part of a saved plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from orch.cli.errors import as_bug
from orch.spec.errors import ExitCode, OrchError

if TYPE_CHECKING:
    from orch.ci.workflows.programs import Reviewed
    from orch.review.model import StackReview
    from orch.spec.diagnostics import Diagnostic
    from orch.spec.loader.load import Document, Loaded
    from orch.spec.models import Fleet
    from orch.stacks.plans.plan import Plan
    from orch.stacks.plans.request import FleetRequest
    from orch.stacks.plans.saved_plan import StackPlan, Terms
    from orch.stacks.project.project import Project
    from orch.stacks.provisioning.busy_nodes import Occupant
    from orch.stacks.pulumi.progress import Progress

SCHEMA = 1


@dataclass(frozen=True)
class Wanted:
    """Settings of a preview. `saves`: a saved plan is made, which is valid for `expires_s` seconds, None: as
    long as the project says; `basis`: reviews show what they are based on; `terms` are the saved plan's;
    `keyless`: no secret of the state is decrypted. `base`: a commit of Git; `reviewed`: the project with the
    programs that are as in it."""

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
    """Preview of a job: its review, lines for stdout and stderr of a terminal, JSON, exit code, and its part
    of a saved plan.

    `findings`: for reports of findings, with the names of policies as codes.
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
        from orch.stacks.pulumi.operation import Note

        if isinstance(event, Note):
            self.texts.append(event.text)


def previewed(job: Job, project: Project, loaded: Loaded, wanted: Wanted) -> Previewed:
    """One stack: no error of it reaches the others."""
    from orch.cli.redaction import mask

    try:
        result = _unreviewed(job, project, wanted)
        if result is None:
            result = (_fleet if job.kind == "fleet" else _volume)(job, project, loaded, wanted)
    except OrchError as error:
        result = failed(job, error)
    except KeyboardInterrupt:
        result = replace(failed(job, OrchError("interrupted")), code=ExitCode.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - a bug with one stack is told in its place
        result = failed(job, as_bug(error))
    return _cleaned(result, mask())


def _unreviewed(job: Job, project: Project, wanted: Wanted) -> Previewed | None:
    """Return that a stack has no plan before programs or settings of its backends are reviewed, else None.

    A stack that leaves Kubernetes is still compared with its cluster.
    """
    from orch.ci.workflows.programs import EVERY
    from orch.components.registry.backends import backends_of
    from orch.spec.models import Fleet, Volume
    from orch.spec.models.backends import effective
    from orch.stacks.record.volumes import stack_of
    from orch.stacks.stack.state import StackState

    held, model = wanted.reviewed, job.document.model
    if held is None or not isinstance(model, Fleet | Volume):
        return None
    if isinstance(model, Volume):
        stack, backends = stack_of(project, model.name), (str(model.backend),)
    else:
        stack = StackState(project, model.name)
        configured = tuple(each.type for each in project.backends)
        written = effective(model.written_backends, configured)
        backends = ("ssh",) if model.ssh_config is not None else written
    recorded: set[str] = set()
    if held.kubeconfig is not None and EVERY not in held.settings:
        recorded = {*backends_of(str(each["type"]) for each in stack.resources)} & {"kubernetes"}
    refusal = held.refusal(f"the {job.kind} {job.name}", (*backends, *recorded))
    # No failure: the required check of a pull request would never let it be merged.
    return replace(failed(job, refusal), code=ExitCode.OK) if refusal is not None else None


def _fleet(job: Job, project: Project, loaded: Loaded, wanted: Wanted) -> Previewed:
    from orch.cli.output.plan import plan_json, warning_lines
    from orch.cli.output.review import judged_with_runs, on_nodes_that_go
    from orch.policies.settings import finding_of
    from orch.review.assess import fleet_review
    from orch.review.model import FleetSubject, PolicyResult
    from orch.spec.diagnostics import render_human
    from orch.spec.models import Fleet
    from orch.stacks.plans.marks import serial_of

    document, fleet, notes = job.document, job.document.model, _Notes()
    if not isinstance(fleet, Fleet):
        raise TypeError(f"{job.name} is no fleet")
    warnings = document.effective()
    request = _request(job, fleet, wanted)
    plan, saved = _planned(job, project, request, wanted, notes)
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
        _plan_lines(plan, occupants, verbose=wanted.verbose),
        (*told, *(each.text() for each in plan.problems)),
        plan.is_due,
        saved,
        (*found, *(replace(each, code=name) for each, name in named)),
    )


def _request(job: Job, fleet: Fleet, wanted: Wanted) -> FleetRequest:
    from orch.components.request import Approvals
    from orch.stacks.plans.request import FleetRequest

    document = job.document
    file = document.file.absolute() if document.file.name != "<stdin>" else None
    approvals = Approvals(unseen="all" if wanted.accept_new_host_keys else "none")
    return FleetRequest(fleet, document.directory.absolute(), approvals, file)


def _planned(
    job: Job, project: Project, request: FleetRequest, wanted: Wanted, notes: _Notes
) -> tuple[Plan, StackPlan | None]:
    """Return the plan of a fleet, and its part of the saved plan where one is wanted."""
    from orch.spec.findings import PlanError
    from orch.stacks.plans.recorder import Recorder
    from orch.stacks.provisioning import operations
    from orch.stacks.saved_plans.fingerprint import Origin, fleet_plan

    recorder = Recorder() if wanted.terms is not None else None
    try:
        plan = operations.preview(project, request, notes, recorder=recorder)
    except PlanError as error:
        raise error.placed(job.document) from error
    if recorder is None or wanted.terms is None:
        return plan, None
    origin = Origin(job.where, job.document.file.absolute(), wanted.terms)
    return plan, fleet_plan(project, request, plan, recorder, origin)


def _plan_lines(plan: Plan, occupants: Sequence[Occupant], *, verbose: bool) -> tuple[str, ...]:
    """Return a plan as a terminal without colours shows it."""
    from orch.cli.output.plan import key_lines, plan_line, plan_lines, reason_lines, run_lines

    return (
        *plan_lines(plan, colour=False, verbose=verbose),
        *key_lines(plan.new_keys),
        *reason_lines(plan, colour=False, verbose=verbose),
        plan_line(plan),
        *run_lines(occupants),
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


def failed(job: Job, error: OrchError) -> Previewed:
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
    """Return the price lists that prices are from, with their dates."""
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
