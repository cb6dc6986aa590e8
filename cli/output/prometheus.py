"""What a run or a fleet uses, as Prometheus scrapes it. Imports its client library, which is an extra."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from orch.runner.metrics.reading import Reading, Target
from orch.runner.node.connector import NodeResult

Looks = Callable[[], Sequence[tuple[Target, NodeResult[Reading]]]]
_COUNTERS = {
    "cpu_seconds": "CPU time that the node, or the job of the rank, has used",
    "network_received_bytes": "Bytes that came to the node by an interface",
    "network_sent_bytes": "Bytes that left the node by an interface",
    "fabric_received_bytes": "Bytes that came past the kernel, by InfiniBand or EFA",
    "fabric_sent_bytes": "Bytes that left past the kernel, by InfiniBand or EFA",
}
_GAUGES = {
    "up": "Whether the node answered; of a run, and its job runs there",
    "cpu_cores": "Cores that the node, or the job of the rank, may use",
    "memory_used_bytes": "Memory of the node, or of the job of the rank, without files that can be dropped",
    "memory_total_bytes": "Memory that the node, or the job of the rank, may use",
    "gpu_utilization_ratio": "Share of time that an accelerator was at work lately",
    "gpu_memory_used_bytes": "Memory of an accelerator that is in use",
    "gpu_memory_total_bytes": "Memory of an accelerator",
}


class UsageCollector(Collector):
    """Looks at the nodes at each scrape, one scrape at a time. `kind`: fleet or run, `name` its name."""

    def __init__(self, kind: str, name: str, looks: Looks) -> None:
        self._kind, self._name, self._looks = kind, name, looks
        self._lock = threading.Lock()

    def describe(self) -> list[CounterMetricFamily]:
        """Nothing: a registry would look at the nodes for it."""
        return []

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        with self._lock:
            looks = self._looks()
        of = [self._kind, "node", *(["rank"] if self._kind == "run" else [])]
        part = {"network": ["interface"], "fabric": ["port"], "gpu": ["gpu"]}
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for names, kind in ((_COUNTERS, CounterMetricFamily), (_GAUGES, GaugeMetricFamily)):
            for name, text in names.items():
                more = part.get(name.partition("_")[0], [])
                families[name] = kind(f"orch_{name}", text, labels=[*of, *more])
        for target, result in looks:
            rank = [str(target.rank)] if self._kind == "run" else []
            for name, more, value in _samples(target, result.value):
                if value is not None:
                    families[name].add_metric([self._name, target.node.name, *rank, *more], value)
        yield from families.values()


Sample = tuple[str, list[str], "float | None"]


def _samples(target: Target, reading: Reading | None) -> Iterator[Sample]:
    of_job = target.rank is not None
    use = None if reading is None else reading.job if of_job else reading.node
    yield "up", [], float(use is not None)
    if reading is None or use is None:
        return
    yield "cpu_seconds", [], use.cpu_s
    yield "cpu_cores", [], target.usable_cores(reading)
    yield "memory_used_bytes", [], use.memory_bytes
    yield "memory_total_bytes", [], target.usable_memory(use)
    for kind, parts in (("network", reading.interfaces), ("fabric", reading.fabric)):
        for name, (received, sent) in parts.items():
            yield f"{kind}_received_bytes", [name], received
            yield f"{kind}_sent_bytes", [name], sent
    for each in reading.devices or ():
        at = [str(each.index)]
        yield "gpu_utilization_ratio", at, None if each.percent is None else each.percent / 100
        yield "gpu_memory_used_bytes", at, each.memory_bytes
        yield "gpu_memory_total_bytes", at, each.memory_total_bytes


def serve(collector: UsageCollector, host: str, port: int) -> tuple[int, Callable[[], None]]:
    """Answer scrapes from threads: the port, and what ends it. Raises OSError."""
    registry = CollectorRegistry()
    registry.register(collector)
    server, thread = start_http_server(port, host, registry)

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, close
