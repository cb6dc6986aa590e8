"""Leases: how long one lasts, its loss, and its renewal while the holder is busy."""

from __future__ import annotations

import threading
from typing import Protocol

from orch.runner.errors import RunConflict, RunnerError
from orch.runner.ledger.records import Lease

LEASE_S = 60.0
RENEW_S = 15.0


class LeaseLost(RunConflict):
    """Another process acts on this run now."""


class Renews(Protocol):
    """A ledger, as far as leases go."""

    def renew(self, lease: Lease) -> None: ...


class Renewal:
    """Renews a lease from a thread, while long acts block the driver."""

    def __init__(self, ledger: Renews, lease: Lease) -> None:
        self._ledger = ledger
        self._lease = lease
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orch-lease", daemon=True)
        self.lost = False

    def __enter__(self) -> Renewal:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stop.wait(RENEW_S):
            try:
                self._ledger.renew(self._lease)
            except LeaseLost:
                self.lost = True
                return
            except RunnerError:
                # A ledger that is busy or away for a moment; the next renewal, or the driver itself, will
                # tell.
                continue
