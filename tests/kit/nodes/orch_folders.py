"""The command line on nodes that are folders (foldernodes.py), as a process of its own."""

from __future__ import annotations

from kit.nodes.foldernodes import FolderConnector, FolderRuntime

from orch.cli.main import main
from orch.runner import connect
from orch.runner.node.runtimes import RUNTIMES


def folder_connector(**_: object) -> connect.ConnectorByKind:
    return connect.ConnectorByKind({"folder": FolderConnector})


if __name__ == "__main__":
    connect.open_connector = folder_connector
    RUNTIMES["folder"] = FolderRuntime()
    main()
