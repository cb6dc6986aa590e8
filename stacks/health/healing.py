"""Replaces nodes whose health is a failure, by itself, where the fleet's file says `auto_replace`.

Runs that are tried again on interruptions leave the node first; the end of others is waited for. The machine
is replaced as `orch node replace` does it: evidence, a plan that policies and the budget judge, the same rank
index, the gate, and only then jobs again. After `max_replacements` in a day no more are: what breaks machines
so often is not mended by another one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orch.runner.events import Notice
from orch.runner.launch.run_plan import plan_of as run_plan_of
from orch.runner.ledger.changes import Change
from orch.runner.node.commands import NODE_HOME, Command, as_root
from orch.runner.runs.context import RunnerContext
from orch.spec.errors import OrchError
from orch.spec.state import FleetState, NodeState
from orch.spec.suggest import counted
from orch.stacks.errors import Interrupted
from orch.stacks.fleets import fleet_of
from orch.stacks.maintenance.context import Health, Maintenance
from orch.stacks.maintenance.drive import carry_out, planned_for
from orch.stacks.maintenance.look import runs_on
from orch.stacks.maintenance.plan import MaintenancePlan, Options, PlannedRun
from orch.stacks.maintenance.serial import NONE, Share
from orch.stacks.project import Project, ledger_scope
from orch.stacks.pulumi.operation import Listener
from orch.stacks.state import StackState
from orch.stacks.team.change_log import undertaken
from orch.templates import render

DAY_S = 86_400.0
REASON = "its health is a failure"
"""How the reason of a replacement begins that nobody asked for."""

INTERRUPT_S = 30.0
NO_GRACE_S = 300


@dataclass(frozen=True)
class Healer:
    """What replaces nodes of a project needs. `check`: what `orch check` finds wrong with nodes."""

    project: Project
    runner: RunnerContext
    listener: Listener
    check: Health

    def heal(self, stack: StackState) -> Iterator[Notice]:
        """Replace the nodes of a fleet that failed, one after the other; what was done, what keeps others.

        Raises Interrupted.
        """
        fleet = fleet_of(stack)
        health = fleet.health
        if health is None or not health.auto_replace or health.gate == "none":
            return
        periods = self.runner.ledger.health(self.project.name, ledger_scope(self.project), [fleet.name])
        failed = {each.node: each.reason for each in periods if each.status == "failure"}
        for node in self.project.machines(fleet):
            if node.name not in failed:
                continue
            try:
                yield from self._heal_one(fleet, node, failed[node.name], health.max_replacements)
            except Interrupted:
                raise
            except OrchError as error:
                detail = f": {error.detail}" if error.detail else ""
                yield Notice(f"node {node.name} is not replaced: {error.summary}{detail}", "warning")

    def _heal_one(self, fleet: FleetState, node: NodeState, why: str, most: int) -> Iterator[Notice]:
        if fleet.backend == "ssh":
            words = "it is an existing host, and orch cannot make another"
            yield Notice(f"node {node.name} is kept out ({why}), and not replaced: {words}", "warning")
            return
        made = self._replacements(fleet.name)
        begun = any(each.status == "running" and _is_of(each, node.name) for each in made)
        if not begun and len(made) >= most:
            words = (
                f"{counted(len(made), 'node')} of its fleet were within a day, `max_replacements` is {most}"
            )
            yield Notice(f"node {node.name} is kept out ({why}), and not replaced: {words}", "warning")
            return
        present = runs_on(self.project, {fleet.name: [node.name]}, self.listener)
        if present and not begun:
            yield from self._make_leave(node, present)
            return
        yield Notice(f"node {node.name} is replaced: {why}")
        plan = planned_for(
            self.runner,
            self.project,
            "replace",
            {fleet.name: [node.name]},
            options=Options((Share(1),), NONE, False, 0, f"{REASON}: {why}"),
            listener=self.listener,
        )
        if not plan.nodes:
            left = "; ".join(each.why for each in plan.left_alone)
            yield Notice(f"node {node.name} is not replaced: {left}", "warning")
            return
        with undertaken(
            self.project, plan.title, plan.subject, plan=plan.text(), holds=plan.holds
        ) as journal:
            own = MaintenancePlan.parse(journal.change.plan)
            carry_out(Maintenance(self.project, self.runner, own, journal, self.check, self.listener))
        yield Notice(f"node {node.name} is replaced, passed its checks and takes jobs again")

    def _replacements(self, fleet: str) -> tuple[Change, ...]:
        """Those of the last day that nobody asked for, the newest first."""
        changes = self.runner.ledger.changes.listed(
            self.project.name, verbs=("node replace",), since=time.time() - DAY_S
        )
        return tuple(
            each
            for each in changes
            if each.scope == ledger_scope(self.project)
            and (plan := MaintenancePlan.parse(each.plan)).reason.startswith(REASON)
            and fleet in plan.fleets
        )

    def _make_leave(self, node: NodeState, present: Sequence[PlannedRun]) -> Iterator[Notice]:
        """Have the runs leave that are tried again elsewhere; the others are waited for."""
        jobs: list[dict[str, object]] = []
        for run in present:
            if run.number is None:
                yield Notice(f"node {node.name} is to be replaced: run {run} is waited for", "warning")
                continue
            plan = run_plan_of(self.runner.ledger.by_id(run.number))
            if plan.retry is None or "interruption" not in plan.retry.on_events:
                words = "which is not tried again on interruptions"
                yield Notice(
                    f"node {node.name} is to be replaced, and run {run.name}, {words}, is waited for",
                    "warning",
                )
                continue
            stop_s = NO_GRACE_S if plan.stop_duration_s is None else plan.stop_duration_s
            jobs += [
                {"name": plan.container(rank.rank), "stop_s": stop_s}
                for rank in plan.ranks
                if rank.node.name == node.name
            ]
        if not jobs:
            return
        text = render("node-interrupt.sh.j2", home=NODE_HOME, jobs=jobs)
        command = Command(as_root(text), "have jobs leave the node")
        result = self.runner.connector.run(node, command, deadline_s=INTERRUPT_S)
        names = ", ".join(dict.fromkeys(run.name for run in present if run.number is not None))
        if "interrupted " in result.stdout:
            yield Notice(f"run {names} leaves node {node.name}, whose health is a failure")


def _is_of(change: Change, node: str) -> bool:
    return MaintenancePlan.parse(change.plan).names == (node,)
