"""Cloud-config of a machine: files, the user's `init` scripts, marks for what is known later. Pure."""

from __future__ import annotations

import gzip
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Literal

from orch.components.cloud.machines.host_keys import private_host_key, public_host_key
from orch.components.file_systems import FileSystem
from orch.components.idleness import PROPERTY as IDLE
from orch.components.idleness import SCRIPT as IDLE_SCRIPT
from orch.components.idleness import IdleRule
from orch.components.init_steps import pinned, short
from orch.components.lifetime import PROPERTY as TTL
from orch.components.lifetime import SCRIPT as TTL_SCRIPT
from orch.components.request import PriorState
from orch.runner.node_api.cordon import CLOUD
from orch.runner.preparation.init_steps import INIT, Step, mark_of, mount_steps, steps
from orch.runner.preparation.mounts import CREATED
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding
from orch.spec.models import Fleet
from orch.spec.models.blocks import Scratch
from orch.templates import render

JUMP_USER = "jump"
RUNS_INIT = {"init": INIT, "own": "/run/orch-init"}
METADATA = "metadata"
CLOSES_METADATA = "/var/lib/orch/metadata.sh"
READS_NOTICES = "/var/lib/orch/notices.sh"

# systemd runs it when the preparation is over, also when it was killed: it never ends without a word.
ON_EXIT = (
    "/bin/sh -c 'cd /var/lib/orch/boot && { [ -e ok ] || [ -s failed ] || "
    'echo "the preparation was ended: $SERVICE_RESULT" > failed; }\''
)

_PREPARES = """\
[Unit]
Description=makes this machine a node of an orch fleet
After={after}
Wants=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
LimitMEMLOCK=infinity
ExecStart={start}
ExecStopPost={on_exit}
[Install]
WantedBy=multi-user.target
"""
_SSHD = (
    "PermitRootLogin prohibit-password\nPasswordAuthentication no\nMaxSessions 100\nMaxStartups 50:30:200\n"
)
_LIMITS = "".join(f"{who} {kind} memlock unlimited\n" for who in ("*", "root") for kind in ("soft", "hard"))

# A mark ends its line, behind what a template of ours says; text of files is further in, or in quotes.
_MARK = re.compile(r"^(hostname: |  ed25519_public: |    |    - |    content: )@@([A-Z_]+)@@$", re.MULTILINE)

_BASTION_SSHD = """\
# Passes SSH on, runs nothing, listens for nobody. A thousand nodes may be opened at once.
PasswordAuthentication no
PermitTTY no
X11Forwarding no
AllowAgentForwarding no
AllowStreamLocalForwarding no
AllowTcpForwarding local
PermitListen none
PermitOpen *:22
PermitTunnel no
GatewayPorts no
MaxStartups 100:30:200
MaxSessions 1000
"""
_FORWARDS = """\
[Unit]
Description=lets who is logged in reach the nodes of an orch fleet only
Before=ssh.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/orch-forwards
[Install]
WantedBy=multi-user.target
"""
TTL_UNIT = "/etc/systemd/system/orch-ttl.service"
_TTL = f"""\
[Unit]
Description=ends this machine when the time of its orch fleet is over
[Service]
Restart=always
RestartSec=60
ExecStart=/bin/bash {TTL_SCRIPT}
[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class File:
    """A file of the machine. User data is compressed as a whole, so files travel in it as they are."""

    path: str
    content: str
    mode: str = "0644"


def node_files(start: str, *, after: str = "network-online.target", sshd: str = "") -> Iterator[File]:
    """What every node has: settings of its sshd, with `sshd` before ours, no limit of locked memory, and the
    unit that runs `start`, the preparation.
    """
    yield File("/etc/ssh/sshd_config.d/10-orch.conf", sshd + _SSHD)
    yield File("/etc/security/limits.d/90-orch.conf", _LIMITS)
    unit = _PREPARES.format(after=after, start=start, on_exit=ON_EXIT)
    yield File("/etc/systemd/system/orch-prepare.service", unit)


def prepared(
    path: str,
    script: str,
    init: Sequence[Step],
    *,
    cloud: Literal["aws", "gcp"] | None,
    ssm: bool = False,
    idle: str | None = None,
) -> Iterator[File]:
    """What prepares a machine: the `script` at this path, and all that it runs.

    `cloud`: whose notices it reads, None: it is told nothing. `ssm`: the machine is reached through an agent
    of its own, which needs the instance metadata. `idle`: what ends it when no job is on it.
    """
    yield File(path, script, "0700")
    if idle is not None:
        yield File(IDLE_SCRIPT, idle, "0700")
    yield File(CLOSES_METADATA, render("cloud-init-metadata.sh.j2", ssm=ssm), "0700")
    if cloud is not None:
        yield File(READS_NOTICES, render("cloud-init-notices.sh.j2", cloud=cloud, by=CLOUD), "0700")
    for step in init:
        yield File(f"{INIT}/{step.file}.sh", step.content, "0700")
        yield File(f"{INIT}/{step.file}.env", step.exports, "0600")


def ended_by_time(script: str | None) -> Iterator[File]:
    """What ends a machine when its fleet's time is over; nothing without a script."""
    if script is not None:
        yield File(TTL_SCRIPT, script, "0700")
        yield File(TTL_UNIT, _TTL)


