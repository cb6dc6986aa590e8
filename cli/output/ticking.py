"""A word from time to time while something takes long, from a thread beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orch.cli.errors import tell

QUIET_S = 10.0
"""Nobody waits longer than this without a word."""
LOOK_S = 0.25


@contextmanager
def still(what: Callable[[], str]) -> Iterator[None]:
    """Tells every ten seconds that something goes on: `what` are its words then, "" to say nothing."""
    begun = told = time.monotonic()

    def tick() -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= QUIET_S:
            told = now
            if words := what():
                tell(f"  … {clock(now - begun)}: {words}")

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
        thread.join()


def clock(seconds: float) -> str:
    """`42s`, `3m 05s`, `1h 02m`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02}m"
