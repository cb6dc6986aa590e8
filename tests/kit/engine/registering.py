"""Resources registered with the real SDK, answered by mocks: no cloud, no engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from unittest.mock import patch

import pulumi
import pulumi.runtime
from pulumi.runtime.proto import source_pb2

# Only an engine shows where a program makes a resource: the SDK reads the source of each frame for it, of
# which a test has dozens. That is a fifth of the time.
NO_TRACE = patch("pulumi.runtime.resource._get_stack_trace", source_pb2.StackTrace)


def registered(
    mocks: pulumi.runtime.Mocks, make: Callable[[], pulumi.Output[object]], stack: str = "lab"
) -> None:
    """Make something, and wait for all that was registered on the way and for what comes out."""
    with NO_TRACE, closing(asyncio.new_event_loop()) as loop:
        asyncio.set_event_loop(loop)
        pulumi.runtime.set_mocks(mocks, project="tests", stack=stack)
        pulumi.runtime.test(make)()
