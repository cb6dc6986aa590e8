"""What a look at a node's health found, and what that makes of the node. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from orch.runner.errors import RunnerError
from orch.runner.health.readers.xids import Action

Severity = Literal["warning", "failure"]
Status = Literal["healthy", "warning", "failure"]

ACTIONS: tuple[Action, ...] = get_args(Action)
"""The one that costs least first."""
_SEVERITIES: tuple[Severity, ...] = get_args(Severity)
_FIELDS = ("check", "severity", "part", "reason", "action")

MOST = 200
"""No report has more findings, skipped or passed checks: a node that tells more is cut short, and says so."""
LONGEST = 300
"""No text of a report has more characters."""
_SHORT = 160
_LARGEST = 1_000_000


@dataclass(frozen=True)
class Finding:
    """One fault. `check`: what was looked at (`ecc`, `xid`, `nvlink`…, docs/reference/health.md has all).

    `part`: what is at fault, as `GPU 3 (0000:5d:00)`, `mlx5_0 port 1`, `node`. A failure keeps new jobs away,
    a warning does not. `action`: what helps.
    """

    check: str
    severity: Severity
    part: str
    reason: str
    action: Action = "none"

    def __str__(self) -> str:
        return f"{self.part}: {self.reason}"


@dataclass(frozen=True)
class SkippedCheck:
    """A check that was not made, and why."""

    check: str
    why: str


@dataclass(frozen=True)
class HealthReport:
    """The health of a node. Findings come worst first; `passed` are checks that found nothing."""

    findings: tuple[Finding, ...] = ()
    skipped: tuple[SkippedCheck, ...] = ()
    passed: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        """`failure` with any failure among the findings, `warning` with any other finding."""
        if any(each.severity == "failure" for each in self.findings):
            return "failure"
        return "warning" if self.findings else "healthy"

    @property
    def action(self) -> Action:
        """What helps against the failures, or against the warnings where there is no failure."""
        worst = [each for each in self.findings if each.severity == "failure"] or self.findings
        actions = {each.action for each in worst}
        for action in reversed(ACTIONS):
            if action in actions:
                return action
        return "none"

    @property
    def reason(self) -> str:
        """The worst finding in a line, and how many there are besides; nothing for a healthy node."""
        if not self.findings:
            return ""
        text = _cut(str(self.findings[0]), _SHORT)
        others = len(self.findings) - 1
        return f"{text}; and {others} more" if others else text

    def to_json(self) -> str:
        """One line, which `from_json` reads."""
        data = {
            "findings": [{name: getattr(each, name) for name in _FIELDS} for each in self.findings],
            "skipped": [{"check": each.check, "why": each.why} for each in self.skipped],
            "passed": list(self.passed),
        }
        return json.dumps(data, ensure_ascii=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> HealthReport:
        """The report in a text that nobody vouches for, such as a file of a node.

        Texts are cut to LONGEST printable characters, lists to MOST entries; fields that are not known are
        left out. Raises RunnerError for what is no report.
        """
        try:
            if len(text) > _LARGEST:
                raise ValueError(f"it has {len(text)} characters")
            data = _mapping(json.loads(text))
            return report(
                (_finding(each) for each in _listed(data, "findings")),
                (
                    SkippedCheck(_text(each, "check"), _text(each, "why"))
                    for each in map(_mapping, _listed(data, "skipped"))
                ),
                (_printable(_string(each)) for each in _listed(data, "passed")),
            )
        except (ValueError, RecursionError) as error:
            raise RunnerError(
                "a report of a node's health cannot be read", detail=_cut(str(error), LONGEST)
            ) from error


class ReportBuilder:
    """Collects what a reader finds."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []
        self._skipped: list[SkippedCheck] = []
        self._passed: list[str] = []

    def warn(self, check: str, part: str, reason: str, action: Action = "none") -> None:
        self._findings.append(Finding(check, "warning", part, reason, action))

    def fail(self, check: str, part: str, reason: str, action: Action = "none") -> None:
        self._findings.append(Finding(check, "failure", part, reason, action))

    def skip(self, check: str, why: str) -> None:
        self._skipped.append(SkippedCheck(check, why))

    def made(self, *checks: str) -> None:
        """These checks were made; they passed unless there is a finding of theirs."""
        self._passed.extend(checks)

    def add(self, other: HealthReport) -> None:
        self._findings.extend(other.findings)
        self._skipped.extend(other.skipped)
        self._passed.extend(other.passed)

    def report(self) -> HealthReport:
        return report(self._findings, self._skipped, self._passed)


def report(
    findings: Iterable[Finding], skipped: Iterable[SkippedCheck] = (), passed: Iterable[str] = ()
) -> HealthReport:
    """A report in its order: worst first, each thing once, texts printable and bounded."""
    clean = [
        Finding(
            _printable(each.check),
            each.severity,
            _printable(each.part),
            _printable(each.reason),
            each.action,
        )
        for each in findings
    ]
    clean.sort(key=lambda each: (each.severity != "failure", -ACTIONS.index(each.action)))
    kept = list(dict.fromkeys(clean))
    told = dict.fromkeys(SkippedCheck(_printable(each.check), _printable(each.why)) for each in skipped)
    faulty = {each.check for each in kept}
    sound = tuple(check for check in dict.fromkeys(passed) if check not in faulty)
    if len(kept) > MOST:
        more = f"{len(kept) - MOST + 1} more findings are left out"
        kept = [*kept[: MOST - 1], Finding("report", kept[MOST - 1].severity, "node", more)]
    return HealthReport(tuple(kept), tuple(told)[:MOST], sound[:MOST])


def _finding(value: Any) -> Finding:
    fields = _mapping(value)
    severity, action = _text(fields, "severity"), _text(fields, "action")
    if severity not in _SEVERITIES or action not in ACTIONS:
        raise ValueError(f"a finding of severity {severity!r} with action {action!r}")
    return Finding(
        _text(fields, "check"),
        cast(Severity, severity),
        _text(fields, "part"),
        _text(fields, "reason"),
        cast(Action, action),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"an object is expected, not {type(value).__name__}")
    return cast("dict[str, Any]", value)


def _listed(data: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = data.get(name, [])
    if not isinstance(value, list):
        raise ValueError(f"{name} is no list")
    return cast("list[Any]", value)


def _text(data: Mapping[str, Any], name: str) -> str:
    return _printable(_string(data.get(name)))


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"text is expected, not {type(value).__name__}")
    return value


def _printable(text: str) -> str:
    """On one line, without what does not print."""
    clean = "".join(each if each.isprintable() else " " for each in text[: 4 * LONGEST])
    return _cut(" ".join(clean.split()), LONGEST)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
