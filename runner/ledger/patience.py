"""How long a ledger that is away is waited for, by who drives a run and by who only looks at it."""

from __future__ import annotations

import time
from collections.abc import Callable

from orch.runner.errors import LedgerUnusable, error_text

LEDGER_PATIENCE_S = 900.0
LEDGER_PAUSE_S = 2.0
"""How often one that is away is tried."""


class LedgerPatience:
    """Bears that a ledger cannot be used for a while, which is told once each time."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._lost_since: float | None = None

    @property
    def lost(self) -> bool:
        return self._lost_since is not None

    def bear(self, error: LedgerUnusable) -> None:
        """The ledger cannot be used now: the caller tries again after a pause. Raises the error after
        LEDGER_PATIENCE_S."""
        now = time.monotonic()
        if self._lost_since is None:
            self._lost_since = now
            self._tell(f"{error_text(error)}; trying again")
        if now - self._lost_since > LEDGER_PATIENCE_S:
            raise error

    def found(self) -> None:
        """It can be used again."""
        self._lost_since = None
