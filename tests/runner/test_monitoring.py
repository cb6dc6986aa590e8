"""A project as Prometheus scrapes it: what a look tells, how long it may take, and what stays away."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kit.nodes.foldernodes import FolderLab, FolderRuntime
from kit.support import until
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from orch.cli.output.metrics import serve
from orch.runner.errors import HostUnreachable
from orch.runner.ledger.records import AttemptRow, RankRow, RunRow
from orch.runner.metrics import node_look
from orch.runner.metrics.families import FAMILIES, NODE_STATUSES, ProjectCollector
from orch.runner.metrics.gpu_counters import FIELDS, TAGS, read_gpus
from orch.runner.metrics.project_look import (
    FleetCost,
    HealthRow,
    NodeAnswer,
    ProjectFacts,
    ProjectLook,
    ProjectWatch,
    only,
    waiting_s,
)
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import FAN_OUT, Completed
from orch.spec.state import FleetState, NodeState

ANSWER = """\
claim orch-train-7|train|ada@box|2026-11-26T10:00:00Z|2
-- what is used
at 1000.5
cores 192
ticks 100
stat 100 0 100 5000 0 0 0 0 0 0
MemTotal 2097152
MemAvailable 1048576
net device eth0 1000 2000
fabric 4 /sys/class/infiniband/mlx5_0/ports/1 250 500
gpu 0, 97, 1024, 81559
gpu 1, 0, 0, 81559
-- devices
host gpu-box
block 0 orch-train-7|train|ada@box|2026-11-26T10:00:00Z|2
block 1 orch-gone-3|gone|eve@box|2026-11-26T10:00:00Z|2
port mlx5_0/ports/1 4: ACTIVE
port mlx5_1/ports/1 1: DOWN
smi 
"""


def smi(pci: str, uuid: str, *, volatile: int = 0, hot: str = "Not Active") -> str:
    """What an H100 with driver 580.159.04 tells of itself, the lines that are read (recorded 2026-11-26)."""
    return f"""\
<gpu id="0000{pci}.0">
<product_name>NVIDIA H100 80GB HBM3</product_name>
<mig_devices>
<fb_memory_usage>
<used>5 MiB</used>
</fb_memory_usage>
</mig_devices>
<uuid>{uuid}</uuid>
<minor_number>0</minor_number>
<pci>
<replay_counter>3</replay_counter>
</pci>
<clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
<clocks_event_reason_sw_thermal_slowdown>{hot}</clocks_event_reason_sw_thermal_slowdown>
<fb_memory_usage>
<used>1024 MiB</used>
<free>80055 MiB</free>
</fb_memory_usage>
<bar1_memory_usage>
<used>1 MiB</used>
<free>131071 MiB</free>
</bar1_memory_usage>
<utilization>
<gpu_util>97 %</gpu_util>
<memory_util>40 %</memory_util>
</utilization>
<volatile>
<sram_correctable>1</sram_correctable>
<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
<sram_uncorrectable_secded>{volatile}</sram_uncorrectable_secded>
<dram_correctable>2</dram_correctable>
<dram_uncorrectable>1</dram_uncorrectable>
</volatile>
<aggregate>
<sram_correctable>99</sram_correctable>
<dram_correctable>99</dram_correctable>
<dram_uncorrectable>99</dram_uncorrectable>
</aggregate>
<remapped_rows>
<remapped_row_corr>4</remapped_row_corr>
<remapped_row_unc>5</remapped_row_unc>
<remapped_row_pending>Yes</remapped_row_pending>
<remapped_row_failure>No</remapped_row_failure>
</remapped_rows>
<temperature>
<gpu_temp>33 C</gpu_temp>
<memory_temp>N/A</memory_temp>
</temperature>
<gpu_power_readings>
<average_power_draw>75.91 W</average_power_draw>
<instant_power_draw>N/A</instant_power_draw>
</gpu_power_readings>
<clocks>
<sm_clock>345 MHz</sm_clock>
<mem_clock>2619 MHz</mem_clock>
</clocks>
"""


LINKS = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)
\t Link 0: Replay Errors: 2
\t Link 0: Recovery Errors: 0
\t Link 0: CRC Errors: 7
\t Link 1: Replay Errors: 3
\t Link 1: Recovery Errors: 0
\t Link 1: CRC FLIT Error: 1
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1)
\t Link 0: Replay Errors: 4294967296
"""
"""As `nvidia-smi nvlink -e` tells them."""


