"""The archive a job's container starts from: what becomes `/run/orch` in it.

One small tar per rank, of the files that are made for it. What the task takes along (`files`, `repos`)
comes before it and once per content: `upload/send.py`.

The ranks of a distributed run get names for its nodes, and keys that live as long as it does. Each rank has
an SSH server on `SSH_PORT` where its image has one, and an `ssh` on PATH that knows the others by address
and by name: so an `mpirun` in the commands works.
"""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orch.runner.launch.dev_environment import entry_files
from orch.runner.ledger.run_folder import RunKeys
from orch.runner.plan.environment import SSH_PORT, host_names
from orch.runner.plan.run_plan import RunPlan, StagedFile
from orch.templates import ShellText, render

# Two hours of waiting for the other ranks: as long as an image may take to any of them (`images.TRANSFER_S`).
BARRIER_TICKS = 2 * 3600 * 20

_SHELL_OWN = frozenset({"UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO"})
"""Variables that `sh` does not let anybody set where it is bash."""


def stage(
    plan: RunPlan,
    rank: int,
    environment: Mapping[str, str],
    keys: RunKeys | None,
    hosts: RunHosts | None = None,
) -> bytes:
    """Return the archive of one rank. `hosts`: those of the run, for whoever stages several of its ranks."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, text in stage_files(plan, rank, environment, keys, hosts).items():
            member = tarfile.TarInfo(name)
            data = text.encode()
            member.size = len(data)
            # The parent folder on the node is root's alone; in the container any `user` must be able to read
            # these.
            member.mode = 0o755 if name.startswith("bin/") or name.endswith(".sh") else 0o644
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def stage_files(
    plan: RunPlan,
    rank: int,
    environment: Mapping[str, str],
    keys: RunKeys | None,
    hosts: RunHosts | None = None,
) -> dict[str, str]:
    """Return the files of a rank's archive: name -> text."""
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
    hosts = hosts or RunHosts.of(plan, keys)
    texts |= hosts.files
    if keys is not None and plan.ssh_between:
        texts["ssh/serve.sh"] = render("ssh-serve.sh.j2", address=hosts.addresses[rank], port=SSH_PORT)
        texts["ssh/hostkey"] = keys.hosts[rank].private
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


# Programs that take a configuration of ssh by `-F`.
_CLIENTS = ("ssh", "scp", "sftp")
# `Include` is of OpenSSH 7.3.
_CONFIG = """\
IgnoreUnknown Include
Host {names}
  Port {port}
  IdentityFile /run/orch/state/ssh/id
  IdentitiesOnly yes
  UserKnownHostsFile /run/orch/ssh/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 5
  ConnectionAttempts 10
  ServerAliveInterval 5
  ServerAliveCountMax 3
  LogLevel ERROR
  Include /run/orch/state/ssh/fault
Match all
  Include ~/.ssh/config
  Include /etc/ssh/ssh_config
"""


@dataclass(frozen=True)
class RunHosts:
    """The files that say where the other ranks are and how to log in to them, the same for every rank.

    `addresses` are internal ones, in rank order. `files`: name -> text.
    """

    addresses: tuple[str, ...]
    files: Mapping[str, str]

    @classmethod
    def of(cls, plan: RunPlan, keys: RunKeys | None) -> RunHosts:
        """Return those of a run. Host keys are pinned; the run's key is accepted from its nodes only."""
        addresses = tuple(node.internal_ip or "127.0.0.1" for node in plan.nodes)
        own = host_names(plan.run, [node.name for node in plan.nodes])
        names = [tuple(dict.fromkeys((name, f"{plan.run}-{rank}"))) for rank, name in enumerate(own)]
        hosts = list(zip(addresses, names, strict=True))
        files: dict[str, str] = {}
        if plan.names_hosts:
            # Lines for /etc/hosts: internal address, the node's name there, `RUN-RANK`.
            files["hosts"] = "".join(f"{address} {' '.join(known)}\n" for address, known in hosts)
        if keys is not None and plan.ssh_between:
            every = " ".join(" ".join((address, *known)) for address, known in hosts)
            files |= {f"bin/{name}": render("ssh-client.sh.j2") for name in _CLIENTS}
            files["ssh/config"] = _CONFIG.format(names=every, port=SSH_PORT)
            files["ssh/id"] = keys.client.private
            files["ssh/authorized_keys"] = (
                f'from="{",".join(addresses)}",no-agent-forwarding,no-X11-forwarding,'
                f"no-port-forwarding,no-pty {keys.client.public}\n"
            )
            files["ssh/known_hosts"] = "".join(
                ",".join(f"[{name}]:{SSH_PORT}" for name in (address, *known)) + f" {host.public}\n"
                for (address, known), host in zip(hosts, keys.hosts, strict=True)
            )
        return cls(addresses, files)
