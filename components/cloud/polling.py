"""Looking again and again until a cloud tells what it knows only later."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from orch.components.cloud_errors import CloudRefused

T = TypeVar("T")

# A machine with eight GPUs takes minutes to boot; after that it shows its host key within seconds.
BOOT_S = 1200.0
BOOT_PAUSE_S = 10.0


def poll(look: Callable[[], T], until: Callable[[T], bool], *, pause_s: float, for_s: float) -> T:
    """What `look` finds, once `until` says that it will do, or what it finds after `for_s` seconds."""
    end = time.monotonic() + for_s
    found = look()
    while not until(found) and time.monotonic() < end:
        time.sleep(pause_s)
        found = look()
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
        hint = "`orch up` asks them again"
        raise CloudRefused(summary, detail=detail, hint=hint, code="ORCH359")
    pulumi.log.warn(
        f"{summary}: {detail}. They cost what the others do, and take no jobs; `orch up` asks them again, "
        "`orch fleet delete NAME -i N` and `orch up` make them anew"
    )
    return found
