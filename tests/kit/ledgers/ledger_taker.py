"""What a process of its own does to a ledger in a test: URL OWNER."""

from __future__ import annotations

import sys

from orch.runner.ledger.ledger import open_ledger


def take_all(url: str, owner: str) -> None:
    """Take and finish every run that is free, and print which."""
    ledger = open_ledger(url)
    for row in ledger.runs(active_only=True):
        lease = ledger.take(row.id, owner)
        if lease is not None:
            ledger.finish(lease, "done", "all_jobs_done", owner)
            print(row.id)


if __name__ == "__main__":
    take_all(*sys.argv[1:])
