"""Review of a plan: print it, ask for agreement, and return what was agreed to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orch.cli.errors import UsageError, coloured, end, tell
from orch.cli.output.host_keys import accepting, after_keys
from orch.cli.output.plan import key_lines, plan_line, plan_lines, run_lines, warning_lines
from orch.cli.output.progress import watching
from orch.policies.settings import finding_of
from orch.spec.diagnostics import render_human
from orch.spec.errors import ExitCode, OrchError
from orch.spec.models import Fleet
from orch.stacks.errors import ProjectError
from orch.stacks.plans.plan import Plan
from orch.stacks.plans.request import FleetRequest
from orch.stacks.project.project import Project
from orch.stacks.provisioning import operations
from orch.stacks.provisioning.busy_nodes import Occupant, occupants, refuse_occupied
from orch.stacks.provisioning.policies import with_runs
from orch.stacks.pulumi.progress import Listener, Note, Progress
from orch.stacks.record.fleets import is_from_former_version
from orch.stacks.stack.state import StackState

if TYPE_CHECKING:
    from orch.spec.loader.load import Document


@dataclass(frozen=True)
class Agreement:
    """Plan that a person agreed to. `plan`: None with nothing to do. `unfit`: it leaves out some hosts."""

    project: Project
    document: Document
    request: FleetRequest
    plan: Plan | None
    unfit: bool


def agree(
    project: Project,
    document: Document,
    request: FleetRequest,
    reload: Callable[[], tuple[Project, Document, Fleet]],
    *,
    verbose: bool,
) -> Agreement:
    """Print a plan and ask for agreement.

    A plan that is outdated by the time of the answer is made again, and printed and asked about again where
    it differs. `reload` reads the fleet's file and `orch.yml` once more. Raises ProjectError when these name
    another state."""
    agreed_lines: list[str] = []
    while True:
        plan, request = after_keys(document, request, lambda w, p=project: _previewed(p, w), confirm)
        lines = [
            *shown_lines(plan, verbose=verbose),
            plan_line(plan),
        ]
        stack = StackState(project, request.name)
        if lines != agreed_lines:
            for line in lines:
                tell(line)
            tell_problems(plan, document)
            if any(each.refuses for each in plan.policies):
                tell(f"fleet {request.name}: policies refuse the plan, nothing was done")
                end(ExitCode.POLICY)
            former = is_from_former_version(stack)
            if plan.prepared is None or (not plan.pending and not plan.unrecorded and not former):
                return Agreement(project, document, request, None, bool(plan.problems))
            if plan.pending and request.approvals.force:
                for line in run_lines(on_nodes_that_go(project, plan, _quiet)):
                    tell(line)
            elif plan.pending:
                refuse_occupied(stack, plan.lost_nodes, _quiet)
            if plan.pending:
                confirm(f"Bring up the fleet {request.name}?")
            elif former:
                tell(f"fleet {request.name}: the record of an earlier version of orch is written again")
            elif plan.rewatched:
                tell(f"fleet {request.name}: how the health of its nodes is watched is recorded")
            elif plan.respared:
                tell(f"fleet {request.name}: how many of its nodes are spares is recorded")
            else:
                tell(f"fleet {request.name}: which nodes it has, and `nodes` of the file, are recorded")
            agreed_lines = lines
        # What was shown is what is accepted: a host that shows another key now is refused.
        request = accepting(request, plan.new_keys)
        with watching() as listener:
            reason = operations.outdated(plan, request, listener)
        if reason is None:
            return Agreement(project, document, request, plan, bool(plan.problems))
        tell(f"the plan is made again: {reason}")
        state_url = project.state_url
        project, document, fleet = reload()
        if project.state_url != state_url:
            raise ProjectError(
                f"the state of the fleet {request.name} is another one now",
                where=str(project.root),
                hint="run the same command again",
            )
        request = replace(request, fleet=fleet)


def _previewed(project: Project, request: FleetRequest) -> Plan:
    with watching() as listener:
        return operations.preview(project, request, listener)


def on_nodes_that_go(project: Project, plan: Plan, listener: Listener) -> tuple[Occupant, ...]:
    """Runs on nodes that the plan removes. A ledger that cannot be read gives a warning and stops no plan."""
    try:
        return occupants(StackState(project, plan.fleet), plan.lost_nodes, listener)
    except OrchError as error:
        tell(error.text().replace("error", "warning", 1))
        return ()


def judged_with_runs(
    plan: Plan, project: Project, request: FleetRequest, on_nodes: Sequence[Occupant]
) -> Plan:
    """The plan with what policies say of runs on nodes that go."""
    return replace(plan, policies=with_runs(plan.policies, project, request, on_nodes)) if on_nodes else plan


def shown_lines(plan: Plan, *, verbose: bool) -> list[str]:
    return [*plan_lines(plan, colour=coloured(sys.stdout), verbose=verbose), *key_lines(plan.new_keys)]


def tell_problems(plan: Plan, document: Document) -> None:
    if found := [*plan.findings, *map(finding_of, plan.policies)]:
        tell(render_human([finding.placed(document) for finding in found]))
    for line in warning_lines(plan.warnings):
        tell(line)
    for problem in plan.problems:
        tell(problem.text())


def _quiet(event: Progress) -> None:
    if isinstance(event, Note):
        tell(event.text)


def need_terminal(instead: str, project: Project) -> None:
    """`instead`: the command that does not ask; in a rehearsal it stays one."""
    if sys.stdin is None or not sys.stdin.isatty():
        rehearse = " --rehearse" if project.rehearsal else ""
        raise UsageError(
            "this asks before it acts, and there is no terminal to ask on",
            hint=f"write `{instead}{rehearse}`",
            code=None,
        )


def confirm(question: str) -> None:
    tell(f"{question} [y/N] ")
    if input().strip().lower() not in ("y", "yes"):
        tell("nothing was done")
        end(ExitCode.OK)
