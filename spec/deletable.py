"""Whether something may be deleted that nobody names: a machine, a pod, what a killed call left. Pure.

What is merely unknown stays. Who asks collects the evidence: the ledger's runs and lives of nodes, what the
state records, what the node itself reports, and the times of the cloud.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

SKEW = timedelta(minutes=5)
"""How far the clocks of a cloud and of this machine may be apart."""


@dataclass(frozen=True)
class Call:
    """A call that was killed or failed half way: it began at `since` or later, and was at work until `until`
    at most; None where nobody knows. `earlier`: another one before it, whose leftovers it was to clear."""

    since: datetime | None = None
    until: datetime | None = None
    earlier: Call | None = None

    def covers(self, moment: datetime) -> bool:
        """Return True if something created at `moment` may belong to the call."""
        begun = self.since is None or moment >= self.since - SKEW
        own = begun and (self.until is None or moment <= self.until + SKEW)
        return own or (self.earlier is not None and self.earlier.covers(moment))


@dataclass(frozen=True)
class Evidence:
    """Facts about a resource that might be deleted.

    `runs`: runs of this ledger that have it or wait for it; `claims`: runs that it reports itself, None where
    it cannot be asked. `over`: it was made for a run of this ledger that no longer needs it; `awaited`: the
    run that it was made for may still be submitted. `recorded`: the state has it; `finished`: a change that
    ended made it, so that jobs may have started there. `all_runs_known`: this ledger has the runs of all who
    share the state; `readable`: the ledger could be read. `created`: when the cloud made it; `updated`:
    when the state was last written. `call`: the call whose leftovers are cleared, None without one; `alone`:
    nothing but those goes. `older`: the state is an older copy of what it was.
    """

    runs: tuple[str, ...] = ()
    claims: tuple[str, ...] | None = None
    over: bool = False
    awaited: bool = False
    recorded: bool = False
    finished: bool = False
    all_runs_known: bool = False
    readable: bool = True
    created: datetime | None = None
    updated: datetime | None = None
    call: Call | None = None
    alone: bool = False
    older: bool = False


def run_words(run: str, by: str) -> str:
    return f"run {run or '?'} of {by or '?'}"


def occupied(known: Evidence) -> str | None:
    """The runs on it, in words; None where nobody knows of one."""
    names = tuple(dict.fromkeys((*known.runs, *(known.claims or ()))))
    return f"in use by {', '.join(names)}" if names else None


def why_kept(known: Evidence) -> str | None:
    """Return the reason to keep a resource, as text; None when it may be deleted."""
    if (users := occupied(known)) is not None:
        return users
    if not known.readable:
        return "the ledger cannot be read, so runs may be on it"
    return _of_a_run(known) if known.recorded else _of_nobody(known)


def _of_a_run(known: Evidence) -> str | None:
    """The same for a pod that the state records and that was made for one run."""
    if known.over:
        return None
    if known.awaited:
        return "its run may still be submitted"
    if not known.all_runs_known:
        return "this ledger does not know its run, and others share the state"
    if known.finished and known.claims is None:
        return "this ledger does not know its run, and it does not answer"
    return None


def _of_nobody(known: Evidence) -> str | None:
    """The same for what the state does not record."""
    if known.finished:
        return "the ledger has it as a node: this state may be an older copy"
    if known.older:
        return "the stack was changed after this state was written: it is an older copy"
    if known.call is not None and known.created is not None and known.call.covers(known.created):
        return None
    if known.alone and (known.call is None or known.created is not None):
        return "the interrupted call did not create it: this state may be an older copy"
    if known.created is not None and known.updated is not None and known.created > known.updated:
        return "it is younger than the state, which may be an older copy"
    if not known.all_runs_known:
        return "runs of other ledgers may be on it: the state is shared, the ledger is not"
    return None
