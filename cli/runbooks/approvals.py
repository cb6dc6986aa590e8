"""Who approves the gates of a run, beside the terminal: who calls with `--approve`, or a pull request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from orch.cli.errors import tell

if TYPE_CHECKING:
    from orch.cli.runbooks.screen import Approver
    from orch.runbooks.engine import Consent
    from orch.runbooks.plan import Gate
    from orch.stacks.project.project import Project


def approver_of(project: Project, approved_by: int | None, *, approve: bool) -> Approver | None:
    """Return who approves gates; None when only the terminal does. Raises NoPipeline, NoLibrary.

    `approve` lets a run pass the gate at which it stopped before, and no other.
    """
    if approved_by is not None:
        return _by_pull(project, approved_by)
    return _by_caller() if approve else None


def _by_caller() -> Approver:
    from orch.runbooks.engine import Consent
    from orch.runner.processes import here

    left = [here()]

    def approval(gate: Gate) -> Consent | None:
        if not gate.asked:
            tell(f"note: --approve is for the gate at which the run stopped; {gate.name} is another one now")
        return Consent(left.pop()) if gate.asked and left else None

    return approval


def _by_pull(project: Project, number: int) -> Approver:
    from orch.ci.pipeline import approved_in_pull, pipeline
    from orch.runbooks.engine import Consent

    where = pipeline(os.environ)
    forge = where.forge()

    def approval(gate: Gate) -> Consent:
        found = approved_in_pull(where, forge, number, gate.mark, frozenset(_used(project)))
        return Consent(found.by, found.proof)

    return approval


def _used(project: Project) -> Iterator[str]:
    """Yield the approvals that runs of the project have spent."""
    from orch.runbooks.plan import RUN, RunPlan
    from orch.runner.ledger.ledger import open_ledger

    with closing(open_ledger(project.ledger_url)) as ledger:
        for change in ledger.changes.listed(project.name, verbs=(RUN,)):
            try:
                yield from RunPlan.of(change.plan).used
            except (KeyError, ValueError):  # of a version that kept something else
                continue
