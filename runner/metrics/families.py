"""A look at a project as Prometheus scrapes it: every metric, in one table, and their samples.

Names and units follow Prometheus, "Metric and label naming": base units, `_total` for counters. NVIDIA's GPUs
have the names, units and labels of its dcgm-exporter besides, so that boards and rules which people have for
that read these, too. Those of its metrics that count have no type here, for their names do not end in
`_total` as a counter's of Prometheus must; `rate` takes them all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from orch.runner.ledger.records import ACTIVE
from orch.runner.metrics.gpu_counters import FIELDS, LINK_FIELDS, XID, XID_HELP, GpuCounters
from orch.runner.metrics.node_look import NodeLook
from orch.runner.metrics.project_look import (
    NodeAnswer,
    ProjectFacts,
    ProjectLook,
    queued,
    status_of,
    waiting_s,
)
from orch.runner.node_api.status import StatusWord
from orch.spec.grammar.values import encodable

if TYPE_CHECKING:
    from prometheus_client import Metric

NODE_STATUSES = get_args(StatusWord)
HEALTH_STATUSES = ("healthy", "warning", "failure")
# What nodes tell is not trusted: so many characters of a name, so many interfaces of a node.
MOST_LETTERS, MOST_PARTS = 128, 128

Kind = Literal["gauge", "counter", "unknown"]
_NODE = ("fleet", "node")
_RUN = ("fleet", "run", "run_id")
_GPU = (*("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname"), *_NODE, "run")


@dataclass(frozen=True)
class Family:
    """A metric: its name without the `_total` of a counter, its help, and its labels."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def sample(self) -> str:
        """The name of its samples, which boards and rules use."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _dcgm() -> Iterator[Family]:
    for name, field in FIELDS.items():
        yield Family(name, _dcgm_kind(name), field.help, _GPU)
    for name, text in LINK_FIELDS.values():
        yield Family(name, "unknown", text, _GPU)
    yield Family(XID, "gauge", XID_HELP, _GPU)


def _dcgm_kind(name: str) -> Kind:
    return "unknown" if name.endswith(("_TOTAL", "_COUNTER", "_ROWS")) else "gauge"


FAMILIES: Mapping[str, Family] = {
    each.name: each
    for each in (
        Family("orch_look_seconds", "gauge", "How long the look took that this scrape tells of."),
        Family(
            "orch_look_unasked_nodes",
            "gauge",
            "Nodes whose turn did not come in time: nothing is told of them.",
        ),
        Family("orch_source_up", "gauge", "Whether a source of facts could be read.", ("source",)),
        # -- nodes
        Family("orch_node_up", "gauge", "Whether the node answered.", _NODE),
        Family("orch_node_status", "gauge", "1 for the status that the node has.", (*_NODE, "status")),
        Family(
            "orch_node_info",
            "gauge",
            "What the node is; always 1.",
            (*_NODE, "backend", "instance_type", "region", "zone", "host"),
        ),
        Family("orch_node_blocks", "gauge", "Blocks that the node is cut into.", _NODE),
        Family("orch_node_blocks_busy", "gauge", "Blocks of the node that jobs hold.", _NODE),
        Family("orch_node_cpu_seconds", "counter", "CPU time that the node has used.", _NODE),
        Family("orch_node_cpu_cores", "gauge", "Cores that the node may use.", _NODE),
        Family("orch_node_memory_used_bytes", "gauge", "Memory in use, but for files' pages.", _NODE),
        Family("orch_node_memory_size_bytes", "gauge", "Memory that the node may use.", _NODE),
        Family(
            "orch_node_network_receive_bytes",
            "counter",
            "Bytes that came in by an interface.",
            (*_NODE, "interface"),
        ),
        Family(
            "orch_node_network_transmit_bytes",
            "counter",
            "Bytes that went out by an interface.",
            (*_NODE, "interface"),
        ),
        Family(
            "orch_node_fabric_receive_bytes",
            "counter",
            "Bytes that came in past the kernel, by InfiniBand, RoCE or EFA.",
            (*_NODE, "port"),
        ),
        Family(
            "orch_node_fabric_transmit_bytes",
            "counter",
            "Bytes that went out past the kernel, by InfiniBand, RoCE or EFA.",
            (*_NODE, "port"),
        ),
        Family(
            "orch_node_fabric_port_up", "gauge", "Whether the link of a port is active.", (*_NODE, "port")
        ),
        Family("orch_node_gpus", "gauge", "Accelerators that the node was made with.", _NODE),
        Family("orch_node_gpus_visible", "gauge", "GPUs that NVIDIA's driver tells of.", _NODE),
        # -- accelerators of any vendor
        Family(
            "orch_gpu_utilization_ratio",
            "gauge",
            "Share of time that an accelerator was at work lately.",
            (*_NODE, "gpu", "run"),
        ),
        Family(
            "orch_gpu_memory_used_bytes", "gauge", "Memory of an accelerator in use.", (*_NODE, "gpu", "run")
        ),
        Family("orch_gpu_memory_size_bytes", "gauge", "Memory of an accelerator.", (*_NODE, "gpu", "run")),
        Family(
            "orch_gpu_thermal_slowdown",
            "gauge",
            "Whether a GPU of NVIDIA slows itself down because it is hot.",
            (*_NODE, "gpu", "run"),
        ),
        *_dcgm(),
        # -- health
        Family("orch_node_health", "gauge", "1 for the verdict on the node's health.", (*_NODE, "status")),
        Family(
            "orch_node_health_since_timestamp_seconds",
            "gauge",
            "Since when it has that verdict, Unix time.",
            _NODE,
        ),
        Family(
            "orch_node_health_findings", "gauge", "Findings of the last examination.", (*_NODE, "severity")
        ),
        # -- fleets and money
        Family("orch_fleet_nodes", "gauge", "Nodes that the fleet has.", ("fleet", "backend")),
        Family("orch_fleet_price_usd_per_hour", "gauge", "What the fleet costs an hour.", ("fleet",)),
        Family("orch_fleet_unpriced_nodes", "gauge", "Nodes without a known price.", ("fleet",)),
        Family("orch_fleet_cost_usd", "counter", "What the fleet has cost since it is recorded.", ("fleet",)),
        Family("orch_fleet_budget_usd", "gauge", "What its file lets the fleet cost in all.", ("fleet",)),
        Family("orch_month_cost_usd", "gauge", "What the calendar month (UTC) has cost so far."),
        Family("orch_month_forecast_usd", "gauge", "What the month comes to if all stays."),
        # -- runs
        Family("orch_runs", "gauge", "Active runs by status.", ("fleet", "status")),
        Family("orch_runs_ended", "counter", "Runs that have ended, by status.", ("fleet", "status")),
        Family("orch_queue_length", "gauge", "Runs in line for nodes of the fleet.", ("fleet",)),
        Family("orch_run_info", "gauge", "An active run; always 1.", (*_RUN, "owner", "status")),
        Family("orch_run_ranks", "gauge", "Ranks of an active run by status.", (*_RUN, "status")),
        Family("orch_run_waiting_seconds", "gauge", "How long a run waits for its commands to begin.", _RUN),
        Family("orch_run_duration_seconds", "gauge", "How long the commands of its attempt run.", _RUN),
        Family("orch_run_retries", "counter", "Attempts of the run before the present one.", _RUN),
        Family("orch_run_failed_tries", "gauge", "Tries without success since it is tried again.", _RUN),
    )
}

Sample = tuple[str, tuple[str, ...], float | None]
"""A family's name, the values of its labels, and a value; None for what is not known."""


