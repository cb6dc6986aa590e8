"""Drives one run on pods, in a process that a test can kill: drive_pods.py DOT LEDGER RUN."""

from __future__ import annotations

import sys
from pathlib import Path

from orch.runner.connect import open_connector
from orch.runner.ledger.ledger import open_ledger
from orch.runner.runs.lifecycle import RunnerContext, drive


def main(dot: Path, url: str, run: str) -> None:
    ledger = open_ledger(url)
    drive(RunnerContext(dot, ledger, open_connector()), ledger.get(run))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
