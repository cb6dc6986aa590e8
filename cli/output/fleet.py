"""Fleets and their nodes as a table and as JSON."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from orch.catalog.devices import model_of, nominal_mib
from orch.runner.connect import open_connector
from orch.runner.errors import HostUnreachable
from orch.runner.node_api.connector import Address, Connector
from orch.runner.node_api.status import NodeStatus
from orch.runner.placement.availability import NodeAvailability
from orch.runner.placement.spares import held_back
from orch.spec.errors import OrchError, visible
from orch.spec.state import FleetState, Gpus, NodeState, PodQueue, hourly_price
from orch.spec.suggest import counted
from orch.stacks.record.node_records import UNKNOWN, NodeRecord

# A cordoned node is healthy: somebody keeps jobs off it. So is a fleet with one less that was idle.
_HEALTHY = ("idle", "busy", "cordoned", "terminated")
_BRIEF = ("FLEET", "NODE", "BACKEND", "GPU", "IP", "PRICE", "CREATED", "STATUS")
_VERBOSE = (
    *("FLEET", "NODE", "BACKEND", "REGION", "ZONE", "TYPE", "ID", "GPU", "CPUS", "MEMORY", "DISK", "BLOCKS"),
    *("ADDRESS", "USER", "JUMP", "IP", "HOST KEY", "PRICE", "SPOT", "CREATED", "STATUS"),
)


@dataclass(frozen=True)
class FleetRow:
    """A fleet as it is shown: its state, how each of its nodes is, and what the stack records of them.

    `protected`: why none of its nodes is replaced by itself until somebody says so."""

    state: FleetState
    statuses: Sequence[NodeStatus]
    records: Mapping[str, NodeRecord] = field(default_factory=dict[str, NodeRecord])
    protected: str | None = None

    @cached_property
    def spares(self) -> frozenset[str]:
        """Names of the nodes that are spares now."""
        pairs = zip(self.state.nodes, self.statuses, strict=True)
        return held_back(self.state, {node.name: NodeAvailability.of(status) for node, status in pairs})

    def nodes(self) -> Iterator[tuple[NodeState, NodeStatus, NodeRecord]]:
        for node, status in zip(self.state.nodes, self.statuses, strict=True):
            yield node, status, self.records.get(node.name, UNKNOWN)


def fleet_json(fleet: FleetRow) -> dict[str, Any]:
    """One entry of `fleets` in `fleet list --json`."""
    queue = fleet.state.queue
    return {
        "name": fleet.state.name,
        "backend": fleet.state.backend,
        "status": fleet_status(fleet.statuses),
        "simulated": fleet.state.simulated,
        "spares": fleet.state.spares.count if fleet.state.spares is not None else 0,
        "protected": fleet.protected,
        "nodes": [
            {**_node_json(fleet.state, *each), "spare": each[0].name in fleet.spares}
            for each in fleet.nodes()
        ],
        **({} if queue is None else {"queue": _queue_json(queue)}),
    }


def _queue_json(queue: PodQueue) -> dict[str, Any]:
    return {
        "context": queue.context,
        "namespace": queue.namespace,
        "gang": queue.gang,
        "local_queue": queue.local_queue,
        "pods": queue.pods,
        "gpus": queue.gpus.count,
        "fabric": queue.fabric,
    }


def with_ended(
    state: FleetState, statuses: Sequence[NodeStatus], ask: Callable[[], frozenset[str]]
) -> Sequence[NodeStatus]:
    """The statuses with `terminated` for nodes that do not answer because they ended themselves: `ask` tells
    which. Where it cannot, they stay `unreachable`."""
    if all(status.status != "unreachable" for status in statuses):
        return statuses
    try:
        ended = ask()
    except OrchError:
        return statuses
    why = "it ended itself (no job was there, or the fleet's `ttl` is over), or its cloud took it back"
    gone = NodeStatus("terminated", why)
    return [
        gone if status.status == "unreachable" and node.name in ended else status
        for node, status in zip(state.nodes, statuses, strict=True)
    ]


def fleet_status(statuses: Sequence[NodeStatus]) -> str:
    """`active`, or `degraded` when a node cannot be used."""
    ill = any(status.status not in _HEALTHY or status.unhealthy is not None for status in statuses)
    return "degraded" if ill else "active"


def fleet_table(
    fleets: Sequence[FleetRow], *, verbose: bool, colour: bool, now: datetime | None = None
) -> str:
    """A line per node. The verbose one is wide and never wraps, so that it can be cut and searched.

    Ages are those at `now`, the present if not given."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold" if colour else "")
    headings = _VERBOSE if verbose else _BRIEF
    for heading in headings:
        table.add_column(heading, no_wrap=verbose)
    moment = now or datetime.now(timezone.utc)
    connector = open_connector()
    for fleet in fleets:
        if not fleet.state.nodes:
            cells = dict.fromkeys(headings, "-") | _without_nodes(fleet.state)
            table.add_row(*(Text(visible(cells[heading])) for heading in headings))
        for node, status, record in fleet.nodes():
            cells = _cells(fleet.state, node, status, record, moment, spare=node.name in fleet.spares)
            if verbose:
                cells |= _reached(connector, node)
            else:
                cells["BACKEND"] += f" ({node.zone})" if node.zone else ""
                cells["PRICE"] += " spot" if record.spot else ""
            table.add_row(*(Text(visible(cells[heading])) for heading in headings))
    text = io.StringIO()
    width = 1000 if verbose else None if colour else 200
    Console(file=text, force_terminal=colour, width=width).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def age(created: datetime | None, now: datetime) -> str:
    """`3h ago`, in the largest unit; `-` where nobody recorded it."""
    if created is None:
        return "-"
    seconds = max(0, int((now - created).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


def _without_nodes(state: FleetState) -> dict[str, str]:
    cells = {"FLEET": state.name, "BACKEND": state.backend, "STATUS": "no node"}
    if state.queue is None:
        return cells
    queue, pods = state.queue, counted(state.queue.pods, "pod")
    through = f"queue {queue.local_queue}" if queue.local_queue else f"namespace {queue.namespace}"
    return {
        **cells,
        "REGION": queue.context or "-",
        "GPU": _gpus(queue.gpus),
        "CPUS": "-" if queue.cpus is None else f"{queue.cpus:g}",
        "MEMORY": "-" if queue.memory_mib is None else _gib(queue.memory_mib),
        "STATUS": f"up to {pods} for a run, by {through}",
    }


def _cells(
    state: FleetState,
    node: NodeState,
    status: NodeStatus,
    record: NodeRecord,
    now: datetime,
    *,
    spare: bool,
) -> dict[str, str]:
    return {
        "FLEET": state.name if node.index == state.nodes[0].index else "",
        "NODE": node.name,
        "BACKEND": state.backend,
        "REGION": node.region or "-",
        "ZONE": node.zone or "-",
        "TYPE": node.instance_type or "-",
        "ID": record.id or "-",
        "GPU": _gpus(node.gpus) + (" (simulated)" if state.simulated and node.gpus.count else ""),
        "CPUS": "all" if node.cpus is None else f"{node.cpus:g}",
        "MEMORY": "all" if node.memory_mib is None else _gib(node.memory_mib),
        "DISK": "-" if node.disk_mib is None else _gib(node.disk_mib),
        "BLOCKS": f"{status.busy_blocks}/{node.blocks}",
        "IP": node.internal_ip or "-",
        "PRICE": _price(state, node),
        "SPOT": "yes" if record.spot else "no",
        "CREATED": age(record.created, now),
        "STATUS": _status_text(node, status, spare=spare),
    }


def _price(state: FleetState, node: NodeState) -> str:
    hourly = hourly_price(state.backend, node.price_hourly)
    return "unknown" if hourly is None else f"${hourly:g}"


def _reached(connector: Connector, node: NodeState) -> dict[str, str]:
    """Return the addresses of a node; nothing for one that this orch cannot reach."""
    try:
        address = connector.address(node)
    except HostUnreachable:
        address = Address("-")
    return {"ADDRESS": address.place, "USER": address.user, "JUMP": address.hops, "HOST KEY": address.key}


def _node_json(state: FleetState, node: NodeState, status: NodeStatus, record: NodeRecord) -> dict[str, Any]:
    created = record.created
    return {
        "index": node.index,
        "name": node.name,
        "id": record.id,
        "status": status.status,
        "reason": status.reason,
        "health": status.health.status if status.health is not None else None,
        "health_reason": (status.health.reason or None) if status.health is not None else None,
        "zone": node.zone,
        "instance_type": node.instance_type,
        "gpus": node.gpus.count,
        "blocks": node.blocks,
        "busy_blocks": status.busy_blocks,
        "internal_ip": node.internal_ip,
        "price_hourly": hourly_price(state.backend, node.price_hourly),
        "spot": record.spot,
        "created_at": created.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if created else None,
    }


def _status_text(node: NodeState, status: NodeStatus, *, spare: bool) -> str:
    """`busy 3/8 (run train of ada@laptop since …)`, `idle, spare`."""
    part = f" {status.busy_blocks}/{node.blocks}" if status.busy_blocks and node.blocks > 1 else ""
    if status.status == "cordoned" and status.busy_blocks:
        part = f", busy{part}"
    words = status.in_words(part) + (f" ({status.reason})" if status.reason else "")
    words += ", spare" if spare else ""
    found = status.health.reason if status.health is not None else ""
    return f"{words}: {found}" if found else words


def _gpus(gpus: Gpus) -> str:
    """`8xH100 80GB`."""
    if not gpus.count:
        return "-"
    model = model_of(gpus.name) if gpus.name else None
    name = model.name if model else gpus.name or gpus.vendor or "GPU"
    memory = f" {_gib(nominal_mib(gpus.name, gpus.memory_mib))}" if gpus.memory_mib else ""
    return f"{gpus.count}x{name}{memory}"


def _gib(mib: int) -> str:
    return f"{mib / 1024:.0f}GB" if mib >= 1024 else f"{mib}MB"
