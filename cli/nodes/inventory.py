"""`orch inventory`: the nodes that are up as Ansible's dynamic inventory, each with its pinned way in."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orch.cli.context import project_at
from orch.cli.errors import UsageError, tell
from orch.cli.options import Rehearse

if TYPE_CHECKING:
    from orch.runner.node_api.connector import Connector
    from orch.spec.state import FleetState, NodeState
    from orch.stacks.project.project import Project


def inventory(
    *,
    everything: Annotated[
        bool, typer.Option("--list", help="All groups and hosts, as Ansible asks.")
    ] = False,
    host: Annotated[
        str | None, typer.Option("--host", metavar="NAME", help="The variables of one host.")
    ] = None,
    rehearse: Rehearse = False,
) -> None:
    """The nodes that are up as an inventory for Ansible, with jump hosts, keys and pinned host keys.

    A group for each fleet, and one for each backend.
    """
    if everything and host is not None:
        raise typer.BadParameter("it does not go with --list", param_hint="--host")
    project = project_at(rehearse=rehearse, tells=False)
    groups = groups_of(project)
    hosts = {name: variables for _, members in groups.values() for name, variables in members.items()}
    if host is not None:
        if host not in hosts:
            raise UsageError(
                f"no node of a fleet that is up is named {host}", hint="`orch inventory --list` has all"
            )
        print(json.dumps(hosts[host], indent=2, ensure_ascii=False))
        return
    print(json.dumps(as_ansible(groups, hosts), indent=2, ensure_ascii=False))


Groups = Mapping[str, tuple["FleetState", Mapping[str, Mapping[str, Any]]]]
"""Fleets by name, each with the variables of its hosts by the name that the inventory gives them."""


def groups_of(project: Project) -> Groups:
    """Return the nodes that are up, by group. A node whose name several machines have is `FLEET.NODE`; one
    that `ssh` cannot reach is left out, with a note."""
    from orch.runner.connect import open_connector
    from orch.stacks.record.fleets import fleet_of, known_fleets

    fleets = {name: fleet_of(stack) for name, stack in known_fleets(project).items()}
    machines: dict[str, set[str]] = {}
    for fleet in fleets.values():
        for node in fleet.nodes:
            machines.setdefault(node.name, set()).add(node.access.machine)
    groups: dict[str, tuple[FleetState, dict[str, Mapping[str, Any]]]] = {}
    with closing(open_connector()) as connector:
        for fleet in fleets.values():
            members: dict[str, Mapping[str, Any]] = {}
            for node in fleet.nodes:
                name = node.name if len(machines[node.name]) == 1 else f"{fleet.name}.{node.name}"
                way = _way_in(project, connector, node)
                if way is None:
                    tell(f"note: {name} is left out: `ssh` does not lead there")
                    continue
                members[name] = {**way, **_facts(fleet, node)}
            groups[fleet.name] = fleet, members
    return groups


def as_ansible(groups: Groups, hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The inventory as Ansible reads it from a script."""
    found: dict[str, Any] = {
        group_name("fleet", name): {"hosts": list(members)} for name, (_, members) in groups.items()
    }
    for fleet, members in groups.values():
        group = found.setdefault(group_name("backend", fleet.backend), {"hosts": []})
        group["hosts"] += [name for name in members if name not in group["hosts"]]
    return {"_meta": {"hostvars": dict(hosts)}, "all": {"children": list(found)}, **found}


def group_name(kind: str, name: str) -> str:
    """A group's name: Ansible takes letters, digits and underscores."""
    return f"{kind}_{re.sub(r'[^A-Za-z0-9_]', '_', name)}"


def _way_in(project: Project, connector: Connector, node: NodeState) -> dict[str, str] | None:
    """The configuration of `ssh` with the way to a node, its key and its pinned host keys."""
    program, *options, alias = connector.terminal(node, project.dot / "ssh" / node.name, ())
    if program.rpartition("/")[2] != "ssh":
        return None
    return {"ansible_host": alias, "ansible_ssh_common_args": shlex.join(options)}


def _facts(fleet: FleetState, node: NodeState) -> dict[str, Any]:
    facts = {
        "fleet": fleet.name,
        "index": node.index,
        "backend": fleet.backend,
        "region": node.region,
        "zone": node.zone,
        "instance_type": node.instance_type,
        "internal_ip": node.internal_ip,
        "gpus": node.gpus.count,
        "gpu": node.gpus.name,
    }
    return {f"orch_{key}": value for key, value in facts.items() if value is not None}
