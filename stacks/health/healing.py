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

from orch.runner.errors import RunnerError
from orch.runner.events import Notice
from orch.runner.health.findings import HealthReport
from orch.runner.ledger.changes import Change, ChangeUnderWay
from orch.runner.ledger.history.node_health import HealthPeriod
from orch.runner.ledger.plans import plan_of as run_plan_of
from orch.runner.node.status import node_statuses
from orch.runner.node_api.commands import NODE_HOME, Command, as_root
from orch.runner.node_api.cordon import Cordon
from orch.runner.placement.availability import NodeAvailability
from orch.runner.placement.spares import held_back
from orch.runner.runs.context import RunnerContext
from orch.spec.errors import ExitCode, OrchError
from orch.spec.state import FleetState, NodeState
from orch.spec.suggest import counted
from orch.stacks.errors import Interrupted, OtherAccount
from orch.stacks.health.protection import (
    REASON,
    VERB,
    failed_looks,
    looked_at,
    own_plan,
    protection_of,
)
from orch.stacks.maintenance.context import Health, Maintenance
from orch.stacks.maintenance.drain import DRAIN, NOT_IN_ORDER
from orch.stacks.maintenance.drive import carry_out, planned_for
from orch.stacks.maintenance.look import look_at, runs_on
from orch.stacks.maintenance.plan import MaintenancePlan, Options, PlannedRun
from orch.stacks.maintenance.serial import NONE, Share
from orch.stacks.project.project import Project, ledger_scope
from orch.stacks.pulumi.progress import Listener
from orch.stacks.record.change_log import Journal, gone_on_with, undertaken
from orch.stacks.record.fleets import fleet_of
from orch.stacks.record.node_records import node_records
from orch.stacks.stack.state import StackState
from orch.templates import render

DAY_S = 86_400.0
INTERRUPT_S = 30.0
NO_GRACE_S = 300


@dataclass(frozen=True)
class NotReplaced(Notice):
    """A node that was to be replaced and is not, nor will be by itself: somebody has to see to it."""

    exit_code: ExitCode = ExitCode.HOSTS


