"""The archive a job's container starts from: what becomes `/run/orch` in it.

One small tar per rank, of the files that are made for it. What the task takes along (`files`, `repos`) comes
before it and once per content: `upload/send.py`.
"""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import Mapping
from pathlib import Path

from orch.runner.launch.dev_environment import entry_files
from orch.runner.launch.logins import hosts_text, login_files
from orch.runner.launch.run_plan import RunPlan, StagedFile
from orch.runner.ledger.run_folder import RunKeys
from orch.templates import ShellText, render

# Two hours of waiting for the other ranks: as long as an image may take to any of them (`images.TRANSFER_S`).
BARRIER_TICKS = 2 * 3600 * 20

_SHELL_OWN = frozenset({"UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO"})
"""Variables that `sh` does not let anybody set where it is bash."""


def stage(plan: RunPlan, rank: int, environment: Mapping[str, str], keys: RunKeys | None) -> bytes:
    """The archive of one rank."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, text in stage_files(plan, rank, environment, keys).items():
            member = tarfile.TarInfo(name)
            data = text.encode()
            member.size = len(data)
            # The parent folder on the node is root's alone; in the container any `user` must be able to read
            # these.
            member.mode = 0o755 if name.startswith("bin/") or name.endswith(".sh") else 0o644
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def stage_files(
    plan: RunPlan, rank: int, environment: Mapping[str, str], keys: RunKeys | None
) -> dict[str, str]:
    """File name -> text of the files that are generated for one rank."""
    rank_plan = plan.ranks[rank]
    texts = {
        "env": "".join(_export(key, value) for key, value in environment.items()),
        "hostfile": plan.hostfile,
        "job.sh": rank_plan.script,
        "entry.sh": render(
            "entry.sh.j2",
            files=[
                {
                    "target": target_text(item),
                    "folder": item.folder,
                    "name": Path(item.source).name,
                    "if_exists": item.if_exists,
                }
                for item in plan.files
            ],
            repo=any(item.if_exists for item in plan.files),
            own_folder=rank_plan.working_dir is None
            and any(item.if_exists and not item.target.startswith(("/", "~")) for item in plan.files),
            barrier_ticks=BARRIER_TICKS,
            slurm=plan.slurm,
            image_command=plan.starts_image(rank),
            shell=plan.shell,
            entrypoint=plan.entrypoint,
            tasks=plan.tasks_per_node,
            logins=plan.ssh_between,
        ),
        "session.sh": render("job-session.sh.j2"),
        "bin/torch-env": render("torch-env.sh.j2"),
    }
    if plan.slurm:
        texts["bin/scontrol"] = render("scontrol.sh.j2")
    if plan.names_hosts:
        texts["hosts"] = hosts_text(plan)
    if keys is not None and plan.ssh_between:
        texts |= login_files(plan, rank, keys)
    if keys is not None and plan.dev is not None:
        texts |= entry_files(plan, rank, keys)
    return texts


def _export(name: str, value: str) -> str:
    line = f"export {name}={shlex.quote(value)}"
    # Some of a shell's own can be given no value; it would end here. Which, its own copy finds out.
    return f"if ({line}) 2>/dev/null; then {line}; fi\n" if name in _SHELL_OWN else f"{line}\n"


def target_text(item: StagedFile) -> ShellText:
    """Where a file goes, as shell text for the container: `~` is the home of the container's user."""
    if item.target == "~":
        return ShellText('"$HOME"')
    if item.target.startswith("~/"):
        return ShellText('"$HOME"/' + shlex.quote(item.target[2:]))
    return ShellText(shlex.quote(item.target))
