"""What nodes must pass once they are up: the gate of their fleet, and the check before the next wave."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from orch.cli.errors import tell
from orch.spec.errors import ExitCode, OrchError

if TYPE_CHECKING:
    from orch.runner.runs.context import RunnerContext
    from orch.spec.state import FleetState
    from orch.stacks.plans.plan import Plan
    from orch.stacks.plans.waves import Stack
    from orch.stacks.project.project import Project
    from orch.stacks.stack.state import StackState


class Unhealthy(OrchError):
    """Nodes of a wave are not in order, so the next one does not begin."""

    exit_code = ExitCode.HOSTS


def require_healthy(stacks: Sequence[Stack], wave: int, *, unfit: bool) -> None:
    """Check the nodes of a wave's fleets as `orch check` does. `unfit`: some were not in order when they were
    brought up. Raises Unhealthy for any that fails."""
    from orch.cli.maintenance.checks import failures_of, survey_of

    fleets = [each for each in stacks if each.wave == wave and each.fleet is not None]
    if not fleets:
        return
    if unfit:
        raise _unhealthy(wave, ["hosts are not in order, see above"], fleets[0].model.name)
    names = ", ".join(each.model.name for each in fleets)
    tell(f"wave {wave} of {stacks[-1].wave} is up: checking the nodes of {names}")
    failed: list[str] = []
    for each in fleets:
        for host in survey_of(each.project, each.model.name).hosts:
            if reasons := failures_of(host):
                failed.append(f"{each.title}: {host.name}: {'; '.join(reasons)}")
    if failed:
        raise _unhealthy(wave, failed, fleets[0].model.name)


def _unhealthy(wave: int, reasons: Sequence[str], fleet: str) -> Unhealthy:
    return Unhealthy(
        f"nodes of wave {wave} are not in order: the next wave does not begin",
        detail="\n".join(reasons),
        hint=f"`orch check {fleet}` says how to mend what fails; `--no-check` goes on without",
        code="ORCH397",
    )


def pass_gate(project: Project, plan: Plan) -> bool:
    """Examine the nodes of a fleet that have not passed its gate, and tell what was found; whether any
    failed.

    Nodes of a cloud begin to prepare themselves when `up` ends: who gives them their first job examines them,
    and so do `orch reconcile` and a controller. Without a ledger that can be written none is examined here.
    """
    from orch.cli.driver.opening import connector_of, runner_of
    from orch.runner.errors import LedgerUnusable
    from orch.spec.state import OF_THE_USER
    from orch.stacks.record.fleets import fleet_of
    from orch.stacks.stack.state import StackState

    stack = StackState(project, plan.stack)
    if not plan.pending or not stack.nodes:
        return False
    fleet = fleet_of(stack)
    health = fleet.health
    if health is None or health.gate == "none":
        return False
    try:
        with closing(connector_of(project)) as connector:
            runner = runner_of(project, connector, as_json=True)
            with closing(runner.ledger):
                failed = _examined(project, runner, fleet) if fleet.backend in OF_THE_USER else False
                return failed or (health.gate == "nccl" and not _verified(project, runner, stack))
    except LedgerUnusable as error:
        tell(f"warning: the nodes of fleet {fleet.name} were not examined: {error.summary}")
        return False


def _examined(project: Project, runner: RunnerContext, fleet: FleetState) -> bool:
    """Examine the nodes of a fleet; return True if any failed."""
    from orch.runner.health.gate import depth_of
    from orch.stacks.health.watch import news, watch

    gate = fleet.health.gate if fleet.health is not None else "light"
    watched = watch(
        project,
        runner.ledger,
        runner.connector,
        fleet,
        depth=depth_of(gate),
        due=lambda status: not status.has_passed(gate),
        unkept=lambda error: tell(f"warning: the health of fleet {fleet.name} is not kept: {error.summary}"),
    )
    for text, level in news(watched):
        tell(f"{'warning: ' if level == 'warning' else ''}{text}")
    return bool(watched.failed)


def _verified(project: Project, runner: RunnerContext, stack: StackState) -> bool:
    """Verify the interconnect of a fleet; return True if it is as it must be. While runs are on its nodes it
    cannot be measured, which counts as fine."""
    from orch.cli.maintenance.verification import verified
    from orch.runner.errors import RunConflict, RunnerError
    from orch.runner.verify.verification import Request
    from orch.stacks.record.fleets import fleet_of

    tell(f"fleet {stack.name}: its gate is `nccl`: its nodes are waited for, then verified, for minutes")
    try:
        report, _ = verified(project, runner, stack, fleet_of(stack), Request())
    except RunnerError as error:
        words = f"the fleet {stack.name} was not verified: {error.summary}"
        tell(f"warning: {words}; `orch verify {stack.name}` does it later")
        return isinstance(error, RunConflict)
    for each in report.shortfalls:
        tell(f"warning: {each.code}: {each.text}")
    tell(report.sentence)
    return report.fine
