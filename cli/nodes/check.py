"""`orch check`: the requirements that hosts fail, as a matrix of checks and hosts, and how to mend them."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.cli.context import project_at
from orch.cli.errors import end, print_json, say
from orch.cli.maintenance.checks import survey_of
from orch.cli.options import FileOrName, Json, NewKeys, Rehearse
from orch.spec.errors import ExitCode
from orch.spec.suggest import counted

if TYPE_CHECKING:
    from orch.components.ssh.facts import AcceptNew
    from orch.runner.hosts.checks.types import CheckResult, HostReport
    from orch.runner.hosts.survey import Survey
    from orch.spec.models import Fleet
    from orch.spec.state import NodeState
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
    from orch.cli.targets.fleet_files import FleetFile, is_file
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
