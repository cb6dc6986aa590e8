"""A fleet of 1,000 nodes on the simulated accounts of AWS and of GCP, each against a bare Pulumi program of
as many instances.

Both talk to the same simulated provider and engine, so what differs is our program. The bare one's instances
start with nothing; once more `up` meets one whose instances start with user data as long as ours, since the
providers answer with it in each instance, and the engine writes all of that anew for each resource.

ORCHCTL_BENCH_NODES sets another number of nodes, ORCHCTL_BENCH_BACKEND (`aws` or `gcp`) one of the two,
ORCHCTL_BENCH_RUNS how often both are measured in turn.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.measure import BIN, Figure
from bench.programs import MEASUREMENTS, Measurement
from orch.rehearsal.project import rehearse
from orch.stacks.engine import install as engines
from orch.stacks.project.project import find
from orch.stacks.stack.state import StackState, project_file

NODES = int(os.environ.get("ORCHCTL_BENCH_NODES", "1000"))
RUNS = int(os.environ.get("ORCHCTL_BENCH_RUNS", "1"))

UP_AIM, UNCHANGED_AIM, NEW_AIM = 1.2, 1.1, 1.0
COMPILE_AIM_S = 0.3
MEMORY_AIM_MIB = 1536

COMPILE = """\
import sys, time
from pathlib import Path
from orch.spec.loader.load import load_paths
from orch.stacks.project.project import find
from orch.rehearsal.project import rehearse
from orch.stacks.plans.request import FleetRequest, compile_for
from orch.stacks.stack.state import StackState

project = rehearse(find(Path.cwd())).project
started = time.process_time()
exec(sys.argv[1])  # the cloud's SDK, which every program reads that asks the cloud
print(time.process_time() - started)
for _ in range(2):  # with the catalogue, templates and so on to be read, and without
    started = time.process_time()
    fleet = load_paths(["fleet.yml"]).require().fleets[0]
    compile_for(StackState(project, fleet.name), FleetRequest(fleet, Path.cwd()))
    print(time.process_time() - started)
"""


@dataclass(frozen=True)
class Measured:
    """Seconds of a command, those of CPU of all its processes, and the most memory of one of them."""

    seconds: float
    cpu: float
    mib: int
    out: str

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.cpu:.1f} s of CPU, {self.mib} MiB"


def measured(words: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> Measured:
    """A command that must succeed, its children's memory included as far as they were waited for."""
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        out.seek(0)
        text = out.read()
    if status:
        sys.exit(f"{' '.join(words)} failed:\n{text[-3000:]}")
    return Measured(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss >> 10, text)


class Bare:
    """A Pulumi program in a folder of its own, on a simulated account of its own."""

    def __init__(self, folder: Path, of: Measurement, text: str | None = None) -> None:
        _project(folder, of)
        self.folder, name = folder, f"bench-{folder.name}"
        (folder / "Pulumi.yaml").write_text(project_file(name, ".orch/rehearsal/config"))
        (folder / "__main__.py").write_text(of.by_hand(NODES, text))
        project = rehearse(find(folder)).project
        project.cloud(of.name).store.close()  # the account is made when it is asked for
        engine = engines.require()
        # Where the state is as a person writes it: what we ask of the engine beyond that is ours.
        self._env = {**os.environ, **project.environment(engine), "PULUMI_BACKEND_URL": project.state_url}
        self._pulumi = [str(engine.command), "--non-interactive"]
        self("stack", "init", "bare")

    def __call__(self, *words: str) -> Measured:
        on = () if words[:2] == ("stack", "init") else ("--stack", "bare")
        return measured([*self._pulumi, *words, *on], cwd=self.folder, env=self._env)


