"""Drives one run on nodes that are folders, from a process that a test can kill: DOT LEDGER RUN DELAY_S."""

from __future__ import annotations

import sys
from pathlib import Path

from kit.nodes.foldernodes import FolderConnector, FolderRuntime

from orch.runner.connect import ConnectorByKind
from orch.runner.events import Silent
from orch.runner.ledger.ledger import open_ledger
from orch.runner.node.runtimes import RUNTIMES
from orch.runner.runs import retry
from orch.runner.runs.lifecycle import RunnerContext, drive


def main(dot: Path, url: str, run: str, delay_s: float) -> None:
    retry.DELAYS_S = (delay_s,)
    ledger = open_ledger(url)
    connector = ConnectorByKind({"folder": FolderConnector})
    runtimes = {**RUNTIMES, "folder": FolderRuntime()}
    drive(RunnerContext(dot, ledger, connector, Silent(), runtimes), ledger.get(run))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))
