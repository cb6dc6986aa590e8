"""What nodes and jobs use: the script here, and on trees of files that stand for other machines."""

from __future__ import annotations

import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.nodes.foldernodes import FolderConnector, FolderLab, FolderRuntime
from kit.support import until

from orch.cli.output.metrics import (
    History,
    UsageCollector,
    bars,
    kept_json,
    kept_text,
    metrics_json,
    metrics_text,
    problem_lines,
    serve,
)
from orch.cli.output.run import moment
from orch.runner.connect import ConnectorByKind
from orch.runner.errors import HostUnreachable
from orch.runner.events import Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.history import metric_samples
from orch.runner.ledger.history.metric_samples import Sample
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.plans import plan_of
from orch.runner.metrics import sampling
from orch.runner.metrics.figures import Rate, figures
from orch.runner.metrics.history import moments, over_time, packed, spans
from orch.runner.metrics.reading import (
    Device,
    Reading,
    Target,
    Use,
    command,
    fleet_targets,
    look,
    reading,
    run_targets,
)
from orch.runner.metrics.sampling import keep_sample
from orch.runner.node.runtimes import RUNTIMES
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import Completed, NodeResult
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.runs.read_logs import Selection, read_logs
from orch.spec.models import Task
from orch.spec.state import Gpus, NodeState

MIB = 1 << 20


def tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


def machine(at: float, busy: int, received: int) -> dict[str, str]:
    """A machine of four cores with a card of Ethernet, one of InfiniBand, and Docker's bridge."""
    return {
        "proc/uptime": f"{at} 1.0",
        "proc/stat": f"cpu  {busy} 0 0 90000 500 0 0 0 0 0\ncpu0 1 1\ncpu1 1 1\ncpu2 1 1\ncpu3 1 1",
        "proc/meminfo": "MemTotal:       8192 kB\nMemFree: 1 kB\nMemAvailable:   6144 kB",
        "sys/class/net/eth0/device/x": "",
        "sys/class/net/eth0/statistics/rx_bytes": str(received),
        "sys/class/net/eth0/statistics/tx_bytes": "7",
        "sys/class/net/docker0/bridge/x": "",
        "sys/class/net/docker0/statistics/rx_bytes": str(9 * received),
        "sys/class/net/docker0/statistics/tx_bytes": "7",
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": str(received),
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "0",
        "sys/class/infiniband/efa_0/ports/1/hw_counters/rx_bytes": str(received),
        "sys/class/infiniband/efa_0/ports/1/hw_counters/tx_bytes": "0",
    }


def of_version_2(cpu_us: int) -> dict[str, str]:
    group = "sys/fs/cgroup/system.slice/docker-x.scope"
    return {
        "proc/77/cgroup": "0::/system.slice/docker-x.scope",
        "proc/self/mountinfo": "25 30 0:24 / {root}/sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate",
        f"{group}/cpu.stat": f"usage_usec {cpu_us}\nuser_usec 1",
        f"{group}/memory.current": str(5 * MIB),
        f"{group}/memory.max": "max",
        f"{group}/memory.stat": f"anon 1\ninactive_file {MIB}",
    }


def of_version_1(cpu_us: int) -> dict[str, str]:
    cpu, memory = "sys/fs/cgroup/cpu,cpuacct/docker/x", "sys/fs/cgroup/memory/docker/x"
    mounts = (("cpu,cpuacct", "/"), ("memory", "/"), ("unified", "/"))
    return {
        "proc/77/cgroup": "4:memory:/docker/x\n2:cpu,cpuacct:/docker/x\n0::/",
        "proc/self/mountinfo": "\n".join(
            f"3{at} 31 0:3{at} {root} {{root}}/sys/fs/cgroup/{name} rw - "
            + ("cgroup2 cgroup2 rw" if name == "unified" else f"cgroup cgroup rw,{name}")
            for at, (name, root) in enumerate(mounts)
        ),
        f"{cpu}/cpuacct.usage": str(cpu_us * 1000),
        f"{memory}/memory.usage_in_bytes": str(5 * MIB),
        f"{memory}/memory.limit_in_bytes": str(2**63 - 4096),
        f"{memory}/memory.stat": f"cache 1\ntotal_inactive_file {MIB}",
    }


