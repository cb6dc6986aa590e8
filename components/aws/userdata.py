"""User data: the cloud-config that makes an instance a node. Pure; keys are filled in when they are known."""

from __future__ import annotations

from collections.abc import Mapping

from orch.catalog.aws.machines import Nics
from orch.components.cloud.cloudinit import (
    ON_EXIT,
    RUNS_INIT,
    File,
    ended_by_time,
    node_config,
    prepared,
    scratch,
)
from orch.components.idleness import SCRIPT as IDLE_SCRIPT
from orch.components.idleness import IdleRule
from orch.components.lifetime import Lifetime
from orch.runner.preparation.init_steps import steps
from orch.spec.models import Fleet
from orch.templates import ShellText, render

# Source: EC2 user guide, "Run commands when you launch an EC2 instance with user data input".
MOST_BYTES = 16_384
EFA_INSTALLER = "1.43.2"
# Linux gives EFA's libfabric huge pages of 2 MiB; the EFA installer reserves as many.
HUGE_PAGES = 5128
# The launch template makes an instance that is shut down from within a terminated one.
OFF = ShellText("systemctl poweroff")

_UNIT = f"""\
[Unit]
Description=makes this machine a node of an orch fleet
After=network-online.target
Wants=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
LimitMEMLOCK=infinity
ExecStart=/usr/local/sbin/orch-prepare
ExecStopPost={ON_EXIT}
[Install]
WantedBy=multi-user.target
"""
_SSHD = (
    "PermitRootLogin prohibit-password\nPasswordAuthentication no\nMaxSessions 100\nMaxStartups 50:30:200\n"
)
_LIMITS = "".join(f"{who} {kind} memlock unlimited\n" for who in ("*", "root") for kind in ("soft", "hard"))


def node_init(
    fleet: Fleet,
    each: Nics,
    *,
    gpus: int,
    efa: int,
    scripts: Mapping[str, str],
    idle: IdleRule | None = None,
    lifetime: Lifetime | None = None,
    ssm: bool = False,
) -> str:
    """The cloud-config of all nodes, with a mark for the client's key.

    `gpus`: NVIDIA GPUs that must be there; `efa`: EFA devices. `scripts`: the text of `init[].file` by path.
    `idle` and `lifetime`: when they end themselves; `ssm`: SSM leads in.
    """
    init = steps(fleet, scripts)
    prepare = render(
        "cloud-init-prepare.sh.j2",
        gpus=gpus,
        efa=efa,
        efa_installer=EFA_INSTALLER,
        scratch=scratch(fleet, each.disks),
        idle=IDLE_SCRIPT if idle else None,
        steps=init,
        **RUNS_INIT,
    )
    files = [
        File("/etc/ssh/sshd_config.d/10-orch.conf", _SSHD),
        File("/etc/security/limits.d/90-orch.conf", _LIMITS),
        File("/etc/systemd/system/orch-prepare.service", _UNIT),
        *prepared(
            "/usr/local/sbin/orch-prepare",
            prepare,
            init,
            cloud="aws",
            ssm=ssm,
            idle=idle.script(OFF) if idle else None,
        ),
        *ended_by_time(lifetime.script(OFF) if lifetime else None),
    ]
    if efa:
        files.append(File("/etc/sysctl.d/90-orch.conf", f"vm.nr_hugepages = {HUGE_PAGES}\n"))
    return node_config(fleet, files)
