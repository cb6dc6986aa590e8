"""What a task takes along to eight nodes, against `rsync -a` over ssh to all of them at once.

Twice: a repository of 20,000 small files, and a tree of a few large ones (ORCHCTL_BENCH_GIB, 5). Each is sent
to nodes that have nothing, then again after one file has changed, then as it is. The nodes are sshds of this
machine, each with a `/var/lib/orch` of its own, so both sides share its processors and its disk. Needs root,
sshd and rsync.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Figure
from orch.runner.events import Silent
from orch.runner.launch.compile import compile_run
from orch.runner.launch.run_request import RunRequest
from orch.runner.node.runtime import FilesMissing
from orch.runner.node_api.commands import NODE_HOME, Command
from orch.runner.node_api.connector import fan_out
from orch.runner.placement.placement import place_task
from orch.runner.plan.run_plan import RunPlan
from orch.runner.ssh.pool import SshConnector
from orch.runner.upload.send import Uploads
from orch.runner.upload.snapshot import keep_files
from orch.spec.access import SshAccess
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeState

NODES = int(os.environ.get("ORCHCTL_BENCH_NODES", "8"))
GIB = float(os.environ.get("ORCHCTL_BENCH_GIB", "5"))
FILES = 20_000
MIB = 1 << 20
PORT = 22_800
WHEN = ("the first time", "again after one file has changed", "again as it is")


@dataclass(frozen=True)
class Farm:
    """Nodes on loopback addresses, each an sshd in a mount namespace with a `/var/lib` of its own."""

    folder: Path

    def node(self, number: int) -> NodeState:
        host_key = " ".join((self.folder / "host.pub").read_text().split()[:2])
        access = SshAccess(
            address=f"127.90.0.{number + 1}",
            port=PORT,
            user="root",
            identity=str(self.folder / "key"),
            host_key=host_key,
        )
        return NodeState(index=number, name=f"node-{number}", access=access, internal_ip=access.address)

    @property
    def nodes(self) -> tuple[NodeState, ...]:
        return tuple(self.node(number) for number in range(NODES))

    def home(self, number: int) -> Path:
        return self.folder / f"node-{number}"

    def empty(self) -> None:
        for number in range(NODES):
            for path in self.home(number).iterdir():
                shutil.rmtree(path)

    def ssh(self) -> str:
        known = self.folder / "known_hosts"
        known.write_text(f"[127.90.*]:{PORT} {(self.folder / 'host.pub').read_text()}")
        words = f"ssh -p {PORT} -i {self.folder / 'key'} -o UserKnownHostsFile={known}"
        return f"{words} -o IdentitiesOnly=yes -o BatchMode=yes"


@contextmanager
def farm() -> Iterator[Farm]:
    sshd, rsync = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin"), shutil.which("rsync")
    if sshd is None or rsync is None or os.geteuid():
        sys.exit("this benchmark needs root, sshd and rsync")
    with tempfile.TemporaryDirectory() as name:
        made = Farm(Path(name))
        for key in ("key", "host"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", made.folder / key], check=True
            )
        Path("/run/sshd").mkdir(exist_ok=True)
        started: list[subprocess.Popen[bytes]] = []
        try:
            for number in range(NODES):
                made.home(number).mkdir()
                options = {
                    "ListenAddress": f"127.90.0.{number + 1}:{PORT}",
                    "HostKey": made.folder / "host",
                    "AuthorizedKeysFile": made.folder / "key.pub",
                    "PidFile": "none",
                    "StrictModes": "no",
                    "PermitRootLogin": "yes",
                    "UsePAM": "no",
                }
                words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
                script = 'mount --bind "$1" /var/lib && shift && exec "$@"'
                command = ["sh", "-c", script, "sh", made.home(number), sshd, "-D", "-f", "/dev/null", *words]
                started.append(subprocess.Popen(["unshare", "--mount", *map(str, command)]))
            with closing(SshConnector(connect_timeout_s=10.0, deadline_s=30.0)) as connector:
                for node in made.nodes:
                    connector.run(node, Command("true"))
            yield made
        finally:
            for process in started:
                process.terminate()
                process.wait()


def figures() -> Iterator[Figure]:
    with farm() as made:
        yield from _figures(made, f"{FILES:,} small files", _small)
        yield from _figures(made, f"{GIB:g} GiB in large files", _large)


def _figures(made: Farm, name: str, fill: Callable[[Path], Path]) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.mkdir()
        changing = fill(source)
        times: dict[str, list[float]] = {"ours": [], "theirs": []}
        sent: dict[str, list[int]] = {"ours": [], "theirs": []}
        for side, measure in (("ours", _ours), ("theirs", _theirs)):
            for round_ in range(len(WHEN)):
                if round_ == 1:
                    changing.write_bytes(random.Random(side).randbytes(changing.stat().st_size))
                before = _loopback_bytes()
                times[side].append(measure(made, Path(folder), source))
                sent[side].append(_loopback_bytes() - before)
            made.empty()
    for at, when in enumerate(WHEN):
        against = (
            f"`rsync -a` over ssh to all {NODES} at once "
            f"({sent['ours'][at] / MIB:,.1f} MiB on the wire against {sent['theirs'][at] / MIB:,.1f})"
        )
        yield Figure(
            f"upload of {name} to {NODES} nodes, {when}",
            (times["ours"][at],),
            (times["theirs"][at],),
            against,
            1.0,
        )


def _loopback_bytes() -> int:
    """Bytes that the loopback has carried, both ways."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[0])
    sys.exit("there is no loopback")


