"""A review as a comment of a pull request: verdict and dangers first, deterministic, bounded by structure.

Fixed blocks (verdict, dangers, approvals, the tables) are never left out as a whole; rows go from the end
of the least risky block, and a comment that lacks some says that it must not be approved from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from orch.review.blocks import MOST_BYTES, Block, fit, size_of
from orch.review.escape import escape, escape_html, fenced, marked
from orch.review.model import ChangeGroup, Cost, Loss, Review, StackReview, Verdict
from orch.review.picture import picture
from orch.runner.ledger.changes import Change, Step
from orch.spec.grammar.values import render_duration
from orch.stacks.events.kinds import several
from orch.stacks.maintenance.plan import MaintenancePlan

_LONG = 600
_CELL = 240
"""UTF-8 bytes of a sentence, and of a cell of a table."""

_SERIALS = 12
"""Stacks whose serial the last line has."""

_LEAVES = 12
"""Properties of an example diff."""

VERDICT_WORDS: dict[Verdict, str] = {
    "failed": "⛔ no plan",
    "refused": "⛔ refused",
    "danger": "⚠️ dangerous",
    "changes": "✅ changes",
    "unchanged": "✅ no changes",
}
MARKS = {"delete": "-", "replace": "±", "update": "~", "create": "+"}
_OPS = {"delete": "delete", "replace": "replace", "update": "change", "create": "create"}


def markdown(review: Review, most: int = MOST_BYTES) -> str:
    """Return the comment, in at most so many bytes of UTF-8."""
    top, dangers, tables = _top(review), _dangers(review), _tables(review)
    details = [block for stack in review.stacks for block in _details(stack)]
    basis = basis_line(review)
    own = (review.basis.commit, review.basis.base, review.basis.plan)
    shown_basis = escape(basis, _LONG, commits=own)
    end = Block(["", _ending(review), *(["", f"{shown_basis}."] if basis else [])])
    shortened = _shortened(9_999_999, 9_999_999)
    blocks = [dangers, *tables, *details, end]
    order = [*reversed(details), *reversed(tables), dangers]
    fitted = fit(blocks, order, most - size_of(top) - size_of(shortened))
    note = _shortened(fitted.dropped, fitted.gone) if fitted.dropped else []
    return "\n".join([*top, *note, *fitted.lines]) + "\n"


def _dangers(review: Review) -> Block:
    return Block(
        ["", "**Dangers**", ""] if review.dangers else [],
        [
            [f"- **{each.kind}** · {escape(each.stack, _CELL)}: {escape(each.text, _LONG)}"]
            for each in review.dangers
        ],
        noun="dangers",
        keep=12,
    )


def _tables(review: Review) -> list[Block]:
    """Return the tables of the comment, the riskiest first."""
    stacks = review.stacks
    return [
        _table(
            "Approvals needed",
            ("who", "agrees to", "how"),
            [(each.who, each.to, each.how) for each in review.approvals],
            keep=8,
        ),
        _table(
            "Stacks",
            ("stack", "verdict", "delete", "replace", "create", "change", "where"),
            [_stack_row(each) for each in stacks] if len(stacks) > 1 else [],
            keep=8,
        ),
        _table(
            "Destroyed or replaced",
            ("what", "number", "forced by", "what stops or is lost"),
            [_loss_row(loss) for stack in stacks for loss in stack.losses],
            keep=10,
        ),
        _cost_table(review),
        _table(
            "Quota and capacity",
            ("where", "finding", "what to do"),
            [
                (each.where, f"{each.code} {each.text}", each.hint)
                for stack in stacks
                for each in stack.capacity
            ],
            keep=5,
        ),
        _table(
            "Drift: there before this change",
            ("resource", "property", "registered", "found", "what `up` does"),
            [
                (f"{stack.name}: {each.names}", each.path, each.registered, each.observed, each.then)
                for stack in stacks
                for each in stack.drift
            ],
            keep=5,
        ),
        _table(
            "Policies",
            ("policy", "level", "message", "where"),
            [
                (each.name, each.level_words, each.message, each.where)
                for stack in stacks
                for each in sorted(stack.policies, key=lambda each: not each.refuses)
            ],
            keep=5,
        ),
        _table(
            "Findings",
            ("where", "finding", "what to do"),
            [
                (each.where, f"{each.severity} {each.code} {each.text}", each.hint)
                for stack in stacks
                for each in stack.remarks
            ],
            keep=3,
        ),
    ]


def _loss_row(loss: Loss) -> tuple[str, ...]:
    return (f"{_OPS[loss.op]} {loss.kind} {loss.names}", str(loss.number), loss.forced_by, loss.stops)


def _top(review: Review) -> list[str]:
    """The hidden marker by which the comment is found again, the verdict, and the sums."""
    of = f"{review.project} {review.path}".strip()
    sums = [f"{review.total(op)} to {word}" for op, word in _OPS.items() if review.total(op)]
    unplanned = review.verdict == "failed" or any(each.failure is not None for each in review.stacks)
    numbers = ", ".join(sums) or ("nothing is planned" if unplanned else "nothing to do")
    verdicts = ""
    if len(review.stacks) > 1:
        words = [
            f"{review.number(verdict)} {_plain(verdict)}"
            for verdict in VERDICT_WORDS
            if review.number(verdict)
        ]
        verdicts = f" Of {len(review.stacks)} stacks: {', '.join(words)}."
    return [
        f"<!-- orch:plan v1 project={marked(review.project)} path={marked(review.path)} -->",
        f"### {VERDICT_WORDS[review.verdict]}: orch plan of {escape(of, _CELL)}",
        "",
        f"{numbers}.{verdicts} {escape(cost_line(review), _LONG)}".rstrip(),
    ]


def cost_line(review: Review) -> str:
    """`Cost: $1.00 an hour now, $2.00 after (+$1.00)`; nothing where no stack has a cost."""
    costs = [cost for _, cost in review.costs()]
    if not costs:
        return ""
    now, after = sum(each.now for each in costs), sum(each.after for each in costs)
    ceilings = [each.ceiling for each in costs]
    most = "not known" if None in ceilings else f"${sum(each or 0.0 for each in ceilings):.2f}"
    unknown = sum(len(each.unknown) for each in costs)
    missing = f"; {unknown} {'price is' if unknown == 1 else 'prices are'} not known" if unknown else ""
    change = signed(after - now)
    return f"Cost an hour: ${now:.2f} now, ${after:.2f} after ({change}), {most} at the most{missing}."


def basis_line(review: Review) -> str:
    """`Plan 3fa9… of commit 90f4…, against base 8d88…; serial of the state: p5 3; valid until …`, as far as
    it is known."""
    basis = review.basis
    plan = f"Plan {basis.plan}" if basis.plan else "Plan"
    changed = ", with files that are not committed as they are" if basis.dirty else ""
    parts = [f"{plan} of commit {basis.commit}{changed}"] if basis.commit else [plan] if basis.plan else []
    if basis.base:
        parts[0] += f", against base {basis.base}"
    serials = [f"{each.name} {each.serial}" for each in review.stacks if each.serial is not None]
    if serials and parts:
        shown = serials[:_SERIALS]
        more = len(serials) - len(shown)
        parts.append(f"serial of the state: {', '.join(shown)}{f' and {more} more' if more else ''}")
    if basis.valid_until:
        parts.append(f"valid until {basis.valid_until}")
    return "; ".join(parts)


def signed(amount: float) -> str:
    amount = round(amount, 2) + 0.0
    return f"{'-' if amount < 0 else '+'}${abs(amount):.2f}"


def cost_row(stack: StackReview, cost: Cost) -> tuple[str, ...]:
    """Now, after, change, at the most, and the parts of it."""
    return (
        stack.title,
        f"${cost.now:.2f}",
        f"${cost.after:.2f}",
        signed(cost.delta),
        "not known"
        if cost.ceiling is None
        else f"${cost.ceiling:.2f} with {several('node', cost.most_nodes)}"
        if cost.most_nodes
        else f"${cost.ceiling:.2f}",
        f"${cost.on_demand:.2f}",
        f"${cost.spot:.2f}",
        f"{several('node', cost.reserved_nodes)} (${cost.reserved:.2f})" if cost.reserved_nodes else "none",
        ", ".join(cost.unknown) or "none",
    )


COST_HEADS = (
    "stack",
    "now",
    "after",
    "change",
    "at the most",
    "on demand",
    "spot",
    "reserved",
    "price unknown",
)


def cost_notes(review: Review) -> Iterator[str]:
    """Yield notes on the sums: the price lists, and what is not counted."""
    for prices in dict.fromkeys(cost.prices for _, cost in review.costs() if cost.prices):
        yield f"Prices: {prices}."
    beside = dict.fromkeys(each for _, cost in review.costs() for each in cost.not_counted)
    if beside:
        yield f"Not counted: {'; '.join(beside)}."


def _cost_table(review: Review) -> Block:
    priced = [
        each for each in review.costs() if each[1] != Cost(0.0, 0.0, 0.0, each[1].nodes, each[1].most_nodes)
    ]
    ordered = sorted(priced, key=lambda each: -abs(each[1].delta))
    rows = [cost_row(stack, cost) for stack, cost in ordered]
    block = _table("Cost, in US dollars an hour", COST_HEADS, rows, keep=5)
    notes = [escape(each, _LONG) for each in cost_notes(review)] if rows else []
    block.tail = [line for note in notes[:6] for line in ("", note)]
    return block


def _stack_row(stack: StackReview) -> tuple[str, ...]:
    counts = (str(stack.counts.get(op, 0)) for op in ("delete", "replace", "create", "update"))
    return (stack.title, _plain(stack.verdict), *counts, stack.where)


def _details(stack: StackReview) -> Iterator[Block]:
    """Yield blocks of a stack, the riskiest first: changes of resources, the picture, and the reasons."""
    groups = [each for each in stack.groups if not each.mends_drift]
    mended = [each for each in stack.groups if each.mends_drift]
    number = sum(each.number for each in groups)
    title = escape_html(_cut(stack.title))
    if stack.failure is not None and not stack.remarks:
        yield Block(["", *_failure(stack)], whole=False)
    if groups:
        yield _folded(
            f"{title}: {several('resource', number)} to change",
            [_group(each) for each in groups],
            "groups of resources",
        )
    if mended:
        put_back = sum(each.number for each in mended)
        rows = [_group(each) for each in mended]
        yield _folded(
            f"{title}: {several('resource', put_back)} to put back after drift", rows, "groups of resources"
        )
    drawn = picture(stack)
    if drawn:
        yield _folded(f"{title}: before and after", [fenced(drawn, "mermaid")], "pictures")
    if stack.reasons and stack.verdict != "unchanged":
        rows = [[f"- {escape(each, _LONG)}"] for each in stack.reasons]
        yield _folded(f"{title}: why it is so", rows, "reasons")


def _failure(stack: StackReview) -> Iterator[str]:
    failure = stack.failure
    if failure is None:
        return
    code = f" {failure.code}" if failure.code else ""
    where = f" ({escape(failure.where, _CELL)})" if failure.where else ""
    yield f"**{escape(stack.title, _CELL)}** has no plan{code}: {escape(failure.summary, _LONG)}{where}"
    if failure.detail:
        yield from ["", escape(failure.detail, _LONG)]
    if failure.hint:
        yield from ["", f"What to do: {escape(failure.hint, _LONG)}"]


def _group(group: ChangeGroup) -> list[str]:
    times = f" x{group.number}" if group.number > 1 else ""
    what = f"{MARKS[group.op]} {_OPS[group.op]} {escape(group.kind)}"
    lines = [f"- {what} **{escape(group.names, _CELL)}**{times}"]
    if group.leaves:
        shown = [_cut(leaf) for leaf in group.leaves[:_LEAVES]]
        more = len(group.leaves) - len(shown)
        shown += [f"… {more} more properties"] if more else []
        lines += ["", *(f"  {line}" for line in fenced(shown)), ""]
    return lines


def _folded(summary: str, rows: list[list[str]], noun: str) -> Block:
    """A block behind a summary, which Markdown within needs empty lines around."""
    head = ["", f"<details><summary>{summary}</summary>", ""]
    return Block(head, rows, ["", "</details>"], noun, whole=True)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, keep: int) -> Block:
    if not rows:
        return Block([])
    head = ["", f"**{title}**", "", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines = [[f"| {' | '.join(escape(cell, _CELL) or ' ' for cell in row)} |"] for row in rows]
    return Block(head, lines, noun=f"rows of “{title.partition(',')[0].partition(':')[0]}”", keep=keep)


def _shortened(rows: int, blocks: int) -> list[str]:
    details = f" and {several('part', blocks)} as a whole" if blocks else ""
    return [
        "",
        f"> **Shortened: {several('row', rows)}{details} left out. Do not approve from this comment:** "
        "read the whole plan, `orch preview --html`.",
    ]


def _ending(review: Review) -> str:
    if review.verdict in ("failed", "refused"):
        return f"{_code(review.command)} does not apply this as it is."
    return f"Apply it with {_code(review.command)}."


def _code(text: str) -> str:
    """The text as code within a line; the fence is longer than what is in it."""
    (fence, shown, _) = fenced([text[:_CELL]])
    ticks = "`" if "`" not in shown else fence
    return f"{ticks}{shown}{ticks}" if ticks == "`" else f"{ticks} {shown} {ticks}"


def _cut(text: str) -> str:
    """The text in at most a cell's bytes."""
    data = text.encode()
    return text if len(data) <= _CELL else data[: _CELL - 3].decode(errors="ignore") + "…"


