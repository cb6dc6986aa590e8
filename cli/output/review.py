"""A plan before a person: shown, asked about, and carried out as it was shown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orch.cli.errors import UsageError, coloured, end, tell
from orch.cli.hosts.host_keys import accepting, after_keys
from orch.cli.output.plan import cost_line, counts, key_lines, plan_lines, run_lines, warning_lines
from orch.cli.output.progress import watching
from orch.spec.diagnostics import render_human
from orch.spec.errors import ExitCode, OrchError
from orch.spec.models import Fleet
from orch.stacks import operations
from orch.stacks.errors import ProjectError
from orch.stacks.fleets import is_former
from orch.stacks.plan import Plan
from orch.stacks.project import Project
from orch.stacks.provisioning.busy_nodes import Occupant, occupants, refuse_occupied
from orch.stacks.pulumi.operation import Listener, Note, Progress
from orch.stacks.request import FleetRequest
from orch.stacks.state import StackState

if TYPE_CHECKING:
    from orch.spec import Document


@dataclass(frozen=True)
class Agreed:
    """What a person agreed to; `plan` is None where nothing is to be done. `unfit`: nodes are kept out."""

    project: Project
    document: Document
    request: FleetRequest
    plan: Plan | None
    unfit: bool


def agree(
    project: Project,
    document: Document,
    request: FleetRequest,
    again: Callable[[], tuple[Project, Document, Fleet]],
    *,
    verbose: bool,
) -> Agreed:
    """Show a plan and ask for it, until what was agreed to is what there is to do: a plan that is outdated by
    then is made anew, and shown again where it differs. `again` reads the fleet's file and
    `orch.yml` once more. Raises ProjectError when these name another state by then."""
    agreed: list[str] = []
    while True:
        plan, request = after_keys(document, request, lambda w, p=project: _previewed(p, w), confirm)
        lines = [
            *shown_lines(plan, verbose=verbose),
            f"plan: {counts(plan.changes, moves=plan.headline.moves)}; {cost_line(plan)}",
        ]
        stack = StackState(project, request.name)
        if lines != agreed:
            for line in lines:
                tell(line)
            tell_problems(plan, document)
            if not plan.pending and not is_former(stack):
                return Agreed(project, document, request, None, bool(plan.problems))
            if plan.pending and request.approvals.force:
                for line in run_lines(on_nodes_that_go(project, plan, _quiet)):
                    tell(line)
            elif plan.pending:
                refuse_occupied(stack, plan.going, _quiet)
            if plan.pending:
                confirm(f"Bring up the fleet {request.name}?")
            else:
                tell(f"fleet {request.name}: what a former version recorded of it is recorded anew")
            agreed = lines
        # What was shown is what is accepted: a host that shows another key now is refused.
        request = accepting(request, plan.new_keys)
        with watching() as listener:
            why = operations.outdated(plan, request, listener)
        if why is None:
            return Agreed(project, document, request, plan, bool(plan.problems))
        tell(f"the plan is made again: {why}")
        state_url = project.state_url
        project, document, fleet = again()
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
    """Who is on nodes that the plan takes away. A ledger that cannot be read is told of and stops no plan."""
    try:
        return occupants(StackState(project, plan.fleet), plan.going, listener)
    except OrchError as error:
        tell(error.text().replace("error", "warning", 1))
        return ()


def shown_lines(plan: Plan, *, verbose: bool) -> list[str]:
    return [*plan_lines(plan, colour=coloured(sys.stdout), verbose=verbose), *key_lines(plan.new_keys)]


def tell_problems(plan: Plan, document: Document) -> None:
    if plan.findings:
        tell(render_human([finding.placed(document) for finding in plan.findings]))
    for line in warning_lines(plan.warnings):
        tell(line)
    for problem in plan.problems:
        tell(problem.text())


def _quiet(event: Progress) -> None:
    if isinstance(event, Note):
        tell(event.text)


def need_terminal(instead: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            "this asks before it acts, and there is no terminal to ask on",
            hint=f"write `{instead}`",
            code=None,
        )


def confirm(question: str) -> None:
    tell(f"{question} [y/N] ")
    if input().strip().lower() not in ("y", "yes"):
        tell("nothing was done")
        end(ExitCode.OK)