def seen(root: Path, target: Target, files: dict[str, str]) -> NodeResult[Reading]:
    """What the script tells where /proc, /sys and the node's folder are those of `root`."""
    tree(root, {name: text.replace("{root}", str(root)) for name, text in files.items()})
    text = command(target).text.replace("exec sudo -n", "exec")
    for folder in ("proc/", "sys/", "var/lib/orch"):
        text = text.replace(f"/{folder}", f"{root}/{folder}")
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return NodeResult(target.node, reading(target, done.stdout))


@pytest.mark.parametrize("version", [of_version_1, of_version_2])
def test_a_rank_uses_what_its_cgroup_says_and_the_devices_of_its_blocks(
    tmp_path: Path, version: Callable[[int], dict[str, str]]
) -> None:
    gpus = Gpus(count=2, vendor="amd")
    node = NodeState.model_validate(
        {"index": 0, "name": "n0", "access": {"kind": "none"}, "gpus": gpus, "blocks": 2, "cpus": 4}
    )
    job = Target(
        node, rank=3, container="orch-j", job="echo 77", cores=2.0, memory_bytes=6 * MIB, per_block=1
    )
    (tmp_path / "var/lib/orch/claims").mkdir(parents=True)
    (tmp_path / "var/lib/orch/claims/1").symlink_to("orch-j|job|eve@away|then|2")
    (tmp_path / "var/lib/orch/claims/0").symlink_to("orch-other|other|eve@away|then|2")
    for card, busy in (("renderD128", 10), ("renderD129", 90)):
        device = f"sys/class/drm/{card}/device"
        sizes = {
            f"{device}/mem_info_vram_used": str(64 * MIB),
            f"{device}/mem_info_vram_total": str(96 * MIB),
        }
        minor = f"drm_render_minor {card[-3:]}"
        tree(tmp_path, {f"{device}/gpu_busy_percent": str(busy), **sizes})
        tree(tmp_path, {f"sys/class/kfd/kfd/topology/nodes/{card[-1]}/properties": minor})
    before = seen(tmp_path, job, {**machine(100.5, 1000, 1000), **version(2_000_000)})
    after = seen(tmp_path, job, {**machine(102.5, 1400, 3000), **version(3_000_000)})
    (row,) = figures([job], [before], [after])
    told = metrics_json(row)
    assert told["cpu"] == {"cores": 0.5, "cores_total": 2.0, "percent": 25.0}
    assert told["memory"] == {"used_bytes": 4 * MIB, "total_bytes": 6 * MIB}
    assert told["network"] == {"received_bytes_s": 1000.0, "sent_bytes_s": 0.0}
    assert told["fabric"] == {"received_bytes_s": 5000.0, "sent_bytes_s": 0.0}
    used = {"memory_used_bytes": 64 * MIB, "memory_total_bytes": 96 * MIB}
    assert told["gpus"] == [{"index": 1, "percent": 90.0, **used}]
    whole = Target(node)
    pair = [[seen(tmp_path, whole, machine(*given))] for given in ((100.5, 1000, 0), (102.5, 1400, 0))]
    (row,) = figures([whole], *pair)
    assert (row.cores, row.cpu_percent, row.memory_bytes) == (2.0, 50.0, 2 * MIB)
    assert metrics_text([row]).splitlines() == [
        "NODE  CPU       MEMORY          GPU     GPU MEMORY      NETWORK              FABRIC",
        "n0    50% of 4  0.0 of 0.0 GiB  50% ▁█  0.1 of 0.2 GiB  0 B/s in, 0 B/s out  0 B/s in, 0 B/s out",
    ]
    # A node that has started anew counts from zero; a job may be over.
    (row,) = figures([whole], pair[1], pair[0])
    assert (row.cores, row.network, row.memory_bytes) == (None, None, 2 * MIB)
    (tmp_path / "proc/77/cgroup").unlink()
    (row,) = figures([job], [before], [seen(tmp_path, job, {})])
    assert (row.problem, row.silent) == ("its job does not run there", False)


