"""What became of an apply, in the comment of its plan: what refused it, the rows that differ, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from orch.ci.comments import Done, Footing, own_comment, posted_plan, sync_comment, told_above
from orch.ci.findings import BadFindings, objects_of
from orch.ci.forge import Forge
from orch.review.escape import escape
from orch.stacks.saved_plans.result import ApplyResult

_UNCHANGED = "nothing was changed"
_ROWS = 20
_ROW = 400
"""Rows that are shown, and UTF-8 bytes of each: the plan below needs room, too."""


def read_result(path: str) -> ApplyResult:
    """What `orch up --plan … --result` wrote. Raises BadFindings."""
    try:
        (data,) = objects_of(path)
        return ApplyResult.model_validate(data)
    except (ValueError, ValidationError) as error:
        raise BadFindings(
            "this is no result of an apply",
            where=path,
            detail=str(error).splitlines()[0],
            hint="write it with `orch up --plan plan.json --result FILE`",
        ) from error


def verdict(result: ApplyResult) -> str:
    """The first words of the comment."""
    if result.error is None:
        return "✅ applied" if result.exit_code == 0 else "⚠️ applied, with hosts that are not in order"
    return "⛔ apply refused" if result.is_refused else "⛔ apply failed"


@dataclass(frozen=True)
class PlanComment:
    """The comment of a plan. `title`: what was planned, in words."""

    marker: str
    title: str
    footing: Footing


def post_result(forge: Forge, number: int, comment: PlanComment, result: ApplyResult) -> Done:
    """Tell a result in the comment of its plan, whose text stays below it. Raises ForgeError."""
    former = own_comment(forge, number, comment.marker)
    plan = "" if former is None else posted_plan(former.body)
    lines = [*_lines(result, comment.title)]
    return sync_comment(forge, number, told_above(comment.marker, lines, plan, comment.footing))


def _lines(result: ApplyResult, title: str) -> Iterator[str]:
    yield f"### {verdict(result)}: {escape(title, 200)}"
    error = result.error
    if error is not None:
        where = f" ({escape(error.where, _ROW)})" if error.where else ""
        code = f"{escape(error.code, 20)}: " if error.code else ""
        unchanged = " Nothing was changed." if result.is_refused and _UNCHANGED not in error.summary else ""
        yield from ("", f"**{code}{escape(error.summary, 600)}**{where}{unchanged}")
        rows = [f"- {escape(each.strip(), _ROW)}" for each in error.detail if each.strip()]
        more = [f"- … {len(rows) - _ROWS} more"] if len(rows) > _ROWS else []
        yield from ("", *rows[:_ROWS], *more) if rows else ()
        yield from ("", f"What to do: {escape(error.hint, 600)}.") if error.hint else ()
        if result.exit_code == 9:
            yield from ("", "Run all jobs again for a new plan and a new approval.")
    for words, stacks in (("Applied", result.applied), ("Not begun", result.not_begun)):
        if stacks:
            yield from ("", f"{words}: {escape(', '.join(stacks), 2_000)}.")