@dataclass(frozen=True)
class Healer:
    """Context of replacing failed nodes of a project. `check`: finds what `orch check` reports of nodes."""

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
        scope = ledger_scope(self.project)
        protection = protection_of(self.runner.ledger.changes, self.project.name, scope, fleet.name)
        machines = {node.name: node for node in self.project.machines(fleet)}
        failures = self._failures(fleet.name)
        if protection is not None:
            yield NotReplaced(str(protection), "warning")
            for name in failures:
                if name in machines:
                    yield from self._have_leave_for_spare(fleet, machines[name])
            return
        unfinished = self._unfinished(fleet.name)
        for name in dict.fromkeys([*unfinished, *failures]):
            node, change = machines.get(name), unfinished.get(name)
            try:
                if change is not None and change.held and name not in failures:
                    continue
                if change is not None and change.held:
                    yield _at_work(name, change)
                elif change is not None:
                    yield from self._go_on(node, name, change, health.interval_s)
                elif node is not None:
                    yield from self._heal_one(fleet, node, failures[name], health.max_replacements)
            except Interrupted:
                raise
            except OrchError as error:
                other = self._unfinished(fleet.name).get(name) if isinstance(error, ChangeUnderWay) else None
                if other is not None and other.held:  # it came first
                    yield _at_work(name, other)
                    continue
                detail = f": {error.detail}" if error.detail else ""
                code = error.exit_code if isinstance(error, OtherAccount) else ExitCode.HOSTS
                yield NotReplaced(f"node {name} is not replaced: {error.summary}{detail}", "warning", code)

    def _heal_one(
        self, fleet: FleetState, node: NodeState, found: HealthPeriod, most: int
    ) -> Iterator[Notice]:
        why = found.reason
        if not _is_helped(found):
            words = "another machine would not help"
            yield NotReplaced(f"node {node.name} is kept out ({why}), and not replaced: {words}", "warning")
            return
        if fleet.backend == "ssh":
            words = "it is an existing host, and orch cannot make another"
            yield NotReplaced(f"node {node.name} is kept out ({why}), and not replaced: {words}", "warning")
            return
        made = self._replacements(fleet.name)
        if len(made) >= most:
            words = (
                f"{counted(len(made), 'node')} of its fleet were within a day, `max_replacements` is {most}"
            )
            yield NotReplaced(f"node {node.name} is kept out ({why}), and not replaced: {words}", "warning")
            yield from self._have_leave_for_spare(fleet, node)
            return
        (look,) = look_at(StackState(self.project, fleet.name), [node.name], self.runner.connector)
        if look.cordon is not None and not (look.cordon.of_cloud or _is_of_maintenance(look.cordon)):
            words = f"somebody cordoned it: {look.cordon}"
            yield Notice(f"node {node.name} is kept out ({why}), and not replaced: {words}", "warning")
            return
        present = runs_on(self.project, {fleet.name: [node.name]}, self.listener)
        if present:
            yield from self._make_leave(node, present)
            return
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
            yield NotReplaced(f"node {node.name} is not replaced: {left}", "warning")
            return
        if node.name not in self._failures(fleet.name):
            return  # somebody else has mended it since
        with undertaken(
            self.project, plan.title, plan.subject, plan=plan.text(), holds=plan.holds
        ) as journal:
            if not journal.resumed and node.name not in self._failures(fleet.name):
                journal.result = "nothing to do: it was mended meanwhile"
                return
            yield Notice(f"node {node.name} is replaced: {why}")
            self._carry_out(journal)
        yield Notice(f"node {node.name} is replaced, passed its checks and takes jobs again")

    def _go_on(
        self, node: NodeState | None, name: str, change: Change, interval_s: float
    ) -> Iterator[Notice]:
        """Go on with a replacement whose process ended, or that failed; the new machine may be healthy. One
        that was not is looked at again after an interval."""
        fleet = MaintenancePlan.parse(change.plan).node(name).fleet
        steps = self.runner.ledger.changes.steps(change.id)
        looks = failed_looks(steps)
        if looks and change.now < looks[-1].began_at + interval_s:
            words = f"node {name} is not replaced: its new machine is not in order, and is looked at again"
            yield NotReplaced(f"{words}: {looks[-1].message}", "warning")
            return
        drained = any((each.host, each.name, each.status) == (name, DRAIN, "done") for each in steps)
        present = [] if drained else runs_on(self.project, {fleet: [name]}, self.listener)
        if present and node is not None:
            yield from self._make_leave(node, present)
            return
        yield Notice(f"node {name}: its replacement goes on (change {change.id})")
        with gone_on_with(self.project, change.id) as journal:
            self._carry_out(journal)
        yield Notice(f"node {name} is replaced, passed its checks and takes jobs again")

    def _carry_out(self, journal: Journal) -> None:
        plan = MaintenancePlan.parse(journal.change.plan)
        with looked_at(journal, plan.nodes[0].name):
            carry_out(Maintenance(self.project, self.runner, plan, journal, self.check, self.listener))

    def _failures(self, fleet: str) -> dict[str, HealthPeriod]:
        """The nodes of a fleet whose health is a failure, by name, as ledger and state are now.

        What was found before a node's machine was made is of the one before it, which is gone.
        """
        periods = self.runner.ledger.health(self.project.name, ledger_scope(self.project), [fleet])
        records = node_records(StackState(self.project, fleet).recorded)
        return {
            each.node: each
            for each in periods
            if each.status == "failure"
            and (record := records.get(each.node)) is not None
            and (record.created is None or record.created.timestamp() <= each.seen_at)
        }

    def _unfinished(self, fleet: str) -> dict[str, Change]:
        """The replacements of single nodes that are not at their end, by node: those that nobody asked for,
        and what somebody else does to a node meanwhile."""
        found: dict[str, Change] = {}
        for each in reversed(self.runner.ledger.changes.listed(self.project.name, unfinished=True)):
            if each.scope != ledger_scope(self.project):
                continue
            names = [hold.partition("/")[2] for hold in each.holds if hold.partition("/")[0] == fleet]
            if each.held or (own_plan(each) is not None and len(names) == 1):
                found |= dict.fromkeys(names, each)
        return found

    def _replacements(self, fleet: str) -> tuple[Change, ...]:
        """Return the replacements of the last day that nobody asked for and that started, the newest
        first."""
        changes = self.runner.ledger.changes.listed(
            self.project.name, verbs=(VERB,), since=time.time() - DAY_S
        )
        return tuple(
            each
            for each in changes
            if each.scope == ledger_scope(self.project)
            and (plan := own_plan(each)) is not None
            and fleet in plan.fleets
            and (each.status == "running" or self.runner.ledger.changes.steps(each.id))
        )

    def _have_leave_for_spare(self, fleet: FleetState, node: NodeState) -> Iterator[Notice]:
        """Have runs leave a node that is not replaced where a spare waits for them; others stay."""
        if fleet.spares is None:
            return
        nodes = tuple(self.project.machines(fleet))
        state = fleet.model_copy(update={"nodes": nodes})
        statuses = node_statuses(state, self.runner.connector)
        now = {each.name: NodeAvailability.of(status) for each, status in zip(nodes, statuses, strict=True)}
        if any(now[name].ready for name in held_back(state, now)):
            present = runs_on(self.project, {fleet.name: [node.name]}, self.listener)
            yield from (each for each in self._make_leave(node, present) if each.level != "warning")

    def _make_leave(self, node: NodeState, present: Sequence[PlannedRun]) -> Iterator[Notice]:
        """Have the runs leave that are tried again elsewhere; the others are waited for."""
        jobs: list[dict[str, object]] = []
        leaving: list[str] = []
        for run in present:
            if run.number is None:
                yield Notice(f"node {node.name} is to be replaced: run {run} is waited for", "warning")
                continue
            try:
                plan = run_plan_of(self.runner.ledger.by_id(run.number))
            except RunnerError as error:  # of another version, whose orch drives it
                words = f"node {node.name} is to be replaced, and run {run.name} is waited for"
                yield Notice(f"{words}: {error.summary}", "warning")
                continue
            if plan.retry is None or "interruption" not in plan.retry.on_events:
                words = "which is not tried again on interruptions"
                yield Notice(
                    f"node {node.name} is to be replaced, and run {run.name}, {words}, is waited for",
                    "warning",
                )
                continue
            leaving.append(run.name)
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
        if "interrupted " in result.stdout:
            names = ", ".join(dict.fromkeys(leaving))
            yield Notice(f"run {names} leaves node {node.name}, whose health is a failure")


def _is_helped(found: HealthPeriod) -> bool:
    """Return True if another machine helps: not if no driver is installed, or a figure of all nodes is
    low."""
    try:
        report = HealthReport.from_json(found.report)
    except RunnerError:  # of another version
        return True
    return report.action != "none" or not report.findings


def _is_of_maintenance(cordon: Cordon) -> bool:
    """Return True if maintenance that did not help left the cordon; a cordon by hand may be wanted."""
    return cordon.reason.startswith((NOT_IN_ORDER, REASON))


def _at_work(node: str, change: Change) -> Notice:
    return Notice(f"node {node}: `orch {change.verb}` is under way, by {change.by} (change {change.id})")