def node_config(
    fleet: Fleet,
    files: Sequence[File],
    *,
    makes_key: str | None = None,
    host_key: Literal["made", "given"] = "made",
) -> str:
    """The cloud-config of all nodes of a fleet, with a mark for the client's key.

    It holds no host key and no name: each node makes its own key. cloud-init does, and shows it on the
    machine's console; else the shell command `makes_key`, which runs at each boot. Where a cloud lets nobody
    read what a machine shows, the key is `given`: marks for it and for the name are in each node's own text.
    """
    # Its folder is what tells a runner that the preparation is under way, before that has begun.
    marker = File(
        "/var/lib/orch/boot/README", "What orch-prepare found: `ok`, or `failed` with the reason.\n"
    )
    return render(
        "cloud-init-node.yml.j2",
        fleet=fleet.name,
        authorized_keys=fleet.authorized_keys,
        files=(marker, *files),
        created=CREATED if any(mount.create for mount in fleet.mounts) else None,
        console=makes_key is None and host_key == "made",
        given=host_key == "given",
        makes_key=makes_key,
        ends=any(file.path == TTL_UNIT for file in files),
    )


def first_boot_pins(
    fleet: Fleet, scripts: Mapping[str, str], idle: IdleRule | None = None, ttl: str = ""
) -> dict[str, str]:
    """Marks of what a node is given at its first boot alone: one for each property, where it is written, two
    for when it ends itself, and one for what keeps jobs from the instance metadata."""
    texts = {
        TTL: ttl,
        IDLE: str(idle or ""),
        "mounts": mark_of(mount_steps(fleet)) if fleet.mounts else "",
        "authorized_keys": repr(sorted(fleet.authorized_keys)) if fleet.authorized_keys else "",
        METADATA: "closed to jobs",
    }
    return pinned(steps(fleet, scripts)[len(mount_steps(fleet)) :]) | {
        f"boot.{name}": short(text) for name, text in texts.items() if text
    }


