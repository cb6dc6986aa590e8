"""How a value reads: sizes, ranges, durations, money, names, environment entries, tags.

Pure functions from source text to plain data. A text that does not fit raises `Problem`, which carries
everything a diagnostic needs but the place. Sizes are whole MiB (MB and MiB are both 1024-based), durations
whole seconds, `None` for never. Each `parse_x` has a `render_x` that gives the canonical text:
`parse_x(render_x(value)) == value`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import ROUND_CEILING, Decimal
from typing import TypeVar

T = TypeVar("T")
N = TypeVar("N", int, float)

MIB_PER = {"mb": 1, "mib": 1, "gb": 1024, "gib": 1024, "tb": 1024**2, "tib": 1024**2}
SECONDS_PER = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}


class Problem(ValueError):
    """A value that does not fit, without its place.

    `at` leads from the value to the part that is wrong; with `on_key` it is that part's name.
    """

    def __init__(
        self,
        code: str,
        summary: str,
        *,
        hint: str | None = None,
        detail: str | None = None,
        replacement: str | None = None,
        at: tuple[str | int, ...] = (),
        on_key: bool = False,
    ) -> None:
        super().__init__(summary)
        self.code = code
        self.summary = summary
        self.hint = hint
        self.detail = detail
        self.replacement = replacement
        self.at = at
        self.on_key = on_key


class Problems(ValueError):
    """Several of them in one value."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(problem.summary for problem in problems))
        self.problems = problems


def part_of(whole: str, part: str, read: Callable[[str], T]) -> T:
    """`read(part)`; what a problem offers in place of the part is offered for the whole text."""
    try:
        return read(part)
    except Problem as problem:
        if problem.replacement is not None and part != whole:
            fixed = whole.replace(part, problem.replacement, 1)
            if problem.hint == f"write `{problem.replacement}`":
                problem.hint = f"write `{fixed}`"
            problem.replacement = fixed
        raise


def shown(text: str) -> str:
    """A value as messages quote it: one line, not endless, and nothing that a terminal acts on."""
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(char if char.isprintable() else f"<{ord(char):x}>" for char in line)
    return f"'{line}'" if len(line) <= 60 else f"'{line[:57]}…'"


def encodable(text: str) -> str:
    """The text with escapes (`\\udcff`) for bytes of a name or an argument that are no character."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def parse_int(
    text: str, *, low: int | None = None, high: int | None = None, what: str = "a whole number"
) -> int:
    """A decimal whole number between `low` and `high`, both included."""
    if not re.fullmatch(r"[-+]?[0-9]{1,15}", text):
        raise Problem("ORCH112", f"{shown(text)} is not {what}")
    number = int(text)
    if low is not None and number < low:
        raise Problem("ORCH119", f"{number} is too small", hint=f"write {low} or more")
    if high is not None and number > high:
        raise Problem("ORCH119", f"{number} is too large", hint=f"write {high} or less")
    return number


def parse_bool(text: str) -> bool:
    """`true yes on`, `false no off`, in any case."""
    word = text.lower()
    if word in ("true", "yes", "on"):
        return True
    if word in ("false", "no", "off"):
        return False
    raise Problem("ORCH112", f"{shown(text)} is not `true` or `false`")


# Sizes


def parse_size(text: str) -> int:
    """Whole MiB of `16GB`, `512 MiB`, `1.5TB`; a bare number is GB. Part of a MiB counts as one."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)", text)
    if not match:
        raise Problem(
            "ORCH120", f"{shown(text)} is not a size", hint="write a number and a unit, such as `16GB`"
        )
    number, unit = match.groups()
    factor = MIB_PER.get(unit.lower()) if unit else MIB_PER["gb"]
    if factor is None:
        right = {"m": "MB", "mi": "MB", "g": "GB", "gi": "GB", "t": "TB", "ti": "TB"}.get(unit.lower())
        if right:
            fixed = f"{number}{right}"
            raise Problem("ORCH120", f"'{unit}' is not a unit", hint=f"write `{fixed}`", replacement=fixed)
        raise Problem("ORCH120", f"'{unit}' is not a unit", hint="use `MB`, `GB` or `TB`")
    size = int((Decimal(number) * factor).to_integral_value(ROUND_CEILING))
    if size < 1:
        raise Problem("ORCH120", f"{shown(text)} is no space at all", hint="write at least `1MB`")
    return size