class ProjectCollector:
    """A collector of Prometheus's client library, which is an extra and imported where it is used."""

    def __init__(self, look: Callable[[], ProjectLook]) -> None:
        self._look = look

    def describe(self) -> list[Metric]:
        """Every family without a sample: a registry asks no node for it."""
        return list(_empty().values())

    def collect(self) -> Iterator[Metric]:
        families, seen = _empty(), set[tuple[str, tuple[str, ...]]]()
        clean: dict[str, str] = {}  # a thousand nodes have a quarter of a million samples with few words
        for name, labels, value in samples(self._look()):
            for each in labels:
                if each not in clean:
                    clean[each] = encodable(each)[:MOST_LETTERS]
            key = (name, tuple([clean[each] for each in labels]))
            # Names that a node tells may be the same once they are cut: Prometheus refuses a scrape for that.
            if value is not None and key not in seen:
                seen.add(key)
                family = FAMILIES[name]
                families[name].add_sample(
                    family.sample, dict(zip(family.labels, key[1], strict=True)), float(value)
                )
        yield from families.values()


def _empty() -> dict[str, Metric]:
    from prometheus_client import Metric

    return {name: Metric(name, each.help, each.kind) for name, each in FAMILIES.items()}


def samples(look: ProjectLook) -> Iterator[Sample]:
    """All samples of a look. Pure."""
    yield "orch_look_seconds", (), look.seconds
    for source, is_up in look.facts.sources.items():
        yield "orch_source_up", (source,), float(is_up)
    yield "orch_look_unasked_nodes", (), sum(not answer.asked for answer in look.nodes)
    for answer in look.nodes:
        if answer.asked:
            yield from _of_node(answer)
    yield from _of_project(look.facts)
    yield from _of_runs(look.facts)


def _of_node(answer: NodeAnswer) -> Iterator[Sample]:
    fleet, node, look = answer.fleet, answer.node, answer.look
    of, status = (fleet.name, node.name), status_of(answer)
    yield "orch_node_up", of, float(look is not None)
    for each in NODE_STATUSES:
        yield "orch_node_status", (*of, each), float(each == status)
    place = (node.instance_type or "", node.region or "", node.zone or "", look.host if look else "")
    yield "orch_node_info", (*of, fleet.backend, *place), 1.0
    yield "orch_node_blocks", of, node.blocks
    yield "orch_node_gpus", of, 0 if fleet.simulated else node.gpus.count
    if look is not None:
        yield "orch_node_blocks_busy", of, look.status.busy_blocks
        yield from _of_use(answer, look)
        for port in look.ports:
            yield "orch_node_fabric_port_up", (*of, port.name), float(port.up)
        if look.gpus is not None:
            yield "orch_node_gpus_visible", of, sum(gpu.index is not None for gpu in look.gpus)
            for gpu in look.gpus:
                yield from _of_gpu(answer, look, gpu)