def _plain(verdict: Verdict) -> str:
    return VERDICT_WORDS[verdict].partition(" ")[2]


def maintenance_report(
    plan: MaintenancePlan, change: Change, steps: Sequence[Step], evidence: Sequence[str]
) -> str:
    """Return what was planned, and how each step ended, as Markdown for a pull request or an issue.

    `evidence`: files that were collected.
    """
    lines = [
        f"# `orch {plan.title}` of {escape(plan.subject)}",
        "",
        f"Change {change.id} of {escape(change.project)}, by {escape(change.by)}, "
        f"begun {_time(change.began_at)}: **{change.shown_status}**"
        + (f", {escape(change.result)}" if change.result else ""),
        "",
        "## Plan",
        "",
        *fenced(plan.lines(), "text"),
        "",
        "## Steps",
        "",
        "| node | step | status | began | took | told |",
        "|---|---|---|---|---|---|",
    ]
    for each in sorted(steps, key=lambda step: step.began_at):
        took = "" if each.ended_at is None else render_duration(max(0, round(each.ended_at - each.began_at)))
        cells = (each.host or "all", each.name, each.status, _time(each.began_at), took, each.message or "")
        lines.append(f"| {' | '.join(escape(cell) for cell in cells)} |")
    stopped = [each for each in steps if each.name.startswith("stop run ") and each.status == "done"]
    lines += ["", "## Runs stopped", ""]
    lines += [f"- {escape(each.name.removeprefix('stop '))}" for each in stopped] or ["None."]
    if evidence:
        lines += ["", "## Evidence", "", *(f"- {escape(each)}" for each in evidence)]
    return "\n".join(lines) + "\n"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
