"""One command on 1,000 hosts over SSH, against `clush` and `pdsh`, 64 at once each.

The hosts are loopback addresses served by one process beside us (`sshfarm.py`), so what is measured is what
the client costs. Each run is a process of its own from start to end and opens every connection anew. Once
more ours meets ten hosts more, five that never say a word and five that refuse: they must cost their time-out
and nothing else. ORCHCTL_BENCH_HOSTS sets another number of hosts.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.measure import ROOT, Figure
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import FAN_OUT, fan_out
from orch.runner.ssh.pool import SshConnector
from orch.spec.access import SshAccess
from orch.spec.state import NodeState

HOSTS = int(os.environ.get("ORCHCTL_BENCH_HOSTS", "1000"))
HANGING = REFUSING = 5
RUNS = 3
TIMEOUT_S = 5.0


def address(number: int) -> str:
    """The address of a host of the farm, from 0."""
    return f"127.{70 + number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"


@dataclass(frozen=True)
class Told:
    """What one of our runs came to."""

    answered: int
    lost: int
    timed_out: int
    refused: int
    longest_timeout_s: float
    seconds: float
    cpu_s: float
    peak_mib: float


@dataclass(frozen=True)
class Farm:
    folder: Path
    port: int

    @property
    def host_key(self) -> str:
        return " ".join((self.folder / "host.pub").read_text().split()[:2])

    def node(self, number: int) -> NodeState:
        return NodeState(
            index=number,
            name=address(number),
            access=SshAccess(
                address=address(number),
                port=self.port,
                user="bench",
                identity=str(self.folder / "key"),
                host_key=self.host_key,
            ),
        )

    @property
    def ssh_options(self) -> list[str]:
        known = self.folder / "known_hosts"
        known.write_text(f"[127.*]:{self.port} {self.host_key}\n")
        said = {"UserKnownHostsFile": known, "GlobalKnownHostsFile": "/dev/null", "BatchMode": "yes"}
        said |= {"StrictHostKeyChecking": "yes", "IdentitiesOnly": "yes", "ConnectTimeout": 10}
        options = [word for key, value in said.items() for word in ("-o", f"{key}={value}")]
        return ["-F", "none", "-p", str(self.port), "-i", str(self.folder / "key"), "-l", "bench", *options]


def figures() -> Iterator[Figure | str]:
    with farm_of() as farm:
        hosts = farm.folder / "hosts"
        hosts.write_text("".join(f"{address(number)}\n" for number in range(HOSTS)))
        rivals = {"clush": _clush(farm, hosts)}
        if shutil.which("pdsh"):
            rivals["pdsh"] = _pdsh(hosts)
        else:
            yield "fan-out against pdsh: left out, there is no pdsh on PATH (apt-get install pdsh)"
        told: list[Told] = []
        ours: list[float] = []
        theirs: dict[str, list[float]] = {name: [] for name in rivals}
        lost = dict.fromkeys(rivals, 0)
        for _ in range(RUNS):
            began = time.perf_counter()
            told.append(_run(farm, HOSTS, 0))
            ours.append(time.perf_counter() - began)
            for name, words in rivals.items():
                env = {**os.environ, "PDSH_SSH_ARGS_APPEND": " ".join(farm.ssh_options)}
                seconds, missing = _rival(words, env)
                theirs[name].append(seconds)
                lost[name] += missing
        worse = _run(farm, HOSTS, HANGING + REFUSING)
    best = min(told, key=lambda one: one.seconds)
    yield (
        f"fan-out over {HOSTS} hosts: {sum(one.lost for one in told)} lost in {RUNS} runs, peak memory "
        f"{max(one.peak_mib for one in told):.0f} MiB, {best.cpu_s / HOSTS * 1000:.1f} ms of CPU a host"
    )
    yield (
        f"with {HANGING} hosts more that hang and {REFUSING} that refuse: {worse.lost} of the others lost, "
        f"{worse.timed_out} timed out after at most {worse.longest_timeout_s:.1f} s (limit {TIMEOUT_S:.0f}), "
        f"{worse.refused} refused; {worse.seconds:.1f} s in all"
    )
    for name, seconds in theirs.items():
        against = f"`{name} -f {FAN_OUT}` ({lost[name]} lost)"
        yield Figure(f"fan-out over {HOSTS} hosts", tuple(ours), tuple(seconds), against, 1.0)


def measure(folder: str, port: str, hosts: str, bad: str) -> Told:
    """One run of ours, in the process that calls it."""
    farm = Farm(Path(folder), int(port))
    numbers = range(int(hosts) + int(bad))
    transport = SshConnector(connect_timeout_s=TIMEOUT_S)
    began = time.perf_counter()

    def work(node: NodeState) -> str:
        started = time.perf_counter()
        try:
            return transport.run(node, Command(f"echo {node.index}"), deadline_s=0).stdout
        finally:
            took[node.index] = time.perf_counter() - started
            transport.drop(node)

    took: dict[int, float] = {}
    # The bad ones first, where they are most in the way.
    nodes = [farm.node(number) for number in reversed(numbers)]
    results = fan_out(nodes, work)
    seconds = time.perf_counter() - began
    transport.close()
    good = [result for result in results if result.node.index < int(hosts)]
    said = [
        str(result.error.detail) for result in results if result.error and result.node.index >= int(hosts)
    ]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Told(
        answered=sum(result.value == f"echo {result.node.index}\n" for result in good),
        lost=sum(result.value != f"echo {result.node.index}\n" for result in good),
        timed_out=sum("in time" in text for text in said),
        refused=sum("refuses" in text for text in said),
        longest_timeout_s=max((took[number] for number in range(int(hosts), len(numbers))), default=0.0),
        seconds=seconds,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / (1 << 10 if sys.platform == "linux" else 1 << 20),
    )


@contextmanager
def farm_of(answer: str | None = None) -> Iterator[Farm]:
    """Hosts that answer with the words of a command, or with this text."""
    with tempfile.TemporaryDirectory() as name:
        if answer is not None:
            (Path(name) / "answer").write_text(answer)
        words = [sys.executable, "-m", "bench.sshfarm", name, str(HOSTS)]
        with subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as farm:
            if farm.stdin is None or farm.stdout is None:
                raise SystemExit("the farm has no pipes")
            port = farm.stdout.readline()
            if not port:
                raise SystemExit("the farm of SSH servers did not start")
            yield Farm(Path(name), int(port))
            farm.stdin.close()


def _run(farm: Farm, hosts: int, bad: int) -> Told:
    words = [sys.executable, "-m", "bench.fanout", str(farm.folder), str(farm.port), str(hosts), str(bad)]
    said = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return Told(**json.loads(said))


def _clush(farm: Farm, hosts: Path) -> list[str]:
    options = " ".join(farm.ssh_options)
    clush = [sys.executable, "-m", "ClusterShell.CLI.Clush"]  # `clush`, wherever its script is
    return [*clush, "-q", "-f", str(FAN_OUT), "--hostfile", str(hosts), "-o", options, "true"]


def _pdsh(hosts: Path) -> list[str]:
    return ["pdsh", "-R", "ssh", "-f", str(FAN_OUT), "-w", f"^{hosts}", "true"]


def _rival(words: list[str], env: dict[str, str]) -> tuple[float, int]:
    """Seconds, and how many hosts gave no answer."""
    began = time.perf_counter()
    said = subprocess.run(
        words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    answered = sum(line.endswith(": true") for line in said.stdout.splitlines())
    return time.perf_counter() - began, HOSTS - answered


if __name__ == "__main__":
    print(json.dumps(asdict(measure(*sys.argv[1:]))))
