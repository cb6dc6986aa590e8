"""The one place that knows which connector reaches which kind of node (`NodeState.access`)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from orch.runner.errors import RunnerError
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import Address, Completed, Connector
from orch.spec.state import NodeState


def open_connector(
    *, connect_timeout_s: float = 10.0, deadline_s: float = 30.0, tunnels: Mapping[str, str] | None = None
) -> ConnectorByKind:
    """A connector for nodes of all kinds. `tunnels`: environment of proxy commands of a cloud's fleets."""

    def ssh() -> Connector:
        from orch.runner.ssh.pool import SshConnector

        return SshConnector(connect_timeout_s=connect_timeout_s, deadline_s=deadline_s, tunnels=tunnels)

    def kubernetes() -> Connector:
        from orch.runner.kubernetes.connector import KubernetesConnector

        return KubernetesConnector(connect_timeout_s=connect_timeout_s, deadline_s=deadline_s)

    return ConnectorByKind({"ssh": ssh, "kubernetes": kubernetes})


def load_connectors() -> None:
    """Load what reaches nodes, before there is one to reach."""
    from orch.runner.ssh import pool  # noqa: F401


class ConnectorByKind:
    """Passes each node to the connector of its kind, which is created for the first such node."""

    def __init__(self, factories: Mapping[str, Callable[[], Connector]]) -> None:
        self._factories = factories
        self._guard = threading.Lock()
        self._connectors: dict[str, Connector] = {}

    def of(self, node: NodeState) -> Connector:
        """The connector of a node's kind. Raises RunnerError for a kind that this version does not know."""
        kind = node.access.kind
        with self._guard:
            if kind not in self._factories:
                raise RunnerError(
                    f"nobody here reaches node {node.name}",
                    where=node.name,
                    detail=f"its access is {kind!r}, this orch has {', '.join(self._factories)}",
                    hint="upgrade orch on this machine",
                )
            if kind not in self._connectors:
                self._connectors[kind] = self._factories[kind]()
            return self._connectors[kind]

    def run(
        self,
        node: NodeState,
        command: Command,
        *,
        deadline_s: float | None = None,
        connect_timeout_s: float | None = None,
        on_lines: Callable[[bytes], None] | None = None,
        on_data: Callable[[bytes], None] | None = None,
        until: threading.Event | None = None,
    ) -> Completed:
        return self.of(node).run(
            node,
            command,
            deadline_s=deadline_s,
            connect_timeout_s=connect_timeout_s,
            on_lines=on_lines,
            on_data=on_data,
            until=until,
        )

    def send(self, node: NodeState, source: Path, target: str) -> None:
        self.of(node).send(node, source, target)

    def receive(self, node: NodeState, source: str, target: Path) -> None:
        self.of(node).receive(node, source, target)

    def forward(
        self, node: NodeState, port: int, *, listener: socket.socket | None = None
    ) -> AbstractContextManager[int]:
        return self.of(node).forward(node, port, listener=listener)

    def terminal(self, node: NodeState, folder: Path, more: Sequence[str]) -> list[str]:
        return self.of(node).terminal(node, folder, more)

    def command_line(self, node: NodeState, folder: Path, text: str, *, terminal: bool) -> list[str]:
        return self.of(node).command_line(node, folder, text, terminal=terminal)

    def address(self, node: NodeState) -> Address:
        return self.of(node).address(node)

    def drop(self, node: NodeState) -> None:
        self.of(node).drop(node)

    def close(self) -> None:
        for connector in self._connectors.values():
            connector.close()

    def hang_up(self) -> None:
        for connector in self._connectors.values():
            connector.hang_up()
