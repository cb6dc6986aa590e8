"""Names of runs, checked on input, so that other modules may use them in paths, labels and commands."""

from __future__ import annotations

import re
import secrets
import shlex

from orch.runner.errors import BadRunName
from orch.spec.grammar.values import Problem, check_name, shown

# What Docker takes in the name of a container, which names of runs are part of: a run that was written down
# before names were checked can have left something on a node only if its name is like this.
_STORED_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
# With a dash and four random characters it is a name's 41.
_STEM = 36


class RunName(str):
    """The name of a run, without characters that are special in a shell, a path or for Docker."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> RunName:
        """A name for a new run. Raises BadRunName (ORCH115)."""
        try:
            return cls(check_name(text))
        except Problem as problem:
            raise BadRunName(
                f"{shown(text)} cannot be the name of a run: {problem.summary}",
                hint=problem.hint,
                code=problem.code,
            ) from problem

    @classmethod
    def generate(cls, stem: str) -> RunName:
        """A name for a run without one: `stem`, shortened if needed, and four random characters."""
        return cls.parse(f"{stem[:_STEM].rstrip('-')}-{secrets.token_hex(2)}")

    def member(self, index: int) -> RunName:
        """The name of a member of the array of this name."""
        return RunName(f"{self}_{index}")

    @classmethod
    def from_ledger(cls, text: str) -> RunName:
        """A name stored in the ledger. Raises BadRunName for one that no container can have."""
        if _STORED_NAME.fullmatch(text) and text not in (".", ".."):
            return cls(text)
        raise BadRunName(
            f"the ledger has a run named {shown(text)}, which no node can hold: nothing is done for it",
            detail="it was written by a version that did not check names, or by hand",
            hint="`orch stop` with this name ends it in the ledger; then submit it with another one",
        )


def as_argument(name: str) -> str:
    """A name as an argument on a command line: older ledgers and others' claims hold any kind of name."""
    return f"-- {shlex.quote(name)}" if name.startswith("-") else shlex.quote(name)
