"""Fleets for fabfiles: the nodes of a fleet as a Group of Fabric.

A fabfile gets what Fabric offers (`run`, `sudo`, `put`, `get`, `forward_local`) on connections that are made
as orch makes its own: pinned host keys, the keys and jump hosts of the fleet, and a time limit for each.

Nothing in orch imports this module: it is an entry point for users, as `orch.cli.main` is, so it may ask
`orch.stacks` which nodes a fleet has.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import paramiko
from fabric import Config, Connection, Group, ThreadingGroup
from invoke.exceptions import Exit

from orch.runner.errors import RunnerError
from orch.runner.ssh.pool import SshConnector
from orch.spec.errors import OrchError
from orch.spec.state import NodeState


class NodeConnection(Connection):
    """A connection of Fabric to a node, which `orch` opens.

    Opening it raises HostUnreachable, JumpUnreachable, HostKeyRefused or LoginRefused.
    """

    def __init__(self, node: NodeState, connector: SshConnector, config: Config) -> None:
        super().__init__(node.ssh.address, user=node.ssh.user, port=node.ssh.port, config=config)
        self._set(node=node, original_host=node.name, _connector=connector)

    def __repr__(self) -> str:
        return f"<NodeConnection node={self.node.name} host={self.host}>"

    def open(self) -> None:
        """Log in, unless the connection is open."""
        if not self.is_connected:
            opened = self._connector.log_in(self.node)
            self.client, self.transport = opened.client, opened.transport

    def sudo(self, command: str, **kwargs: Any) -> Any:
        """Run a command as root or as another `user`; without sudo where that is the user already."""
        if self.user == "root" and kwargs.get("user") in (None, "root"):
            return self.run(command, **{key: kwargs[key] for key in kwargs.keys() - {"user", "password"}})
        return super().sudo(command, **kwargs)


def connections(nodes: Iterable[NodeState], connector: SshConnector, config: Config | None = None) -> Group:
    """Return a Group with a connection for each node, in their order. Nothing is opened yet.

    `config`: of Fabric or of a task (`c.config`); the default reads the user's files of Fabric. Raises
    RunnerError for a node that is not reached over SSH.
    """
    config = config or Config(ssh_config=paramiko.SSHConfig())
    members: list[Connection] = []
    for node in nodes:
        if node.access.kind != "ssh":
            raise RunnerError(
                f"node {node.name} is not reached over SSH",
                where=node.name,
                hint="Fabric connects to SSH servers; `orch exec` reaches nodes of every kind",
            )
        members.append(NodeConnection(node, connector, config))
    return ThreadingGroup.from_connections(members)


def fleet(name: str, folder: Path | str | None = None, *, config: Config | None = None) -> Group:
    """Return the nodes of a fleet that is up as a Group of Fabric, which runs on all of them at once.

    `folder`: of the fleet's project or below it, by default the current one. Raises invoke.Exit, which `fab`
    prints and ends with, with the text and the exit code that `orch exec` has for the same error.

        from fabric import task
        from orch.runner.fabfile import fleet

        @task
        def drivers(c):
            fleet("h100").run("nvidia-smi --query-gpu=driver_version --format=csv,noheader")
    """
    from orch.stacks.project.project import find
    from orch.stacks.record.fleets import fleet_state
    from orch.stacks.secrets.values import tunnels

    try:
        project = find(folder)
        connector = SshConnector(tunnels=tunnels(project) if project.backends else None)
        return connections(fleet_state(project, name).nodes, connector, config)
    except OrchError as error:
        raise Exit(error.text(), int(error.exit_code)) from error