def told(prefix: str, text: str) -> list[str]:
    return [f"{prefix} {line}" for line in text.splitlines()]


def two_gpus() -> list[str]:
    driver = smi("0000:00:06", "GPU-0", volatile=1, hot="Active") + smi("0000:00:07", "GPU-1")
    return [
        *told("smi", driver),
        *("link 0 Replay 5", "link 0 Recovery 0", "link 0 CRC 8"),
        "kernel",
        "xid [1.0] NVRM: Xid (PCI:0000:00:06): 31, pid=5",
        "xid [2.0] NVRM: Xid (PCI:0000:00:06): 48, pid=5",
        "xid [3.0] NVRM: Xid (PCI:0000:00:08): 79, GPU has fallen off the bus.",
    ]


def node(index: int, name: str = "", **more: Any) -> NodeState:
    values = {"index": index, "name": name or f"n{index}", "access": {"kind": "none"}, **more}
    return NodeState.model_validate(values)


def fleet(*nodes: NodeState, name: str = "lab") -> FleetState:
    return FleetState(name=name, stack=name, backend="aws", nodes=nodes)


def run(**more: Any) -> RunRow:
    values: dict[str, Any] = dict.fromkeys(RunRow.__dataclass_fields__)
    values |= {"id": 7, "name": "train", "fleet": "lab", "plan": "{}", "status": "running", "attempt": 0}
    values |= {"submitted_by": "ada@box", "created_at": 1000.0, "now": 1500.0, "started_at": 1200.0}
    values |= {"retry_tries": 0, "ranks": (), "attempts": (), "priority": 0, "in_use": 0, **more}
    return RunRow(**values)


def text_of(look: ProjectLook) -> str:
    registry = CollectorRegistry()
    registry.register(ProjectCollector(lambda: look))
    return generate_latest(registry).decode()


def value(text: str, name: str, **labels: str) -> float:
    """The one sample of a metric with these labels among its own."""
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def gpu_look() -> ProjectLook:
    box = node(0, gpus={"count": 2, "vendor": "nvidia"}, blocks=2, instance_type="p5", zone="z")
    of = fleet(box)
    look = node_look.read(of, box, "\n".join([ANSWER.rstrip("\n"), *two_gpus()]))
    facts = ProjectFacts(
        (of,),
        (
            run(ranks=(RankRow(0, "n0", "running", None, None, None, None, True),), attempt=2),
            run(id=8, name="next", status="pending", started_at=None, queued_at=1100.0, retry_tries=4),
        ),
        {("lab", "done"): 5},
        (FleetCost("lab", 12.5, 3.0, 100.0), FleetCost("old", 7.0, 0.0)),
        (HealthRow("lab", "n0", "failure", 1234.0, "Xid 48", (("failure", 1), ("warning", 2))),),
        20.0,
        90.0,
        {"state": True, "ledger": False},
    )
    dead = NodeAnswer(of, node(1, 'dead"\n'), None, "no answer")
    return ProjectLook(facts, (NodeAnswer(of, box, look), dead), 0.25)


