"""Judges plans by the policies of their project, before anything changes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orch.components.deployment import Deployment
from orch.components.file_systems import words_of
from orch.components.request import DATA_TYPES, RecordedFileSystem
from orch.policies.plan_rules import SLOW, Loss, NodePrice, PlanFacts, ends_itself
from orch.policies.settings import Subject, Violation, finding_of, said_once, today, violations
from orch.spec.findings import Finding, PlanErrors
from orch.spec.grammar.values import shown
from orch.spec.models import Fleet
from orch.stacks.errors import EngineFailed, ProjectError
from orch.stacks.events.changes import Change, changes
from orch.stacks.events.inspection import Inspection
from orch.stacks.plans.plan import Plan, lost_nodes
from orch.stacks.plans.request import FleetRequest
from orch.stacks.project.project import Project
from orch.stacks.provisioning.busy_nodes import Occupant, occupants
from orch.stacks.provisioning.gang import parallel
from orch.stacks.provisioning.kept_data import compare, unprotect_agreed
from orch.stacks.pulumi.operation import EngineCall
from orch.stacks.pulumi.progress import Activity, Listener
from orch.stacks.record.fleets import known_fleets
from orch.stacks.stack.state import StackState

DISKS = (
    "aws:ebs/volume:Volume",
    "gcp:compute/disk:Disk",
    "gcp:compute/regionDisk:RegionDisk",
    "orch-runpod:index:NetworkVolume",
)


def compared(
    stack: StackState,
    request: FleetRequest,
    compiled: Deployment,
    run: EngineCall,
    *,
    words: Sequence[str] = (),
) -> tuple[Violation, ...]:
    """Have the engine plan what `compiled` changes, as `compare` does, and judge it. `words`: more options of
    the engine.

    A policy pack that refuses makes the engine fail after it has told all of the plan: that is a violation.
    """
    words = [*parallel(compiled), *words, *pack_words(stack.project)]
    before = Recorded.of(stack)
    try:
        compare(stack, compiled, words, request.approvals.lose_data, run)
    except EngineFailed:
        if not run.inspection.refuses:
            raise
    facts = facts_of(stack, before, request.fleet, compiled, changes(run.events))
    return judged(stack.project, request, facts, run.inspection)


@dataclass(frozen=True)
class Recorded:
    """Record of a stack before a plan: its price in US dollars an hour, its nodes, each with the
    resource that made it, and its file systems."""

    hourly: float
    makers: Mapping[str, str]
    file_systems: tuple[RecordedFileSystem, ...]

    @classmethod
    def of(cls, stack: StackState) -> Recorded:
        return cls(stack.hourly, stack.makers, tuple(stack.file_systems))


def judged(
    project: Project, request: FleetRequest, facts: PlanFacts, inspection: Inspection
) -> tuple[Violation, ...]:
    """The violations of a plan, but for those of runs on its nodes."""
    found = (*inspection.found(), *project.policies.of_plan(facts))
    return violations(found, subject_of(project, request))


def refuse_violations(
    stack: StackState,
    request: FleetRequest,
    compiled: Deployment,
    listener: Listener,
    *,
    plan: Plan | None = None,
) -> Judgement:
    """Refuse an `up` that policies forbid; what they say of it otherwise. Changes nothing.

    Only the engine knows what becomes of resources: it makes a preview when a rule that refuses looks at
    that, and nobody has seen the plan. Raises PlanErrors with all violations, which exits with 4; and what a
    preview raises.
    """
    settings, before = stack.project.policies, Recorded.of(stack)
    engine_changes: tuple[Change, ...] = ()
    whole = plan is not None or settings.refuses_by_engine
    if plan is not None:
        found, engine_changes = plan.policies, plan.changes
    elif settings.refuses_by_engine:
        unprotect_agreed(stack, request.approvals.lose_data)
        listener(Activity(f"policies: the engine compares the fleet {request.name} with its resources"))
        run = EngineCall(lambda _: None, planning=True)
        found = compared(stack, request, compiled, run)
        engine_changes = changes(run.events)
    else:
        facts = facts_of(stack, before, request.fleet, compiled, ())
        found = judged(stack.project, request, facts, Inspection(settings))
    runs = settings.all["runs-on-nodes"]
    if runs.active and runs.level == "mandatory":
        leaving = lost_nodes(before.makers, compiled, engine_changes)
        found = with_runs(found, stack.project, request, occupants(stack, leaving, listener))
    refuse(found)
    return Judgement(found, whole, subject_of(stack.project, request))


@dataclass(frozen=True)
class Judgement:
    """Judgement of policies on a plan that they allow. `whole`: on its resources too."""

    found: tuple[Violation, ...]
    whole: bool
    subject: Subject

    def after(self, inspection: Inspection) -> tuple[Violation, ...]:
        """Return the violations to report after an `up`, whose engine call registered all resources."""
        return self.found if self.whole else (*violations(inspection.found(), self.subject), *self.found)


def of_volume(
    project: Project, name: str, inspection: Inspection, engine_changes: Iterable[Change], *, own: bool
) -> tuple[Finding, ...]:
    """Return the policies' findings about changes of a volume. `own`: orch created its disk, whose data goes
    with it.

    Raises PlanErrors if a policy refuses.
    """
    settings = project.policies
    lost = tuple(
        Loss(each.name, each.urn, each.op, f"the volume {name}")
        for each in engine_changes
        if own and each.op in ("delete", "replace") and each.type in (*DATA_TYPES, *DISKS)
    )
    rules = (*inspection.found(), *settings.of_plan(PlanFacts(lost_data=lost)))
    found = violations(rules, Subject(name, "", today()))
    refuse(found)
    return tuple(finding_of(each) for each in found)


def refuse(found: Iterable[Violation]) -> None:
    """Raises PlanErrors where a violation refuses, with all that do."""
    errors = [finding_of(each) for each in found if each.refuses]
    if errors:
        raise PlanErrors(errors)


def with_policies(plan: Plan, found: Collection[Violation]) -> Plan:
    """A plan with what policies say of it, and without the findings that these repeat."""
    policies, findings = said_once(found, plan.findings)
    return replace(plan, policies=policies, findings=findings)


def with_runs(
    found: Collection[Violation], project: Project, request: FleetRequest, on_nodes: Iterable[Occupant]
) -> tuple[Violation, ...]:
    """The violations with that of runs on nodes that go."""
    facts = PlanFacts(runs=tuple(dict.fromkeys(map(str, on_nodes))))
    rules = (
        (setting, breach)
        for setting, breach in project.policies.of_plan(facts)
        if setting.rule.name == "runs-on-nodes"
    )
    return (*found, *violations(rules, subject_of(project, request)))


def subject_of(project: Project, request: FleetRequest) -> Subject:
    return Subject(request.name, file_from_root(project, request.file), today())


def file_from_root(project: Project, file: Path | None) -> str:
    """The path of a file, from the project's root on; "" for standard input."""
    return os.path.relpath(file, project.root) if file is not None else ""