def render_size(mib: int) -> str:
    """The shortest exact text: 16384 as `16GB`."""
    for unit in ("TB", "GB"):
        if mib % MIB_PER[unit.lower()] == 0:
            return f"{mib // MIB_PER[unit.lower()]}{unit}"
    return f"{mib}MB"


# Ranges


def is_range(text: str) -> bool:
    return ".." in text


def parse_range(
    text: str, end: Callable[[str], N], render: Callable[[N], str] = str
) -> tuple[N | None, N | None]:
    """Both ends of `a..b`, `a..`, `..b`; a single value is both ends. `end` reads one of them.

    Raises Problem ORCH122 for `..` alone and for ends that run backwards.
    """
    if not is_range(text):
        value = end(text.strip())
        return value, value
    left, _, right = (part.strip() for part in text.partition(".."))
    if not left and not right:
        raise Problem("ORCH122", "a range needs at least one end", hint="write `1..4`, `1..` or `..4`")
    low = part_of(text, left, end) if left else None
    high = part_of(text, right, end) if right else None
    check_order(low, high, render)
    return low, high


def check_order(low: N | None, high: N | None, render: Callable[[N], str] = str) -> None:
    """Raises Problem ORCH122 when `low` is above `high`."""
    if low is not None and high is not None and low > high:
        turned = f"{render(high)}..{render(low)}"
        raise Problem("ORCH122", "the range runs backwards", hint=f"write `{turned}`", replacement=turned)


def render_range(low: N | None, high: N | None, render: Callable[[N], str] = str) -> str:
    """`a..b`, `a..`, `..b`, or `a` when both ends are the same."""
    if low is not None and low == high:
        return render(low)
    return f"{'' if low is None else render(low)}..{'' if high is None else render(high)}"


# Durations


def parse_duration(text: str, *, default: int | None = None) -> int | None:
    """Seconds of `90s`, `1h30m`, `3d`, `2w` or a bare number; None for `off`, `false`, `-1` (never).

    `true` stands for `default`. Units run from large to small, each at most once.
    """
    word = text.lower()
    if word in ("off", "false", "no", "-1"):
        return None
    if word in ("true", "on", "yes"):
        return default
    if re.fullmatch(r"[0-9]{1,10}", text):
        return int(text)
    match = re.fullmatch(
        r"(?:([0-9]{1,9})w)?(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?", text
    )
    if not match or not text:
        meant = _meant_duration(text)
        if meant is None:
            raise Problem(
                "ORCH124",
                f"{shown(text)} is not a duration",
                hint="write `90s`, `30m`, `2h`, `1h30m`, `3d` or `off`",
            )
        fixed = render_duration(meant)
        raise Problem(
            "ORCH124", f"{shown(text)} is not a duration", hint=f"write `{fixed}`", replacement=fixed
        )
    counts = (int(group) if group else 0 for group in match.groups())
    return sum(count * seconds for count, seconds in zip(counts, SECONDS_PER.values(), strict=True))


def render_duration(seconds: int | None) -> str:
    """`5400` as `1h30m`, None as `off`."""
    if seconds is None:
        return "off"
    text = ""
    for unit, size in SECONDS_PER.items():
        count, seconds = divmod(seconds, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def _meant_duration(text: str) -> int | None:
    """Seconds of what people write instead: `2:00:00`, `1-12:00:00`, `1 hour`, `90 min`, `1.5h`, `30m1h`."""
    clock = re.fullmatch(r"(?:([0-9]{1,4})-)?([0-9]{1,6}):([0-9]{2})(?::([0-9]{2}))?", text)
    if clock:
        days, first, second, third = (int(group) if group else 0 for group in clock.groups())
        whole = first * 3600 + second * 60 + third
        minutes = first * 60 + second
        return days * 86_400 + (whole if clock.group(4) or days else minutes)
    pieces = re.findall(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([A-Za-z]+)", text)
    if not pieces or re.sub(r"[0-9.]+\s*[A-Za-z]+[\s,]*(?:and\s+)?", "", text):
        return None
    total = Decimal(0)
    for number, unit in pieces:
        size = _UNIT_WORDS.get(unit.lower())
        if size is None:
            return None
        total += Decimal(number) * size
    return int(total) if total == int(total) else None


_UNIT_WORDS = {
    word: SECONDS_PER[unit]
    for unit, words in {
        "w": "w wk wks week weeks",
        "d": "d day days",
        "h": "h hr hrs hour hours",
        "m": "m min mins minute minutes",
        "s": "s sec secs second seconds",
    }.items()
    for word in words.split()
}


# Money


def parse_money(text: str) -> Decimal:
    """US dollars above zero."""
    match = re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,6})?", text)
    if not match:
        stripped = re.sub(r"^\$\s*|\s*(?:\$|usd)(?:/h(?:our|r)?)?$", "", text, flags=re.IGNORECASE)
        fixed = stripped if re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,6})?", stripped) else None
        hint = f"write `{fixed}`; the unit is US dollars" if fixed else "write US dollars, such as `2.50`"
        raise Problem("ORCH126", f"{shown(text)} is not an amount", hint=hint, replacement=fixed)
    amount = Decimal(text)
    if amount <= 0:
        raise Problem("ORCH126", "the amount must be above zero", hint="remove the property for no limit")
    return amount