def test_gpus_are_told_under_the_names_and_labels_of_dcgm_exporter() -> None:
    text = text_of(gpu_look())
    first = {"UUID": "GPU-0", "gpu": "0", "modelName": "NVIDIA H100 80GB HBM3", "Hostname": "gpu-box"}
    first |= {"fleet": "lab", "node": "n0", "run": "train", "device": "nvidia0", "pci_bus_id": "0000:00:06"}
    for name, expected in {
        "GPU_UTIL": 97.0,
        "FB_USED": 1024.0,
        "FB_FREE": 80055.0,
        "GPU_TEMP": 33.0,
        "POWER_USAGE": 75.91,
        "SM_CLOCK": 345.0,
        "XID_ERRORS": 48.0,
        "ECC_SBE_VOL_TOTAL": 3.0,
        "ECC_DBE_VOL_TOTAL": 2.0,
        "PCIE_REPLAY_COUNTER": 3.0,
        "CORRECTABLE_REMAPPED_ROWS": 4.0,
        "UNCORRECTABLE_REMAPPED_ROWS": 5.0,
        "ROW_REMAP_PENDING": 1.0,
        "ROW_REMAP_FAILURE": 0.0,
        "NVLINK_REPLAY_ERROR_COUNT_TOTAL": 5.0,
        "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 8.0,
    }.items():
        assert value(text, f"DCGM_FI_DEV_{name}", **first) == expected
    # The other block's job has ended: its GPU is nobody's. What a driver does not tell is no zero.
    assert value(text, "DCGM_FI_DEV_GPU_UTIL", UUID="GPU-1", run="") == 97.0
    assert "DCGM_FI_DEV_MEMORY_TEMP{" not in text
    # A GPU that has fallen off the bus is told by the kernel alone.
    assert value(text, "DCGM_FI_DEV_XID_ERRORS", pci_bus_id="0000:00:08", gpu="", UUID="") == 79.0
    assert value(text, "orch_node_gpus", node="n0") == value(text, "orch_node_gpus_visible") == 2.0
    assert value(text, "orch_gpu_thermal_slowdown", gpu="0", run="train") == 1.0
    assert value(text, "orch_gpu_thermal_slowdown", gpu="1") == 0.0


def test_the_filter_on_the_node_leaves_what_is_read() -> None:
    lines = told("smi", smi("0000:00:06", "GPU-0") + "<fan_speed>N/A</fan_speed>\n")
    kept = [line for line in lines if re.search(TAGS, line)]
    assert read_gpus(kept) == read_gpus(lines)
    assert len(kept) < len(lines)
    (gpu,) = read_gpus(kept)
    assert {name for name, _ in gpu.values} == set(FIELDS) - {"DCGM_FI_DEV_MEMORY_TEMP"}


def test_a_node_with_the_drivers_tool_and_a_kernels_log_is_read_by_the_script(tmp_path: Path) -> None:
    tools, home = tmp_path / "bin", tmp_path / "home"
    (home / "claims").mkdir(parents=True)
    (home / "claims/0").symlink_to("orch-train-7|train|ada@box|2026-11-26T10:00:00Z|1")
    tools.mkdir()
    driver = "".join(f"\t\t{line}\n" for line in smi("0000:00:06", "GPU-0").splitlines())
    texts = {"xml": f"<?xml?>\n{driver}\t<fan_speed>N/A</fan_speed>\n", "links": LINKS}
    texts["log"] = "[1.0] eth0: up\n[2.0] NVRM: Xid (PCI:0000:00:06): 94, pid=7\n"
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    commands = {
        "nvidia-smi": f"case $1 in -q) cat {tmp_path}/xml;; nvlink) cat {tmp_path}/links;; *) exit 2; esac",
        "dmesg": f"cat {tmp_path}/log",
    }
    for name, text in commands.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    box = node(0, gpus={"count": 2, "vendor": "nvidia"})
    text = node_look.command(fleet(box), box, timeout_s=9.0).text.replace("/var/lib/orch", str(home))
    text = text.replace("/dev/kmsg", str(tmp_path / "kmsg"))
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", text.replace("exec sudo -n", "exec")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    look = node_look.read(fleet(box), box, done.stdout)
    assert look.reading is not None
    assert look.host == os.uname().nodename
    assert look.gpus is not None
    (gpu,) = look.gpus
    (expected,) = read_gpus(told("smi", smi("0000:00:06", "GPU-0")))
    assert gpu.values == (
        *expected.values,
        ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 8.0),
        ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 0.0),
        ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 5.0),
        ("DCGM_FI_DEV_XID_ERRORS", 94.0),
    )


