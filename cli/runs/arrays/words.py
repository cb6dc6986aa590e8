"""Arrays for people and for pipelines: counts, lines for members that ended, folded rows, JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from orch.cli.output.run import SCHEMA, duration, run_json
from orch.runner.ledger.records import ACTIVE
from orch.runner.runs.arrays.choose import folded
from orch.spec.errors import visible
from orch.spec.suggest import counted

if TYPE_CHECKING:
    from orch.runner.ledger.arrays import Member
    from orch.runner.ledger.records import ArrayKey
    from orch.runner.runs.context import RunnerContext

SHOWN = 20
"""Of how many members that failed it is told how."""


def counts(members: Iterable[Member]) -> dict[str, int]:
    """Return the numbers of members that are pending, running, done, failed or terminated; those that begin
    or end count as running."""
    found = Counter(
        "running" if each.status in ACTIVE and each.status != "pending" else each.status for each in members
    )
    return {word: found[word] for word in ("pending", "running", "done", "failed", "terminated")}


def counts_text(members: Iterable[Member]) -> str:
    """`90 pending, 2 running, 8 done`."""
    found = {word: count for word, count in counts(members).items() if count}
    return ", ".join(f"{count} {word}" for word, count in found.items())


def members_text(members: Sequence[Member]) -> str:
    """`sweep_7`, or folded `sweep_[4-100]`."""
    if len(members) == 1:
        return members[0].name
    name = members[0].name.rpartition("_")[0]
    return f"{name}_[{folded([each.index for each in members])}]"


def ends(before: dict[int, str], members: Sequence[Member]) -> list[str]:
    """A line for the members that ended since the last look, one for each that failed; `before`: their
    statuses then by number, which are brought up to date."""
    new = [each for each in members if not each.active and before.get(each.id) in ACTIVE]
    before.update({each.id: each.status for each in members})
    lines = [failed_text(each) for each in new if each.status == "failed"]
    for status in ("done", "terminated"):
        if group := [each for each in new if each.status == status]:
            lines.append(f"{members_text(group)}: {status}")
    if lines:
        lines[-1] += f" ({counts_text(members)})"
    return lines


def failed_text(member: Member) -> str:
    """Return how a member failed, and where to look next."""
    what = f": {visible(member.message)}" if member.message else ""
    log = f"; its log: orch logs {member.name}" if member.attempt or member.started_at else ""
    return f"{member.name}: failed{what}{log}"


def summary(array: ArrayKey, members: Sequence[Member]) -> str:
    """Return the status of an array, or how it ended, and which members failed."""
    over = not any(each.active for each in members)
    began = min(each.created_at for each in members)
    ended = max((each.finished_at or 0.0 for each in members), default=0.0)
    took = f" in {duration(ended - began)}" if over else ""
    lines = [f"array {array.name}: {counted(len(members), 'run')}{took}: {counts_text(members)}"]
    failed = [each for each in members if each.status == "failed"]
    lines += [f"  {failed_text(each)}" for each in failed[:SHOWN]]
    if len(failed) > SHOWN:
        lines.append(f"  and {members_text(failed[SHOWN:])}")
    return "\n".join(lines)


def array_json(runner: RunnerContext, array: ArrayKey, members: Sequence[Member]) -> dict[str, Any]:
    """An array, or those members of it that were named, as `run`, `attach`, `stop` and `show` print it."""
    rows = runner.ledger.by_ids([each.id for each in members])
    return {
        "schema": SCHEMA,
        "array": array.name,
        "id": array.id,
        "limit": members[0].limit,
        "counts": counts(members),
        "runs": [run_json(row) for row in rows],
    }
