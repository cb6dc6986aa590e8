"""`orch check`: the requirements that hosts fail, as a matrix of checks and hosts, and how to mend them."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.cli.context import FileOrName, Json, NewKeys, Rehearse, project_at
from orch.cli.errors import end, print_json, say
from orch.spec.errors import ExitCode
from orch.spec.suggest import counted

if TYPE_CHECKING:
    from orch.components.ssh.facts import AcceptNew
    from orch.runner.hosts.checks.types import CheckResult, HostReport
    from orch.runner.hosts.survey import Survey
    from orch.runner.runs.context import RunnerContext
    from orch.spec.models import Fleet
    from orch.spec.state import NodeState
    from orch.stacks.maintenance.context import Health
    from orch.stacks.project.project import Project

SCHEMA = 1
CONNECT_S = 10.0
COLOURS = {"pass": "32", "warn": "33", "fail": "31", "skipped": "2"}

# Nodes in containers share this machine's disk: what a small image needs is enough.
LOCAL_DISK_GIB = (5.0, 20.0)


def check(
    target: FileOrName,
    as_json: Json = False,
    accept_new_host_keys: NewKeys = False,
    rehearse: Rehearse = False,
) -> None:
    """Check the hosts of a fleet and say how to mend what fails. Changes nothing."""
    any_failed = False
    for name, survey in _surveys(target, "all" if accept_new_host_keys else "none", rehearse):
        any_failed = any_failed or survey.failed
        if as_json:
            print_json(survey_json(survey))
            continue
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        for line in survey_lines(name, survey, width=shutil.get_terminal_size().columns, colour=colour):
            say(line)
    end(ExitCode.HOSTS if any_failed else ExitCode.OK)


def survey_json(survey: Survey) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "hosts": [
            {
                "host": host.name,
                "checks": [
                    {"id": c.id, "result": c.result.value, "detail": c.detail, "hint": c.hint}
                    for c in host.checks
                ],
            }
            for host in survey.hosts
        ],
    }


def survey_lines(name: str, survey: Survey, *, width: int, colour: bool) -> list[str]:
    """The matrix with hosts of equal results folded into one column, a count per column, then the details of
    every check that did not pass.
    """
    groups = _groups(survey.hosts)
    lines = [f"fleet {name}: {counted(len(survey.hosts), 'host')}"]
    matrix = _matrix(groups, colour)
    # A matrix wider than the terminal is left out: the counts and the details follow.
    if max(map(len, _matrix(groups, False)), default=0) <= max(width, 80):
        lines += matrix
    lines += [f"  {folded}  {_tally(hosts[0], colour)}" for folded, hosts in groups.items()]
    lines += _details(survey.hosts, colour)
    return lines


def _surveys(target: str, unseen: AcceptNew, rehearse: bool) -> Iterator[tuple[str, Survey]]:
    """Each fleet to check, by its name, with the survey of its hosts."""
    from orch.cli.fleets.targets import FleetFile, is_file
    from orch.spec.findings import PlanError
    from orch.stacks.plans.request import with_hosts

    if not is_file(target):
        yield target, survey_of(project_at(rehearse=rehearse), target)
        return
    for project, document, written in FleetFile(target, rehearse=rehearse).fleets():
        folder = document.directory.absolute()
        try:
            fleet = with_hosts(project, written, folder)
        except PlanError as error:
            raise error.placed(document) from error
        if fleet.ssh_config is None:
            yield fleet.name, survey_of(project, fleet.name)
        else:
            yield fleet.name, _of_file(project, fleet, folder, unseen)


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


def _of_file(project: Project, fleet: Fleet, folder: Path, unseen: AcceptNew) -> Survey:
    """The survey of a fleet as its file describes it, up or not; host keys pinned by an `up` are required."""
    from orch.components.ssh import facts
    from orch.images import default_image
    from orch.stacks.errors import NoSuchFleet
    from orch.stacks.record.fleets import fleet_state

    nodes: Sequence[NodeState] = ()
    with suppress(NoSuchFleet):
        nodes = fleet_state(project, fleet.name).nodes
    image = project.default_image or default_image(None)
    return facts.check(fleet, folder, known=nodes, unseen=unseen, default_image=image)


Groups = dict[str, "list[HostReport]"]


def _groups(hosts: Iterable[HostReport]) -> Groups:
    """Hosts with equal results in every check, under their folded names."""
    from orch.stacks.events.notation import fold

    alike: dict[tuple[str, ...], list[HostReport]] = {}
    for host in hosts:
        alike.setdefault(tuple(c.result.value for c in host.checks), []).append(host)
    return {fold([host.name for host in members]): members for members in alike.values()}


def _matrix(groups: Groups, colour: bool) -> list[str]:
    from orch.review.tree import paint

    if not groups:
        return []
    ids = [c.id for c in next(iter(groups.values()))[0].checks]
    id_width = max(len(each) for each in ids)
    widths = [max(len(name), len("skipped")) for name in groups]
    heads = "  ".join(f"{name:<{width}}" for name, width in zip(groups, widths, strict=True))
    lines = [f"  {'':<{id_width}}  {heads}".rstrip()]
    for at, each in enumerate(ids):
        cells = [members[0].checks[at].result.value for members in groups.values()]
        row_cells = "  ".join(
            paint(cell, COLOURS[cell], colour) + " " * (width - len(cell))
            for cell, width in zip(cells, widths, strict=True)
        )
        lines.append(f"  {each:<{id_width}}  {row_cells}".rstrip())
    return lines


def _tally(host: HostReport, colour: bool) -> str:
    """`pass 12  warn 1 host.disk  fail 1 docker.engine  skipped 7`."""
    from orch.review.tree import paint

    counts = Counter(c.result.value for c in host.checks)
    parts: list[str] = []
    for result in ("pass", "warn", "fail", "skipped"):
        if counts[result]:
            names = (
                [c.id for c in host.checks if c.result.value == result] if result in ("warn", "fail") else []
            )
            parts.append(" ".join([paint(f"{result} {counts[result]}", COLOURS[result], colour), *names]))
    return "  ".join(parts)


def _details(hosts: Sequence[HostReport], colour: bool) -> list[str]:
    """Failures, then warnings, then skipped checks; equal ones of several hosts once."""
    from orch.review.tree import paint
    from orch.stacks.events.notation import fold

    hosts_of: dict[CheckResult, list[str]] = {}
    for host in hosts:
        for each in host.checks:
            hosts_of.setdefault(each, []).append(host.name)
    lines: list[str] = []
    for result in ("fail", "warn"):
        for each, names in hosts_of.items():
            if each.result.value == result:
                word = paint(result, COLOURS[result], colour)
                lines += ["", f"{word} {each.id} {each.code} on {fold(names)}", f"  {each.detail}"]
                lines += [f"  hint: {each.hint}"] if each.hint else []
    skipped: dict[tuple[str, str], list[str]] = {}
    for each, names in hosts_of.items():
        if each.result.value == "skipped":
            skipped.setdefault((each.detail, fold(names)), []).append(each.id)
    lines += [""] if skipped else []
    for (reason, names), ids in skipped.items():
        lines.append(paint(f"skipped {', '.join(ids)} on {names}: {reason}", COLOURS["skipped"], colour))
    return lines


def failures_of(host: HostReport) -> list[str]:
    """The requirements that a host fails, each with what was found."""
    return [f"{one.id}: {one.detail}" for one in host.checks if one.result.value == "fail"]


def in_order(project: Project, runner: RunnerContext) -> Health:
    """What keeps nodes of a fleet from taking jobs, by node: what they fail of `orch check`, their health."""
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
