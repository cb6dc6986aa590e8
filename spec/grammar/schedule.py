"""Arrays, signals and schedules: `1-100%10`, `USR1@300`, `0 3 * * mon-fri`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orch.spec.grammar.values import Problem, parse_duration, parse_int, render_duration, shown
from orch.spec.suggest import hint_for

MAX_INDEXES = 10_000
SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "CONT", "ALRM", "XCPU", "WINCH", "URG")


@dataclass(frozen=True)
class ArrayRequest:
    """Ranges of task indexes (first, last, step), and how many run at once (None: all)."""

    spans: tuple[tuple[int, int, int], ...]
    at_once: int | None = None

    @property
    def indexes(self) -> tuple[int, ...]:
        """In ascending order, each once."""
        return tuple(
            sorted({index for low, high, step in self.spans for index in range(low, high + 1, step)})
        )


def parse_array(text: str) -> ArrayRequest:
    """`1-100`, `0-31:4`, `1,3,7-9`, each with `%k`. Raises Problem ORCH125."""
    body, percent, limit = text.partition("%")
    at_once = None
    if percent:
        if not re.fullmatch(r"[0-9]{1,9}", limit.strip()) or int(limit) < 1:
            raise Problem(
                "ORCH125", f"{shown(limit)} is not a number of runs at once", hint="such as `1-100%10`"
            )
        at_once = int(limit)
    spans: list[tuple[int, int, int]] = []
    for part in body.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,12})(?:\s*-\s*([0-9]{1,12})(?::([0-9]{1,12}))?)?\s*", part)
        if not match:
            raise Problem(
                "ORCH125", f"{shown(part.strip())} is not a range of indexes", hint=_array_hint(body)
            )
        low, high, step = int(match.group(1)), int(match.group(2) or match.group(1)), int(match.group(3) or 1)
        if high < low:
            raise Problem("ORCH122", "the range runs backwards", hint=f"write `{high}-{low}`")
        if step < 1:
            raise Problem("ORCH125", "the step must be 1 or more", hint=f"write `{low}-{high}`")
        spans.append((low, high, step))
    count = sum((high - low) // step + 1 for low, high, step in spans)
    if count > MAX_INDEXES:
        raise Problem(
            "ORCH125",
            f"{count} indexes are more than an array may have ({MAX_INDEXES})",
            hint="use several arrays, or let each run take several items",
        )
    return ArrayRequest(tuple(spans), at_once)


def _array_hint(body: str) -> str:
    if ".." in body:
        return f"write `{body.replace('..', '-')}`"
    return "such as `1-100`, `0-31:4` or `1,3,7-9`"


def render_array(request: ArrayRequest) -> str:
    parts = [
        str(low) if low == high else f"{low}-{high}" + (f":{step}" if step > 1 else "")
        for low, high, step in request.spans
    ]
    return ",".join(parts) + (f"%{request.at_once}" if request.at_once else "")


@dataclass(frozen=True)
class SignalRequest:
    """A signal sent `before_s` seconds ahead of the end, to the whole process group or the shell alone."""

    name: str
    before_s: int
    shell_only: bool = False


def parse_signal(text: str) -> SignalRequest:
    """`USR1@300`, `B:TERM@5m`. Raises Problem ORCH137."""
    name, at, before = text.strip().partition("@")
    if not at:
        raise _half_a_signal(text.strip())
    shell_only, name = parse_signal_name(name)
    shell = "B:" if shell_only else ""
    try:
        seconds = parse_duration(before.strip())
    except Problem as problem:
        if problem.replacement is not None:
            problem.replacement = f"{shell}{name}@{problem.replacement}"
            problem.hint = f"write `{problem.replacement}`"
        raise
    if not seconds:
        raise Problem("ORCH124", "a signal needs a time before the end", hint=f"write `{shell}{name}@5m`")
    return SignalRequest(name, seconds, shell_only)


def _half_a_signal(text: str) -> Problem:
    """Return the problem of a text without `@`: the time, the signal, or both are missing."""
    try:
        alone = parse_duration(text)
    except Problem:
        alone = None
    if alone:
        return Problem("ORCH137", f"{shown(text)} does not say which signal", hint=f"write `USR1@{text}`")
    shell, name = ("B:", text[2:].strip()) if text.upper().startswith("B:") else ("", text)
    bare = name.upper().removeprefix("SIG")
    if bare not in SIGNALS:
        return Problem("ORCH137", f"{shown(text)} is not a signal", hint="such as `USR1@5m`")
    return Problem("ORCH137", f"{shown(text)} does not say when", hint=f"write `{shell}{bare}@5m`")


def parse_signal_name(text: str) -> tuple[bool, str]:
    """Return whether `B:` stands before the name, and the name."""
    shell_only = text.upper().startswith("B:")
    name = text[2:].strip() if shell_only else text.strip()
    if name in SIGNALS:
        return shell_only, name
    bare = name.upper().removeprefix("SIG")
    if bare in SIGNALS:
        raise Problem("ORCH137", f"{shown(name)} is not a signal", hint=f"write `{bare}`")
    hint = hint_for(bare, SIGNALS) or f"use {', '.join(SIGNALS[:6])}"
    raise Problem("ORCH137", f"{shown(name)} is not a signal", hint=hint)


def render_signal(request: SignalRequest) -> str:
    return f"{'B:' if request.shell_only else ''}{request.name}@{render_duration(request.before_s)}"


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, WEEKDAYS),
)


def parse_cron(text: str) -> str:
    """A schedule of five fields in UTC, with single spaces. Raises Problem ORCH138."""
    fields = text.lower().split()
    if len(fields) != 5:
        hint = "minute, hour, day, month and weekday, such as `0 3 * * mon`"
        raise Problem("ORCH138", f"{shown(text)} has {len(fields)} fields, a schedule has 5", hint=hint)
    for field, (what, low, high, names) in zip(fields, _FIELDS, strict=True):
        _check_field(field, what, low, high, names)
    return " ".join(fields)


def numeric_weekday(cron: str) -> str | None:
    """The weekday field with names in place of numbers, when it has numbers: 0 is another day elsewhere."""
    field = cron.rsplit(maxsplit=1)[-1]
    days = re.sub(r"(?<![/0-9])[0-7](?![0-9])", lambda match: WEEKDAYS[int(match.group()) % 7], field)
    return days if days != field else None


def _check_field(field: str, what: str, low: int, high: int, names: tuple[str, ...]) -> None:
    for part in field.split(","):
        match = re.fullmatch(r"(\*|[a-z]{3}|[0-9]{1,2})(?:-([a-z]{3}|[0-9]{1,2}))?(?:/([0-9]{1,2}))?", part)
        if not match or (match.group(1) == "*" and match.group(2)):
            raise Problem("ORCH138", f"{shown(part)} is not a {what}", hint=f"write {low} to {high}, or `*`")
        ends = [_value(end, what, low, high, names) for end in match.group(1, 2) if end and end != "*"]
        if len(ends) == 2 and ends[0] > ends[1]:
            raise Problem("ORCH138", f"{shown(part)} runs backwards", hint="write the earlier one first")
        if match.group(3) and int(match.group(3)) < 1:
            raise Problem("ORCH138", f"{shown(part)} has no step", hint="write a step of 1 or more")


def _value(text: str, what: str, low: int, high: int, names: tuple[str, ...]) -> int:
    if text in names:
        return names.index(text) + low
    if not text.isdigit():
        raise Problem(
            "ORCH138",
            f"{shown(text)} is not a {what}",
            hint=hint_for(text, names) or (f"use {', '.join(names)}" if names else f"write {low} to {high}"),
        )
    return parse_int(text, low=low, high=high)
