"""The sticky comment of a plan: found again by its marker and its author, bounded, struck out when stale; and
in it what became of the apply: what refused it, the rows that differ, what to do."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from orch.ci.findings import BadFindings, cut, first_reason, objects_of
from orch.ci.forge import Comment, Forge, ForgeBusy, Pull
from orch.review.blocks import MOST_BYTES, size_of
from orch.review.escape import escape, marked
from orch.stacks.saved_plans.result import ApplyResult

_MARKER = re.compile(r"<!-- orch:[a-z]+ v1( [^\n]*)? -->")
_COMMIT = re.compile(r"<!-- orch:commit head=([0-9a-f]*) base=([0-9a-f]*) -->")
_STALE = "<!-- orch:stale -->"
_RESULT = "<!-- orch:result -->"
_FOLDED = "<details><summary>The plan that was posted before</summary>"
_FENCE = re.compile(r" *(`{3,}|~{3,})")
_HEADING_BYTES = 1_000
_CLOSING_BYTES = 4_000

TRIES = 3
PAUSE_S = 5.0
_UNCHANGED = "nothing was changed"
_ROWS = 20
_ROW = 400
"""Rows that are shown, and UTF-8 bytes of each: the plan below needs room, too."""

Done = Literal["posted", "updated", "unchanged"]


@dataclass(frozen=True)
class Footing:
    """Origin of a comment: the commit, its base, and the pipeline run that has the whole plan."""

    head: str = ""
    base: str = ""
    run_url: str = ""

    def lines(self, what: str = "Plan") -> list[str]:
        parts = [f"{what} of {self.head[:12]}" if self.head else what]
        parts += [f"onto {self.base[:12]}"] if self.base else []
        words = escape(" ".join(parts), commits=(self.head[:12], self.base[:12]))
        link = f" [All of it]({self.run_url}) is with the run." if self.run_url else ""
        return ["", "---", "", f"<sub>{words}.{link}</sub>"] if self.head or link else []


def marker_of(body: str) -> str | None:
    """The hidden first line by which a comment is found again; None where it has none."""
    first = body.lstrip("\ufeff").partition("\n")[0].rstrip("\r ")
    return first if _MARKER.fullmatch(first) else None


def marker(key: str) -> str:
    """The marker of a comment that is no plan of orch."""
    return f"<!-- orch:comment v1 key={marked(key)} -->"


def plan_marker(project: str, path: str) -> str:
    """The marker of the plan of a path, as `orch preview --markdown` writes it."""
    return f"<!-- orch:plan v1 project={marked(project)} path={marked(path)} -->"


def composed(body: str, footing: Footing, most: int = MOST_BYTES) -> str:
    """A body as it is posted: with the commits it is about, in at most so many bytes of UTF-8.

    Raises ValueError for a body without a marker.
    """
    found = marker_of(body)
    if found is None:
        raise ValueError("a comment needs a marker in its first line")
    commit = f"<!-- orch:commit head={_hexadecimal(footing.head)} base={_hexadecimal(footing.base)} -->"
    rest = body.lstrip("\ufeff").replace("\r\n", "\n").split("\n")[1:]
    return _bounded([found, commit], rest, footing.lines(), most)


def stale(body: str, reason: str, most: int = MOST_BYTES) -> str | None:
    """The comment struck out, its text folded; None where it is struck out already or has no marker."""
    lines = body.replace("\r\n", "\n").rstrip("\n").split("\n")
    found = marker_of(body)
    if found is None or _STALE in lines[:4]:
        return None
    top = [found, *(line for line in lines[1:2] if _COMMIT.fullmatch(line)), _STALE]
    rest = lines[len(top) - 1 :]
    at = next((at for at, line in enumerate(rest) if line.startswith("#")), None)
    title = "the plan" if at is None else cut(rest[at].lstrip("# "), _HEADING_BYTES)
    text = [line for number, line in enumerate(rest) if number != at]
    top += [
        f"### ~~{title}~~",
        "",
        f"**This plan is stale: {escape(reason, _HEADING_BYTES)}.** Nobody should approve or apply it; plan "
        "again.",
        "",
        "<details><summary>The stale plan</summary>",
        "",
    ]
    return _bounded(top, text, ["", "</details>"], most)


def told_above(marker: str, lines: list[str], plan: str, footing: Footing, most: int = MOST_BYTES) -> str:
    """A comment with these lines, and a plan folded below them where there is one; within so many bytes."""
    commit = f"<!-- orch:commit head={_hexadecimal(footing.head)} base={_hexadecimal(footing.base)} -->"
    fold = ["", _FOLDED, "", *plan.split("\n")] if plan else []
    end = [*(["", "</details>"] if plan else []), *footing.lines("Apply")]
    return _bounded([marker, commit, _RESULT, *lines], fold, end, most)


def posted_plan(body: str) -> str:
    """The text of a plan that was posted, as it was before results of applies stood above it."""
    lines = body.replace("\r\n", "\n").rstrip("\n").split("\n")
    if _RESULT not in lines[:4]:
        hidden = sum(line.startswith("<!-- orch:") for line in lines[:4])
        return "\n".join(lines[hidden:])
    if _FOLDED not in lines:
        return ""
    text = lines[lines.index(_FOLDED) + 1 :]
    last = max((at for at, line in enumerate(text) if line == "</details>"), default=len(text))
    return "\n".join(text[:last]).strip("\n")


def own_comment(forge: Forge, number: int, marker: str) -> Comment | None:
    """This process's comment with this marker."""
    return next(_own(forge, number, marker), None)


