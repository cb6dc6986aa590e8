"""What must hold between the properties of a task or a dev environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import cast

from orch.spec.diagnostics import Diagnostic, Related, Severity
from orch.spec.grammar import interpolate
from orch.spec.grammar import schedule as schedules
from orch.spec.grammar.interpolate import Rule
from orch.spec.grammar.values import Problem
from orch.spec.loader.document import Draft, scalars
from orch.spec.loader.source import Scalar
from orch.spec.models import DevEnvironment, Task
from orch.spec.models.run import Run

Findings = Iterator[Diagnostic]


def _run(draft: Draft) -> Run:
    return cast(Run, draft.partial)


def _task(draft: Draft) -> Task:
    return cast(Task, draft.partial)


def one_image(draft: Draft) -> Findings:
    """`image` stands for itself; `python`, `nvcc` and `docker` are variants of the default image."""
    run = _run(draft)
    variants = [name for name in ("python", "nvcc", "docker") if getattr(run, name)]
    for name in variants:
        if run.image is not None:
            yield _excluded(draft, "ORCH148", name, "image", f"choose `image` or `{name}`")
    if run.docker and run.image is None:
        for name in (name for name in variants if name != "docker"):
            yield _excluded(draft, "ORCH148", name, "docker", f"choose `docker` or `{name}`")


def _excluded(draft: Draft, code: str, name: str, other: str, summary: str) -> Diagnostic:
    return draft.diagnostic(
        code,
        (name,),
        summary,
        key=True,
        hint=f"remove `{name}` or `{other}`",
        related=(Related(draft.span((other,), key=True), f"`{other}` is set here"),),
    )


def one_launcher(draft: Draft) -> Findings:
    if _task(draft).torchrun and _task(draft).mpirun:
        first, second = sorted((draft.span((name,), key=True), name) for name in ("torchrun", "mpirun"))
        yield draft.diagnostic(
            "ORCH150",
            (second[1],),
            "a task has one launcher, `torchrun` or `mpirun`",
            key=True,
            hint="remove one of them",
            related=(Related(first[0], f"`{first[1]}` is set here"),),
        )


def something_to_run(draft: Draft) -> Findings:
    task = _task(draft)
    if not (task.commands or task.torchrun or task.mpirun or task.image or task.groups):
        yield draft.diagnostic(
            "ORCH154",
            (),
            "this task has nothing to run",
            hint="add `commands`, `torchrun`, `mpirun`, or an `image` that runs by itself",
        )


def groups_stand_alone(draft: Draft) -> Findings:
    """Groups say what the whole task would otherwise say."""
    if not _task(draft).groups:
        return
    related = (Related(draft.span(("groups",), key=True), "the groups"),)
    for name in ("nodes", "commands", "ports", "entrypoint", "torchrun", "mpirun"):
        if draft.written(name):
            hint = "write it in each group" if name in ("nodes", "commands", "ports") else f"remove `{name}`"
            summary = f"`{name}` and `groups` exclude each other"
            yield draft.diagnostic("ORCH160", (name,), summary, key=True, hint=hint, related=related)


def groups_have_something_to_run(draft: Draft) -> Findings:
    task = _task(draft)
    for index, group in enumerate(task.groups):
        if not group.commands and task.image is None:
            yield draft.diagnostic(
                "ORCH154", ("groups", index), "this group has nothing to run", hint="add `commands`"
            )


def group_addresses_exist(draft: Draft) -> Findings:
    """`${{ groups[i].nodes[j].IP_ADDRESS }}` within the groups of the task."""
    groups = _task(draft).groups
    for path, scalar in scalars(draft.node):
        if "groups[" not in scalar.text or path[0] != "groups":
            continue
        rule = Rule.COMMAND if len(path) > 2 and path[2] == "commands" else Rule.TEXT
        try:
            found = interpolate.references(scalar.text, rule)
            addresses = [each for each in found if each.namespace.startswith("groups[")]
            for reference in addresses:
                interpolate.check(reference, rule, ("groups",))
        except Problem:
            continue  # told when it was read
        for reference in addresses:
            group, node = interpolate.group_address(reference)
            if group >= len(groups):
                what = f"there is no group {group}, the last one is {len(groups) - 1}"
            elif node >= groups[group].nodes:
                what = f"group {group} has no node {node}, its last one is {groups[group].nodes - 1}"
            else:
                continue
            yield draft.diagnostic("ORCH136", path, what, hint="groups and nodes count from 0")


def torchrun_has_program(draft: Draft) -> Findings:
    torchrun = _task(draft).torchrun
    if torchrun is None:
        return
    if torchrun.program is None and torchrun.module is None:
        yield draft.diagnostic(
            "ORCH155",
            ("torchrun",),
            "`torchrun` needs `program` or `module`",
            key=True,
            hint="add `program: train.py`",
        )
    elif torchrun.program is not None and torchrun.module is not None:
        yield draft.diagnostic(
            "ORCH155",
            ("torchrun", "module"),
            "`torchrun` starts either a `program` or a `module`",
            key=True,
            hint="remove one of them",
            related=(Related(draft.span(("torchrun", "program"), key=True), "`program` is set here"),),
        )


def elastic_fits(draft: Draft) -> Findings:
    task = _task(draft)
    host = task.torchrun.rdzv.host if task.torchrun is not None else None
    if host is not None and host >= task.nodes:
        yield draft.diagnostic(
            "ORCH119",
            ("torchrun", "rdzv", "host"),
            f"the run has no rank {host}, its last node is rank {task.nodes - 1}",
            hint="write `0`, or remove the line",
        )
    if task.torchrun is None or task.torchrun.nnodes is None:
        return
    most = task.torchrun.nnodes[1]
    if most > task.nodes:
        yield draft.diagnostic(
            "ORCH156",
            ("torchrun", "nnodes"),
            f"this range goes up to {most} nodes, the run has {task.nodes}",
            hint=f"write at most {task.nodes}, or `nodes: {most}`",
            related=(Related(draft.span(("nodes",)), "nodes of the run"),) if draft.written("nodes") else (),
        )


def mpirun_decides(draft: Draft) -> Findings:
    task = _task(draft)
    if task.mpirun is None:
        return
    for name, value, wanted in (
        ("startup_order", task.startup_order, "workers-first"),
        ("stop_criteria", task.stop_criteria, "master-done"),
    ):
        if draft.written(name) and value != wanted:
            yield draft.diagnostic(
                "ORCH198",
                (name,),
                f"with `mpirun` this is always `{wanted}`",
                severity=Severity.WARNING,
                hint="remove the line",
            )


def links_stay_within(draft: Draft) -> Findings:
    """A path in the document's folder that a link leads elsewhere: what is packed is not what is named."""
    if draft.source.file == "<stdin>" or draft.outside.fence is not None:
        return  # of strangers' files strangers.py tells
    here = os.path.realpath(os.path.dirname(os.path.abspath(draft.source.file)))
    for index, item in enumerate(_run(draft).files):
        if "${{" in item.local_path or "\0" in item.local_path:
            continue
        named = os.path.normpath(os.path.join(here, os.path.expanduser(item.local_path)))
        real = os.path.realpath(named)
        if _within(named, here) and not _within(real, here):
            yield draft.diagnostic(
                "ORCH163",
                ("files", index),
                f"{item.local_path} is a link that leads out of this folder",
                severity=draft.missing,
                detail=f"it leads to {os.path.relpath(real, here)}",
                hint="to copy that, name it itself",
            )


