"""What runs and fleets use: a table with small graphs for people, JSON for pipelines, and for Prometheus."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orch.cli.output.run import moment
from orch.spec.errors import visible

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
    from rich.table import Table

    from orch.runner.metrics.figures import Figures, Rate
    from orch.runner.metrics.history import Moment
    from orch.runner.metrics.reading import Device, Reading, Target
    from orch.runner.node_api.connector import NodeResult

    Looks = Callable[[], Sequence[tuple[Target, NodeResult[Reading]]]]

BARS = "▁▂▃▄▅▆▇█"
HISTORY = 20
"""How many looks a graph shows."""
SPANS = 24
"""Into how many parts the time of a graph is cut that shows what was kept."""


class History:
    """Figures of each row until now, for graphs of its latest looks."""

    def __init__(self, looks: int = HISTORY) -> None:
        self._looks = looks
        self._cpu: dict[str, deque[float | None]] = {}
        self._devices: dict[str, deque[float | None]] = {}

    def add(self, rows: Iterable[Figures]) -> None:
        for row in rows:
            self._cpu.setdefault(row.node, deque(maxlen=self._looks)).append(row.cpu_percent)
            self._devices.setdefault(row.node, deque(maxlen=self._looks)).append(row.device_percent)

    def cpu(self, node: str) -> str:
        return bars(self._cpu.get(node, ()))

    def devices(self, node: str) -> str:
        return bars(self._devices.get(node, ()))


def bars(percents: Iterable[float | None]) -> str:
    """A letter for each: its height is the percent; a blank for what is not known."""
    return "".join(
        " " if each is None else BARS[max(0, min(len(BARS) - 1, int(each / 100 * len(BARS))))]
        for each in percents
    )


def metrics_table(rows: Sequence[Figures], history: History | None = None, *, colour: bool) -> Table:
    """A row for each node or rank. With `history`, graphs of how its CPU and its accelerators were used."""
    from rich.table import Table
    from rich.text import Text

    ranks, fabric = any(row.rank is not None for row in rows), any(row.fabric for row in rows)
    headings = [*(["RANK"] if ranks else []), "NODE", "CPU", "MEMORY", "GPU", "GPU MEMORY", "NETWORK"]
    table = Table(box=None, pad_edge=False, header_style="bold" if colour else "")
    for heading in (*headings, *(["FABRIC"] if fabric else [])):
        table.add_column(heading)
    for row in rows:
        cpu, devices = _cpu(row), _devices(row)
        if history is not None:
            cpu, devices = f"{cpu} {history.cpu(row.node)}", f"{devices} {history.devices(row.node)}"
        cells = [
            *([str(row.rank)] if ranks else []),
            row.node,
            *(
                (cpu, _of(row.memory_bytes, row.memory_total_bytes), devices, _device_memory(row.devices))
                if row.problem is None
                else ("no answer" if row.silent else "no job", "-", "-", "-")
            ),
            _rate(row.network),
            *([_rate(row.fabric)] if fabric else []),
        ]
        table.add_row(*(Text(visible(cell).rstrip()) for cell in cells))
    return table


def kept_text(found: Sequence[Moment], *, colour: bool) -> str:
    """A row for each rank, with graphs over the time of these moments: at least one."""
    from orch.runner.metrics.figures import Figures
    from orch.runner.metrics.history import over_time, spans

    history, whole = History(SPANS), over_time(found)
    for part in spans(found, SPANS):
        # A time without a sample is a blank.
        history.add(over_time(part) or [Figures(row.node, row.rank) for row in whole])
    return _lines(metrics_table(whole, history, colour=colour), colour=colour)


def kept_json(found: Iterable[Moment]) -> list[dict[str, Any]]:
    """Return recorded figures with their moments."""
    return [{"at": moment(each.at), "nodes": [metrics_json(row) for row in each.rows]} for each in found]


def metrics_text(rows: Sequence[Figures]) -> str:
    """The table as lines."""
    return _lines(metrics_table(rows, colour=False), colour=False)


def _lines(table: Table, *, colour: bool) -> str:
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, force_terminal=colour, width=None if colour else 200).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def problem_lines(rows: Iterable[Figures]) -> list[str]:
    """Return the reasons why rows have no figures."""
    return [f"{row.node}: {row.problem}" for row in rows if row.problem is not None]


def _cpu(row: Figures) -> str:
    total = f" of {row.cores_total:g}" if row.cores_total else ""
    return "-" if row.cpu_percent is None else f"{row.cpu_percent:.0f}%{total}"


def _devices(row: Figures) -> str:
    if row.simulated:
        return f"{row.simulated} simulated"
    if row.device_percent is None or row.devices is None:
        return "-"
    each = f" {bars(device.percent for device in row.devices)}" if len(row.devices) > 1 else ""
    return f"{row.device_percent:.0f}%{each}"


def _device_memory(devices: Sequence[Device] | None) -> str:
    used = [each.memory_bytes for each in devices or () if each.memory_bytes is not None]
    total = [each.memory_total_bytes for each in devices or () if each.memory_total_bytes is not None]
    return _of(sum(used) if used else None, sum(total) if total else None)


def _of(used: int | None, total: int | None) -> str:
    if used is None:
        return "-"
    return f"{used / 2**30:.1f}" + (f" of {total / 2**30:.1f} GiB" if total else " GiB")


def _rate(rate: Rate | None) -> str:
    return "-" if rate is None else f"{_bytes(rate.received)} in, {_bytes(rate.sent)} out"


def _bytes(a_second: float) -> str:
    for size, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if a_second >= size:
            return f"{a_second / size:.1f} {unit}"
    return f"{a_second:.0f} B/s"


def metrics_json(row: Figures) -> dict[str, Any]:
    """One node, or one rank with the node it is on."""
    return {
        **({} if row.rank is None else {"rank": row.rank}),
        "node": row.node,
        "problem": row.problem,
        "cpu": {"cores": row.cores, "cores_total": row.cores_total, "percent": row.cpu_percent},
        "memory": {"used_bytes": row.memory_bytes, "total_bytes": row.memory_total_bytes},
        "network": _rate_json(row.network),
        "fabric": _rate_json(row.fabric),
        "gpus": None
        if row.devices is None
        else [
            {
                "index": each.index,
                "percent": each.percent,
                "memory_used_bytes": each.memory_bytes,
                "memory_total_bytes": each.memory_total_bytes,
            }
            for each in row.devices
        ],
        "simulated_gpus": row.simulated,
    }


def _rate_json(rate: Rate | None) -> dict[str, float] | None:
    return None if rate is None else {"received_bytes_s": rate.received, "sent_bytes_s": rate.sent}


# -- as Prometheus scrapes it ------------------------------------------------------------------------------

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


class UsageCollector:
    """A collector of Prometheus's client library, which is an extra and imported where it is used.

    It looks at the nodes at each scrape, one scrape at a time. `kind`: fleet or run, `name` its name.
    """

    def __init__(self, kind: str, name: str, looks: Looks) -> None:
        self._kind, self._name, self._looks = kind, name, looks
        self._lock = threading.Lock()

    def describe(self) -> list[CounterMetricFamily]:
        """Nothing: a registry would look at the nodes for it."""
        return []

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

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


def _samples(target: Target, reading: Reading | None) -> Iterator[tuple[str, list[str], float | None]]:
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


def serve(collector: Collector, host: str, port: int) -> tuple[int, Callable[[], None]]:
    """Answer scrapes from threads: the port, and what ends it. Raises OSError, ModuleNotFoundError."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(collector)
    server, thread = start_http_server(port, host, registry)

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, close
