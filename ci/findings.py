"""What orch's JSON says, as annotations, the result of a check, a report of code quality, and a comment.

The JSON may be a stranger's: a job of a pull request from a fork made it. So its size and shape are checked,
paths stay in the repository, and all text is escaped where it is shown.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from orch.ci.forge import Annotation, Conclusion, Level
from orch.review.blocks import MOST_BYTES, Block, fit, size_of
from orch.review.escape import escape, marked
from orch.review.model import VERDICTS, Verdict
from orch.spec.errors import ExitCode, OrchError
from orch.spec.suggest import counted

MOST_UNTRUSTED = 1 << 20
"""Bytes of a stranger's JSON."""

MOST_JSON = 256 << 20

MOST_ANNOTATIONS = 200
"""Annotations of a check: four requests of GitHub's API, whose quota all jobs of a repository share."""

MESSAGE_BYTES = 8_000
"""Of an annotation; GitHub refuses a check with a message of more than 64 KB as a whole."""

Line = Annotated[int, Field(ge=1, le=10_000_000)]
Short = Annotated[str, Field(max_length=500)]
Text = Annotated[str, Field(max_length=20_000)]


class BadFindings(OrchError):
    """JSON that orch has not written, or too much of it."""

    exit_code = ExitCode.CONFIG


class Finding(BaseModel):
    """A diagnostic, or what a policy says."""

    severity: Literal["error", "warning", "note"] = "error"
    code: Short | None = None
    summary: Text = ""
    detail: Text | None = None
    hint: Text | None = None
    file: Short | None = None
    line: Line | None = None
    end_line: Line | None = None
    host: Short | None = None
    where: Text | None = None


class Exemption(BaseModel):
    owner: Short
    expires: Short
    reason: Short


class PolicyFinding(BaseModel):
    """Finding of a policy. One with an exemption refuses nothing, and is reported as a note."""

    name: Short
    level: Short
    message: Text
    file: Short | None = None
    line: Line | None = None
    exempt: Exemption | None = None


class PlanCost(BaseModel):
    hourly: Annotated[float, Field(allow_inf_nan=False)] | None = None


class Plan(BaseModel):
    """A plan, a forecast, or the diagnostics of files: each is an object of `orch … --json`."""

    fleet: Short | None = None
    volume: Short | None = None
    file: Short | None = None
    where: Short | None = None
    verdict: Verdict | None = None
    exit_code: int = 0
    untrusted: bool = False
    backend: Short | None = None
    nodes: int | None = None
    cost: PlanCost | None = None
    not_looked_at: Annotated[list[Text], Field(max_length=100)] = []
    diagnostics: Annotated[list[Finding], Field(max_length=10_000)] = []
    policies: Annotated[list[PolicyFinding], Field(max_length=10_000)] = []

    @property
    def stack(self) -> str:
        return (
            f"fleet {self.fleet}"
            if self.fleet
            else f"volume {self.volume}"
            if self.volume
            else f"file {self.file}"
            if self.file
            else ""
        )


class Findings(BaseModel):
    """Plans of a JSON text. `exit_code`: the worst of them."""

    plans: list[Plan]
    exit_code: int = 0

    def all(self) -> Iterator[Finding]:
        """Each once, errors first; policies are among them."""
        seen: dict[tuple[object, ...], Finding] = {}
        for plan in self.plans:
            found = [*plan.diagnostics, *map(_of_policy, plan.policies)]
            for each in found:
                if each.file is None:
                    _place(each, plan.where)
                seen.setdefault((each.file, each.line, each.code, each.summary, each.host), each)
        order = ("error", "warning", "note")
        yield from sorted(
            seen.values(), key=lambda each: (order.index(each.severity), each.file or "", each.line or 0)
        )

    @property
    def verdict(self) -> Verdict | None:
        found = {plan.verdict for plan in self.plans}
        return next((each for each in VERDICTS if each in found), None)

    @property
    def conclusion(self) -> Conclusion:
        """Failure for what must not be merged, neutral for what somebody must look at."""
        failed = self.exit_code not in (ExitCode.OK, ExitCode.CHANGES)
        if failed or self.verdict in ("failed", "refused"):
            return "failure"
        if any(each.severity == "error" for each in self.all()):
            return "failure"
        return "neutral" if self.verdict == "danger" else "success"

    @property
    def title(self) -> str:
        words = {
            "failed": "there is no plan",
            "refused": "the plan is refused",
            "danger": "the plan is dangerous",
            "changes": "changes are planned",
            "unchanged": "no changes",
        }
        numbers = [
            counted(number, noun)
            for noun in ("error", "warning")
            if (number := sum(each.severity == noun for each in self.all()))
        ]
        what = words[self.verdict] if self.verdict else "nothing is wrong" if not numbers else ""
        return ", ".join(part for part in (what, *numbers) if part)


