"""Claims: who holds which block of a node, as text on the node, and the error of a run that finds it busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from orch.runner.errors import NodesBusy
from orch.runner.plan.run_names import as_argument
from orch.runner.processes import here

# After this time another run may take the claim of a job that has ended or never started. Its client may be
# away until then, and its stopped container keeps the log.
ABANDONED_AFTER_S = 3600


@dataclass(frozen=True)
class Claim:
    """Who holds a block of a node, and into how many blocks that client cuts it.

    `after`: what the node says of a job that has ended, `ended` or `collecting`.
    """

    container: str
    run: str
    by: str
    since: str
    of: str = ""
    after: str = ""

    @classmethod
    def parse(cls, text: str) -> Claim:
        return cls(*(*text.split("|"), "", "", "", "", "", "")[:6])

    @classmethod
    def now(cls, container: str, run: str, of: int) -> Claim:
        """A new claim by this user, at this moment."""
        return cls(container, run, here(), datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), str(of))

    @property
    def line(self) -> str:
        """The text of the claim on the node."""
        return "|".join((self.container, self.run, self.by, self.since, self.of))

    def __str__(self) -> str:
        return f"run {self.run or '?'} of {self.by or '?'} since {self.since or '?'}{self._ending}"

    @property
    def holder(self) -> str:
        """Its run, where others are named beside it; and its owner, where that is somebody else."""
        owner = f" of {self.by}" if self.by and self.by != here() else ""
        return f"{self.run}{owner}{self._ending}" if self.run else ""

    @property
    def _ending(self) -> str:
        if self.after == "collecting":
            return " (it has ended, its outputs are being collected)"
        return " (it has ended and is not collected yet)" if self.after == "ended" else ""

    @property
    def remedy(self) -> str | None:
        """What frees its block; None where only waiting does."""
        if not self.run or self.after == "collecting":
            return None
        return "`orch ps`" if self.after == "ended" else f"`orch stop {as_argument(self.run)}`"


def busy_error(node: str, blocks: int, total: int, holders: Sequence[Claim]) -> NodesBusy:
    """The error of a run that needs `blocks` of `total` blocks, which `holders` occupy."""
    runs = ", ".join(dict.fromkeys(map(str, holders))) or "another run"
    ways = dict.fromkeys(claim.remedy for claim in holders if claim.remedy)
    hint = f"wait for it, or {' and '.join(ways)} where it was started" if ways else "wait for it"
    if other_block_counts := {claim.of for claim in holders if claim.of and claim.of != str(total)}:
        return NodesBusy(
            f"node {node} is busy with {runs}",
            where=node,
            detail=f"it is cut into {', '.join(sorted(other_block_counts))} blocks there, "
            f"and into {total} by this fleet",
            hint="write the same `blocks` in all fleets that share a host",
        )
    needs = f": {blocks} of its {total} blocks are needed" if total > 1 else ""
    return NodesBusy(f"node {node} is busy with {runs}{needs}", where=node, hint=hint)