class Ours:
    """The fleet, in a folder of its own."""

    def __init__(self, folder: Path, of: Measurement) -> None:
        _project(folder, of)
        self.folder, self._of = folder, of
        (folder / "fleet.yml").write_text(of.written(NODES))

    def __call__(self, *words: str) -> Measured:
        return measured([str(BIN / "orch"), *words, "--rehearse"], cwd=self.folder)

    def compiled(self) -> str:
        """What planning alone costs, in words."""
        done = measured([sys.executable, "-c", COMPILE, self._of.sdk], cwd=self.folder)
        sdk, first, again = map(float, done.out.split()[-3:])
        verdict = "reached" if first <= COMPILE_AIM_S else "MISSED"
        return (
            f"{self._of.name}, compile alone, {NODES} nodes: {first:.2f} s of CPU (aim {COMPILE_AIM_S:g}: "
            f"{verdict}) beside {sdk:.2f} s to load the cloud's SDK, {again:.2f} s once all is read, "
            f"{done.mib} MiB at most"
        )

    def started_with(self) -> str:
        """What the nodes start with, as the provider repeats it in each."""
        project = rehearse(find(self.folder)).project
        nodes = [each for each in StackState(project, "bench").resources if each["urn"].endswith("::bench-0")]
        return self._of.shown(nodes[0]["outputs"])


def _project(folder: Path, of: Measurement) -> None:
    (folder / ".orch" / "rehearsal").mkdir(parents=True)
    (folder / ".orch" / "rehearsal" / "knobs.yml").write_text(of.knobs)
    (folder / "orch.yml").write_text(f"project: bench-{folder.name}\n")


def figures() -> Iterator[Figure | str]:
    wanted = os.environ.get("ORCHCTL_BENCH_BACKEND")
    for each in MEASUREMENTS:
        if wanted in (None, each.name):
            yield from _of_cloud(each)


def _of_cloud(of: Measurement) -> Iterator[Figure | str]:
    found: defaultdict[tuple[str, str], list[Measured]] = defaultdict(list)
    for run in range(RUNS):
        with tempfile.TemporaryDirectory() as name:
            mine, bare = Ours(Path(name) / "mine", of), Bare(Path(name) / "bare", of)
            if run == 0:
                yield mine.compiled()
            for step, ours, theirs in STEPS:
                found[step, "ours"].append(mine(*ours))
                yield f"  {of.name}, {step}: {found[step, 'ours'][-1]}"
                found[step, "bare"].append(bare(*theirs))
                yield f"  {of.name}, {step}, bare: {found[step, 'bare'][-1]}"
                if step == "up":
                    dressed = Bare(Path(name) / "dressed", of, mine.started_with())
                    found[step, "dressed"].append(dressed(*theirs))
                    yield f"  {of.name}, {step}, bare with user data: {found[step, 'dressed'][-1]}"
    yield from _said(of, "preview of a new fleet", found, NEW_AIM)
    yield from _said(of, "up", found, UP_AIM)
    yield from _said(of, "up", found, UP_AIM, against="dressed", but=" that start with our user data")
    yield from _said(of, "preview without changes", found, UNCHANGED_AIM)


STEPS = (
    ("preview of a new fleet", ("preview", "fleet.yml"), ("preview",)),
    ("up", ("up", "fleet.yml", "--yes"), ("up", "--yes", "--skip-preview")),
    ("preview without changes", ("preview", "fleet.yml"), ("preview", "--refresh")),
)


def _said(
    of: Measurement,
    step: str,
    found: Mapping[tuple[str, str], Sequence[Measured]],
    aim: float,
    *,
    against: str = "bare",
    but: str = "",
) -> Iterator[Figure | str]:
    ours, theirs = found[step, "ours"], found[step, against]
    what = f"{of.name}, {step}, {NODES} nodes"
    memory = max(each.mib for each in ours)
    cpu, other = (median(each.cpu for each in runs) for runs in (ours, theirs))
    verdict = "reached" if memory <= MEMORY_AIM_MIB else "MISSED"
    yield (
        f"{what}: {memory} MiB at most (aim {MEMORY_AIM_MIB}: {verdict}) against "
        f"{max(each.mib for each in theirs)} MiB; {cpu:.1f} s of CPU against {other:.1f} s: "
        f"{cpu / other:.2f} times"
    )
    yield Figure(
        what,
        tuple(each.seconds for each in ours),
        tuple(each.seconds for each in theirs),
        f"`pulumi` and a bare program of as many instances{but}",
        aim,
    )