def test_older_drivers_tell_of_ecc_and_power_in_other_words() -> None:
    text = """\
<gpu id="00000000:3B:00.0">
<uuid>GPU-v100</uuid>
<volatile>
<single_bit>
<total>4</total>
</single_bit>
<double_bit>
<total>1</total>
</double_bit>
</volatile>
<power_readings>
<power_draw>60.10 W</power_draw>
</power_readings>"""
    (gpu,) = read_gpus(told("smi", text))
    assert dict(gpu.values) == {
        "DCGM_FI_DEV_POWER_USAGE": 60.1,
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 4.0,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 1.0,
    }
    assert (gpu.pci, gpu.slowed_by_heat) == ("0000:3b:00", None)


def test_nodes_fleets_runs_cost_and_health_are_told() -> None:
    text = text_of(gpu_look())
    assert value(text, "orch_node_up", node="n0") == 1.0
    assert value(text, "orch_node_up", node='dead"\n') == 0.0
    statuses = {each: value(text, "orch_node_status", node="n0", status=each) for each in NODE_STATUSES}
    assert [each for each, is_it in statuses.items() if is_it] == ["busy"]
    assert value(text, "orch_node_status", node='dead"\n', status="unreachable") == 1.0
    assert value(text, "orch_node_cpu_seconds_total", node="n0") == 2.0
    assert value(text, "orch_node_memory_used_bytes", node="n0") == 1 << 30
    assert value(text, "orch_node_network_receive_bytes_total", interface="eth0") == 1000.0
    assert value(text, "orch_node_fabric_transmit_bytes_total", port="mlx5_0/1") == 2000.0
    assert value(text, "orch_node_fabric_port_up", port="mlx5_1/1") == 0.0
    assert value(text, "orch_gpu_utilization_ratio", gpu="0", run="train") == 0.97
    assert value(text, "orch_node_health", status="failure") == 1.0
    assert value(text, "orch_node_health_findings", severity="warning") == 2.0
    assert value(text, "orch_fleet_nodes", fleet="lab", backend="aws") == 1.0
    assert value(text, "orch_fleet_cost_usd_total", fleet="old") == 7.0
    assert value(text, "orch_fleet_budget_usd") == 100.0
    assert value(text, "orch_month_forecast_usd") == 90.0
    assert value(text, "orch_runs", fleet="lab", status="running") == 1.0
    assert value(text, "orch_runs", fleet="lab", status="provisioning") == 0.0
    assert value(text, "orch_runs_ended_total", status="done") == 5.0
    assert value(text, "orch_queue_length", fleet="lab") == 1.0
    assert value(text, "orch_run_waiting_seconds", run="next", run_id="8") == 400.0
    assert value(text, "orch_run_duration_seconds", run="train") == 300.0
    assert value(text, "orch_run_retries_total", run="train") == 2.0
    assert value(text, "orch_run_failed_tries", run="next") == 4.0
    assert value(text, "orch_run_ranks", run="train", status="running") == 1.0
    assert value(text, "orch_source_up", source="ledger") == 0.0


def test_the_text_passes_both_parsers_and_has_nothing_that_is_not_described() -> None:
    registry = CollectorRegistry()
    registry.register(ProjectCollector(gpu_look))
    names = {family.sample for family in FAMILIES.values()}
    plain = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert {sample.name for family in plain for sample in family.samples} <= names
    assert all(family.documentation for family in plain)
    assert len(plain) == len(FAMILIES)
    open_metrics = list(openmetrics_families(generate_openmetrics(registry).decode()))
    assert sum(len(each.samples) for each in open_metrics) == sum(len(each.samples) for each in plain)


