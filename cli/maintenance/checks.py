"""Checks whether the nodes of a fleet may take jobs, as `orch check` and `orch health` do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orch.runner.hosts.checks.types import HostReport
    from orch.runner.hosts.survey import Survey
    from orch.runner.runs.context import RunnerContext
    from orch.spec.state import FleetState
    from orch.stacks.maintenance.context import Health
    from orch.stacks.project.project import Project

CONNECT_S = 10.0
# Nodes in containers share this machine's disk: what a small image needs is enough.
LOCAL_DISK_GIB = (5.0, 20.0)


def survey_of(project: Project, name: str, only: Collection[str] | None = None) -> Survey:
    """The survey of a fleet that is up, of any backend; `only` of nodes with these names. Raises
    NoSuchFleet."""
    from orch.runner.connect import open_connector
    from orch.runner.hosts.checks.types import CheckOptions, Target
    from orch.runner.hosts.survey import survey
    from orch.stacks.record.fleets import fleet_state

    state = fleet_state(project, name)
    requirements = CheckOptions(cluster=state.placement == "cluster", image=state.image)
    if state.backend == "local" or project.rehearsal:
        minimum, recommended = LOCAL_DISK_GIB
        requirements = replace(
            requirements, disk_min_gib=minimum, disk_warn_gib=recommended, machine_ids=False
        )
    with closing(open_connector(connect_timeout_s=CONNECT_S, deadline_s=2 * CONNECT_S)) as connector:
        nodes = [node for node in state.nodes if only is None or node.name in only]
        return survey([Target(node) for node in nodes], connector, requirements)


def failures_of(host: HostReport) -> list[str]:
    """The requirements that a host fails, each with what was found."""
    return [f"{one.id}: {one.detail}" for one in host.checks if one.result.value == "fail"]


def in_order(project: Project, runner: RunnerContext) -> Health:
    """Return a function to the reasons, by name, why nodes of a fleet may not take jobs: failed checks of
    `orch check`, and their health."""
    from orch.runner.health.gate import depth_of
    from orch.stacks.health.watch import watch
    from orch.stacks.record.fleets import fleet_state

    def reasons(fleet: str, names: Collection[str]) -> Mapping[str, str]:
        found: dict[str, list[str]] = {}
        for host in survey_of(project, fleet, only=names).hosts:
            if failed := failures_of(host):
                found[host.name] = failed
        state = fleet_state(project, fleet)
        if state.health is not None and state.health.gate != "none":
            depth = depth_of(state.health.gate)
            watched = watch(project, runner.ledger, runner.connector, state, names=names, depth=depth)
            for each in watched.examined:
                if each.status == "failure":
                    found.setdefault(each.node.name, []).append(each.reason)
        return {name: "; ".join(each) for name, each in found.items()}

    return reasons


def protected_words(project: Project, runner: RunnerContext, fleet: FleetState) -> str | None:
    """Return the reason why no node of a fleet is replaced automatically until somebody has looked; None if
    there is none, or the fleet has no automatic replacement."""
    from orch.stacks.health.protection import protection_of
    from orch.stacks.project.project import ledger_scope

    if fleet.health is None or not fleet.health.auto_replace:
        return None
    found = protection_of(runner.ledger.changes, project.name, ledger_scope(project), fleet.name)
    return None if found is None else str(found)
