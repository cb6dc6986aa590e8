"""Doing again, a little later, what a cloud asked to have repeated: a throttle undoes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from orch.components.request import CloudAnswer
from orch.spec.grammar.values import render_duration
from orch.stacks.errors import Interrupted
from orch.stacks.pulumi.operation import Doing, Listener, Note

# Pauses before the tries after the first. The providers have repeated single calls for minutes by then.
PAUSES_S = (2, 5, 15, 30, 60)

T = TypeVar("T")


def repeatedly(
    fleet: str,
    attempt: Callable[[], T],
    answer: Callable[[T], CloudAnswer | None],
    listener: Listener,
    *,
    between: Callable[[T], None] = lambda _: None,
) -> T:
    """The outcome of the first attempt that the cloud does not ask to repeat, else of the last one.

    `answer`: what the cloud's errors in an outcome come to. `between` readies the next attempt. Raises what
    these raise, and Interrupted.
    """
    for pause in PAUSES_S:
        done = attempt()
        told = answer(done)
        if told is None or not told.again:
            return done
        listener(Note(f"once more in {render_duration(pause)}: {told.reason}", lasts=True))
        try:
            time.sleep(pause)
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped while changing the fleet {fleet}",
                detail="what was made is recorded",
                hint="run the same command again to go on, or `orch down` to remove it",
            ) from None
        between(done)
        listener(Doing(f"trying once more: {told.reason}"))
    return attempt()
