"""Verifies the nodes of a fleet by a run on all of them."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from orch.cli.driver.background import see_through
from orch.cli.driver.provisioned import why_silent
from orch.cli.errors import tell
from orch.cli.output.ticking import still

if TYPE_CHECKING:
    from orch.runner.ledger.records import RunRow
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.runner.verify.report import Report
    from orch.runner.verify.verification import Request
    from orch.spec.state import FleetState
    from orch.stacks.project.project import Project
    from orch.stacks.stack.state import StackState


def verified(
    project: Project, runner: RunnerContext, stack: StackState, fleet: FleetState, request: Request
) -> tuple[Report, RunRow | None]:
    """Verify the nodes of a fleet by a run, and keep what it came to. There is no run where nodes do not
    connect to each other. Raises RunFailed without results."""
    from orch.cli.output.run import nodes_text
    from orch.stacks.health.verified import DEPTH, judged, unconnected

    if not fleet.nodes:
        from orch.runner.errors import NoFit

        if fleet.queue is not None:
            raise NoFit(
                f"the fleet {fleet.name} has no nodes of its own: pods come with a run",
                hint="verify a fleet with nodes, or run a test of yours on it: `orch run FILE`",
            )
        raise NoFit(f"the fleet {fleet.name} has no nodes", hint="`orch up` of its file makes some")
    with still(lambda: "asking the nodes whether they reach each other"):
        found = unconnected(project, runner, fleet)
    row = None
    if found is None:
        with still(lambda: "asking the nodes and packing files"):
            row = _submit(project, runner, stack, fleet, request)
        tell(f"run {row.name} verifies fleet {fleet.name}: {nodes_text(row)}")
        row = _see_through(project, runner, row)
        found = judged(project, runner, fleet, request, row)
    report, kept_out = found
    for name, verdict in kept_out.items():
        by_verify = verdict.found_by == DEPTH
        command = f"orch verify {fleet.name}" if by_verify else f"orch health {fleet.name} --node {name}"
        words = f"node {name} takes no new jobs until `{command}` is fine"
        tell(f"{words}: {verdict.reason}")
    return report, row


def _submit(
    project: Project, runner: RunnerContext, stack: StackState, fleet: FleetState, request: Request
) -> RunRow:
    """Submit the run that verifies: all of its nodes, or none. Raises NodesBusy and what `submit` raises."""
    from orch import images
    from orch.images import job_image
    from orch.runner.launch.submission import Submission
    from orch.runner.runs.submit import submit
    from orch.runner.verify.verification import PROGRAM, task_of
    from orch.stacks.record.variables import with_variables

    task = task_of(request, fleet)
    image = job_image(task, fleet, project.default_image, project.images)
    return submit(
        runner,
        Submission(
            task,
            with_variables(stack, fleet),
            image=images.resolve(image.reference),
            base=PROGRAM,
            stem="verify",
            caller_env=dict(os.environ),
            examines=True,
        ),
        why_silent=partial(why_silent, project, stack),
    )


def _see_through(project: Project, runner: RunnerContext, row: RunRow) -> RunRow:
    from orch.runner.access.forwards import LocalPorts
    from orch.runner.verify.verification import Quietly

    with LocalPorts() as held:
        return see_through(project, replace(runner, processor=Quietly(runner.processor)), row, held)
