"""From `orch run --detach` to the first output line of both ranks, against starting the same containers over
ssh by hand.

Twice: for a `torchrun` job whose first line comes after `import torch`, as a training's does, and for a bare
command, which shows the fixed cost alone. The job prints the clock; containers and this process share it. By
hand there is no barrier, no claim, no ledger and no pinned run: the difference is what orch's guarantees and
its start-up cost.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.measure import BIN, ROOT, Figure, side_by_side, timed
from orch.images.build import resolve
from orch.spec.state import FleetState, NodeState
from orch.stacks.fleets import fleet_state
from orch.stacks.project import find

RUNS = 7
ORCH = str(BIN / "orch")


@dataclass(frozen=True)
class Job:
    """The same job as a task and as `docker run` options; `RANK` and `MASTER` are filled in by hand."""

    name: str
    image: str
    task: str
    by_hand: str


JOBS = (
    Job(
        "torchrun",
        "orch/job",
        "files: [clock.py]\ntorchrun: clock.py",
        "-v /srv/bench:/w -w /w IMAGE torchrun --nnodes=2 --nproc_per_node=1 --node_rank=RANK --rdzv_id=x "
        "--rdzv_backend=static --rdzv_endpoint=MASTER:29500 --monitor_interval=0.2 clock.py",
    ),
    Job("command", "orch/mpi", "commands: ['date +%s.%N']", "IMAGE date +%s.%N"),
)
CLOCK = "import time\n\nimport torch  # noqa: F401\n\nprint(time.time(), flush=True)\n"


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "examples" / "quickstart", folder, dirs_exist_ok=True)
        (folder / "orch.yml").write_text("project: bench-launch\n")
        (folder / "clock.py").write_text(CLOCK)
        timed([ORCH, "up", "fleet.yml", "--yes"], cwd=folder)
        try:
            for job in JOBS:
                yield _figure(folder, job)
        finally:
            timed([ORCH, "down", "fleet.yml", "--yes"], cwd=folder)


def _figure(folder: Path, job: Job) -> Figure:
    (folder / "clock.yml").write_text(f"type: task\nname: clock\nnodes: 2\nimage: {job.image}\n{job.task}\n")
    timed([ORCH, "run", "clock.yml"], cwd=folder)  # the image is on the nodes from here on
    fleet = fleet_state(find(folder), "laptop")
    for node in fleet.nodes:
        subprocess.run(
            ssh_words(folder, node, "mkdir -p /srv/bench && cat > /srv/bench/clock.py"),
            input=CLOCK,
            text=True,
            check=True,
        )
    ours, theirs = side_by_side(lambda: _ours(folder), lambda: _by_hand(folder, fleet, job), RUNS)
    against = "`ssh node docker run` on both nodes"
    return Figure(f"orch run --detach to first output, {job.name}", tuple(ours), tuple(theirs), against, 1.3)


def _ours(folder: Path) -> float:
    start = time.time()
    timed([ORCH, "run", "clock.yml", "--detach"], cwd=folder)
    timed([ORCH, "attach", "clock"], cwd=folder)
    said = subprocess.run(
        [ORCH, "logs", "clock"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    return max(float(line.split()[-1]) for line in said.splitlines()) - start


def _by_hand(folder: Path, fleet: FleetState, job: Job) -> float:
    words = job.by_hand.replace("IMAGE", resolve(job.image)).replace(
        "MASTER", str(fleet.nodes[0].internal_ip)
    )
    run = "docker run -d --init --network host --shm-size 64m --name by-hand "
    start = time.time()
    started = [
        subprocess.Popen(
            ssh_words(folder, node, run + words.replace("RANK", str(node.index))), stdout=subprocess.DEVNULL
        )
        for node in fleet.nodes
    ]
    if any(process.wait() for process in started):
        raise SystemExit("starting the containers by hand failed")
    read = "docker wait by-hand >/dev/null; docker logs by-hand; docker rm -f by-hand >/dev/null"
    said = [subprocess.check_output(ssh_words(folder, node, read), text=True) for node in fleet.nodes]
    return max(float(text.split()[-1]) for text in said) - start


def ssh_words(folder: Path, node: NodeState, command: str) -> list[str]:
    known = folder / "known_hosts"
    if not known.exists() or f"]:{node.ssh.port} " not in known.read_text():
        with known.open("a") as file:
            file.write(f"[{node.ssh.address}]:{node.ssh.port} {node.ssh.host_key}\n")
    options = ["-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes"]
    return [
        "ssh",
        *options,
        "-i",
        str(node.ssh.identity),
        "-p",
        str(node.ssh.port),
        f"{node.ssh.user}@{node.ssh.address}",
        command,
    ]
