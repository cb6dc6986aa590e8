"""Leases of stacks: who may change one, until when, and what is told of it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from kit.support import Folder

from orch.spec.diagnostics import Severity
from orch.spec.errors import ExitCode
from orch.stacks.project.project import Project, find
from orch.stacks.stack.leases import AHEAD, TAG, Leased, StackLease, lease_finding, lease_of, refuse_leased
from orch.stacks.stack.state import StackState
from orch.stacks.stack.tags import read_tags

SINCE = datetime(2026, 11, 25, 12, 0, tzinfo=timezone.utc)
LEASE = StackLease("PR #12", SINCE, SINCE + timedelta(hours=24))


def tagged(path: Path, value: str, owner: str = "PR #13") -> StackState:
    """A stack whose tags the engine has written beside its state."""
    project: Project = replace(find(path), owner=owner)
    file = project.checkpoint("p5")
    assert file is not None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_name("p5.pulumi-tags").write_text(json.dumps({"tags": {TAG: value}}))
    return StackState(project, "p5")


def now_for(hours: int, owner: str = "PR #12") -> str:
    now = datetime.now(timezone.utc)
    return StackLease(owner, now, now + timedelta(hours=hours)).value


def test_a_lease_comes_back_from_its_tag() -> None:
    assert LEASE.value == "2026-11-25T12:00:00Z 2026-11-26T12:00:00Z PR #12"
    assert StackLease.of({TAG: LEASE.value}) == LEASE
    for other in ("", "none", "x y z", "2026-11-25T12:00:00Z 2026-11-26 PR #12", "2026-11-25T12:00:00Z"):
        assert StackLease.of({TAG: other}) is None
    assert StackLease.of({}) is None


def test_a_lease_binds_others_until_it_is_over() -> None:
    last = LEASE.until - timedelta(seconds=1)
    assert LEASE.binds("PR #13", SINCE)
    assert LEASE.binds("PR #13", last)
    # Their clock may be ahead of ours, as far as a short lease allows.
    assert LEASE.binds("PR #13", LEASE.until + AHEAD - timedelta(seconds=1))
    assert not LEASE.binds("PR #13", LEASE.until + AHEAD)
    short = StackLease("PR #12", SINCE, SINCE + timedelta(seconds=10))
    assert not short.binds("PR #13", short.until + timedelta(seconds=1))
    assert not LEASE.binds("PR #12", SINCE)


def test_another_owner_is_refused_and_told_who_since_when_until_when_and_what_to_do(tmp_path: Path) -> None:
    stack = tagged(tmp_path, now_for(1))
    lease = lease_of(stack)
    assert lease is not None
    with pytest.raises(Leased) as refused:
        refuse_leased(stack)
    error = refused.value
    assert (error.code, error.exit_code) == ("ORCH395", ExitCode.CONFLICT)
    text = error.text()
    for words in ("fleet p5 is leased to PR #12", f"since {lease.as_json()['since']}"):
        assert words in text
    assert f"until {lease.as_json()['until']}" in text
    assert "`orch lease release p5 --force`" in text
    (finding,) = lease_finding(stack)
    assert (finding.code, finding.severity) == ("ORCH395", Severity.WARNING)
    assert "leased to PR #12: nobody else may apply" in finding.summary


def test_the_owner_goes_on_and_what_is_over_or_not_ours_binds_nobody(tmp_path: Path) -> None:
    own = tagged(tmp_path, now_for(1), owner="PR #12")
    refuse_leased(own)
    (finding,) = lease_finding(own)
    assert finding.severity is Severity.NOTE
    for value in (now_for(-1), "none", "1999 soon mallory"):
        stack = tagged(tmp_path, value)
        refuse_leased(stack)
        assert lease_finding(stack) == ()


def test_a_stack_without_tags_has_no_lease(tmp_path: Path) -> None:
    stack = StackState(find(tmp_path), "p5")
    assert read_tags(stack) == {}
    refuse_leased(stack)
    assert "@" in stack.project.owner


@pytest.mark.parametrize("duration", ["9999999d", "9999999999"])
def test_a_lease_that_no_calendar_has_is_refused(folder: Folder, duration: str) -> None:
    said = folder.orch("lease", "take", "p5", "--for", duration)
    assert said.code == ExitCode.USAGE
    assert "--for: a lease lasts 100 years at most" in said.err