def _within(path: str, folder: str) -> bool:
    return os.path.commonpath((path, folder)) == folder


def one_repository(draft: Draft) -> Findings:
    repos = _run(draft).repos
    if len(repos) > 1:
        hint = "keep one; clone the others in `commands`"
        yield draft.diagnostic("ORCH117", ("repos", 1), "a run has one repository at most", hint=hint)
    for index, repo in enumerate(repos):
        if (repo.local_path is None) == (repo.url is None):
            yield draft.diagnostic(
                "ORCH158",
                ("repos", index),
                "a repository has either `local_path` or `url`",
                hint="add one of them" if repo.url is None else "remove one of them",
            )


def mounts_differ(draft: Draft) -> Findings:
    first: dict[str, int] = {}
    for index, volume in enumerate(_run(draft).volumes):
        if volume.path in first:
            other = draft.span(("volumes", first[volume.path]))
            yield draft.diagnostic(
                "ORCH153",
                ("volumes", index),
                f"{volume.path} is mounted twice",
                hint="give each volume its own path",
                related=(Related(other, "mounted here first"),),
            )
        first.setdefault(volume.path, index)


def volume_keys_fit(draft: Draft) -> Findings:
    """`instance` goes with a name; `optional` with a folder of the node."""
    for index, volume in enumerate(_run(draft).volumes):
        if volume.instance and not volume.names:
            yield draft.diagnostic(
                "ORCH159",
                ("volumes", index, "instance"),
                "`instance` goes with `name`",
                key=True,
                hint="remove it: `instance_path` names the folder",
            )
        elif volume.optional and not volume.instance_path:
            yield draft.diagnostic(
                "ORCH159",
                ("volumes", index, "optional"),
                "`optional` goes with `instance_path`",
                key=True,
                hint="remove it",
            )


def ports_differ(draft: Draft) -> Findings:
    first: dict[int, int] = {}
    for index, port in enumerate(_run(draft).ports):
        if port.local_port is None:
            continue
        if port.local_port in first:
            yield draft.diagnostic(
                "ORCH153",
                ("ports", index),
                f"port {port.local_port} of this machine is forwarded twice",
                hint=f'write `"*:{port.container_port}"` for any free port',
                related=(Related(draft.span(("ports", first[port.local_port])), "forwarded here first"),),
            )
        first.setdefault(port.local_port, index)


def weekdays_have_names(draft: Draft) -> Findings:
    schedule = _run(draft).schedule
    if schedule is None:
        return
    node = draft.node_at(("schedule", "cron"))
    for index, cron in enumerate(schedule.cron):
        named = schedules.numeric_weekday(cron)
        if named is not None:
            path = ("schedule", "cron") if isinstance(node, Scalar) else ("schedule", "cron", index)
            yield draft.diagnostic(
                "ORCH199",
                path,
                "day 0 is Sunday here, and Monday elsewhere",
                severity=Severity.WARNING,
                hint=f"name the day: `{' '.join([*cron.split()[:-1], named])}`",
            )


def signal_has_an_end(draft: Draft) -> Findings:
    run = _run(draft)
    if (
        run.signal is not None
        and run.max_duration_s is not None
        and run.signal.before_s >= run.max_duration_s
    ):
        yield draft.diagnostic(
            "ORCH161",
            ("signal",),
            "this signal would be sent before the run begins",
            hint="make `max_duration` longer than the signal's time",
            related=(Related(draft.span(("max_duration",)), "the longest running time"),),
        )


def ide_of_version(draft: Draft) -> Findings:
    lab = cast(DevEnvironment, draft.partial)
    if lab.version is not None and lab.ide is None:
        yield draft.diagnostic(
            "ORCH159", ("version",), "`version` goes with `ide`", key=True, hint="add `ide: vscode`"
        )
    elif lab.version is not None and lab.ide == "windsurf" and "@" not in lab.version:
        yield draft.diagnostic(
            "ORCH159", ("version",), "windsurf needs its commit too", hint=f"write `{lab.version}@COMMIT`"
        )
