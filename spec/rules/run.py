"""Rules between the properties of every run, and of a dev environment."""

from __future__ import annotations

import os
from typing import cast

from orch.spec.diagnostics import Diagnostic, Related, Severity
from orch.spec.document.draft import Draft
from orch.spec.document.yaml_nodes import Scalar
from orch.spec.grammar import schedule as schedules
from orch.spec.models import DevEnvironment
from orch.spec.models.run import Run
from orch.spec.models.task import Task
from orch.spec.rules import array_index, environment, fleet, project
from orch.spec.rules.rule import Findings, Rule


def _run(draft: Draft) -> Run:
    return cast(Run, draft.partial)


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


def links_stay_within(draft: Draft) -> Findings:
    """A path in the document's folder that a link leads elsewhere: what is packed is not what is named."""
    if draft.source.file == "<stdin>" or draft.context.fence is not None:
        return  # of strangers' files strangers.py tells
    files = _run(draft).files
    folder = os.path.realpath(os.path.dirname(os.path.abspath(draft.source.file))) if files else ""
    for index, item in enumerate(files):
        if "${{" in item.local_path or "\0" in item.local_path:
            continue
        named = os.path.normpath(os.path.join(folder, os.path.expanduser(item.local_path)))
        real = os.path.realpath(named)
        if _within(named, folder) and not _within(real, folder):
            yield draft.diagnostic(
                "ORCH163",
                ("files", index),
                f"{item.local_path} is a link that leads out of this folder",
                severity=draft.missing,
                detail=f"it leads to {os.path.relpath(real, folder)}",
                hint="to copy that, name it itself",
            )


def targets_stay_within(draft: Draft) -> Findings:
    """A path that is relative in the container leads to below the working directory. What lies beside the
    task here has no place beside that directory there, and would come over what the image has."""
    for index, item in enumerate(_run(draft).files):
        if item.path.startswith(("/", "~")) or os.path.normpath(item.path).split("/")[0] != "..":
            continue
        own = item.path != item.local_path
        yield draft.diagnostic(
            "ORCH169",
            ("files", index),
            f"{item.path} leads out of the working directory of the job",
            detail=None if own else "without a destination, a copy goes where it lies here",
            hint=f"write where it goes: `{item.local_path}:{_destination(item.local_path)}`",
        )


def _destination(local_path: str) -> str:
    """A place in the job for what has none: its own name, of a pattern the folder that it begins with."""
    names = [name for name in local_path.split("/") if name not in ("", ".", "..")]
    while names and set(names[-1]) & set("*?["):
        names.pop()
    return names[-1] if names else "."


def outputs_can_be_kept(draft: Draft) -> Findings:
    """Report folders that cannot keep outputs (ORCH168) before the run, so that its work is not lost."""
    if draft.context.fence is not None:
        return
    folder = os.path.dirname(os.path.abspath(draft.source.file))
    for index, item in enumerate(_run(draft).outputs):
        if item.to is None or "${{" in item.to:
            continue
        there = os.path.normpath(os.path.join(folder, os.path.expanduser(item.to)))
        while not os.path.lexists(there):
            there = os.path.dirname(there)
        if os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK):
            continue
        yield draft.diagnostic(
            "ORCH168",
            ("outputs", index, "to"),
            f"outputs cannot be kept in {item.to}",
            severity=draft.missing,
            detail=f"{os.path.relpath(there, folder)} is "
            + ("a folder that you may not write to" if os.path.isdir(there) else "no folder"),
            hint="name a folder that you may write to; one that is not there is made",
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


def branch_of_a_repository(draft: Draft) -> Findings:
    if draft.written("single_branch") and not _run(draft).repos:
        yield draft.diagnostic(
            "ORCH191",
            ("single_branch",),
            "`single_branch` does nothing without `repos`",
            key=True,
            severity=Severity.WARNING,
            hint="add `repos: [.]`, or remove the line",
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
    run = _run(draft)
    written = [(("ports", index), port) for index, port in enumerate(run.ports)]
    for place, group in enumerate(run.groups if isinstance(run, Task) else ()):
        written += [(("groups", place, "ports", index), port) for index, port in enumerate(group.ports)]
    first: dict[int, tuple[str | int, ...]] = {}
    for path, port in written:
        if port.local_port is None:
            continue
        if port.local_port in first:
            yield draft.diagnostic(
                "ORCH153",
                path,
                f"port {port.local_port} of this machine is forwarded twice",
                hint=f'write `"*:{port.container_port}"` for any free port',
                related=(Related(draft.span(first[port.local_port]), "forwarded here first"),),
            )
        first.setdefault(port.local_port, path)


def weekdays_have_names(draft: Draft) -> Findings:
    schedule = _run(draft).schedule
    if schedule is None:
        return
    node = draft.node_at(("schedule", "cron"))
    for index, cron in enumerate(schedule.cron):
        days = schedules.numeric_weekday(cron)
        if days is not None:
            path = ("schedule", "cron") if isinstance(node, Scalar) else ("schedule", "cron", index)
            yield draft.diagnostic(
                "ORCH199",
                path,
                "day 0 is Sunday here, and Monday elsewhere",
                severity=Severity.WARNING,
                hint=f"name the day: `{' '.join([*cron.split()[:-1], days])}`",
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


RULES = (
    Rule(("image", "python", "nvcc", "docker"), one_image),
    Rule(("spot_policy", "reservation"), fleet.reservation_is_not_spot),
    Rule(("repos",), one_repository),
    Rule(("repos", "single_branch"), branch_of_a_repository),
    Rule(("files",), links_stay_within),
    Rule(("files",), targets_stay_within),
    Rule(("outputs",), outputs_can_be_kept),
    Rule(("volumes",), mounts_differ),
    Rule(("volumes",), volume_keys_fit),
    Rule(("ports", "groups"), ports_differ),
    Rule(("schedule",), weekdays_have_names),
    Rule(("signal", "max_duration"), signal_has_an_end),
    Rule(("registry_auth",), project.secrets_are_references),
    *environment.RULES,
    *array_index.RULES,
)

DEV_ENVIRONMENT_RULES = (*RULES, Rule(("ide", "version"), ide_of_version))