def first_boot_findings(previous: PriorState, pins: Mapping[str, str], live: int) -> Iterator[Finding]:
    """Warnings of changes that the `live` running nodes do not get."""
    if not live:
        return
    for name in ("init", "mounts", "authorized_keys", IDLE, TTL):
        key = f"boot.{name}"
        if previous.pins.get(key) != pins.get(key):
            yield Finding(
                "ORCH232",
                name,
                f"`{name}` is given to new nodes only: the {live} that run keep what they were made with",
                hint="`orch up`, then `orch node replace NODE...` makes nodes anew, in waves",
                severity=Severity.WARNING,
            )
    if f"boot.{METADATA}" not in previous.pins:
        yield Finding(
            "ORCH232",
            "nodes",
            f"jobs on the {live} nodes that run can read their instance metadata: the SSH host key, the "
            "variables of `init`, and credentials where the nodes have any",
            detail="an earlier version made them; new nodes keep their jobs from it",
            hint="`orch fleet delete NAME -i N` and `orch up` make a node anew; runs tell which are old",
            severity=Severity.WARNING,
        )


def bastion_config(fleet: str, nodes: Sequence[str], ttl: str | None = None) -> str:
    """The cloud-config of a machine that passes SSH on.

    `nodes`: their networks, where they are known; `ttl`: what ends it when the fleet's time is over.
    """
    forwards = render("cloud-init-forwards.sh.j2", user=JUMP_USER, nodes=nodes)
    files = (
        File("/etc/ssh/sshd_config.d/10-orch.conf", _BASTION_SSHD),
        File("/etc/systemd/system/orch-forwards.service", _FORWARDS),
        File("/usr/local/sbin/orch-forwards", forwards, "0755"),
        *ended_by_time(ttl),
    )
    return render("cloud-init-bastion.yml.j2", fleet=fleet, user=JUMP_USER, files=files, ends=ttl is not None)


def scratch(fleet: Fleet, disks: int) -> Scratch | None:
    """What becomes of the local disks; None: they are left alone.

    When folders of jobs are removed is not of the disks: a node stays as it is when that changes.
    """
    if isinstance(fleet.scratch, Scratch):
        return fleet.scratch.model_copy(update={"clean": "job"})
    if fleet.scratch is True or (fleet.scratch == "auto" and disks):
        return Scratch()
    return None


def filled(
    text: str,
    *,
    authorized_key: str,
    name: str = "",
    host_key: str = "",
    host_key_public: str = "",
    file_systems: Sequence[tuple[FileSystem, str]] = (),
) -> str:
    """The same with a machine's name and keys. One that makes its own host key is given none.

    `file_systems`: those that were created with the fleet, each with what it is mounted from.
    """
    lines = "".join(f"{each.name} {source} {each.path}\n" for each, source in file_systems)
    values = {
        "NAME": name,
        "HOST_KEY": host_key.strip().replace("\n", "\n    "),
        "HOST_KEY_PUBLIC": host_key_public.strip(),
        "AUTHORIZED_KEY": authorized_key.strip(),
        "FILE_SYSTEMS": b64encode(lines.encode()).decode(),
    }
    return _MARK.sub(lambda mark: mark[1] + values[mark[2]], text)


def filled_for(machine: str, text: str, seed: str, authorized_key: str) -> str:
    """The same with the name of a machine, and the host key that follows from a fleet's seed."""
    return filled(
        text,
        name=machine,
        host_key=private_host_key(seed, machine),
        host_key_public=public_host_key(seed, machine),
        authorized_key=authorized_key,
    )


def packed(text: str) -> bytes:
    """As it travels: compressed, which cloud-init undoes. The same text gives the same bytes."""
    return gzip.compress(text.encode(), mtime=0)


def packed64(text: str) -> str:
    return b64encode(packed(text)).decode()


def wrapped(text: str) -> str:
    """The same as ASCII text, a MIME message of one compressed part, which cloud-init unpacks likewise.

    The provider shows an instance's user data as text, and breaks at bytes that are none
    (hashicorp/terraform-provider-aws#48793).
    """
    body = "\n".join(wrap(packed64(text), 76))
    return (
        'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="orch"\n\n'
        "--orch\nContent-Type: application/gzip\nContent-Transfer-Encoding: base64\n\n"
        f"{body}\n--orch--\n"
    )


def wrapped64(text: str) -> str:
    return b64encode(wrapped(text).encode()).decode()