def sync_comment(forge: Forge, number: int, body: str, pause: float = PAUSE_S) -> Done:
    """Post a body, or make the comment with its marker equal to it. Doubles of it are deleted.

    A forge that is busy while the comment is posted may have taken it: it is looked for before it is posted
    again. Raises ForgeError.
    """
    for last in (False,) * (TRIES - 1) + (True,):
        own = list(_own(forge, number, marker_of(body)))
        if own:
            for double in own[1:]:
                forge.delete_comment(number, double.id)
            if _same(own[0].body, body):
                return "unchanged"
            forge.edit_comment(number, own[0].id, body)
            return "updated"
        guess = forge.author()
        try:
            forge.add_comment(number, body)
        except ForgeBusy as error:
            if last:
                raise
            time.sleep(pause if error.wait is None else error.wait)
            continue
        # Written under another login than was looked for: an older one of that may be there.
        return sync_comment(forge, number, body, pause) if forge.author() != guess else "posted"
    raise AssertionError("the last try returns or raises")


def strike(
    forge: Forge, pulls: Iterable[Pull], reason: str, base: str | None = None, marker: str | None = None
) -> Iterator[Pull]:
    """Strike out this process's plans of these pull requests; those that had one.

    A plan of the newest commit onto `base` is not stale. `marker`: only the plan with this one.
    """
    for pull in pulls:
        struck = False
        for comment in list(_own(forge, pull.number, marker)):
            commit = _COMMIT.search(comment.body)
            if base is not None and commit is not None and commit.groups() == (pull.head, base):
                continue
            text = stale(comment.body, reason)
            if text is not None:
                forge.edit_comment(pull.number, comment.id, text)
                struck = True
        if struck:
            yield pull


def _own(forge: Forge, number: int, wanted: str | None) -> Iterator[Comment]:
    """Comments of this process's author with a marker: this one, or that of any plan."""
    author = forge.author()
    for comment in forge.comments(number):
        found = marker_of(comment.body)
        if comment.author != author or found is None:
            continue
        if found == wanted or (wanted is None and found.startswith("<!-- orch:plan ")):
            yield comment


def _bounded(top: list[str], text: list[str], end: list[str], most: int) -> str:
    """Lines in at most so many bytes: what does not fit goes from the end of `text`, and is told above it."""
    whole = [*top, *text, *end]
    if size_of(whole) <= most:
        return "\n".join(whole).rstrip("\n") + "\n"
    at = next((at for at, line in enumerate(text[:5]) if line.startswith("#")), None)
    head = [] if at is None else [cut(text[at], _HEADING_BYTES)]
    rest = text if at is None else text[at + 1 :]
    note = [
        "",
        "> **Shortened: the end is left out. Do not approve from this comment:** read the whole plan.",
    ]
    left = most - size_of([*top, *head, *note, *end]) - _CLOSING_BYTES
    kept: list[str] = []
    for line in rest:
        left -= size_of([line])
        if left < 0:
            break
        kept.append(line)
    while size_of(closing := _closing(kept)) > _CLOSING_BYTES:
        kept.pop()
    return "\n".join([*top, *head, *note, *kept, *closing, *end]) + "\n"


def _closing(lines: list[str]) -> list[str]:
    """Return the text that closes the code block and the folded parts that are open after these lines."""
    fence, folded = "", 0
    for line in lines:
        match = _FENCE.match(line)
        if fence:
            if match and match[1].startswith(fence) and not line.strip(" `~"):
                fence = ""
        elif match:
            fence = match[1]
        else:
            folded += line.count("<details") - line.count("</details>")
    return [*([fence] if fence else []), *["", "</details>"] * max(folded, 0)]


def _same(one: str, other: str) -> bool:
    """Return True if a forge's text is ours: forges trim it, and some convert line ends."""
    return one.replace("\r\n", "\n").strip() == other.replace("\r\n", "\n").strip()


def _hexadecimal(commit: str) -> str:
    return commit if re.fullmatch(r"[0-9a-f]{7,64}", commit) else ""


# --- what became of an apply


def read_result(path: str) -> ApplyResult:
    """Read the file that `orch up --plan … --result` wrote. Raises BadFindings."""
    try:
        (data,) = objects_of(path)
        return ApplyResult.model_validate(data)
    except (ValueError, ValidationError) as error:
        raise BadFindings(
            "this is no result of an apply",
            where=path,
            detail=first_reason(error),
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
