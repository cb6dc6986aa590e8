"""The verbs about this machine and its folders: doctor, engine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from orch.cli.context import project_at
from orch.cli.errors import end, say, tell
from orch.cli.options import Json, Rehearse
from orch.spec.errors import ExitCode

engine = typer.Typer(no_args_is_help=True)


@dataclass(frozen=True)
class DoctorFinding:
    """One line of `doctor`: `result` is ok, info or fail."""

    id: str
    result: str
    detail: str
    hint: str | None = None


def doctor(as_json: Json = False) -> None:
    """What this machine has and lacks, and what to do about it."""
    findings = [*_machine(), *_engine(), *_images(), *_project()]
    if as_json:
        print(json.dumps({"schema": 1, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        width = max(len(finding.id) for finding in findings)
        for finding in findings:
            say(f"{finding.result:<4} {finding.id:<{width}}  {finding.detail}")
            if finding.hint and finding.result != "ok":
                say(f"     {'':<{width}}  hint: {finding.hint}")
    end(ExitCode.PROVISION if any(finding.result == "fail" for finding in findings) else ExitCode.OK)


@engine.command("install", epilog="Example: orch engine install")
def engine_install() -> None:
    """Make sure of an engine: found, else downloaded, else built from Go modules."""
    from orch.cli.output.ticking import still
    from orch.stacks.engine import install as engines

    step = "looking for an engine"

    def progress(text: str) -> None:
        nonlocal step
        step = text.strip().removesuffix(" …")
        tell(text)

    with still(lambda: step):
        installed = engines.install(progress)
    say(f"Pulumi engine {installed.version} ({installed.origin}): {installed.command}")


@engine.command("version", epilog="Example: orch engine version")
def engine_version() -> None:
    """The engine that will be used."""
    from orch.stacks.engine import install as engines

    used = engines.require()
    say(f"{used.version} ({used.origin}) {used.command}")


@engine.command("env", epilog='Example: eval "$(orch engine env)" && pulumi preview --stack laptop')
def engine_env(
    folder: Annotated[str, typer.Argument(metavar="[FOLDER]", help="A project; default here.")] = ".",
    *,
    rehearse: Rehearse = False,
) -> None:
    """Print the environment in which `pulumi` by hand sees the same stacks, as shell commands.

    With --rehearse: the stacks and the simulated account of `--rehearse`.
    """
    from orch.stacks.engine import install as engines

    project = project_at(folder, rehearse=rehearse, tells=False)
    project.prepare()
    for key, value in project.environment(engines.require()).items():
        print(f"export {key}={shlex.quote(value)}")


def _machine() -> list[DoctorFinding]:
    version = ".".join(map(str, sys.version_info[:3]))
    findings = [DoctorFinding("python", "ok", f"{version} on {sys.platform}")]
    ssh = shutil.which("ssh")
    findings.append(
        DoctorFinding("ssh", "ok", ssh)
        if ssh
        else DoctorFinding("ssh", "info", "no ssh command", "only `ssh` by hand needs it")
    )
    cgroup = "v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1"
    if sys.platform == "linux":
        proven = "measured" if cgroup == "v1" else "local nodes are built for it but not yet measured on it"
        findings.append(DoctorFinding("cgroup", "ok" if cgroup == "v1" else "info", f"{cgroup}: {proven}"))
    return findings


def _engine() -> list[DoctorFinding]:
    from orch.stacks.engine import install as engines

    engine = engines.find()
    if engine is None:
        return [DoctorFinding("engine", "fail", "no Pulumi engine", "orch engine install")]
    findings = [DoctorFinding("engine", "ok", f"Pulumi {engine.version} ({engine.origin}) {engine.command}")]
    host = shutil.which("pulumi-language-python", path=engines.search_path(engine))
    if host is None:
        findings.append(
            DoctorFinding(
                "engine-host",
                "info",
                "no Python language host",
                "only `pulumi up` by hand needs it: install Pulumi whole",
            )
        )
    plugin = shutil.which("pulumi-resource-orch", path=engines.search_path(engine))
    findings.append(
        DoctorFinding("provider", "ok", plugin)
        if plugin
        else DoctorFinding(
            "provider",
            "fail",
            "pulumi-resource-orch is not beside this Python",
            "install orch again, the way it was installed",
        )
    )
    return findings


def _images() -> list[DoctorFinding]:
    from orch.images.doctor import checks

    return [DoctorFinding(check.id, check.result, check.detail, check.hint) for check in checks()]


def _project() -> list[DoctorFinding]:
    from orch.stacks.errors import ProjectError
    from orch.stacks.project.passphrase import is_unfinished
    from orch.stacks.project.project import find

    try:
        project = find()
    except ProjectError as error:
        summary = ": ".join(filter(None, (error.summary, error.where, error.detail)))
        return [DoctorFinding("project", "fail", summary, error.hint)]
    writable = os.access(project.dot if project.dot.exists() else project.root, os.W_OK)
    state = project.state_url
    if not writable:
        return [
            DoctorFinding(
                "project", "fail", f"{project.dot} cannot be written", "make it writable for this user"
            )
        ]
    findings = [DoctorFinding("project", "ok", f"{project.name} at {project.root}, state {state}")]
    if is_unfinished(project):
        summary = f"a rotation of the passphrase is not finished: {project.dot} has two"
        findings.append(DoctorFinding("passphrase", "info", summary, "`orch rotate passphrase` finishes it"))
    return findings