def findings_of(objects: Iterable[Mapping[str, Any]], path: str) -> Findings:
    """The findings of JSON of orch that is at hand; `path`: what it is of. Raises BadFindings."""
    try:
        return Findings(plans=[Plan.model_validate(each) for each in objects])
    except ValidationError as error:
        raise _bad(path, first_reason(error)) from error


def read_findings(paths: Sequence[str], *, untrusted: bool = False) -> Findings:
    """The plans of files with JSON of orch; each may have several objects. Raises BadFindings."""
    plans: list[Plan] = []
    code = 0
    for path in paths:
        for data in objects_of(path, MOST_UNTRUSTED if untrusted else MOST_JSON):
            try:
                if "stacks" in data:
                    code = max(code, int(data.get("exit_code") or 0), key=_badness)
                    plans += [Plan.model_validate(each) for each in data["stacks"]]
                else:
                    plans.append(Plan.model_validate(data))
            except (ValidationError, TypeError, ValueError) as error:
                raise _bad(path, first_reason(error)) from error
    if not plans:
        raise _bad(", ".join(paths), "nothing is in it")
    return Findings(plans=plans, exit_code=code)


def objects_of(path: str, most: int = MOST_JSON) -> list[Mapping[str, Any]]:
    """The JSON objects of a file, one after the other. Raises BadFindings."""
    try:
        # A link would lead out of what was downloaded.
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise _bad(path, error.strerror or str(error)) from error
    if len(data) > most:
        raise _bad(path, f"it has more than {most} bytes")
    decoder = json.JSONDecoder()
    found: list[Mapping[str, Any]] = []
    try:
        text = data.decode()
        at = 0
        while at < len(text):
            if text[at].isspace():
                at += 1
                continue
            value, at = decoder.raw_decode(text, at)
            if not isinstance(value, dict) or value.get("schema") != 1:
                raise _bad(path, "an object with `schema: 1` is expected")
            found.append(value)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"{type(error).__name__}: {str(error)[:200]}") from error
    return found


_LEVELS: dict[str, Level] = {"error": "failure", "warning": "warning", "note": "notice"}


def cut(text: str, most: int) -> str:
    """The beginning of a text in at most so many bytes of UTF-8."""
    data = text.encode(errors="replace")
    return text if len(data) <= most else data[: most - 3].decode(errors="ignore") + "…"


def annotations_of(findings: Findings) -> list[Annotation]:
    """The first ones at lines of files of the repository, errors first; `summary_of` counts the others."""
    found: list[Annotation] = []
    for each in findings.all():
        path = inside(each.file)
        if path is None or each.line is None:
            continue
        if len(found) == MOST_ANNOTATIONS:
            break
        end = max(each.line, min(each.end_line or each.line, each.line + 100))
        message = "\n".join(
            part for part in (each.summary, each.detail, f"hint: {each.hint}" if each.hint else None) if part
        )
        found.append(
            Annotation(
                path,
                each.line,
                end,
                _LEVELS[each.severity],
                each.code or "orch",
                cut(message, MESSAGE_BYTES) or "(no message)",
            )
        )
    return found