@pytest.mark.parametrize("name", [each for each in FAMILIES if each.startswith("orch_")])
def test_names_follow_the_rules_of_prometheus(name: str) -> None:
    family = FAMILIES[name]
    assert not name.endswith("_total"), "the library adds it to counters"
    assert not any(word in name for word in ("_ms", "_mib", "_gib", "_percent", "_minutes", "_kb"))
    assert family.help.endswith(".")


def test_what_a_node_tells_is_cut_and_breaks_no_scrape() -> None:
    box = node(0, gpus={"count": 1, "vendor": "nvidia"})
    of = fleet(box)
    ports = [f"fabric 1 {'x' * 500}{number} 1 1" for number in range(300)]
    text = "\n".join(
        [
            *("-- what is used", "at 1.0", *ports, "net device \udcff\x1b[2J 1 2", "-- devices"),
            *('host "}\\\udcff', "smi ", *told("smi", smi("0000:00:06", "GPU-\udcff" + "u" * 500) * 200)),
            *("port mlx5_0/ports/1 4: ACTIVE evil", "block 999999 x", "block x y", "port", "block", "link"),
        ]
    )
    look = node_look.read(of, box, text)
    told_of = text_of(ProjectLook(ProjectFacts((of,)), (NodeAnswer(of, box, look),), 0.0))
    assert told_of.count("orch_node_fabric_receive_bytes_total{") == 1  # they are the same once they are cut
    assert told_of.count("\nDCGM_FI_DEV_GPU_UTIL{") == 64
    assert value(told_of, "orch_node_info", host='"}\\\\udcff') == 1.0
    assert list(text_string_to_metric_families(told_of))


def test_a_run_waits_until_its_commands_begin() -> None:
    ended = AttemptRow(0, "{}", ("error",), None, 1100.0, 1400.0, ())
    assert waiting_s(run()) is None
    assert waiting_s(run(status="provisioning", started_at=None)) == 500.0
    assert waiting_s(run(status="pending", attempts=(ended,))) == 100.0
    assert waiting_s(run(status="pending", queued_at=1450.0, attempts=(ended,))) == 50.0


class Slow:
    """A connector to nodes of which some never answer, and one is dead."""

    def __init__(self, hung: Collection[str] = (), dead: Collection[str] = ()) -> None:
        self.hung, self.dead, self.asked = hung, dead, list[str]()
        self.go = threading.Event()

    def run(self, node: NodeState, command: Command, *, until: threading.Event, **more: Any) -> Completed:
        self.asked.append(node.name)
        assert more == {"deadline_s": 0.0, "connect_timeout_s": 4.0}
        if node.name in self.dead:
            raise HostUnreachable(f"node {node.name} cannot be reached", where=node.name)
        if node.name in self.hung:
            while not (self.go.wait(0.01) or until.is_set()):
                pass
        return Completed(node.name, command, 0, "-- what is used\nat 1.0\n-- devices\n", "", 0.0)