def _small(folder: Path) -> Path:
    rng = random.Random(0)
    for number in range(FILES):
        path = folder / f"package_{number % 200}" / f"part_{number % 1000}" / f"module_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(rng.randrange(200, 8000)))
    return path


def _large(folder: Path) -> Path:
    rng = random.Random(0)
    size = 128 << 20
    for number in range(max(1, int(GIB * (1 << 30) / size))):
        with (folder / f"shard_{number}").open("wb") as file:
            for _ in range(size >> 20):
                file.write(rng.randbytes(1 << 20))
    return folder / "shard_0"


def _plan(source: Path, nodes: Sequence[NodeState]) -> RunPlan:
    fleet = FleetState(name="bench", stack="bench", backend="local", placement="cluster", nodes=tuple(nodes))
    task = Task.model_validate(
        {"name": "bench", "nodes": len(nodes), "commands": ["true"], "files": [str(source)]}
    )
    seats = place_task(task, fleet)
    return compile_run(
        RunRequest(
            task=task, name="bench", number=1, fleet=fleet, seats=seats, image="none", base=source.parent
        )
    ).plan


def _ours(made: Farm, folder: Path, source: Path) -> float:
    """Looking at the files, keeping what is new, and bringing it to all nodes."""
    plan = _plan(source, made.nodes)
    start = time.perf_counter()
    with closing(SshConnector(connect_timeout_s=10.0, deadline_s=30.0)) as connector:
        plan, _ = keep_files(folder / ".orch", plan)
        tree = plan.files[0].tree
        with closing(Uploads(folder / ".orch", Silent())) as uploads:

            def send(node: NodeState) -> None:
                have = connector.run(
                    node, Command(f"ls -1t {NODE_HOME}/files/trees 2>/dev/null")
                ).stdout.split()
                if tree not in have:
                    uploads.send(connector, node, FilesMissing("missing", trees=(tree,), present=tuple(have)))

            results = fan_out(made.nodes, send)
    seconds = time.perf_counter() - start
    for result in results:
        if result.error is not None:
            sys.exit(result.error.text())
    return seconds


def _theirs(made: Farm, folder: Path, source: Path) -> float:
    del folder

    def copy(node: NodeState) -> int:
        target = f"root@{node.ssh.address}:/var/lib/copy/"
        return subprocess.run(["rsync", "-a", "-e", made.ssh(), f"{source}/", target], check=False).returncode

    start = time.perf_counter()
    with ThreadPoolExecutor(NODES) as pool:
        codes = list(pool.map(copy, made.nodes))
    seconds = time.perf_counter() - start
    if any(codes):
        sys.exit(f"rsync failed: {codes}")
    return seconds
