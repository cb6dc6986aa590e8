"""Fleets and their nodes as a table and as JSON."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from orch.runner.nodes import NodeStatus
from orch.spec.state import FleetState, NodeState


def fleet_json(state: FleetState, statuses: Sequence[NodeStatus]) -> dict[str, Any]:
    """One entry of `fleets` in `fleet list --json`."""
    return {
        "name": state.name,
        "backend": state.backend,
        "status": fleet_status(statuses),
        "nodes": [_node_json(node, status) for node, status in zip(state.nodes, statuses, strict=True)],
    }


def fleet_status(statuses: Sequence[NodeStatus]) -> str:
    """`active`, or `degraded` when a node cannot be used."""
    return "degraded" if any(status.status not in ("idle", "busy") for status in statuses) else "active"


def fleet_table(
    fleets: Sequence[tuple[FleetState, Sequence[NodeStatus]]], *, verbose: bool, colour: bool
) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold" if colour else "")
    for heading in (
        "FLEET",
        "NODE",
        "BACKEND",
        *(("CPUS", "MEMORY") if verbose else ()),
        "GPU",
        "IP",
        "PRICE",
        "STATUS",
    ):
        table.add_column(heading)
    for state, statuses in fleets:
        for node, status in zip(state.nodes, statuses, strict=True):
            extra = (_number(node.cpus, "all"), f"{node.memory_mib} MiB" if node.memory_mib else "all")
            table.add_row(
                state.name if node.index == state.nodes[0].index else "",
                node.name,
                state.backend + (f" ({node.zone})" if node.zone else ""),
                *(extra if verbose else ()),
                f"{node.gpus.name}:{node.gpus.count}" if node.gpus.count else "-",
                node.internal_ip or "-",
                f"${node.price_hourly or 0:g}",
                _status_text(status),
            )
    text = io.StringIO()
    Console(file=text, force_terminal=colour, width=200 if not colour else None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _node_json(node: NodeState, status: NodeStatus) -> dict[str, Any]:
    return {
        "index": node.index,
        "name": node.name,
        "status": status.status,
        "reason": status.reason,
        "zone": node.zone,
        "instance_type": node.instance_type,
        "gpus": node.gpus.count,
        "blocks": node.blocks,
        "busy_blocks": status.busy_blocks,
        "internal_ip": node.internal_ip,
        "price_hourly": node.price_hourly or 0.0,
    }


def _status_text(status: NodeStatus) -> str:
    return f"{status.status} ({status.reason})" if status.reason else status.status


def _number(value: float | None, none: str) -> str:
    return none if value is None else f"{value:g}"
