"""200 MB of stdout a rank, at full speed on two nodes, against `docker logs --follow` over ssh.

Each from the clock that a rank says first to the last byte in the file that the command writes: `orch run`
writes what it shows of both ranks into one file and keeps their logs under `.orch` besides, and in both each
line of a rank must be there, once and in order. By hand the same containers are started over ssh, and what
`docker logs` tells of each node goes to a file of its own, without times. It may leave out the end of what a
container wrote that has exited, so its seconds are counted for as much as it brought. ORCHCTL_BENCH_MB sets
another size.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.launch import ORCH, ssh_words
from bench.measure import ROOT, Figure, side_by_side, timed
from orch.images.build import resolve
from orch.spec.state import FleetState
from orch.stacks.project.project import find
from orch.stacks.record.fleets import fleet_state

MB = int(os.environ.get("ORCHCTL_BENCH_MB", "200"))
RUNS = 2
IMAGE = "orch/mpi"
WIDTH = 100
LINES = MB * 1_000_000 // WIDTH
SPEAK = f"date +%s.%N; seq -f 'line %09.0f {'x' * (WIDTH - 16)}' {LINES}"


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "examples" / "quickstart", folder, dirs_exist_ok=True)
        (folder / "orch.yml").write_text("project: bench-output\n")
        for task, command in (("speak", SPEAK), ("warm", "true")):
            text = f'type: task\nname: {task}\nnodes: 2\nimage: {IMAGE}\ncommands: ["{command}"]\n'
            (folder / f"{task}.yml").write_text(text)
        timed([ORCH, "up", "fleet.yml", "--yes"], cwd=folder)
        try:
            timed([ORCH, "run", "warm.yml"], cwd=folder)  # the image is on the nodes from here on
            fleet, peaks = fleet_state(find(folder), "laptop"), list[float]()
            ours, theirs = side_by_side(lambda: _ours(folder, peaks), lambda: _by_hand(folder, fleet), RUNS)
        finally:
            timed([ORCH, "down", "fleet.yml", "--yes"], cwd=folder)
    against = f"`docker logs --follow` over ssh (`orch run` took {max(peaks):.0f} MiB of memory at most)"
    yield Figure(f"{MB} MB of output from each of 2 ranks", tuple(ours), tuple(theirs), against, 1 / 0.9)


def _ours(folder: Path, peaks: list[float]) -> float:
    """Seconds until all was shown; what was shown and kept is looked at."""
    said = folder / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(
            [ORCH, "run", "speak.yml"], cwd=folder, stdin=subprocess.DEVNULL, stdout=out
        )
        _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit("`orch run` failed")
    peaks.append(used.ru_maxrss / 1024)
    begun: list[float] = []
    for rank in range(2):
        kept = max(folder.glob(f".orch/runs/*/logs/{rank}.log"), key=lambda path: path.stat().st_mtime)
        with said.open("rb") as shown, kept.open("rb") as log:
            own = (line for line in shown if line.startswith(b"[%d " % rank))
            begun.append(_begun((line.partition(b"] ")[2] for line in own), f"rank {rank}, shown"))
            _begun((line.partition(b" ")[2] for line in log), f"rank {rank}, kept")
        kept.unlink()
    return said.stat().st_mtime - min(begun)


def _begun(texts: Iterable[bytes], what: str) -> float:
    """The clock in the first line. Another line that is missing, there twice or out of order ends it all."""
    begun, count = 0.0, -1
    for count, text in enumerate(texts):
        if not count:
            begun = float(text)
        elif text[:15] != b"line %09d " % count:
            sys.exit(f"{what}: line {count} is {text!r}")
    if count != LINES:
        sys.exit(f"{what}: {count:,} lines of {LINES:,}")
    return begun


def _by_hand(folder: Path, fleet: FleetState) -> float:
    run = f"docker run -d --init --network host --name by-hand {resolve(IMAGE)} sh -c {shlex.quote(SPEAK)}"
    started = [
        subprocess.Popen(ssh_words(folder, node, run), stdout=subprocess.DEVNULL) for node in fleet.nodes
    ]
    if any(process.wait() for process in started):
        sys.exit("starting the containers by hand failed")
    files = [folder / f"by-hand-{node.index}" for node in fleet.nodes]
    follow = "docker logs --follow by-hand"
    reading: list[subprocess.Popen[bytes]] = []
    for node, file in zip(fleet.nodes, files, strict=True):
        with file.open("wb") as out:
            reading.append(subprocess.Popen(ssh_words(folder, node, follow), stdout=out))
    codes = [process.wait() for process in reading]
    for node in fleet.nodes:
        timed(ssh_words(folder, node, "docker wait by-hand && docker rm -f by-hand"))
    if any(codes):
        sys.exit(f"`docker logs` by hand failed: {codes}")
    begun = min(float(file.open("rb").readline()) for file in files)
    told = sum(file.stat().st_size for file in files)
    return (max(file.stat().st_mtime for file in files) - begun) * 2 * LINES * WIDTH / told
