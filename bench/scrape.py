"""1,000 nodes with eight GPUs each as Prometheus scrapes them: seconds and bytes.

The nodes are SSH servers on loopback addresses in one process beside us (`sshfarm.py`) that answer as such a
node does, so what is measured is what `orch metrics serve` costs: the first look opens every connection, the
later ones use them. ORCHCTL_BENCH_HOSTS sets another number of nodes.
"""

from __future__ import annotations

import gzip
import statistics
import time
import urllib.request
from collections.abc import Iterator

from bench.fanout import HOSTS, farm_of
from orch.cli.output.metrics import serve
from orch.runner.connect import open_connector
from orch.runner.metrics.families import ProjectCollector
from orch.runner.metrics.project_look import DEADLINE_S, ProjectFacts, ProjectWatch
from orch.spec.state import FleetState, Gpus

SCRAPES, GPUS = 5, 8
_GPU = """\
smi <gpu id="00000000:{bus:02x}:00.0">
smi <product_name>NVIDIA H100 80GB HBM3</product_name>
smi <uuid>GPU-2eae27bd-bc7f-1504-fa8c-00000000{bus:04x}</uuid>
smi <minor_number>{bus}</minor_number>
smi <pci>
smi <replay_counter>0</replay_counter>
smi </pci>
smi <clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
smi <clocks_event_reason_sw_thermal_slowdown>Not Active</clocks_event_reason_sw_thermal_slowdown>
smi <fb_memory_usage>
smi <used>70112 MiB</used>
smi <free>11079 MiB</free>
smi </fb_memory_usage>
smi <utilization>
smi <gpu_util>98 %</gpu_util>
smi <memory_util>61 %</memory_util>
smi </utilization>
smi <volatile>
smi <sram_correctable>0</sram_correctable>
smi <sram_uncorrectable_parity>0</sram_uncorrectable_parity>
smi <sram_uncorrectable_secded>0</sram_uncorrectable_secded>
smi <dram_correctable>0</dram_correctable>
smi <dram_uncorrectable>0</dram_uncorrectable>
smi </volatile>
smi <remapped_rows>
smi <remapped_row_corr>0</remapped_row_corr>
smi <remapped_row_unc>0</remapped_row_unc>
smi <remapped_row_pending>No</remapped_row_pending>
smi <remapped_row_failure>No</remapped_row_failure>
smi </remapped_rows>
smi <temperature>
smi <gpu_temp>61 C</gpu_temp>
smi <memory_temp>70 C</memory_temp>
smi </temperature>
smi <gpu_power_readings>
smi <instant_power_draw>651.20 W</instant_power_draw>
smi </gpu_power_readings>
smi <clocks>
smi <sm_clock>1755 MHz</sm_clock>
smi <mem_clock>2619 MHz</mem_clock>
smi </clocks>
"""


def answer() -> str:
    """What a node with eight GPUs, NVLinks and eight fabric ports answers."""
    links = "".join(f"link {gpu} {kind} 0\n" for gpu in range(GPUS) for kind in ("Replay", "Recovery", "CRC"))
    ports = [f"mlx5_{number}/ports/1" for number in range(8)]
    return (
        "claim orch-train-7|train|ada@box|2026-11-26T10:00:00Z|1\n-- what is used\nat 864000.5\ncores 192\n"
        "ticks 100\nstat 100 0 100 5000 0 0 0 0 0 0\nMemTotal 2097152000\nMemAvailable 1048576000\n"
        "net device eth0 1000000 2000000\n"
        + "".join(f"fabric 4 /sys/class/infiniband/{port} 250000000 250000000\n" for port in ports)
        + "".join(f"gpu {number}, 98, 70112, 81559\n" for number in range(GPUS))
        + "-- devices\nhost gpu-box\nblock 0 orch-train-7|train|ada@box|2026-11-26T10:00:00Z|1\n"
        + "".join(f"port {port} 4: ACTIVE\n" for port in ports)
        + "smi \n"
        + "".join(_GPU.format(bus=number) for number in range(GPUS))
        + links
        + "kernel\n"
    )


def figures() -> Iterator[str]:
    with farm_of(answer()) as farm:
        gpus = Gpus(count=GPUS, vendor="nvidia")
        nodes = tuple(
            farm.node(number).model_copy(update={"gpus": gpus, "blocks": 1}) for number in range(HOSTS)
        )
        fleet = FleetState(name="large", stack="large", backend="aws", nodes=nodes)
        connector = open_connector()
        watch = ProjectWatch(lambda: ProjectFacts((fleet,)), connector, shared_s=0.0)
        port, close = serve(ProjectCollector(watch.look), "127.0.0.1", 0)
        try:
            took: list[float] = []
            ups: list[int] = []
            body = b""
            used = 0.0
            for number in range(SCRAPES + 1):
                if number == 1:
                    used = time.process_time()
                began = time.perf_counter()
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
                    body = page.read()
                took.append(time.perf_counter() - began)
                ups.append(
                    sum(b.endswith(b" 1.0") for b in body.splitlines() if b.startswith(b"orch_node_up{"))
                )
            used = (time.process_time() - used) / SCRAPES
        finally:
            watch.close()
            close()
            connector.close()
    lines = sum(not line.startswith(b"#") for line in body.splitlines())
    yield (
        f"scrape of {HOSTS} nodes with {GPUS} GPUs: the first {took[0]:.1f} s with {ups[0]} of them, then "
        f"{statistics.median(took[1:]):.1f} s ({min(took[1:]):.1f} to {max(took[1:]):.1f}) with "
        f"{min(ups[1:])} to {max(ups[1:])}; {used:.1f} s of CPU each; deadline {DEADLINE_S:g} s"
    )
    yield (
        f"the text: {lines:,} samples, {len(body) / 1e6:.1f} MB, {len(gzip.compress(body)) / 1e6:.2f} MB "
        f"compressed"
    )
