"""Drives one run from a process of its own, so that a test can kill it: drive_run.py DOT RUN."""

from __future__ import annotations

import sys
from pathlib import Path

from orch.runner.events import Event, LogLines
from orch.runner.ledger.ledger import open_ledger
from orch.runner.runs.lifecycle import RunnerContext, drive
from orch.runner.ssh.pool import SshConnector


class Printer:
    def handle(self, event: Event, /) -> None:
        if isinstance(event, LogLines):
            # In one piece, for each rank has a thread of its own.
            print("".join(f"{event.rank} {text}\n" for text in event.texts()), end="", flush=True)


def main(dot: Path, run: str) -> None:
    ledger = open_ledger(f"sqlite:///{dot / 'ledger.db'}")
    drive(RunnerContext(dot, ledger, SshConnector(), Printer()), ledger.get(run))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
