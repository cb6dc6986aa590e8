"""Issues about drift: one for each stack, opened, brought up to date, closed and opened again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orch.ci.findings import BadFindings, objects_of
from orch.ci.forge import Forge, Issue
from orch.review.blocks import MOST_BYTES, Block, fit, size_of
from orch.review.escape import escape, marked
from orch.spec.suggest import counted
from orch.stacks.events.notation import fold

LABEL = "orch-drift"

Done = Literal["opened", "updated", "unchanged", "opened again", "closed", "none"]

_MOST_TITLE = 200
_SHOWN = re.compile(r"<!-- orch:drift v1 project=(\S+) stack=(\S+) -->")


@dataclass(frozen=True)
class Row:
    """One property of one resource."""

    name: str
    path: str
    registered: str
    observed: str


@dataclass(frozen=True)
class StackDrift:
    """Drift of a stack; no rows if nothing drifted."""

    kind: str
    name: str
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        return f"Drift: {self.kind} {self.name}"[:_MOST_TITLE]


def read_drift(paths: Sequence[str]) -> list[StackDrift]:
    """The stacks of files with what `orch drift --json` printed. Raises BadFindings."""
    found: dict[tuple[str, str], StackDrift] = {}
    for path in paths:
        for data in objects_of(path):
            kind = "fleet" if "fleet" in data else "volume"
            rows = data.get("drift")
            if not isinstance(data.get(kind), str) or not isinstance(rows, list):
                raise BadFindings(
                    "this is no JSON of `orch drift`", where=path, hint="write it with `orch drift --json`"
                )
            name = data[kind]
            found[kind, name] = StackDrift(kind, name, tuple(sorted(map(_row, rows), key=_order)))
    return list(found.values())


def drift_marker(project: str, stack: StackDrift) -> str:
    return f"<!-- orch:drift v1 project={marked(project)} stack={stack.kind}/{marked(stack.name)} -->"


def issue_body(project: str, stack: StackDrift) -> str:
    """Return the text of an issue, resources with the same difference folded: equal drift gives equal
    bytes."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in stack.rows:
        groups.setdefault((row.path, row.registered, row.observed), []).append(row.name)
    top = [
        drift_marker(project, stack),
        f"What is there is no longer as the last `orch up` of the {stack.kind} "
        f"**{escape(stack.name, 200)}** left it: {counted(len(stack.rows), 'difference')}.",
    ]
    end = [
        "",
        "`orch up` mends what it can, and shows it first. This issue is brought up to date by the next look, "
        "closed when nothing differs, and opened again when something does.",
    ]
    head = ["", "| resource | property | registered | found |", "|---|---|---|---|"]
    rows = [
        [f"| {' | '.join(escape(cell, 400) or ' ' for cell in (fold(names), *group))} |"]
        for group, names in groups.items()
    ]
    table = Block(head, rows, noun="differences")
    room = MOST_BYTES - size_of(top) - size_of(end) - 200
    lines = fit([table], [table], room).lines
    return "\n".join([*top, *lines, *end]) + "\n"


def sync_issues(
    forge: Forge, project: str, stacks: Sequence[StackDrift], label: str = LABEL
) -> Iterator[tuple[StackDrift, Done, int | None]]:
    """One issue for each stack that has drifted; what was done, and the number. Raises ForgeError."""
    own: dict[str, list[Issue]] = {}
    author = forge.author()
    for issue in forge.issues(label):
        match = _SHOWN.match(issue.body)
        if issue.author == author and match:
            own.setdefault(match[0], []).append(issue)
    for stack in stacks:
        issues = sorted(own.get(drift_marker(project, stack), []), key=lambda each: each.number)
        for double in issues[1:]:
            if double.is_open:
                forge.edit_issue(double, double.title, double.body, is_open=False)
        issue = issues[0] if issues else None
        if not stack.rows:
            if issue is None or not issue.is_open:
                yield stack, "none", issue.number if issue else None
            else:
                forge.edit_issue(issue, issue.title, issue.body, is_open=False)
                yield stack, "closed", issue.number
            continue
        body = issue_body(project, stack)
        if issue is None:
            number = forge.add_issue(stack.title, body, label)
            if forge.author() != author:
                # Written under another login than was looked for: an older one of that may be there.
                yield from sync_issues(forge, project, stacks, label)
                return
            yield stack, "opened", number
        elif not issue.is_open:
            forge.edit_issue(issue, stack.title, body, is_open=True)
            yield stack, "opened again", issue.number
        elif _plain(issue.body) == _plain(body) and issue.title == stack.title:
            yield stack, "unchanged", issue.number
        else:
            forge.edit_issue(issue, stack.title, body, is_open=True)
            yield stack, "updated", issue.number


def _row(data: Mapping[str, Any]) -> Row:
    name = str(data.get("name") or data.get("urn") or "")
    return Row(name, str(data.get("path") or ""), _text(data.get("registered")), _text(data.get("observed")))


def _order(row: Row) -> tuple[str, ...]:
    return (row.path, row.registered, row.observed, row.name)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").strip()
