"""Restrictions of a backend as a table: properties that it cannot act on, each with why and a hint. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import eq
from typing import Any

from orch.spec.findings import Finding
from orch.spec.models import Fleet

SPOT = partial(eq, "spot")
YES = partial(eq, True)
NO = partial(eq, False)


@dataclass(frozen=True)
class Restriction:
    """A value of a property that a backend rejects.

    `path`: the property; an index at its end is dropped where the value is no list. `when`: whether a value
    is rejected, as a rule any that is set.
    """

    path: str
    summary: str
    hint: str = "remove it"
    when: Callable[[Any], bool] = bool


def rejected(fleet: Fleet, restrictions: Iterable[Restriction], code: str = "ORCH237") -> Iterator[Finding]:
    """Report the properties of a file that a table rejects."""
    for row in restrictions:
        value: Any = fleet
        name, index, _ = row.path.partition("[")
        for part in name.split("."):
            value = getattr(value, part, None)
        if row.when(value):
            path = row.path if index and isinstance(value, tuple) else name
            yield Finding(code, path, row.summary, hint=row.hint)
