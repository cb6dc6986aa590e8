"""What goes that nobody names, and what stays: the rules alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from orch.spec.deletable import SKEW, Call, Evidence, why_kept

NOW = datetime(2026, 11, 28, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)

ORPHAN = Evidence(all_runs_known=True, created=NOW - HOUR, updated=NOW)
"""What nobody has recorded, older than the state."""

YOUNGER = replace(ORPHAN, created=NOW + HOUR)
KILLED = Call(NOW - SKEW, NOW + 2 * HOUR)
POD = Evidence(recorded=True, finished=True, all_runs_known=True, claims=())
"""A pod of a run that the ledger does not know."""


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (ORPHAN, None),
        (replace(ORPHAN, runs=("run a of b",)), "in use by run a of b"),
        (replace(ORPHAN, claims=("run a of b",)), "in use by run a of b"),
        (replace(ORPHAN, claims=()), None),
        (replace(ORPHAN, readable=False), "cannot be read"),
        (replace(ORPHAN, finished=True), "an older copy"),
        (replace(ORPHAN, finished=True, call=KILLED), "an older copy"),
        (replace(ORPHAN, all_runs_known=False), "other ledgers"),
        (replace(ORPHAN, all_runs_known=False, claims=()), "other ledgers"),
        (replace(ORPHAN, created=None), None),
        (replace(ORPHAN, created=None, older=True), "an older copy"),
        (YOUNGER, "younger than the state"),
        # What a killed call made goes, and nothing older or much younger than that call.
        (replace(YOUNGER, call=KILLED), None),
        (replace(YOUNGER, call=KILLED, alone=True, all_runs_known=False), None),
        (replace(YOUNGER, call=Call(NOW, NOW)), "younger than the state"),
        (replace(YOUNGER, call=Call(NOW, NOW), alone=True), "did not create it"),
        (replace(YOUNGER, alone=True), "did not create it"),
        (replace(ORPHAN, call=KILLED, alone=True), "did not create it"),
        (replace(ORPHAN, created=None, call=KILLED, alone=True), None),
        (replace(ORPHAN, created=None, call=KILLED, alone=True, all_runs_known=False), "other ledgers"),
        (replace(ORPHAN, created=None, alone=True), "did not create it"),
        (replace(YOUNGER, call=KILLED, alone=True, runs=("run a of b",)), "in use"),
        # Pods that the state records.
        (POD, None),
        (replace(POD, over=True, claims=None, all_runs_known=False), None),
        (replace(POD, over=True, claims=("run a of b",)), "in use"),
        (replace(POD, awaited=True), "may still be submitted"),
        (replace(POD, all_runs_known=False), "others share the state"),
        (replace(POD, claims=None), "does not answer"),
        (replace(POD, claims=None, finished=False), None),
        (replace(POD, claims=("run a of b",)), "in use"),
    ],
)
def test_what_is_merely_unknown_stays(known: Evidence, why: str | None) -> None:
    found = why_kept(known)
    assert (found is None) == (why is None), found
    assert (why or "") in (found or "")


def test_a_call_covers_what_it_may_have_made() -> None:
    assert Call().covers(NOW)
    assert Call(NOW).covers(NOW - SKEW)
    assert not Call(NOW).covers(NOW - SKEW - timedelta(seconds=1))
    assert not Call(until=NOW).covers(NOW + SKEW + timedelta(seconds=1))
