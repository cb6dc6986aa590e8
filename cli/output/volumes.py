"""Volumes as they are shown: a table, the facts of one, and what an `up` of one would do."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orch.cli.errors import coloured

if TYPE_CHECKING:
    from orch.stacks.volumes.operations import VolumeOutcome, VolumeUsage

SCHEMA = 1


def idle(usage: VolumeUsage) -> str:
    """Return for how long no run has used a volume, in words; "" while one does."""
    from orch.spec.grammar.values import render_duration

    return "" if usage.idle_s is None else render_duration(int(usage.idle_s))


def usage_json(usage: VolumeUsage) -> dict[str, Any]:
    """One entry of `volumes` in `volume list --json`."""
    state = usage.state
    return {
        "name": state.name,
        "backend": state.backend,
        "region": state.region,
        "zone": state.zone,
        "status": "active",
        "id": state.volume_id,
        "size_mib": state.size_mib,
        "disk_type": state.disk_type,
        "external": state.external,
        "protect": state.protect,
        "monthly": state.monthly,
        "created_at": usage.created.isoformat() if usage.created else None,
        "runs": [{"run": each.run, "node": each.node} for each in usage.active],
        "idle_s": usage.idle_s,
        "cleanup_due": usage.is_due,
    }


def facts(usage: VolumeUsage) -> list[tuple[str, str]]:
    """Return names and values for `volume show`; those that are "" are absent."""
    from orch.components.volumes import in_words

    state, unused = usage.state, idle(usage)
    due = "due: `orch volume gc` deletes it" if usage.is_due else ""
    nobody = "no run" if usage.complete else "no run of this machine's ledger"
    return [
        ("volume", state.name),
        ("backend", state.backend),
        ("place", state.place),
        ("id", state.volume_id + (", registered: orch does not delete it" if state.external else "")),
        ("size", in_words(state.size_mib) if state.size_mib else ""),
        ("type", state.disk_type or ""),
        ("IOPS", str(state.iops or "")),
        ("throughput", f"{state.throughput} MB/s" if state.throughput else ""),
        ("cost", f"${state.monthly:.2f} per month" if state.monthly is not None else "unknown"),
        ("protected", "yes" if state.protect else "no"),
        ("used by", _users(usage) or (f"{nobody} for {unused}" if unused else nobody)),
        ("cleanup", due),
    ]


def table(usages: Sequence[VolumeUsage]) -> str:
    """Return a table of volumes, a line each."""
    from rich.console import Console
    from rich.table import Table

    from orch.components.volumes import in_words

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("NAME", "BACKEND", "PLACE", "SIZE", "STATUS", "USED BY", "COST", "NOTE"):
        shown.add_column(heading)
    for usage in usages:
        state = usage.state
        shown.add_row(
            state.name,
            state.backend,
            state.place,
            in_words(state.size_mib) if state.size_mib else "-",
            "in use" if usage.active else "active",
            _users(usage) or "-",
            "-" if state.monthly is None else f"${state.monthly:.2f}/month",
            "cleanup is due: `orch volume gc`" if usage.is_due else "",
        )
    console = Console(file=(written := io.StringIO()), width=200, color_system=None)
    console.print(shown)
    return "\n".join(line.rstrip() for line in written.getvalue().rstrip("\n").split("\n"))


def _users(usage: VolumeUsage) -> str:
    return ", ".join(f"{each.run} on {each.node}" for each in usage.active)


def outcome_lines(outcome: VolumeOutcome, *, verbose: bool) -> list[str]:
    """A plan for people."""
    from orch.cli.output.plan import counts
    from orch.review.tree import drift_lines, paint, tree
    from orch.stacks.plans.headline import NO_HEADLINE

    colour = coloured(sys.stdout)
    lines = [f"volume {outcome.name}"]
    if outcome.loses_data:
        lines.append(paint("  it is replaced: all that is on it is lost", "1", colour))
    if outcome.drift:
        lines.append(paint("  drift, changed outside orch since the last `up`:", "33", colour))
        lines += [f"  {line}" for line in drift_lines(outcome.drift)]
    lines += tree(outcome.changes, NO_HEADLINE, colour=colour, verbose=verbose)
    lines += [paint(f"  · {reason}", "2", colour) for reason in outcome.reasons]
    price = "an unknown price" if outcome.monthly is None else f"${outcome.monthly:.2f} per month"
    return [*lines, f"plan: {counts(outcome.changes)}; costs {price}"]


def outcome_json(outcome: VolumeOutcome) -> dict[str, Any]:
    """A plan, or what was done, as JSON."""
    from orch.stacks.events.changes import summary

    return {
        "schema": SCHEMA,
        "volume": outcome.name,
        "summary": summary(outcome.changes),
        "changes": [change.as_json() for change in outcome.changes],
        "drift": [each.as_json() for each in outcome.drift],
        "reasons": list(outcome.reasons),
        "cost": {"monthly": outcome.monthly, "currency": "USD"},
    }
