"""A rule: a check of the properties of one document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from orch.spec.diagnostics import Diagnostic
from orch.spec.document.draft import Draft
from orch.spec.models import Fleet

Findings = Iterator[Diagnostic]


@dataclass(frozen=True)
class Rule:
    """A check of one document. `needs` are the top-level properties it reads."""

    needs: tuple[str, ...]
    check: Callable[[Draft], Findings]


def fleet_of(draft: Draft) -> Fleet:
    return cast(Fleet, draft.partial)
