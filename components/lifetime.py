"""When a fleet ends: its machines end themselves `ttl` after its creation, with nobody watching. Pure.

The moment travels with the machines. Plans of a fleet whose time is over change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from orch.components.idleness import ENDED_BY
from orch.runner.node_api.commands import NODE_HOME
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding
from orch.spec.grammar.values import render_duration
from orch.spec.models import Fleet
from orch.templates import ShellText, render

PROPERTY = "ttl"
CREATED, ENDS = "created", "ends"
"""Pins of a fleet with a `ttl`: when it was created and when it ends, in seconds since the epoch."""
SCRIPT = f"{NODE_HOME}/ttl.sh"
TAG = "orch:ends"
"""The tag of a machine on AWS that tells the moment: it changes while the machine runs."""
LOOK_S = 20
UNSET_S = 3600
"""How long a machine whose clock NTP has not set waits before it ends itself by that clock all the same:
without an end it costs money, and with a wrong one at boot it takes its jobs along."""
AHEAD_S = 300
"""How far the clocks of two machines may differ."""
OVERDUE_S = 30 * 24 * 3600
"""How long after its end a fleet is removed without anybody's word: a clock that shows another year would
otherwise remove every fleet that has an end."""


@dataclass(frozen=True)
class Lifetime:
    """A fleet `created` at a moment ends `ttl_s` later. Moments are seconds since the epoch."""

    created: int
    ttl_s: int

    @property
    def ends(self) -> int:
        return self.created + self.ttl_s

    @property
    def pins(self) -> dict[str, str]:
        return {CREATED: str(self.created), ENDS: str(self.ends)}

    @property
    def stamp(self) -> str:
        """Its end as clouds write moments: `2026-11-23T19:00:00Z`."""
        return stamp(self.ends)

    @property
    def reason(self) -> str:
        """What a plan says of it."""
        after = f"{render_duration(self.ttl_s)} after its creation"
        return f"it ends at {words(self.ends)}, {after}: its machines end themselves"

    def script(self, off: ShellText) -> str:
        """What ends a machine at that moment, with the commands `off`."""
        return render(
            "cloud-init-ttl.sh.j2",
            home=NODE_HOME,
            script=SCRIPT,
            ends=self.ends,
            tag=TAG,
            look_s=LOOK_S,
            unset_s=UNSET_S,
            by=ENDED_BY,
            off=off,
        )


def lifetime(fleet: Fleet, created: int) -> Lifetime | None:
    """When a fleet ends; None where it does not."""
    return None if fleet.ttl_s is None else Lifetime(created, fleet.ttl_s)


def ends_of(pins: Mapping[str, str]) -> int | None:
    """When the fleet of a stack ends, by what was last brought up; None where it does not."""
    return int(pins[ENDS]) if pins.get(ENDS, "").isdigit() else None


def is_over(pins: Mapping[str, str], now: float) -> bool:
    """Whether the time of a stack's fleet is over."""
    ends = ends_of(pins)
    return ends is not None and ends <= now


def doubt(now: float, ends: int, changed: float | None) -> str:
    """Return why a machine whose clock shows `now` should not remove a fleet for its end; "" if it may.

    `changed`: when the state of the fleet was last changed, by the clock of whoever did it. Moments are
    seconds since the epoch.
    """
    if changed is not None and changed > now + AHEAD_S:
        return f"the clock of this machine shows {words(now)}, and the state was changed at {words(changed)}"
    if now > ends + OVERDUE_S:
        return f"the clock of this machine shows {words(now)}, and its time was over at {words(ends)}"
    return ""


def stamp(moment: float) -> str:
    """A moment as clouds write it."""
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def words(moment: float) -> str:
    """A moment as people read it."""
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def over(fleet: str, ends: int) -> Finding:
    """What a plan says of a fleet whose time is over."""
    return Finding(
        "ORCH233",
        PROPERTY,
        f"the time of the fleet {fleet} was over at {words(ends)}: its machines ended themselves",
        hint=f"`orch down {fleet}` removes what is left of it; a longer `ttl` brings it back",
        severity=Severity.WARNING,
    )


def runs_on(fleet: str, ends: int, known: int | None) -> Finding:
    """What a plan says of a fleet whose time is over by its file alone. `known`: when its machines end."""
    until = "they do not end by themselves" if known is None else f"they end themselves at {words(known)}"
    return Finding(
        "ORCH233",
        PROPERTY,
        f"by its file the time of the fleet {fleet} was over at {words(ends)}, but its machines run: {until}",
        hint=f"`orch down {fleet}` ends them now; a longer `ttl` counts from the creation of the fleet",
    )
