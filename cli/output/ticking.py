"""Progress messages of a slow step, printed from a thread of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orch.cli.errors import tell

QUIET_S = 10.0
"""Seconds without output after which a message is printed."""
LOOK_S = 0.25
LEAVE_S = 5.0


@contextmanager
def still(status: Callable[[], str]) -> Iterator[None]:
    """Print a message every ten seconds: `status` gives its text; nothing is printed for ""."""
    start = latest = time.monotonic()

    def tick() -> None:
        nonlocal latest
        now = time.monotonic()
        if now - latest >= QUIET_S:
            latest = now
            if words := status():
                tell(f"  … {clock(now - start)}: {words}")

    with ticking(tick):
        yield


@contextmanager
def ticking(tick: Callable[[], None]) -> Iterator[None]:
    """Call `tick` from a thread, several times a second, until the end."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(LOOK_S):
            tick()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LEAVE_S)  # one that prints to a terminal that stands still (Ctrl-S) keeps nobody


def clock(seconds: float) -> str:
    """`42s`, `3m 05s`, `1h 02m`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02}m"
