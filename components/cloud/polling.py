"""Looking again and again until a cloud tells what it knows only later."""

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


async def in_background(ask: Callable[[], T]) -> T:
    """What `ask` answers, asked in a thread that keeps no process from ending.

    An error of ours becomes one that the SDK tells without a trace.
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
            value = ask()
        except OrchError as refused:
            error = pulumi.RunError(refused.text())
        except Exception as failed:  # noqa: BLE001 - it is raised where it is waited for
            error = failed
        with suppress(RuntimeError):  # the engine has gone, and nobody waits
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, daemon=True).start()
    return await answered


def poll(look: Callable[[], T], until: Callable[[T], bool], *, pause_s: float, for_s: float) -> T:
    """What `look` finds, once `until` says that it will do, or what it finds after `for_s` seconds."""
    end = time.monotonic() + for_s
    found = look()
    while not until(found) and time.monotonic() < end:
        time.sleep(pause_s)
        found = look()
    return found


def places(look: Callable[[], T], told: Callable[[T], bool], nothing: T) -> T:
    """Where new machines stand, once all of it is `told`, or what is by then. Where the cloud refuses to
    tell: `nothing`, for ranks go by number then."""
    import pulumi

    try:
        return poll(look, told, pause_s=PLACES_PAUSE_S, for_s=PLACES_S)
    except CloudRefused as refused:
        pulumi.log.warn(f"ranks go by node number: {refused.summary} ({refused.detail})")
        return nothing


def members(
    look: Callable[[], Sequence[T]], told: Callable[[Sequence[T]], bool], count: int, *, where: str
) -> Sequence[T]:
    """The machines that a cloud made by itself, and chose the names of, `count` at least. `where`: they are
    looked for. Raises CloudRefused, also where there are too few."""
    found = poll(look, told, pause_s=PLACES_PAUSE_S, for_s=PLACES_S)
    if len(found) < count:
        raise CloudRefused(
            f"{len(found)} of {count} nodes are there",
            detail=where,
            hint="run `orch up` again: what is missing is made",
            code="ORCH359",
        )
    return found


def host_keys(
    look: Callable[[Sequence[str]], dict[str, str]], machines: Sequence[str], *, whole: bool, where: str
) -> dict[str, str]:
    """The host keys of new machines, by machine: all of them once they have booted.

    `look`: asks the cloud for those of some. `where`: they are shown, and how a person looks there. Where not
    the `whole` fleet is needed, those that show none within the time that a boot takes are told of and left
    out; else that is an error: CloudRefused.
    """
    import pulumi

    found = look(machines)
    if len(found) == len(machines):
        return found
    pulumi.log.info(f"waiting for {len(machines) - len(found)} nodes to boot, and to show their host keys")

    def again() -> dict[str, str]:
        found.update(look([each for each in machines if each not in found]))
        return found

    poll(again, lambda keys: len(keys) == len(machines), pause_s=BOOT_PAUSE_S, for_s=BOOT_S)
    silent = [each for each in machines if each not in found]
    if not silent:
        return found
    summary = f"{len(silent)} of {len(machines)} new nodes show no host key after {BOOT_S / 60:.0f} minutes"
    detail = f"{', '.join(silent[:8])}{', …' * (len(silent) > 8)}: {where}"
    if whole:
        hint = "look why, then `orch up` again: a fleet that is all or nothing is made with all of its nodes"
        raise CloudRefused(summary, detail=detail, hint=hint, code="ORCH359")
    pulumi.log.warn(
        f"{summary}: {detail}. They cost what the others do, and take no jobs; `orch up` asks them again, "
        "`orch fleet delete NAME -i N` and `orch up` make them anew"
    )
    return found
