"""What a killed call left: of which time it is, also where the call that was to clear it was killed too."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orch.spec.deletable import Evidence, why_kept
from orch.stacks.pulumi import orphans
from orch.stacks.pulumi.orphans import Past, killed_call
from orch.stacks.stack.locks import Lock
from orch.stacks.stack.state import StackState

NOW = datetime.now(timezone.utc)
HOUR = timedelta(hours=1)
STACK = cast("StackState", SimpleNamespace(name="lab"))


def kept(
    made: datetime, broken: bool, past: Past, monkeypatch: pytest.MonkeyPatch, *, begun: bool = True
) -> bool:
    """Whether a machine of that time stays, that the state does not record: it was written two hours ago by a
    call that was killed. `broken`: a recovery has left a lock a minute before, and was killed too."""
    monkeypatch.setattr(orphans, "_past", lambda _: past)
    state: Any = {"manifest": {"time": (NOW - 2 * HOUR).isoformat()}, "resources": [{}]}
    if begun:
        state["pending_operations"] = [{"type": "creating"}]
    since = (datetime.now(timezone.utc) - NOW).total_seconds()
    locks = (Lock(Path("lock"), 1, "user", "host", since + 60.0),) if broken else ()
    call = killed_call(STACK, state, locks)
    return why_kept(Evidence(all_runs_known=True, created=made, call=call, alone=True)) is not None


def test_what_a_call_left_goes_also_after_its_recovery_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = NOW - 3 * HOUR
    past = Past((before,), before)
    for broken in (False, True):
        assert not kept(NOW - 2 * HOUR, broken, past, monkeypatch)
        assert kept(NOW - 4 * HOUR, broken, past, monkeypatch)  # older than the call
        assert kept(NOW - HOUR / 2, broken, past, monkeypatch)  # and what neither of them can have made
    assert not kept(NOW, True, past, monkeypatch)
    # Nothing was begun, or others have changed the stack since: then the lock alone tells of a call.
    later = Past((NOW - HOUR,), NOW - HOUR)
    for each, begun in ((past, False), (later, True)):
        assert kept(NOW - 2 * HOUR, True, each, monkeypatch, begun=begun)
        assert not kept(NOW, True, each, monkeypatch, begun=begun)
