"""Prometheus itself: it scrapes a project, evaluates the alert rules, answers every panel of the boards."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.support import free_port, until
from prometheus_client import CollectorRegistry, generate_latest

from orch.cli.output.metrics import serve
from orch.runner.ledger.records import RankRow, RunRow
from orch.runner.metrics import node_look
from orch.runner.metrics.boards import board_files
from orch.runner.metrics.families import FAMILIES, ProjectCollector
from orch.runner.metrics.project_look import FleetCost, HealthRow, NodeAnswer, ProjectFacts, ProjectLook
from orch.spec.state import FleetState, NodeState

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

DRIVER = """\
smi <gpu id="00000000:00:06.0">
smi <product_name>NVIDIA H100 80GB HBM3</product_name>
smi <uuid>GPU-0</uuid>
smi <minor_number>0</minor_number>
smi <pci>
smi <replay_counter>3</replay_counter>
smi </pci>
smi <clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>
smi <fb_memory_usage>
smi <used>1024 MiB</used>
smi <free>80055 MiB</free>
smi </fb_memory_usage>
smi <utilization>
smi <gpu_util>97 %</gpu_util>
smi <memory_util>40 %</memory_util>
smi </utilization>
smi <volatile>
smi <sram_correctable>0</sram_correctable>
smi <sram_uncorrectable_parity>0</sram_uncorrectable_parity>
smi <sram_uncorrectable_secded>0</sram_uncorrectable_secded>
smi <dram_correctable>2</dram_correctable>
smi <dram_uncorrectable>1</dram_uncorrectable>
smi </volatile>
smi <remapped_rows>
smi <remapped_row_corr>0</remapped_row_corr>
smi <remapped_row_unc>1</remapped_row_unc>
smi <remapped_row_pending>Yes</remapped_row_pending>
smi <remapped_row_failure>No</remapped_row_failure>
smi </remapped_rows>
smi <temperature>
smi <gpu_temp>88 C</gpu_temp>
smi <memory_temp>91 C</memory_temp>
smi </temperature>
smi <gpu_power_readings>
smi <instant_power_draw>695.20 W</instant_power_draw>
smi </gpu_power_readings>
smi <clocks>
smi <sm_clock>345 MHz</sm_clock>
smi <mem_clock>2619 MHz</mem_clock>
smi </clocks>
link 0 Replay 2
link 0 Recovery 0
link 0 CRC 7
kernel
xid [3.0] NVRM: Xid (PCI:0000:00:06): 95, pid=1
"""
ANSWER = f"""\
claim orch-train-7|train|ada@box|2026-11-26T10:00:00Z|1
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
-- devices
host gpu-box
block 0 orch-train-7|train|ada@box|2026-11-26T10:00:00Z|1
port mlx5_0/ports/1 4: ACTIVE
{DRIVER}"""


def node(index: int) -> NodeState:
    gpus = {"count": 2, "vendor": "nvidia"}
    return NodeState.model_validate(
        {"index": index, "name": f"n{index}", "access": {"kind": "none"}, "gpus": gpus}
    )


def run(number: int, status: str, **more: Any) -> RunRow:
    values: dict[str, Any] = dict.fromkeys(RunRow.__dataclass_fields__)
    values |= {"id": number, "name": f"run-{number}", "fleet": "lab", "plan": "{}", "status": status}
    values |= {"submitted_by": "ada@box", "created_at": 0.0, "now": 90_000.0, "attempt": 2, "retry_tries": 6}
    ranks = (RankRow(0, "n0", "running", None, None, None, None, True),)
    return RunRow(**{**values, "attempts": (), "priority": 0, "in_use": 0, "ranks": ranks, **more})


@pytest.fixture(scope="module")
def look() -> ProjectLook:
    """A project in which everything is there, and much is wrong."""
    fleet = FleetState(name="lab", stack="lab", backend="aws", nodes=(node(0), node(1)))
    facts = ProjectFacts(
        (fleet,),
        (run(1, "running", started_at=10.0), run(2, "pending", queued_at=100.0)),
        {("lab", "failed"): 3},
        (FleetCost("lab", 85.0, 3.0, 100.0),),
        (HealthRow("lab", "n0", "failure", 1234.0, "Xid 95", (("failure", 1),)),),
        20.0,
        90.0,
        {"state": True, "ledger": True, "files": False},
    )
    answers = (
        NodeAnswer(fleet, fleet.nodes[0], node_look.read(fleet, fleet.nodes[0], ANSWER)),
        NodeAnswer(fleet, fleet.nodes[1], None, "no answer"),
    )
    return ProjectLook(facts, answers, 0.25)


@pytest.fixture(scope="module")
def ask(look: ProjectLook, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Asks a Prometheus that scrapes this project each second, under the rules of `orch metrics boards`."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "rules.yml").write_bytes(board_files()["prometheus/orch-alerts.yml"])
    scraped, close = serve(ProjectCollector(lambda: look), "127.0.0.1", 0)
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": "orch", "static_configs": [{"targets": [f"127.0.0.1:{scraped}"]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    words = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*words, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=subprocess.STDOUT
        )

    def asked(path: str, **more: str) -> Any:
        url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(more)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]

    def has_scraped() -> bool:
        try:
            return len(asked("query", query="up == 1")["result"]) == 1
        except OSError:
            return False

    try:
        until(has_scraped, 60, "Prometheus has scraped")
        time.sleep(3)
        yield asked
    finally:
        process.terminate()
        process.wait(30)
        close()


def test_every_metric_with_a_value_is_found_in_prometheus(ask: Callable[..., Any]) -> None:
    names = set(ask("label/__name__/values"))
    assert {family.sample for family in FAMILIES.values()} <= names


def test_every_rule_is_evaluated_and_those_that_hold_are_active(ask: Callable[..., Any]) -> None:
    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}
    active = {rule["name"].removeprefix("Orch"): rule["state"] for rule in rules if rule["alerts"]}
    assert active == {
        **dict.fromkeys(("NodeUnreachable", "NodeUnhealthy", "SourceUnreadable", "GpuLost"), "pending"),
        **dict.fromkeys(("GpuHot", "GpuTooHot", "GpuRowRemapPending"), "pending"),
        **dict.fromkeys(("GpuXid", "GpuUncorrectableEcc"), "firing"),
        **dict.fromkeys(("RunWaitsLong", "RunFailsAgainAndAgain", "BudgetNearlySpent"), "firing"),
    }
    (xid,) = (rule["alerts"][0] for rule in rules if rule["name"] == "OrchGpuXid")
    assert xid["annotations"]["summary"] == "Xid 95 on GPU 0 (0000:00:06) of node n0"
    (budget,) = (rule["alerts"][0] for rule in rules if rule["name"] == "OrchBudgetNearlySpent")
    assert budget["annotations"]["summary"] == "Fleet lab has spent 85% of its budget"


@pytest.mark.parametrize("name", [each for each in board_files() if each.endswith(".json")])
def test_every_panel_of_a_board_gets_an_answer(ask: Callable[..., Any], name: str) -> None:
    empty: list[str] = []
    for panel in json.loads(board_files()[name])["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "5s")
            text = re.sub(r"\$(fleet|node|run)\b", ".*", text)
            if not ask("query", query=text)["result"]:
                empty.append(panel["title"])
    assert empty == []


def test_promtool_takes_rules_and_metrics(look: ProjectLook, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_bytes(board_files()["prometheus/orch-alerts.yml"])
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(rules)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    registry = CollectorRegistry()
    registry.register(ProjectCollector(lambda: look))
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=generate_latest(registry), capture_output=True, check=False
    )
    # Its rules on names are those of Prometheus; dcgm-exporter's names are what others have.
    ours = [line for line in done.stderr.decode().splitlines() if not line.startswith("DCGM_")]
    assert ours == []


ALERTS: dict[str, tuple[dict[str, str], str, str]] = {
    "OrchNodeFailed": (
        {'orch_node_status{fleet="f",node="n",status="failure"}': "1x30"},
        "3m",
        "1m",
    ),
    "OrchNodeUnreachable": ({'orch_node_up{fleet="f",node="n"}': "0x30"}, "6m", "4m"),
    "OrchMemoryNearlyFull": (
        {
            'orch_node_memory_used_bytes{fleet="f",node="n"}': "98x30",
            'orch_node_memory_size_bytes{fleet="f",node="n"}': "100x30",
        },
        "11m",
        "9m",
    ),
    "OrchFabricPortDown": (
        {
            'orch_node_fabric_port_up{fleet="f",node="n",port="mlx5_0/1"}': "1x5 0x30",
            'orch_node_fabric_port_up{fleet="f",node="n",port="mlx5_1/1"}': "0x35",
        },
        "9m",
        "5m",
    ),
    "OrchGpuRowRemapFailed": ({'DCGM_FI_DEV_ROW_REMAP_FAILURE{node="n",gpu="0"}': "0x5 1x30"}, "7m", "4m"),
    "OrchGpuCorrectableEccMany": (
        {'DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{node="n",gpu="0"}': "0+5x100"},
        "80m",
        "5m",
    ),
    "OrchGpuNvlinkErrors": (
        {'DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL{node="n",gpu="0"}': "0x10 1x50"},
        "12m",
        "9m",
    ),
    "OrchGpuPcieReplays": (
        {'DCGM_FI_DEV_PCIE_REPLAY_COUNTER{node="n",gpu="0"}': "0x10 0+50x50"},
        "20m",
        "9m",
    ),
    "OrchGpuIdleInRun": (
        {
            'orch_gpu_utilization_ratio{fleet="f",node="n",gpu="0",run="r"}': "0.9x10 0.01x200",
            'orch_gpu_utilization_ratio{fleet="f",node="n",gpu="1",run=""}': "0x210",
            'orch_gpu_utilization_ratio{fleet="f",node="n",gpu="2",run="r"}': "0 0 0 0.9 " * 50,
        },
        "90m",
        "60m",
    ),
    "OrchRunFailsAgainAndAgain": (
        {'orch_run_retries_total{fleet="f",run="r",run_id="1"}': "0+1x60"},
        "10m",
        "1m",
    ),
    "OrchRunsFail": (
        {'orch_runs_ended_total{fleet="f",status="failed"}': "3+1x60"},
        "20m",
        "2m",
    ),
    "OrchFleetIdle": (
        {
            'orch_node_blocks_busy{fleet="f",node="n"}': "0x500",
            'orch_fleet_price_usd_per_hour{fleet="f"}': "98x500",
            'orch_queue_length{fleet="f"}': "0x500",
        },
        "370m",
        "350m",
    ),
    "OrchGpuXid": ({'DCGM_FI_DEV_XID_ERRORS{node="n",gpu="0"}': "0x4 31x5 79x30"}, "12m", "8m"),
}
"""Series a minute apart, when one alert is to fire, and when none is yet."""


def test_alerts_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    """By promtool's own tests of rules, over hours that it makes up."""
    (tmp_path / "rules.yml").write_bytes(board_files()["prometheus/orch-alerts.yml"])
    (tmp_path / "bare.yml").write_text(yaml.safe_dump(without_annotations(tmp_path / "rules.yml")))
    tests: list[dict[str, Any]] = []
    for alert, (series, fires, quiet) in ALERTS.items():
        severity = severity_of(tmp_path / "rules.yml", alert)
        labels = {
            key: value
            for key, value in re.findall(r'(\w+)="([^"]*)"', next(iter(series)))
            if alert != "OrchFleetIdle" or key != "node"
        }
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [
                    {"eval_time": quiet, "alertname": alert, "exp_alerts": []},
                    {
                        "eval_time": fires,
                        "alertname": alert,
                        "exp_alerts": [{"exp_labels": {**labels, "severity": severity}}],
                    },
                ],
            }
        )
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": ["bare.yml"], "tests": tests}))
    done = subprocess.run(
        ["promtool", "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def without_annotations(path: Path) -> dict[str, Any]:
    """The rules alone: what they say is compared elsewhere."""
    found = yaml.safe_load(path.read_text())
    for group in found["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    return found


def severity_of(path: Path, alert: str) -> str:
    groups = yaml.safe_load(path.read_text())["groups"]
    (found,) = (rule["labels"]["severity"] for g in groups for rule in g["rules"] if rule["alert"] == alert)
    return found


def test_the_program_is_prometheus() -> None:
    assert shutil.which("prometheus"), "apt-get install prometheus"
