"""Removing a resource that another one may still use for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

TRIES, PAUSE_S = 60, 2.0


def retry_until_gone(remove: Callable[[], bool]) -> bool:
    """Call `remove` until it returns True, TRIES times at most; whether it did."""
    for _ in range(TRIES):
        if remove():
            return True
        time.sleep(PAUSE_S)
    return False
