"""Polling a cloud for what it knows of a machine only some time after it made it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar, cast

from orch.components.cloud_errors import CloudRefused
from orch.spec.errors import OrchError

T = TypeVar("T")

# A machine with eight GPUs takes minutes to boot; after that it shows its host key within seconds.
BOOT_S = 1200.0
BOOT_PAUSE_S = 10.0

# Machines are listed, and where they stand is told, a little after they were made.
PLACES_S = 25.0
PLACES_PAUSE_S = 5.0


async def in_background(read: Callable[[], T]) -> T:
    """Run `read` in a daemon thread, and return its result.

    An OrchError becomes a `pulumi.RunError`, which the SDK prints without a trace.
    """
    import pulumi

    loop = asyncio.get_running_loop()
    answered: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if answered.cancelled():
            return
        if error is not None:
            answered.set_exception(error)
        else:
            answered.set_result(cast(T, value))

    def run() -> None:
        value, error = None, None
        try:
            value = read()
        except OrchError as refused:
            error = pulumi.RunError(refused.text())
        except Exception as failed:  # noqa: BLE001 - it is raised where it is waited for
            error = failed
        with suppress(RuntimeError):  # the engine has gone, and nobody waits
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, daemon=True).start()
    return await answered


def poll(read: Callable[[], T], until: Callable[[T], bool], *, pause_s: float, for_s: float) -> T:
    """Call `read` until `until` accepts its result, or for `for_s` seconds; return the last result."""
    end = time.monotonic() + for_s
    result = read()
    while not until(result) and time.monotonic() < end:
        time.sleep(pause_s)
        result = read()
    return result


def wait_for_topology(read: Callable[[], T], complete: Callable[[T], bool], fallback: T) -> T:
    """The position of new machines in the network, as far as it is known after PLACES_S.

    Returns `fallback` where the cloud refuses to answer: ranks go by node number then.
    """
    import pulumi

    try:
        return poll(read, complete, pause_s=PLACES_PAUSE_S, for_s=PLACES_S)
    except CloudRefused as refused:
        pulumi.log.warn(f"ranks go by node number: {refused.summary} ({refused.detail})")
        return fallback


def wait_for_members(
    read: Callable[[], Sequence[T]], complete: Callable[[Sequence[T]], bool], count: int, *, where: str
) -> Sequence[T]:
    """The machines that a managed group made, which the cloud named: `count` at least.

    `where`: where they are looked for. Raises CloudRefused, also where there are fewer.
    """
    instances = poll(read, complete, pause_s=PLACES_PAUSE_S, for_s=PLACES_S)
    if len(instances) < count:
        raise CloudRefused(
            f"{len(instances)} of {count} nodes are there",
            detail=where,
            hint="run `orch up` again: what is missing is made",
            code="ORCH359",
        )
    return instances


def wait_for_host_keys(
    read: Callable[[Sequence[str]], dict[str, str]], machines: Sequence[str], *, whole: bool, where: str
) -> dict[str, str]:
    """The host keys of new machines, by machine, once they have booted.

    `read` asks the cloud for the keys of some machines. `where`: how a person looks for them. A machine that
    shows no key within BOOT_S is an error where the `whole` fleet is needed: CloudRefused; else it is left
    out, with a warning.
    """
    import pulumi

    keys = read(machines)
    if len(keys) == len(machines):
        return keys
    pulumi.log.info(f"waiting for {len(machines) - len(keys)} nodes to boot, and to show their host keys")

    def again() -> dict[str, str]:
        keys.update(read([each for each in machines if each not in keys]))
        return keys

    poll(again, lambda keys: len(keys) == len(machines), pause_s=BOOT_PAUSE_S, for_s=BOOT_S)
    without_key = [each for each in machines if each not in keys]
    if not without_key:
        return keys
    summary = (
        f"{len(without_key)} of {len(machines)} new nodes show no host key after {BOOT_S / 60:.0f} minutes"
    )
    detail = f"{', '.join(without_key[:8])}{', …' * (len(without_key) > 8)}: {where}"
    if whole:
        hint = "look why, then `orch up` again: a fleet that is all or nothing is made with all of its nodes"
        raise CloudRefused(summary, detail=detail, hint=hint, code="ORCH359")
    pulumi.log.warn(
        f"{summary}: {detail}. They cost what the others do, and take no jobs; `orch up` asks them again, "
        "`orch fleet delete NAME -i N` and `orch up` make them anew"
    )
    return keys