def _of_use(answer: NodeAnswer, look: NodeLook) -> Iterator[Sample]:
    from orch.runner.metrics.reading import fleet_targets

    of, reading = (answer.fleet.name, answer.node.name), look.reading
    if reading is None:
        return
    (target,) = fleet_targets(answer.fleet.model_copy(update={"nodes": (answer.node,)}))
    yield "orch_node_cpu_seconds", of, reading.node.cpu_s
    yield "orch_node_cpu_cores", of, target.usable_cores(reading)
    yield "orch_node_memory_used_bytes", of, reading.node.memory_bytes
    yield "orch_node_memory_size_bytes", of, target.usable_memory(reading.node)
    for kind, parts in (("network", reading.interfaces), ("fabric", reading.fabric)):
        for name, (received, sent) in list(parts.items())[:MOST_PARTS]:
            part = (*of, _port(name))
            yield f"orch_node_{kind}_receive_bytes", part, received
            yield f"orch_node_{kind}_transmit_bytes", part, sent
    for device in (reading.devices or ())[:MOST_PARTS]:
        at = (*of, str(device.index), look.run_of(answer.node, device.index))
        yield "orch_gpu_utilization_ratio", at, None if device.percent is None else device.percent / 100
        yield "orch_gpu_memory_used_bytes", at, device.memory_bytes
        yield "orch_gpu_memory_size_bytes", at, device.memory_total_bytes


def _port(name: str) -> str:
    """`mlx5_0/1` for its folder in /sys."""
    return name.removeprefix("/sys/class/infiniband/").replace("/ports/", "/")


def _of_gpu(answer: NodeAnswer, look: NodeLook, gpu: GpuCounters) -> Iterator[Sample]:
    of = (answer.fleet.name, answer.node.name)
    run = "" if gpu.index is None else look.run_of(answer.node, gpu.index)
    index = "" if gpu.index is None else str(gpu.index)
    device = f"nvidia{gpu.minor}" if gpu.minor else ""
    for name, value in gpu.values:
        yield name, (index, gpu.uuid, gpu.pci, device, gpu.model, look.host, *of, run), value
    if gpu.slowed_by_heat is not None:
        yield "orch_gpu_thermal_slowdown", (*of, index, run), float(gpu.slowed_by_heat)


def _of_project(facts: ProjectFacts) -> Iterator[Sample]:
    for fleet in facts.fleets:
        yield "orch_fleet_nodes", (fleet.name, fleet.backend), len(fleet.nodes)
    for cost in facts.costs:
        yield "orch_fleet_price_usd_per_hour", (cost.fleet,), cost.hourly
        yield "orch_fleet_unpriced_nodes", (cost.fleet,), cost.unpriced
        yield "orch_fleet_cost_usd", (cost.fleet,), cost.spent
        yield "orch_fleet_budget_usd", (cost.fleet,), cost.budget
    yield "orch_month_cost_usd", (), facts.month_spent
    yield "orch_month_forecast_usd", (), facts.month_forecast
    for row in facts.health:
        of = (row.fleet, row.node)
        for status in HEALTH_STATUSES:
            yield "orch_node_health", (*of, status), float(status == row.status)
        yield "orch_node_health_since_timestamp_seconds", of, row.since
        for severity, count in row.findings:
            yield "orch_node_health_findings", (*of, severity), count


def _of_runs(facts: ProjectFacts) -> Iterator[Sample]:
    fleets = dict.fromkeys((*(each.name for each in facts.fleets), *(each.fleet for each in facts.runs)))
    for fleet in fleets:
        for status in ACTIVE:
            here = sum(row.fleet == fleet and row.status == status for row in facts.runs)
            yield "orch_runs", (fleet, status), here
    in_line = queued(facts.runs)
    for fleet in fleets:
        yield "orch_queue_length", (fleet,), in_line.get(fleet, 0)
    for (fleet, status), count in facts.ended.items():
        yield "orch_runs_ended", (fleet, status), count
    for row in facts.runs:
        of = (row.fleet, row.name, str(row.id))
        yield "orch_run_info", (*of, row.submitted_by.partition("@")[0], row.status), 1.0
        for status, count in _counts([rank.status for rank in row.ranks]).items():
            yield "orch_run_ranks", (*of, status), count
        yield "orch_run_waiting_seconds", of, waiting_s(row)
        yield "orch_run_duration_seconds", of, row.took_s if row.status == "running" else None
        yield "orch_run_retries", of, row.attempt
        yield "orch_run_failed_tries", of, row.retry_tries


def _counts(words: Sequence[str]) -> dict[str, int]:
    return {word: words.count(word) for word in dict.fromkeys(words)}
