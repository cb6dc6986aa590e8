"""How the engine writes names, types and times of resources; and names folded for people."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime


def name_of(urn: str) -> str:
    return urn.rsplit("::", 1)[-1]


def type_of(urn: str) -> str:
    """A resource's own type, without those of its parents."""
    return urn.split("::")[2].rsplit("$", 1)[-1]


def fold(names: Iterable[str]) -> str:
    """`laptop-[0-2]` for laptop-0, laptop-1, laptop-2; names without a number follow."""
    listed = list(names)
    numbered = [name for name in listed if re.search(r"\d", name)]
    if len(numbered) < 2:
        return ", ".join(listed)
    from orch.spec.grammar.hosts import fold as folded

    return ", ".join([folded(numbered), *(name for name in listed if name not in numbered)])


def parse_time(text: object) -> datetime | None:
    """A time as the engine writes it, RFC 3339 with up to nine digits of a second; None for anything else."""
    match = _MOMENT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    fraction = (match[2] or ".0").ljust(7, "0")
    try:
        return datetime.fromisoformat(match[1] + fraction + match[3].replace("Z", "+00:00"))
    except ValueError:  # the 31st of February
        return None


_MOMENT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,6})?\d*(Z|[+-]\d\d:\d\d)")
