"""What a stack remembers of saved plans: tags of the engine, which lie beside the state, for every machine.

`orch:lineage` is a random word that a stack gets with an `up` and keeps until it is removed. It is also the
key of the seals of saved plans, and of their digests of inputs: whoever reads or writes a plan but not the
state cannot forge one, nor try out values. A stack that `up` has not made yet has no key: its plan has a
seal without one, and `up --plan` takes no machine image from it.
`orch:plans` tells what became of the last plans.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orch.stacks.stack.command import plain, set_tag
from orch.stacks.stack.state import StackState
from orch.stacks.stack.tags import read_tags

LINEAGE_TAG, PLANS_TAG = "orch:lineage", "orch:plans"

MOST = 9
"""Plans that a stack remembers: Pulumi Cloud takes 256 characters for a tag."""

Word = Literal["begun", "failed", "applied"]


@dataclass(frozen=True)
class Mark:
    """State of a plan. `attempt`: six hex digits that tell two attempts to apply it apart."""

    plan: str
    word: Word
    attempt: str

    def __str__(self) -> str:
        return f"{self.plan}:{self.word}:{self.attempt}"


@dataclass(frozen=True)
class Marks:
    """The marks of a stack, the latest last. `lineage`: None for a stack that has none yet."""

    lineage: str | None = None
    plans: tuple[Mark, ...] = ()

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> Marks:
        found = re.findall(r"([0-9a-f]{12}):(begun|failed|applied):([0-9a-f]{6})", tags.get(PLANS_TAG, ""))
        return cls(tags.get(LINEAGE_TAG), tuple(Mark(*each) for each in found))

    def of_plan(self, plan: str) -> Mark | None:
        return next((each for each in reversed(self.plans) if each.plan == plan), None)

    def adding(self, mark: Mark) -> str:
        """The value of the tag with this mark in place of the plan's former one."""
        others = [each for each in self.plans if each.plan != mark.plan]
        return " ".join(map(str, [*others[-(MOST - 1) :], mark]))

    def without(self, plan: str) -> str:
        """The value of the tag without a mark of this plan."""
        return " ".join(str(each) for each in self.plans if each.plan != plan) or "none"


def read_marks(stack: StackState) -> Marks:
    """The marks as they are now. Raises StackError."""
    return Marks.of(read_tags(stack))


def write_marks(stack: StackState, value: str) -> None:
    """Record what became of plans. Raises StackError."""
    set_tag(stack, PLANS_TAG, value)


def make_lineage(stack: StackState) -> None:
    """Give a stack that is up its lineage, unless it has one: `up` does so, a plan writes nothing.

    Raises StackError.
    """
    if LINEAGE_TAG not in read_tags(stack):
        set_tag(stack, LINEAGE_TAG, secrets.token_hex(16))  # of two processes, the last one wins


def shown_lineage(lineage: str | None) -> str:
    """Return a digest that stands for a lineage in a plan and does not reveal it; "" for a stack without
    one."""
    return "" if lineage is None else hashlib.sha256(f"lineage {lineage}".encode()).hexdigest()[:16]


def serial_of(stack: StackState) -> int | None:
    """Return the number of updates that the engine has recorded of a stack; None if it does not tell.

    A state in files has one file of history each; any other is asked through the engine.
    """
    state = stack.project.local_state
    if state is not None:
        folder = state / ".pulumi" / "history" / stack.project.name / stack.name
        return sum(".history.json" in each.name for each in folder.iterdir()) if folder.is_dir() else 0
    if not stack.exists:
        return 0
    answer = plain(stack, ["stack", "history", "--json", "--page-size", "1", "--page", "1"]).stdout
    found: list[dict[str, Any]] = json.loads(answer or "[]") or []
    return int(found[0]["version"]) if found and found[0].get("version") else 0