def test_nodes_that_answer_are_told_beside_one_that_does_not(tmp_path: Path) -> None:
    lab = FolderLab(tmp_path)
    fleet = lab.fleet()
    gpus = Gpus(count=4, vendor="nvidia")
    nodes = (fleet.nodes[0].model_copy(update={"gpus": gpus}), fleet.nodes[1])
    targets = fleet_targets(fleet.model_copy(update={"nodes": nodes, "simulated": True}))
    before = look(targets, lab.connector)
    shutil.rmtree(tmp_path / "node-1")
    looks = list(zip(targets, look(targets, lab.connector), strict=True))
    port, close = serve(UsageCollector("fleet", "boxes", lambda: looks), "127.0.0.1", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        scraped = answer.read().decode().splitlines()
    close()
    assert 'orch_up{fleet="boxes",node="box-0"} 1.0' in scraped
    assert 'orch_up{fleet="boxes",node="box-1"} 0.0' in scraped
    assert 'orch_cpu_cores{fleet="boxes",node="box-0"} 2.0' in scraped
    assert any(line.startswith('orch_cpu_seconds_total{fleet="boxes",node="box-0"} ') for line in scraped)
    assert not any(line.startswith("orch_gpu_utilization_ratio{") for line in scraped)
    first, second = figures(targets, before, look(targets, lab.connector))
    assert (first.problem, first.devices, first.simulated) == (None, None, 4)
    assert first.cores is not None
    assert first.memory_bytes
    assert first.cores_total == 2
    lines = metrics_text([first, second]).splitlines()
    assert "4 simulated" in lines[1]
    assert "no answer" in lines[2]
    assert problem_lines([first, second]) == ["box-1: node box-1 cannot be reached"]


@pytest.fixture
def runs(tmp_path: Path, ledger_url: str) -> Iterator[tuple[RunnerContext, FolderLab]]:
    """A project on two nodes that are folders."""
    (tmp_path / "boxes").mkdir()
    lab, ledger = FolderLab(tmp_path / "boxes"), open_ledger(ledger_url)
    runtimes = {**RUNTIMES, "folder": FolderRuntime()}
    yield RunnerContext(tmp_path / ".orch", ledger, lab.connector, Recorder(), runtimes), lab
    lab.end()
    ledger.close()


class Away(FolderConnector):
    """Nodes whose names end so do not answer."""

    def __init__(self, *ends: str) -> None:
        self._ends = ends

    def run(self, node: NodeState, command: Command, **how: Any) -> Completed:
        if node.name.endswith(self._ends):
            raise HostUnreachable(f"node {node.name} cannot be reached", where=node.name)
        return super().run(node, command, **how)


def test_what_a_run_uses_is_kept_while_somebody_sees_to_it_and_shown_after(
    runs: tuple[RunnerContext, FolderLab], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, lab = runs
    monkeypatch.setattr(sampling, "EVERY_S", 0.05)
    monkeypatch.setattr(metric_samples, "DUE_S", 0.0)
    wait = f"until [ -e {tmp_path}/gate ]; do sleep 0.1; done"
    task = Task.model_validate({"name": "job", "nodes": 2, "shell": "sh", "commands": [wait]})
    row = lifecycle.submit(runner, Submission(task, lab.fleet(), image="none", base=tmp_path))
    runner.ledger.add_sample(row.id, 0, 2, "no reading")
    with ThreadPoolExecutor(2) as pool:
        driver = pool.submit(lifecycle.drive, runner, row)
        until(lambda: len(runner.ledger.samples(row.id, 0)) > 2, 60, "its driver keeps samples")
        follower = pool.submit(read_logs, runner, runner.ledger.by_id(row.id), Selection((0, 1)), follow=True)
        known, never = runner.ledger.by_id(row.id), threading.Event()
        for ends in (("1",), ("0", "1")):  # of none that answers nothing is kept
            away = ConnectorByKind({"folder": lambda ends=ends: Away(*ends)})
            keep_sample(replace(runner, connector=away), known, never)
        (tmp_path / "gate").touch()
        assert driver.result(60).status == "done"
        follower.result(60)
    kept = runner.ledger.samples(row.id, 0)
    assert sum(",null]" in each.readings for each in kept) == 1
    assert not any("[null" in each.readings for each in kept)
    plan = plan_of(row)
    found = moments(run_targets(plan, [runner.runtime(node) for node in plan.nodes]), kept)
    assert len(found) == len(kept) - 1  # without what is no reading
    last = kept_json(found)[-1]
    assert [(node["rank"], node["node"]) for node in last["nodes"]] == [(0, "box-0"), (1, "box-1")]
    assert last["at"] == moment(kept[-1].at)
    for row in over_time(found):
        assert row.cores is not None
        assert row.memory_bytes
    heading, *rows = kept_text(found, colour=False).splitlines()
    assert heading.split()[:3] == ["RANK", "NODE", "CPU"]
    assert [each.split()[:2] for each in rows] == [["0", "box-0"], ["1", "box-1"]]


def test_over_time_a_rank_uses_the_mean_and_the_most_memory() -> None:
    node = NodeState.model_validate({"index": 0, "name": "n0", "access": {"kind": "none"}, "cpus": 4})
    target = Target(node, rank=0, cores=4.0, memory_bytes=64 * MIB)

    def sample(at: float, cpu_s: float, memory: int, percent: float | None) -> Sample:
        devices = None if percent is None else (Device(0, percent, memory, 9 * MIB),)
        use = Use(cpu_s, memory)
        given = Reading(at, 4.0, Use(), use, {"eth0": (int(at * 10), 0)}, {}, devices)
        told = packed([NodeResult(node, given)])
        assert told is not None
        return Sample(1000.0 + at, 0, told)

    # The rates of a moment are since the one before.
    kept = [sample(0, 0, MIB, 10), sample(10, 40, 3 * MIB, 50), sample(20, 40, 2 * MIB, None)]
    # Nobody was attached for a while; then a node did not answer.
    kept += [sample(120, 140, MIB, 90), Sample(1130.0, 0, "[null]")]
    found = moments([target], kept)
    assert [(each.at, each.rows[0].cpu_percent) for each in found] == [
        (1000.0, None),
        (1010.0, 100.0),
        (1020.0, 0.0),
        (1120.0, 25.0),
        (1130.0, None),
    ]
    (row,) = over_time(found)
    assert row.cpu_percent == pytest.approx((100 * 10 + 0 * 10 + 25 * 100) / 120)
    assert row.device_percent == pytest.approx((50 * 10 + 90 * 100) / 110)
    assert row.memory_bytes == 3 * MIB
    assert row.network == Rate(10.0, 0.0)
    assert [len(part) for part in spans(found, 4)] == [3, 0, 0, 2]
    (line,) = kept_text(found, colour=False).splitlines()[1:]
    assert " 29% of 4  █▁▁                  ▃  " in line
    # A node that tells of very many interfaces is taken for one that does not answer.
    many = Reading(1.0, 1.0, Use(), Use(), {f"eth{at}": (1, 1) for at in range(9999)}, {}, None)
    assert packed([NodeResult(node, many)]) is None


def test_a_graph_has_no_gap_where_somebody_looked_all_the_time() -> None:
    node = NodeState.model_validate({"index": 0, "name": "n0", "access": {"kind": "none"}, "cpus": 4})
    target = Target(node, rank=0, cores=4.0, memory_bytes=64 * MIB)

    def sample(at: float) -> Sample:
        told = packed([NodeResult(node, Reading(at, 4.0, Use(), Use(at * 4, MIB), {}, {}, None))])
        assert told is not None
        return Sample(1000.0 + at, 0, told)

    for count in (2, 4, 7, 15, 24):
        found = moments([target], [sample(at * 10 + at % 3) for at in range(count)])
        (line,) = kept_text(found, colour=False).splitlines()[1:]
        graph = line.partition("100% of 4 ")[2].partition("█  ")[0]
        # What was used before the first sample nobody knows.
        assert "▁" not in graph
        assert " " not in graph.strip(), (count, line)


def test_graphs_show_what_was() -> None:
    assert bars([0, 50, 100, None, 120]) == "▁▅█ █"
    history = History()
    assert history.cpu("n") == ""
