"""From `orch run --detach` to the first output line of all ranks, on 2 nodes and on 8: against starting the
same containers over ssh by hand, and against `srun` and `sbatch` of a Slurm with as many nodes. And from
`orch run` to the moment at which the first line of each rank is on the screen, against `ssh node docker run`.

A bare command shows the fixed cost alone; on 2 nodes there is also a `torchrun` job, whose first line comes
after `import torch`, as a training's does. The job prints the clock, which all share: nodes are containers of
this machine. Nothing else is started before it has: a second command, which follows the run, would take from
both cores what the node needs. By hand there is no barrier, no claim, no ledger and no pinned run: the
difference is what orch's guarantees and its start-up cost. Slurm's nodes are daemons of this machine, and its
jobs are processes without a container. All are measured in turn.

`ORCHCTL_BENCH_RUNS` sets how often, 5 times without it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import BIN, ROOT, Figure, in_turn, timed
from bench.slurm import Slurm
from orch.images.build import resolve
from orch.runner.ledger.ledger import open_ledger
from orch.spec.state import FleetState, NodeState
from orch.stacks.project.project import find
from orch.stacks.record.fleets import fleet_state

NODES = (2, 8)
RUNS = int(os.environ.get("ORCHCTL_BENCH_RUNS", "5"))
ORCH = str(BIN / "orch")


@dataclass(frozen=True)
class Job:
    """The same job as a task, as `docker run` options, and as a command of Slurm's without a container.

    By hand `RANK` and `MASTER` are filled in.
    """

    name: str
    image: str
    task: str
    by_hand: str
    in_slurm: tuple[str, ...] | None = None
    most_nodes: int = 2


JOBS = (
    Job(
        "torchrun",
        "orch/job",
        "files: [clock.py]\ntorchrun: clock.py",
        "-v /srv/bench:/w -w /w IMAGE torchrun --nnodes=2 --nproc_per_node=1 --node_rank=RANK --rdzv_id=x "
        "--rdzv_backend=static --rdzv_endpoint=MASTER:29500 --monitor_interval=0.2 clock.py",
    ),
    Job(
        "command",
        "orch/mpi",
        "commands: ['date +%s.%N']",
        "IMAGE date +%s.%N",
        ("date", "+%s.%N"),
        most_nodes=8,
    ),
)
CLOCK = "import time\n\nimport torch  # noqa: F401\n\nprint(time.time(), flush=True)\n"


def figures() -> Iterator[Figure]:
    for nodes in NODES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shutil.copytree(ROOT / "examples" / "quickstart", folder, dirs_exist_ok=True)
            fleet = folder / "fleet.yml"
            fleet.write_text(fleet.read_text().replace("nodes: 2", f"nodes: {nodes}"))
            (folder / "orch.yml").write_text("project: bench-launch\n")
            (folder / "clock.py").write_text(CLOCK)
            timed([ORCH, "up", "fleet.yml", "--yes"], cwd=folder)
            try:
                for job in JOBS:
                    if nodes <= job.most_nodes:
                        yield from _figures(folder, job)
            finally:
                timed([ORCH, "down", "fleet.yml", "--yes"], cwd=folder)


def _figures(folder: Path, job: Job) -> Iterator[Figure]:
    fleet = fleet_state(find(folder), "laptop")
    count = len(fleet.nodes)
    task = f"type: task\nname: clock\nnodes: {count}\nimage: {job.image}\n{job.task}\n"
    (folder / "clock.yml").write_text(task)
    timed([ORCH, "run", "clock.yml"], cwd=folder)  # the image is on the nodes from here on
    for node in fleet.nodes:
        subprocess.run(
            ssh_words(folder, node, "mkdir -p /srv/bench && cat > /srv/bench/clock.py"),
            input=CLOCK,
            text=True,
            check=True,
        )
    shown = in_turn((lambda: _ours_shown(folder, count), lambda: _by_hand_shown(folder, fleet, job)), RUNS)
    yield Figure(
        f"orch run to first line shown, {job.name} on {count} nodes", *shown, "`ssh node docker run`", 1.3
    )
    name = f"orch run --detach to first output, {job.name} on {count} nodes"
    by_hand, aim = "`ssh node docker run` on all nodes", 1.3
    if job.in_slurm is None:
        ours, theirs = in_turn((lambda: _ours(folder), lambda: _by_hand(folder, fleet, job)), RUNS)
        yield Figure(name, ours, theirs, by_hand, aim)
        return
    words = job.in_slurm
    with Slurm(folder / "slurm", nodes=count) as slurm:
        ours, theirs, *in_slurm = in_turn(
            (
                lambda: _ours(folder),
                lambda: _by_hand(folder, fleet, job),
                lambda: _in_slurm(slurm, count, ["srun", *words]),
                lambda: _in_slurm(slurm, count, ["sbatch", *_script(folder, words)], folder / "said"),
            ),
            RUNS,
        )
        version = slurm.version
    yield Figure(name, ours, theirs, by_hand, aim)
    for verb, theirs in zip(("srun", "sbatch"), in_slurm, strict=True):
        yield Figure(name, ours, theirs, f"`{verb}` of {version}, without containers", aim)


def _script(folder: Path, words: Sequence[str]) -> list[str]:
    """A job of `sbatch` that starts the command on each node; `sbatch` waits for its end."""
    script = folder / "job.sh"
    script.write_text(f"#!/bin/sh\nsrun {shlex.join(words)}\n")
    return ["--wait", "--quiet", f"--output={folder / 'said'}", str(script)]


def _in_slurm(slurm: Slurm, nodes: int, words: Sequence[str], said: Path | None = None) -> float:
    """`said`: where the job's output is, where it is not the command's."""
    slurm.wait_until_idle()
    verb, *rest = words
    start = time.time()
    told = slurm.call(verb, f"--nodes={nodes}", f"--ntasks={nodes}", *rest)
    clocks = (said.read_text() if said is not None else told).split()
    if len(clocks) != nodes:
        sys.exit(f"{verb} has output of {len(clocks)} of {nodes} tasks")
    return max(map(float, clocks)) - start


def _ours(folder: Path) -> float:
    start = time.time()
    timed([ORCH, "run", "clock.yml", "--detach"], cwd=folder)
    ledger = open_ledger(find(folder).ledger_url)
    while ledger.get("clock").active:
        time.sleep(0.05)
    ledger.close()
    said = subprocess.run(
        [ORCH, "logs", "clock"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    return max(float(line.split()[-1]) for line in said.splitlines()) - start


def _ours_shown(folder: Path, count: int) -> float:
    """Seconds until a line of each rank was on the screen."""
    start = time.time()
    with subprocess.Popen([ORCH, "run", "clock.yml"], cwd=folder, **_SCREEN) as process:
        seconds = _lines_after(start, process, count)
    if process.returncode:
        sys.exit(f"orch run clock.yml ended with {process.returncode}")
    return seconds


def _by_hand_shown(folder: Path, fleet: FleetState, job: Job) -> float:
    start = time.time()
    started = [
        subprocess.Popen(ssh_words(folder, node, _docker_run(fleet, node, job, "--rm")), **_SCREEN)
        for node in fleet.nodes
    ]
    seconds = max(_lines_after(start, process, 1) for process in started)
    if any(process.wait() for process in started):
        sys.exit("starting the containers by hand failed")
    return seconds


_SCREEN: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}


def _lines_after(start: float, process: subprocess.Popen[str], count: int) -> float:
    """Seconds from `start` until so many lines have come."""
    if process.stdout is None:
        raise TypeError("a process without a screen")
    for _ in range(count):
        if not process.stdout.readline():
            sys.exit("a job has said nothing")
    return time.time() - start


def _docker_run(fleet: FleetState, node: NodeState, job: Job, how: str) -> str:
    words = job.by_hand.replace("IMAGE", resolve(job.image)).replace("RANK", str(node.index))
    words = words.replace("MASTER", str(fleet.nodes[0].internal_ip))
    return f"docker run {how} --init --network host --shm-size 64m --name by-hand {words}"


def _by_hand(folder: Path, fleet: FleetState, job: Job) -> float:
    start = time.time()
    started = [
        subprocess.Popen(
            ssh_words(folder, node, _docker_run(fleet, node, job, "-d")), stdout=subprocess.DEVNULL
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
