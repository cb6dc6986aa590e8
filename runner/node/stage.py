"""The archive a job's container starts from: what becomes `/run/orch` in it.

One tar stream per rank: first the small files made for that rank, then the task's `files`, the same bytes
for all ranks and read from disk while they are sent.
"""

from __future__ import annotations

import io
import shlex
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orch.runner.errors import BadTask
from orch.runner.launch.environment import SSH_PORT
from orch.runner.launch.run_plan import RunPlan, StagedFile
from orch.runner.ledger.run_folder import RunKeys
from orch.runner.runs.packing import pack
from orch.templates import ShellText, render

# Two hours of waiting for the other ranks: as long as an image may take to any of them (`images.TRANSFER_S`).
BARRIER_TICKS = 2 * 3600 * 20
CHUNK = 1 << 18
TELL_EVERY_S = 1.0

_SHELL_OWN = frozenset({"UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO"})
"""Variables that `sh` does not let anybody set where it is bash."""


@dataclass(frozen=True)
class Stage:
    """One rank's archive, which can be iterated again for a second attempt."""

    head: bytes
    files: Path | None

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return len(self.head) + (self.files.stat().st_size if self.files is not None else 1024)

    def __iter__(self) -> Iterator[bytes]:
        yield self.head
        if self.files is not None:
            with self.files.open("rb") as stream:
                while chunk := stream.read(CHUNK):
                    yield chunk
        else:
            yield b"\0" * 1024


@dataclass(frozen=True)
class StageWithProgress:
    """An archive that reports the number of bytes sent once a second."""

    archive: Stage
    tell: Callable[[int], None]

    def __iter__(self) -> Iterator[bytes]:
        sent_bytes, last_report = 0, time.monotonic()
        for chunk in self.archive:
            yield chunk
            sent_bytes += len(chunk)
            if time.monotonic() - last_report >= TELL_EVERY_S:
                last_report = time.monotonic()
                self.tell(sent_bytes)
        self.tell(sent_bytes)


def check_files(sources: Iterable[str | Path]) -> None:
    """Raises BadTask that names every file missing on this machine."""
    missing = [str(source) for source in sources if not Path(source).exists()]
    if missing:
        raise BadTask(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not here",
            hint="`files` are looked for beside the file that names them",
        )


def pack_files(plan: RunPlan, target: Path) -> tuple[str, ...]:
    """Write the task's files as one archive at `target`; returns notes for the user. No files: no archive."""
    return pack(plan.files, target) if plan.files else ()


def stage(
    plan: RunPlan, rank: int, environment: Mapping[str, str], keys: RunKeys | None, files: Path | None
) -> Stage:
    """The archive of one rank."""
    buffer = io.BytesIO()
    # Not closed: the end mark would hide the files that follow.
    archive = tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT)  # noqa: SIM115
    for name, text in stage_files(plan, rank, environment, keys).items():
        member = tarfile.TarInfo(name)
        data = text.encode()
        member.size = len(data)
        # The parent folder on the node is root's alone; in the container any `user` must be able to read
        # these.
        member.mode = 0o755 if name.startswith("bin/") or name.endswith(".sh") else 0o644
        archive.addfile(member, io.BytesIO(data))
    return Stage(buffer.getvalue(), files)


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
                    "folder": Path(item.source).is_dir(),
                    "name": Path(item.source).name,
                }
                for item in plan.files
            ],
            barrier_ticks=BARRIER_TICKS,
            slurm=plan.slurm,
            image_command=plan.starts_image(rank),
            shell=plan.shell,
            entrypoint=plan.entrypoint,
            tasks=plan.tasks_per_node,
        ),
        "bin/torch-env": render("torch-env.sh.j2"),
    }
    if plan.slurm:
        texts["bin/scontrol"] = render("scontrol.sh.j2")
    if keys is not None:
        texts |= _login_files(plan, rank, keys)
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


def _login_files(plan: RunPlan, rank: int, keys: RunKeys) -> dict[str, str]:
    """Files for logins between ranks: pinned host keys, and the run's key, accepted from its nodes only."""
    addresses = [node.internal_ip or "127.0.0.1" for node in plan.nodes]
    texts = {
        "bin/rsh": render("rsh.sh.j2"),
        "mpi/hostkey": keys.hosts[rank].private,
        "mpi/authorized_keys": f'from="{",".join(addresses)}",no-agent-forwarding,no-X11-forwarding,'
        f"no-port-forwarding,no-pty {keys.client.public}\n",
        "mpi/known_hosts": "".join(
            f"[{address}]:{SSH_PORT} {host.public}\n"
            for address, host in zip(addresses, keys.hosts, strict=True)
        ),
    }
    if rank == 0:
        texts["mpi/id"] = keys.client.private
    return texts
