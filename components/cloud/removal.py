"""Removing what something else may still use for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

TRIES, PAUSE_S = 60, 2.0


def retry_until_gone(remove: Callable[[], bool]) -> bool:
    """Try until it is removed, which `remove` tells; whether it was within TRIES."""
    for _ in range(TRIES):
        if remove():
            return True
        time.sleep(PAUSE_S)
    return False