@pytest.fixture
def watching() -> Iterator[Callable[..., ProjectWatch]]:
    made: list[ProjectWatch] = []

    def make(*words: Any, **more: Any) -> ProjectWatch:
        made.append(ProjectWatch(*words, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ups(look: ProjectLook) -> dict[str, bool]:
    return {each.node.name: each.look is not None for each in look.nodes}


def test_a_node_that_hangs_or_is_dead_holds_no_scrape_up(watching: Callable[..., ProjectWatch]) -> None:
    of = fleet(*(node(index) for index in range(3)))
    connector = Slow({"n1"}, {"n2"})
    watch = watching(lambda: ProjectFacts((of,)), connector, deadline_s=0.5, shared_s=0.0)
    for _ in range(2):
        look = watch.look()
        assert ups(look) == {"n0": True, "n1": False, "n2": False}
        problems = [each.problem for each in look.nodes]
        assert problems == [None, "no answer within 0.5 s", "node n2 cannot be reached"]
    # What hangs is not asked a second time; those that were silent come last.
    assert connector.asked.count("n1") == 1
    connector.go.set()
    assert ups(watch.look())["n1"]


def test_a_node_whose_turn_does_not_come_is_not_taken_for_dead(watching: Callable[..., ProjectWatch]) -> None:
    """As where many hang, or the machine that looks is overloaded."""
    names = {f"n{index}" for index in range(FAN_OUT)}
    of = fleet(*(node(index) for index in range(FAN_OUT + 2)))
    connector = Slow(names)
    watch = watching(lambda: ProjectFacts((of,)), connector, deadline_s=0.5, shared_s=0.0)
    look = watch.look()
    assert {each.node.name for each in look.nodes if each.asked} == names
    text = text_of(look)
    assert value(text, "orch_look_unasked_nodes") == 2.0
    assert f'node="n{FAN_OUT}"' not in text
    connector.go.set()
    until(lambda: all(ups(watch.look()).values()), 60, "all are asked")


def test_scrapes_at_the_same_time_share_one_look(watching: Callable[..., ProjectWatch]) -> None:
    of = fleet(node(0))
    connector = Slow()
    watch = watching(lambda: ProjectFacts((of,)), connector, shared_s=600.0)
    with ThreadPoolExecutor(8) as pool:
        looks = set(map(id, pool.map(lambda _: watch.look(), range(8))))
    assert (len(looks), connector.asked) == (1, ["n0"])


def test_a_state_that_does_not_come_keeps_what_was_known(watching: Callable[..., ProjectWatch]) -> None:
    of, go, calls = fleet(node(0)), threading.Event(), list[int]()

    def facts() -> ProjectFacts:
        calls.append(1)
        if len(calls) > 1:
            go.wait(60)
        return ProjectFacts((of,), sources={"state": True})

    watch = watching(facts, Slow(), deadline_s=0.4, shared_s=0.0)
    assert watch.look().facts.sources == {"state": True}
    for _ in range(2):
        look = watch.look()
        assert ups(look) == {"n0": True}
        assert look.facts.sources == {"state": False, "ledger": False, "files": False}
    assert len(calls) == 2, "it is not asked again while it is under way"
    go.set()
    while watch.look().facts.sources != {"state": True}:
        time.sleep(0.01)


def test_a_fleet_that_is_named_leaves_the_others_out() -> None:
    facts = ProjectFacts(
        (fleet(), fleet(name="other")),
        (run(), run(id=9, fleet="other")),
        {("lab", "done"): 1, ("other", "done"): 2},
        (FleetCost("lab"), FleetCost("other")),
        (HealthRow("other", "n", "healthy", 0.0),),
        5.0,
        6.0,
    )
    assert only(facts, ()) is facts
    one = only(facts, {"other"})
    assert ([each.name for each in one.fleets], [each.id for each in one.runs]) == (["other"], [9])
    assert (one.ended, one.costs, len(one.health)) == ({("other", "done"): 2}, (FleetCost("other"),), 1)
    assert one.month_spent is None, "it is of the whole project"


def test_a_served_project_tells_of_nodes_that_come_and_go(
    tmp_path: Path, watching: Callable[..., ProjectWatch]
) -> None:
    lab = FolderLab(tmp_path)
    of = lab.fleet()
    watch = watching(
        lambda: ProjectFacts((of,)), lab.connector, shared_s=0.0, runtimes={"folder": FolderRuntime()}
    )
    port, close = serve(ProjectCollector(watch.look), "127.0.0.1", 0)
    try:

        def scraped() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                return answer.read().decode()

        text = scraped()
        assert value(text, "orch_node_up", node="box-0") == value(text, "orch_node_up", node="box-1") == 1.0
        assert value(text, "orch_node_status", node="box-0", status="idle") == 1.0
        assert value(text, "orch_node_memory_size_bytes", node="box-0") > 0
        shutil.rmtree(tmp_path / "node-1")
        text = scraped()
        assert value(text, "orch_node_up", node="box-0") == 1.0
        assert value(text, "orch_node_up", node="box-1") == 0.0
    finally:
        close()
