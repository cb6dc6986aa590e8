"""What a stack records of nodes beside the FleetState: id, creation time, market. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orch.stacks.errors import StackError
from orch.stacks.events.notation import name_of, parse_time
from orch.stacks.stack.state import StackExport, existing_nodes, outputs


@dataclass(frozen=True)
class NodeRecord:
    """One node as the engine recorded it.

    `id` is its id in Docker or the cloud; None for a node that a group made. `created`: when the engine
    recorded its creation (of an existing host: its registration; of a group's node: the request for its
    batch); None in a state of an engine that recorded no times.
    """

    id: str | None = None
    created: datetime | None = None
    spot: bool = False


UNKNOWN = NodeRecord()


def node_records(recorded: StackExport | None) -> dict[str, NodeRecord]:
    """The existing nodes of a stack, by name."""
    nodes = existing_nodes(recorded)
    all_spot = is_spot_throughout(recorded)
    resources: dict[str, dict[str, Any]] = {}
    for each in (recorded or {}).get("resources") or ():
        if each.get("custom") and each.get("id") and not each.get("delete"):
            resources.setdefault(name_of(each["urn"]), each)
    records: dict[str, NodeRecord] = {}
    for node in nodes:
        resource = resources.get(node.get("made_by") or node["name"], {})
        node_id = None if node.get("made_by") else resource.get("id")
        spot = bool(node.get("spot", all_spot))
        records[node["name"]] = NodeRecord(node_id, parse_time(resource.get("created")), spot)
    return records


def bastion_machine(recorded: StackExport | None, name: str) -> tuple[str, ...]:
    """The urns of a fleet's own bastion, and of what stands on that machine, such as a rule that lets in to
    it; () where it has none.

    Other resources have the bastion's name too, as its security group, on which nodes stand. Raises
    StackError where they stand on the machine.
    """
    resources = [each for each in (recorded or {}).get("resources") or () if not each.get("delete")]
    chosen = [
        str(each["urn"])
        for each in resources
        if name_of(str(each["urn"])) == name and str(each.get("type")).endswith(":Instance")
    ]
    for each in resources if chosen else ():  # the engine records what stands on something after it
        if set(chosen) & {*(each.get("dependencies") or ()), each.get("parent")}:
            chosen.append(str(each["urn"]))
    nodes = {node.get("made_by") or node["name"] for node in existing_nodes(recorded)}
    if {name_of(urn) for urn in chosen} & nodes:
        raise StackError(f"{name} cannot be made anew alone: nodes stand on it", code="ORCH439")
    return tuple(chosen)


def is_spot_throughout(recorded: StackExport | None) -> bool:
    """Return True if a former version bought all nodes on the spot market: it recorded that for the fleet
    only."""
    fleet, pins = outputs(recorded).get("fleet") or {}, outputs(recorded).get("pins") or {}
    return pins.get("spot") == "true" and not any(node.get("spot") for node in fleet.get("nodes") or ())