def summary_of(findings: Findings) -> str:
    """Return the findings without a line of a file, and the number of those not shown at theirs, as
    Markdown."""
    all_ = list(findings.all())
    hidden = sum(not (inside(each.file) is None or each.line is None) for each in all_) - MOST_ANNOTATIONS
    counts = [f"{counted(hidden, 'more finding')} at lines of files, not shown there."] if hidden > 0 else []
    lines = [
        f"- **{each.severity}** {escape(each.code or '')} {escape(each.summary, 600)}"
        f"{f' ({escape(each.host, 200)})' if each.host else ''}"
        for each in all_
        if inside(each.file) is None or each.line is None
    ]
    shown = lines[:100]
    more = [f"- … {len(lines) - 100} more"] if len(lines) > 100 else []
    return "\n".join([*counts, *shown, *more]) or "All findings are at lines of files."


def findings_comment(findings: Findings, path: str, *, fork: bool) -> str:
    """The comment on files that nobody planned: what they would be, and what is wrong with them."""
    errors = sum(each.severity == "error" for each in findings.all())
    forecasts = [plan for plan in findings.plans if plan.fleet or plan.volume]
    verdict = f"⛔ {counted(errors, 'error')}" if errors else "✅ nothing is wrong"
    of = "files of a fork, read as data" if fork else f"files of {escape(path, 200)}"
    who = " Who may run a plan pushes this commit to a branch of this repository." if fork else ""
    top = [
        f"<!-- orch:plan v1 {'fork' if fork else 'files'} path={marked(path)} -->",
        f"### {verdict}: {of}",
        "",
        f"There is no plan: no cloud was asked, and no secret was there.{who}",
    ]
    fleets = _table(
        "Fleets",
        ("stack", "backend", "nodes", "an hour"),
        [
            (
                plan.stack,
                plan.backend or "",
                "" if plan.nodes is None else str(plan.nodes),
                "not known" if plan.cost is None or plan.cost.hourly is None else f"${plan.cost.hourly:.2f}",
            )
            for plan in forecasts
        ],
    )
    rows = [
        (
            f"{each.file or each.host or ''}{f':{each.line}' if each.line else ''}",
            f"{each.severity} {each.code or ''} {each.summary}",
            each.hint or "",
        )
        for each in findings.all()
    ]
    found = _table("Findings", ("where", "finding", "what to do"), rows)
    room = MOST_BYTES - size_of(top) - 2_000
    return "\n".join([*top, *fit([fleets, found], [fleets, found], room).lines]) + "\n"


def inside(file: str | None) -> str | None:
    """A path of the repository that is here, from its root; None for one outside."""
    if not file or file == "-" or any(not each.isprintable() for each in file):
        return None
    path = Path(file)
    if path.is_absolute():
        try:
            path = path.relative_to(Path.cwd())
        except ValueError:
            return None
    plain = PurePosixPath(path.as_posix())
    return None if ".." in plain.parts or plain.parts[:1] == (".git",) else str(plain)


_PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d{1,7})(?::\d+)?")


def _place(finding: Finding, where: str | None) -> None:
    """Give a finding without a file the place that it or its stack tells."""
    for text in (finding.where, where):
        if text and (match := _PLACE.fullmatch(text)) and int(match["line"]):
            finding.file, finding.line = match["file"], int(match["line"])
            return


def _of_policy(policy: PolicyFinding) -> Finding:
    exempt = policy.exempt
    return Finding(
        severity="note" if exempt else "error" if policy.level == "mandatory" else "warning",
        code=policy.name,
        summary=policy.message,
        detail=f"exempt until {exempt.expires}, by {exempt.owner}: {exempt.reason}" if exempt else None,
        file=policy.file,
        line=policy.line,
    )


def _badness(code: int) -> int:
    return 0 if code in (ExitCode.OK, ExitCode.CHANGES) else 1


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Block:
    if not rows:
        return Block([])
    head = ["", f"**{title}**", "", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines = [[f"| {' | '.join(escape(cell, 400) or ' ' for cell in row)} |"] for row in rows]
    return Block(head, lines, noun=f"rows of “{title}”")


def first_reason(error: Exception) -> str:
    """The first thing that is wrong, and where in the data."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


def _bad(path: str, reason: str) -> BadFindings:
    return BadFindings(
        "this is no JSON of orch",
        where=path,
        detail=reason,
        hint="write it with `orch preview --json`, or `orch validate --format json`",
    )
