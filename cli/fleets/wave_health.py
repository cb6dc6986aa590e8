"""What is asked of the nodes of a wave before the next one begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orch.cli.errors import tell
from orch.spec.errors import ExitCode, OrchError

if TYPE_CHECKING:
    from orch.stacks.waves import Stack


class Unhealthy(OrchError):
    """Nodes of a wave are not in order, so the next one does not begin."""

    exit_code = ExitCode.HOSTS


def require_healthy(stacks: Sequence[Stack], wave: int, *, unfit: bool) -> None:
    """Check the nodes of a wave's fleets as `orch check` does. `unfit`: some were not in order when they were
    brought up. Raises Unhealthy for any that fails."""
    from orch.cli.hosts.check import survey_of

    fleets = [each for each in stacks if each.wave == wave and each.fleet is not None]
    if not fleets:
        return
    if unfit:
        raise _unhealthy(wave, ["hosts are not in order, see above"], fleets[0].model.name)
    names = ", ".join(each.model.name for each in fleets)
    tell(f"wave {wave} of {stacks[-1].wave} is up: checking the nodes of {names}")
    failed: list[str] = []
    for each in fleets:
        for host in survey_of(each.project, each.model.name).hosts:
            reasons = [f"{one.id}: {one.detail}" for one in host.checks if one.result.value == "fail"]
            if reasons:
                failed.append(f"{each.title}: {host.name}: {'; '.join(reasons)}")
    if failed:
        raise _unhealthy(wave, failed, fleets[0].model.name)


def _unhealthy(wave: int, reasons: Sequence[str], fleet: str) -> Unhealthy:
    return Unhealthy(
        f"nodes of wave {wave} are not in order: the next wave does not begin",
        detail="\n".join(reasons),
        hint=f"`orch check {fleet}` says how to mend what fails; `--no-check` goes on without",
        code="ORCH397",
    )
