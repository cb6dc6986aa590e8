"""User data: the cloud-config that makes an instance a node. Pure; keys are filled in when they are known."""

from __future__ import annotations

from collections.abc import Mapping

from orch.catalog.gcp.machines import Shape, software
from orch.components.cloud.machines.cloudinit import (
    RUNS_INIT,
    File,
    node_config,
    node_files,
    prepared,
    scratch,
)
from orch.components.idleness import SCRIPT as IDLE_SCRIPT
from orch.components.idleness import IdleRule
from orch.runner.preparation.init_steps import steps
from orch.spec.models import Fleet
from orch.spec.models.blocks import Scratch
from orch.templates import ShellText, render

# Source: Google Cloud "VM metadata", limits: 256 KiB a value.
MOST_BYTES = 262_144

# Container-Optimized OS has a read-only root: everything of ours lies in /var/lib/orch.
PREPARE = "/var/lib/orch/prepare"
# The host key that a machine makes, and keeps: /etc is made anew at each boot there. Google's agent may make
# others and show them (`hostkeys/`); this one is served, whatever an image's sshd is set to.
HOST_KEY = "/var/lib/orch/host_key/ed25519"
# Where it tells it. Jobs get no answer from the metadata service; only root of the machine writes there.
SHOWN = "orch/host-key"
# It stops the instance, which an operation tells: a machine without rights cannot delete itself.
OFF = ShellText("systemctl poweroff")
_MAKES_KEY = f"""\
umask 077
mkdir -p {HOST_KEY.rpartition("/")[0]}
[ -s {HOST_KEY}.pub ] && [ "$(cat {HOST_KEY}.machine)" = "$INSTANCE_ID" ] && exit 0
rm -f {HOST_KEY}*
ssh-keygen -q -t ed25519 -N '' -C '' -f {HOST_KEY} && echo "$INSTANCE_ID" > {HOST_KEY}.machine
"""

# Which interface feeds which GPUs. Source: cluster-toolkit examples/machine-learning/a3-highgpu-8g.
_QUEUES = (
    ("0000:06:00.0", "eth1", ("0000:04:00.0", "0000:05:00.0")),
    ("0000:0c:00.0", "eth2", ("0000:0a:00.0", "0000:0b:00.0")),
    ("0000:86:00.0", "eth3", ("0000:84:00.0", "0000:85:00.0")),
    ("0000:8c:00.0", "eth4", ("0000:8a:00.0", "0000:8b:00.0")),
)
QUEUES_FILE = "/var/lib/orch/gpu-queues.textproto"


def node_scratch(fleet: Fleet, shape: Shape, os: str) -> Scratch | None:
    """What becomes of the local SSDs. The root of Container-Optimized OS has no room for `/scratch`."""
    volume = scratch(fleet, shape.disks)
    written = isinstance(fleet.scratch, Scratch)
    return (
        Scratch(path="/mnt/disks/scratch") if volume is not None and os == "cos" and not written else volume
    )


def node_init(
    fleet: Fleet,
    shape: Shape,
    *,
    gpus: int,
    os: str,
    scripts: Mapping[str, str],
    idle: IdleRule | None = None,
    account: bool = False,
) -> str:
    """The cloud-config of all nodes, with a mark for the client's key.

    `shape`: of the interfaces the node has; `gpus`: NVIDIA GPUs that must be there; `os`: ubuntu or cos.
    `idle`: when they end themselves; `account`: the machine has a service account.
    """
    init = steps(fleet, scripts)
    parts = software(shape.fabric, shape.type)
    prepare = render(
        "gcp-prepare.sh.j2",
        fleet=fleet.name,
        host_key=HOST_KEY,
        shown=SHOWN,
        os=os,
        gpus=gpus,
        fabric=shape.fabric,
        rdmas=shape.rdmas,
        nics=shape.hosts + shape.datas,
        software={part: each.reference for part, each in parts.items()},
        queues=QUEUES_FILE,
        scratch=node_scratch(fleet, shape, os),
        idle=IDLE_SCRIPT if idle else None,
        steps=init,
        **RUNS_INIT,
        account=account,
    )
    files = [
        *node_files(
            f"/bin/bash {PREPARE}",
            after="network-online.target docker.service",
            sshd=f"HostKey {HOST_KEY}\n",
        ),
        *prepared(PREPARE, prepare, init, cloud="gcp", idle=idle.script(OFF) if idle else None),
    ]
    if shape.fabric == "tcpx":
        files.append(File(QUEUES_FILE, _queues()))
    return node_config(fleet, files, makes_key=_MAKES_KEY)


def _queues() -> str:
    """The receiver's table: four queues of its interface for each GPU, the same numbers on each interface."""
    lines: list[str] = []
    for nic, name, gpus in _QUEUES:
        lines.append("gpu_rxq_configs {")
        for index, gpu in enumerate(gpus):
            ids = " ".join(f"queue_ids: {8 + 4 * index + queue}" for queue in range(4))
            lines.append(f'  gpu_infos {{ gpu_pci_addr: "{gpu}" {ids} }}')
        lines += [f'  nic_pci_addr: "{nic}"', f'  ifname: "{name}"', "}"]
    return "\n".join([*lines, "rss_set_size: 8", "tcpd_queue_size: 8", "max_rx_rules: 100000", ""])