def render_money(amount: Decimal) -> str:
    return f"{amount:f}"


# Names, environment, tags


def check_group_name(text: str) -> str:
    """1 to 40 lower-case letters, digits and dashes, no dash first. Raises Problem ORCH115."""
    if re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", text):
        return text
    hint = "1 to 40 lower-case letters, digits and dashes, such as `workers`"
    raise Problem("ORCH115", f"{shown(text)} is not the name of a group", hint=hint)


def check_name(text: str) -> str:
    """2 to 41 characters: lower-case letters, digits and dashes, a letter first."""
    if re.fullmatch(r"[a-z][a-z0-9-]{1,40}", text):
        return text
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    slug = re.sub(r"^[^a-z]+", "", slug)[:41].rstrip("-")
    fixed = slug if re.fullmatch(r"[a-z][a-z0-9-]{1,40}", slug) else None
    if len(text) < 2:
        reason = "a name has at least 2 characters"
    elif len(text) > 41:
        reason = "a name has at most 41 characters"
    elif not re.match(r"[a-z]", text) and re.fullmatch(r"[a-z0-9-]+", text):
        reason, fixed = "a name begins with a letter", None
    else:
        reason = "a name has only lower-case letters, digits and dashes"
    hint = f"write `{fixed}`" if fixed else "such as `train` or `a100-pool`"
    raise Problem("ORCH115", reason, hint=hint, replacement=fixed)


def check_env_name(text: str) -> str:
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", text):
        return text
    detail = "letters, digits and underscores, no digit first"
    raise Problem("ORCH127", f"{shown(text)} is not the name of a variable", detail=detail, on_key=True)


def parse_env_item(text: str) -> tuple[str, str | None]:
    """`K=V` as (K, V); bare `K` as (K, None): taken from the caller's environment."""
    name, equals, value = text.partition("=")
    if not equals and (":" in name or " " in name):
        key, _, rest = name.replace(":", " ", 1).partition(" ")
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            fixed = f"{key}={rest.strip()}"
            raise Problem(
                "ORCH127",
                f"{shown(text)} is not the name of a variable",
                hint=f"write `{fixed}`" if len(fixed) < 80 else "write `NAME=value`",
            )
    check_env_name(name)
    if "\0" in value:
        raise Problem("ORCH127", f"the value of {name} holds a null character")
    if not value.isprintable() and any("\ud800" <= char <= "\udfff" for char in value):
        raise Problem("ORCH127", f"the value of {name} holds half of a character")
    return name, value if equals else None


def check_tag(key: str, value: str) -> None:
    """Raises Problem ORCH128 for what clouds do not take as a tag or label."""
    if not re.fullmatch(r"[_\-a-zA-Z0-9]{1,60}", key):
        detail = "1 to 60 letters, digits, dashes and underscores"
        raise Problem("ORCH128", f"{shown(key)} is not the key of a tag", detail=detail, on_key=True)
    if not re.fullmatch(r"[a-zA-Z0-9 .:/=_\-+@]{0,256}", value):
        detail = "up to 256 letters, digits, spaces and . : / = _ - + @"
        raise Problem("ORCH128", f"{shown(value)} is not the value of a tag", detail=detail)
