"""A fleet of containers whose GPU and kernel pretend, and a training that is told by what it ends with."""

from __future__ import annotations

from kit import TESTS
from kit.support import Folder, containers, docker

SMI = TESTS / "runner/health/recorded/h100.xml"
VOLUME = "type: volume\nname: kept\nbackend: local\nsize: 1GB\nprotect: false\n"
# Each step is one of a descent whose result depends on all of them; what it has reached is kept. One that is
# to be interrupted waits for that half way: else it might end before.
TRAIN = """\
import os, pathlib, time

rank = os.environ["ORCH_NODE_RANK"]
kept = pathlib.Path(os.environ["ORCH_CHECKPOINT_DIR"], os.environ["KEPT_AS"] + rank)
step, weight = 0, 1.0
if os.environ.get("ORCH_RESUME") and kept.exists():
    step, weight = int(kept.read_text().split()[0]), float.fromhex(kept.read_text().split()[1])
print("begins at", step, flush=True)
while step < 30:
    weight -= 0.1 * (weight - 1 / (step + 1 + int(rank)))
    step += 1
    new = kept.with_suffix(".new")
    new.write_text(f"{step} {weight.hex()}")
    new.rename(kept)
    time.sleep(0.3)
    while step == 15 and os.environ["INTERRUPTED"] == "yes" and not os.environ.get("ORCH_RESUME"):
        time.sleep(0.1)
print("weight", weight.hex(), flush=True)
"""
RUN = """\
type: task
name: {name}
image: orch/mpi
nodes: 2
resources: {{cpu: 0.., memory: 64MB..}}
files: [train.py]
env: {{KEPT_AS: {name}, INTERRUPTED: "{interrupted}"}}
volumes: ["kept:/kept"]
checkpoint: /kept
commands: [python3 train.py]
stop_duration: 5s
retry: {{on_events: [interruption], duration: 1h}}
"""


def container(folder: Folder, index: int) -> str:
    return next(name for name in containers(folder, "ward") if name.endswith(f"-{index}"))


def equip(folder: Folder, index: int) -> None:
    """Give a node a tool that lists one GPU, and a kernel whose log is a file."""
    name = container(folder, index)
    docker("cp", "-q", str(SMI), f"{name}:/opt/smi.xml")
    script = """\
printf '#!/bin/sh\n[ "$*" = "-q -x" ] || exit 3\ncat /opt/smi.xml\n' > /usr/local/bin/nvidia-smi
printf '#!/bin/sh\ncat /opt/kernel 2>/dev/null; exit 0\n' > /usr/local/bin/dmesg
chmod +x /usr/local/bin/nvidia-smi /usr/local/bin/dmesg"""
    docker("exec", name, "sh", "-c", script)


def kernel_tells(folder: Folder, index: int, xid: int | None) -> None:
    line = f"[    9.1] NVRM: Xid (PCI:0000:00:06): {xid}, pid=7, name=python3" if xid is not None else ""
    docker("exec", container(folder, index), "sh", "-c", f"echo '{line}' > /opt/kernel")


def weights(folder: Folder, name: str) -> set[str]:
    """What the ranks of a training ended with."""
    lines = folder.orch("logs", name).out.splitlines()
    return {line.partition("weight ")[2] for line in lines if "weight " in line}