def pack_words(project: Project) -> list[str]:
    """The engine's arguments for the project's own policy packs. Raises ProjectError for one that is none."""
    folders = [project.root / Path(each).expanduser() for each in project.policies.packs]
    for folder, written in zip(folders, project.policies.packs, strict=True):
        if not (folder / "PulumiPolicy.yaml").is_file():
            raise ProjectError(
                f"{shown(written)} of `policy_packs` is no policy pack",
                where=str(project.root / "orch.yml"),
                detail=f"there is no file {folder / 'PulumiPolicy.yaml'}",
                hint="name the folder of a pack, from the folder of orch.yml on",
                code="ORCH302",
            )
    return [word for folder in folders for word in ("--policy-pack", str(folder))]


def facts_of(
    stack: StackState,
    before: Recorded,
    fleet: Fleet,
    compiled: Deployment,
    engine_changes: tuple[Change, ...],
) -> PlanFacts:
    """Return the facts of a plan that rules judge."""
    settings = stack.project.policies
    money = settings.all["budget"].parameters
    others = 0.0
    if any(money[each] is not None for each in ("project_hourly", "project_monthly")):
        fleets = known_fleets(stack.project)
        others = sum(each.hourly for name, each in fleets.items() if name != stack.name)
    planned = len(compiled.nodes)
    most = planned
    if fleet.nodes is not None:
        most = max(planned, fleet.nodes.target if fleet.nodes.max is None else fleet.nodes.max)
    leaving = lost_nodes(before.makers, compiled, engine_changes)
    return PlanFacts(
        hourly=compiled.hourly,
        delta=compiled.hourly - before.hourly,
        others=others,
        nodes=tuple(
            NodePrice(each.machine, len(each.nodes), each.price, each.market == "reserved")
            for each in compiled.priced
        ),
        most_nodes=most if compiled.priced else 0,
        lost=tuple(Loss(node, "", "delete") for node in sorted(leaving)),
        lost_data=tuple(_lost_data(before, engine_changes)),
        slow=next((each.summary for each in compiled.findings if each.code == SLOW.code), ""),
        endless=bool(compiled.priced) and not ends_itself(fleet),
    )


def _lost_data(before: Recorded, engine_changes: Iterable[Change]) -> Iterable[Loss]:
    recorded = {each.urn: each for each in before.file_systems}
    for change in engine_changes:
        if change.op in ("delete", "replace") and change.type in (*DATA_TYPES, *DISKS):
            each = recorded.get(change.urn)
            yield Loss(change.name, change.urn, change.op, words_of(each) if each is not None else "")
