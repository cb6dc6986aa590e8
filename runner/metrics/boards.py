"""The boards for Grafana. Each expression is narrowed by the variables of its board."""

from __future__ import annotations

import json

from orch.runner.metrics.grafana import Board, Graph, Row, Stat, Table
from orch.templates import rule_files

BOARDS = (
    Board(
        "fleets",
        "fleets",
        "Nodes of all fleets, their health and what they cost.",
        ("fleet",),
        (
            Stat("Nodes", "sum(orch_fleet_nodes)"),
            Stat("Not answering", "count(orch_node_up == 0) or vector(0)", red=1),
            Stat("Failed", 'sum(orch_node_status{status="failure"}) or vector(0)', red=1),
            Stat("Unhealthy", 'sum(orch_node_health{status="failure"}) or vector(0)', red=1),
            Stat("Blocks in use", "sum(orch_node_blocks_busy) / sum(orch_node_blocks)", unit="percentunit"),
            Stat("An hour costs", "sum(orch_fleet_price_usd_per_hour)", unit="currencyUSD"),
            Row("Nodes"),
            Graph("Nodes by status", {"sum by (status) (orch_node_status)": "{{status}}"}, stacked=True),
            Graph("Nodes by health", {"sum by (status) (orch_node_health)": "{{status}}"}, stacked=True),
            Graph(
                "GPU use by fleet",
                {"avg by (fleet) (orch_gpu_utilization_ratio)": "{{fleet}}"},
                unit="percentunit",
                most=1,
            ),
            Graph(
                "Fabric traffic by fleet",
                {
                    "sum by (fleet) (rate(orch_node_fabric_receive_bytes_total[]))": "{{fleet}} in",
                    "sum by (fleet) (rate(orch_node_fabric_transmit_bytes_total[]))": "{{fleet}} out",
                },
                unit="Bps",
            ),
            Table(
                "Nodes that are not in order",
                'orch_node_status{status!~"idle|busy|cordoned"} == 1',
                hidden=("Value",),
            ),
            Table("Findings of health", "orch_node_health_findings > 0"),
            Row("Cost"),
            Stat("This month", "max(orch_month_cost_usd)", unit="currencyUSD"),
            Stat("Forecast of the month", "max(orch_month_forecast_usd)", unit="currencyUSD"),
            Stat("Nodes without a price", "sum(orch_fleet_unpriced_nodes)"),
            Graph("Spent", {"orch_fleet_cost_usd_total": "{{fleet}}"}, unit="currencyUSD"),
            Graph(
                "Share of the budget",
                {"orch_fleet_cost_usd_total / orch_fleet_budget_usd": "{{fleet}}"},
                unit="percentunit",
            ),
            Graph("Price an hour", {"orch_fleet_price_usd_per_hour": "{{fleet}}"}, unit="currencyUSD"),
            Row("orch itself"),
            Graph("How long a look takes", {"orch_look_seconds": "{{instance}}"}, unit="s"),
            Graph("Sources that could be read", {"orch_source_up": "{{source}}"}, most=1),
        ),
    ),
    Board(
        "gpus",
        "GPUs",
        "NVIDIA's GPUs under the names of dcgm-exporter, and the use of those of any vendor.",
        ("fleet", "node", "run"),
        (
            Stat("GPUs", "count(orch_gpu_utilization_ratio)"),
            Stat("Mean use", "avg(orch_gpu_utilization_ratio)", unit="percentunit"),
            Stat("With an Xid", "count(DCGM_FI_DEV_XID_ERRORS > 0) or vector(0)", red=1),
            Stat("Uncorrected ECC errors", "sum(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL) or vector(0)", red=1),
            Stat("Slowed by heat", "sum(orch_gpu_thermal_slowdown) or vector(0)", red=1),
            Stat("Power", "sum(DCGM_FI_DEV_POWER_USAGE)", unit="watt"),
            Row("Use"),
            Graph(
                "Use",
                {"orch_gpu_utilization_ratio": "{{node}} {{gpu}}"},
                unit="percentunit",
                most=1,
                description="Of any vendor. The mean of a run's GPUs hides the one that waits.",
            ),
            Graph(
                "Memory in use",
                {"orch_gpu_memory_used_bytes / orch_gpu_memory_size_bytes": "{{node}} {{gpu}}"},
                unit="percentunit",
                most=1,
            ),
            Graph("SM clock", {"DCGM_FI_DEV_SM_CLOCK * 1e6": "{{node}} {{gpu}}"}, unit="hertz"),
            Graph("Memory clock", {"DCGM_FI_DEV_MEM_CLOCK * 1e6": "{{node}} {{gpu}}"}, unit="hertz"),
            Graph(
                "Memory copies", {"DCGM_FI_DEV_MEM_COPY_UTIL": "{{node}} {{gpu}}"}, unit="percent", most=100
            ),
            Graph(
                "Framebuffer used and free",
                {
                    "DCGM_FI_DEV_FB_USED * 1048576": "{{node}} {{gpu}} used",
                    "DCGM_FI_DEV_FB_FREE * 1048576": "{{node}} {{gpu}} free",
                },
                unit="bytes",
            ),
            Row("Heat and power"),
            Graph("Temperature", {"DCGM_FI_DEV_GPU_TEMP": "{{node}} {{gpu}}"}, unit="celsius"),
            Graph("Temperature of memory", {"DCGM_FI_DEV_MEMORY_TEMP": "{{node}} {{gpu}}"}, unit="celsius"),
            Graph("Power of each", {"DCGM_FI_DEV_POWER_USAGE": "{{node}} {{gpu}}"}, unit="watt"),
            Row("Faults"),
            Table("Last Xid", "DCGM_FI_DEV_XID_ERRORS > 0", hidden=("UUID", "device")),
            Graph(
                "Corrected ECC errors an hour",
                {"increase(DCGM_FI_DEV_ECC_SBE_VOL_TOTAL[1h])": "{{node}} {{gpu}}"},
            ),
            Graph("Uncorrected ECC errors", {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "{{node}} {{gpu}}"}),
            Graph(
                "Remapped rows",
                {
                    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": "{{node}} {{gpu}} corrected",
                    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "{{node}} {{gpu}} uncorrected",
                    "DCGM_FI_DEV_ROW_REMAP_PENDING": "{{node}} {{gpu}} pending",
                    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "{{node}} {{gpu}} failed",
                },
            ),
            Graph(
                "PCIe replays a second",
                {"rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[])": "{{node}} {{gpu}}"},
                unit="cps",
            ),
            Graph(
                "NVLink errors a second",
                {
                    "rate(DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL[])": "{{node}} {{gpu}} CRC",
                    "rate(DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL[])": "{{node}} {{gpu}} replay",
                    "rate(DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL[])": "{{node}} {{gpu}} recovery",
                },
                unit="cps",
            ),
        ),
    ),
    Board(
        "nodes",
        "nodes",
        "CPU, memory, network and fabric of each node.",
        ("fleet", "node"),
        (
            Table("Nodes", "orch_node_info", hidden=("Value",), height=6),
            Graph(
                "CPU",
                {"rate(orch_node_cpu_seconds_total[]) / orch_node_cpu_cores": "{{node}}"},
                unit="percentunit",
                most=1,
            ),
            Graph(
                "Memory",
                {"orch_node_memory_used_bytes / orch_node_memory_size_bytes": "{{node}}"},
                unit="percentunit",
                most=1,
            ),
            Graph(
                "Network in",
                {"sum by (node) (rate(orch_node_network_receive_bytes_total[]))": "{{node}}"},
                unit="Bps",
            ),
            Graph(
                "Network out",
                {"sum by (node) (rate(orch_node_network_transmit_bytes_total[]))": "{{node}}"},
                unit="Bps",
            ),
            Graph(
                "Fabric in",
                {"sum by (node, port) (rate(orch_node_fabric_receive_bytes_total[]))": "{{node}} {{port}}"},
                unit="Bps",
                description=(
                    "InfiniBand, RoCE or EFA, past the kernel. Ports of one node that differ are a slow link."
                ),
            ),
            Graph(
                "Fabric out",
                {"sum by (node, port) (rate(orch_node_fabric_transmit_bytes_total[]))": "{{node}} {{port}}"},
                unit="Bps",
            ),
            Graph("Fabric ports that are up", {"sum by (node) (orch_node_fabric_port_up)": "{{node}}"}),
            Graph("GPUs that are lost", {"orch_node_gpus - orch_node_gpus_visible": "{{node}}"}),
            Table("In this state since", "time() - orch_node_health_since_timestamp_seconds", unit="s"),
        ),
    ),
    Board(
        "runs",
        "runs",
        "Runs, those that wait in line, and how they end.",
        ("fleet",),
        (
            Stat("Running", 'sum(orch_runs{status="running"})'),
            Stat("In line for nodes", "sum(orch_queue_length)"),
            Stat("Longest wait", "max(orch_run_waiting_seconds) or vector(0)", unit="s", red=7200),
            Stat("Failed in a day", 'sum(increase(orch_runs_ended_total{status="failed"}[1d])) or vector(0)'),
            Stat("Tried again in a day", "sum(increase(orch_run_retries_total[1d])) or vector(0)"),
            Row("Runs"),
            Table("Active runs", "orch_run_info", hidden=("Value",)),
            Graph("Active runs by status", {"sum by (status) (orch_runs)": "{{status}}"}, stacked=True),
            Graph("The line", {"orch_queue_length": "{{fleet}}"}, stacked=True),
            Graph("Waiting", {"orch_run_waiting_seconds": "{{run}}"}, unit="s"),
            Graph("Running for", {"orch_run_duration_seconds": "{{run}}"}, unit="s"),
            Graph(
                "Runs that ended, an hour",
                {"sum by (status) (increase(orch_runs_ended_total[1h]))": "{{status}}"},
                stacked=True,
            ),
            Graph("Tries without success", {"orch_run_failed_tries": "{{run}}"}),
            Graph("Ranks by status", {"sum by (run, status) (orch_run_ranks)": "{{run}} {{status}}"}),
            Graph(
                "GPU use by run",
                {
                    'avg by (run) (orch_gpu_utilization_ratio{run!=""})': "{{run}}",
                    'min by (run) (orch_gpu_utilization_ratio{run!=""})': "{{run}}, the least",
                },
                unit="percentunit",
                most=1,
            ),
        ),
    ),
)


def board_files() -> dict[str, bytes]:
    """Return the boards of Grafana and the alert rules of Prometheus, by their path."""
    boards = {
        f"grafana/orch-{board.name}.json": f"{json.dumps(board.model(), indent=1)}\n".encode()
        for board in BOARDS
    }
    return {**boards, **rule_files()}
