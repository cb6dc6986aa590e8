"""User data: the cloud-config that makes an instance a node. Pure; keys are filled in when they are known."""

from __future__ import annotations

import gzip
import hashlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass

from orch.catalog.nics import Nics
from orch.spec.models import Fleet
from orch.spec.models.blocks import InitStep, Scratch
from orch.templates import render

# Source: EC2 user guide, "Run commands when you launch an EC2 instance with user data input".
MOST_BYTES = 16_384
EFA_INSTALLER = "1.43.2"
# Linux gives EFA's libfabric huge pages of 2 MiB; the EFA installer reserves as many.
HUGE_PAGES = 5128
JUMP_USER = "jump"

_UNIT = """\
[Unit]
Description=makes this machine a node of an orch fleet
After=network-online.target
Wants=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
LimitMEMLOCK=infinity
ExecStart=/usr/local/sbin/orch-prepare
[Install]
WantedBy=multi-user.target
"""
_SSHD = (
    "PermitRootLogin prohibit-password\nPasswordAuthentication no\nMaxSessions 100\nMaxStartups 50:30:200\n"
)
_LIMITS = "".join(f"{who} {kind} memlock unlimited\n" for who in ("*", "root") for kind in ("soft", "hard"))


@dataclass(frozen=True)
class File:
    """A file of the node. A script of the user's travels encoded: it may hold what YAML does not."""

    path: str
    content: str
    mode: str = "0644"
    foreign: bool = False

    @property
    def encoded(self) -> str:
        return b64encode(self.content.encode()).decode() if self.foreign else ""


@dataclass(frozen=True)
class Step:
    """A script of `init`. `mark` names the file that says it has run; it differs when the script does."""

    name: str
    file: str
    content: str
    when: str
    timeout_s: int
    user: str
    env: Mapping[str, str]

    @property
    def mark(self) -> str:
        if self.when == "create":
            return f"{self.file}.done"
        text = repr((self.content, sorted(self.env.items()), self.user))
        return f"{self.file}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def node_init(fleet: Fleet, each: Nics, *, gpus: int, efa: int, scripts: Mapping[str, str]) -> str:
    """The cloud-config of a node, with marks for its name and keys.

    `gpus`: NVIDIA GPUs that must be there; `efa`: EFA devices. `scripts`: the text of `init[].file` by path.
    """
    steps = tuple(_step(index, step, scripts) for index, step in enumerate(fleet.init))
    prepare = render(
        "cloud-init-prepare.sh.j2",
        gpus=gpus,
        efa=efa,
        efa_installer=EFA_INSTALLER,
        scratch=scratch(fleet, each),
        steps=steps,
    )
    files = [
        File("/etc/ssh/sshd_config.d/10-orch.conf", _SSHD),
        File("/etc/security/limits.d/90-orch.conf", _LIMITS),
        File("/etc/systemd/system/orch-prepare.service", _UNIT),
        File("/usr/local/sbin/orch-prepare", prepare, "0755"),
        *(File(f"/etc/orch/init/{step.file}", step.content, "0700", foreign=True) for step in steps),
    ]
    if efa:
        files.append(File("/etc/sysctl.d/90-orch.conf", f"vm.nr_hugepages = {HUGE_PAGES}\n"))
    return render("cloud-init-node.yml.j2", fleet=fleet.name, hostname="@@NAME@@", files=files)


def bastion_init(fleet: Fleet) -> str:
    """The cloud-config of a bastion."""
    return render("cloud-init-bastion.yml.j2", fleet=fleet.name, hostname="@@NAME@@", user=JUMP_USER)


def scratch(fleet: Fleet, each: Nics) -> Scratch | None:
    """What becomes of the local disks; None: they are left alone."""
    if isinstance(fleet.scratch, Scratch):
        return fleet.scratch
    if fleet.scratch is True or (fleet.scratch == "auto" and each.disks):
        return Scratch()
    return None


def filled(text: str, *, name: str, host_key: str, host_key_public: str, authorized_key: str) -> str:
    """The same with a machine's name and keys."""
    key = host_key.strip().replace("\n", "\n    ")
    marks = {
        "NAME": name,
        "HOST_KEY": key,
        "HOST_KEY_PUBLIC": host_key_public,
        "AUTHORIZED_KEY": authorized_key,
    }
    for mark, value in marks.items():
        text = text.replace(f"@@{mark}@@", value.strip())
    return text


def packed(text: str) -> bytes:
    """As it travels: compressed, which cloud-init undoes. The same text gives the same bytes."""
    return gzip.compress(text.encode(), mtime=0)


def packed64(text: str) -> str:
    return b64encode(packed(text)).decode()


def _step(index: int, step: InitStep, scripts: Mapping[str, str]) -> Step:
    content = scripts.get(step.file, "") if step.file else step.run or ""
    name = step.name or f"step {index}"
    return Step(
        name=name,
        file=f"{index:02d}",
        content=content if content.endswith("\n") else content + "\n",
        when=step.when,
        timeout_s=step.timeout_s,
        user=step.user,
        env={key: value for key, value in step.env.items() if value is not None},
    )
