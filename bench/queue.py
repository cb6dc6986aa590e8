"""Many runs that wait for few nodes, and controllers that are killed: beside the same jobs in a Slurm.

Nodes are folders of this machine, and jobs are processes: what is measured is the queue, not containers. Each
run holds one of 8 nodes and leaves its name in a file. Four controllers work off the ledger; one of them is
killed with SIGKILL every ten seconds, and another one begins. Slurm gets the same jobs by `sbatch`, one CPU
each, for 8 nodes of one CPU; nothing of it is killed. Runs are submitted through the library, by one process.

`ORCHCTL_BENCH_RUNS` sets how many runs, 1,000 without it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import ROOT
from bench.slurm import Slurm

if TYPE_CHECKING:
    from kit.nodes.foldernodes import FolderLab

    from orch.runner.launch.volumes import Volumes
    from orch.runner.ledger.records import RunRow
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.spec.state import FleetState

TESTS = ROOT / "tests"
NODES, CONTROLLERS, KILL_EVERY_S = 8, 4, 10.0
RUNS = int(os.environ.get("ORCHCTL_BENCH_RUNS", "1000"))


@dataclass(frozen=True)
class Rates:
    """What became of all runs: seconds of all submissions, and from then on to the last end."""

    what: str
    runs: int
    submitted_s: float
    worked_off_s: float
    killed: int = 0
    begun: Counter[str] | None = None
    ends: Counter[str] | None = None

    def __str__(self) -> str:
        text = (
            f"queue of {self.runs} on {self.what}: {self.runs / self.submitted_s:.1f} submissions/s, "
            f"{self.runs / self.worked_off_s:.1f} runs/s ({self.worked_off_s:.0f} s)"
        )
        if self.begun is None or self.ends is None:
            return text
        lost = self.runs - len(self.begun)
        twice = sum(times > 1 for times in self.begun.values())
        ends = ", ".join(f"{count} {status}" for status, count in self.ends.most_common())
        return f"{text}; {self.killed} controllers killed, {ends}, lost {lost}, begun twice {twice}"


def figures() -> Iterator[Rates]:
    sys.path.insert(0, str(TESTS))
    from kit.ledgers.postgres import server

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield _ours(folder / "sqlite", f"sqlite:///{folder / 'sqlite' / 'ledger.db'}", "SQLite")
        with server(folder) as postgres, postgres.database() as url:
            yield _ours(folder / "postgresql", url, "PostgreSQL")
        with Slurm(folder / "slurm", nodes=NODES) as slurm:
            yield _slurm(slurm, folder)


def _ours(folder: Path, url: str, database: str) -> Rates:
    from orch.runner.launch.submission import Submission
    from orch.runner.runs import lifecycle
    from orch.spec.models import Task

    (folder / "boxes").mkdir(parents=True)
    runner, lab = _runner(folder, url)
    ledger, fleet = runner.ledger, _fleet(lab)
    begun = folder / "begun"
    start = time.monotonic()
    for index in range(RUNS):
        task = Task.model_validate(
            {"name": f"run-{index}", "shell": "sh", "commands": [f"echo $ORCH_RUN_NAME >> {begun}"]}
        )
        lifecycle.submit(runner, Submission(task, fleet, image="none", base=folder), wait=True)
    submitted = time.monotonic()
    killed = 0
    with _controllers(folder, url) as controllers:
        next_kill = time.monotonic() + KILL_EVERY_S
        while ledger.runs(active_only=True):
            time.sleep(0.5)
            if time.monotonic() >= next_kill:
                controllers.kill_one()
                killed += 1
                next_kill = time.monotonic() + KILL_EVERY_S
        end = time.monotonic()
    ends = Counter(row.status for row in ledger.runs())
    ledger.close()
    lab.end()
    names = Counter(begun.read_text().split())
    return Rates(database, RUNS, submitted - start, end - submitted, killed, names, ends)


def _runner(folder: Path, url: str) -> tuple[RunnerContext, FolderLab]:
    from kit.nodes.foldernodes import FolderLab, ProcessRuntime

    from orch.runner.events import Silent
    from orch.runner.ledger.ledger import open_ledger
    from orch.runner.node.runtimes import RUNTIMES
    from orch.runner.runs.lifecycle import RunnerContext

    lab = FolderLab(folder / "boxes")
    runtimes = {**RUNTIMES, "folder": ProcessRuntime()}
    provisioned = _AlwaysUp(_fleet(lab))
    context = RunnerContext(
        folder / ".orch", open_ledger(url), lab.connector, Silent(), runtimes, provisioned=provisioned
    )
    return context, lab


def _fleet(lab: FolderLab) -> FleetState:
    return lab.fleet().model_copy(update={"nodes": tuple(lab.node(index) for index in range(NODES))})


@dataclass(frozen=True)
class _AlwaysUp:
    """One fleet, which no engine made."""

    only: FleetState

    def fleet(self, stack: str, run: int) -> FleetState:
        del stack
        return self.only

    def volumes(self) -> Volumes:
        from orch.runner.launch.volumes import NO_VOLUMES

        return NO_VOLUMES

    def attempt_ended(self, row: RunRow) -> None:
        """None of its nodes is of one run alone."""


class _Controllers:
    """Processes that do what `orch controller` does, all in one project."""

    def __init__(self, folder: Path, url: str) -> None:
        self._words = [sys.executable, "-m", "bench.queue", str(folder), url]
        self._log = (folder / "controllers.log").open("ab")
        self._processes = [self._begin() for _ in range(CONTROLLERS)]

    def kill_one(self) -> None:
        index = random.randrange(CONTROLLERS)
        self._processes[index].kill()
        self._processes[index].wait()
        self._processes[index] = self._begin()

    def end(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            process.wait(120)
        self._log.close()

    def _begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._words,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )


@contextmanager
def _controllers(folder: Path, url: str) -> Iterator[_Controllers]:
    controllers = _Controllers(folder, url)
    try:
        yield controllers
    finally:
        controllers.end()


def _slurm(slurm: Slurm, folder: Path) -> Rates:
    begun = folder / "begun-in-slurm"
    script = folder / "job.sh"
    script.write_text(f"#!/bin/sh\necho $SLURM_JOB_ID >> {begun}\n")
    start = time.monotonic()
    for _ in range(RUNS):
        slurm.call("sbatch", "--quiet", "--ntasks=1", "--output=/dev/null", str(script))
    submitted = time.monotonic()
    while slurm.call("squeue", "--noheader").strip():
        time.sleep(0.5)
    end = time.monotonic()
    names = Counter(begun.read_text().split())
    return Rates(slurm.version, RUNS, submitted - start, end - submitted, 0, names, Counter({"ended": RUNS}))


def _control(folder: Path, url: str) -> None:
    from orch.runner.runs.controller import Controller

    runner, _ = _runner(folder, url)
    controller = Controller(runner)
    signal.signal(signal.SIGTERM, lambda number, frame: controller.stop())
    controller.run()


if __name__ == "__main__":
    _control(Path(sys.argv[1]), sys.argv[2])
