"""How far a fleet's change is: which resources are done and which are waited for, equal ones folded. Pure.

Times are given, never read: seconds of one clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from orch.cli.output.ticking import clock
from orch.stacks.pulumi.kinds import kind_of, several
from orch.stacks.pulumi.operation import Doing, Expected, Note, Progress, Step
from orch.stacks.summary import fold

PAST = {
    "create": "created",
    "update": "changed",
    "delete": "deleted",
    "create-replacement": "made anew",
    "delete-replaced": "old one deleted",
    "replace": "replaced",
    "read": "read",
}
FAILED = "FAILED"

HOLD_S = 0.5
"""So long a line waits for others like it after the last of them has come."""


@dataclass
class _Group:
    """Resources of one kind with one end, which will be one line."""

    names: list[str] = field(default_factory=list[str])
    longest_s: float = 0.0
    latest: float = 0.0


@dataclass(frozen=True)
class Waited:
    """Resources of one kind that are waited for, the longest of them for so many seconds."""

    kind: str
    names: tuple[str, ...]
    for_s: float


@dataclass
class Tally:
    """What was heard of one change since `begun`."""

    begun: float
    doing: str = ""
    doing_since: float = 0.0
    expected: frozenset[str] = frozenset()
    _running: dict[tuple[str, str, str], float] = field(default_factory=dict[tuple[str, str, str], float])
    _seen: dict[str, set[tuple[str, str]]] = field(default_factory=dict[str, set[tuple[str, str]]])
    _done: Counter[str] = field(default_factory=Counter[str])
    _groups: dict[tuple[str, str], _Group] = field(default_factory=dict[tuple[str, str], _Group])

    def hear(self, event: Progress, now: float) -> None:
        if isinstance(event, Doing) or (isinstance(event, Note) and event.lasts):
            self.doing, self.doing_since = event.text, now
        elif isinstance(event, Expected):
            self.expected = event.names
        elif isinstance(event, Step):
            self._step(event, now)

    def _step(self, step: Step, now: float) -> None:
        kind, key = kind_of(step.type), (kind_of(step.type), step.op, step.name)
        self._seen.setdefault(kind, set()).add((step.op, step.name))
        if step.phase == "start":
            self._running.setdefault(key, now)
            return
        self._running.pop(key, None)
        if step.phase == "done":
            self._done[kind] += 1
        word = FAILED if step.phase == "failed" else PAST.get(step.op, step.op)
        group = self._groups.setdefault((kind, word), _Group())
        group.names.append(step.name)
        group.longest_s, group.latest = max(group.longest_s, step.seconds), now

    def ready(self, now: float, *, all_of_them: bool = False) -> list[str]:
        """Lines of what has ended, each once: of a kind of which nothing more is under way, or all."""
        under_way = {kind for kind, _, _ in self._running}
        found = [
            key
            for key, group in self._groups.items()
            if all_of_them or (key[0] not in under_way and now - group.latest >= HOLD_S)
        ]
        return [_line(*key, self._groups.pop(key)) for key in found]

    def waited(self, now: float) -> list[Waited]:
        """What is under way, the longest first."""
        kinds: dict[str, list[tuple[str, float]]] = {}
        for (kind, _, name), since in self._running.items():
            kinds.setdefault(kind, []).append((name, since))
        found = [
            Waited(kind, tuple(dict.fromkeys(name for name, _ in each)), now - min(at for _, at in each))
            for kind, each in kinds.items()
        ]
        return sorted(found, key=lambda each: -each.for_s)

    def counts(self) -> list[tuple[str, int, int]]:
        """Of each kind, how many are done and how many there are to do as far as is known."""
        return [(kind, self._done[kind], self._total(kind)) for kind in self._seen]

    def _total(self, kind: str) -> int:
        names = {name for _, name in self._seen[kind]}
        known = len(self.expected) if names & self.expected else 0
        return max(len(self._seen[kind]), known)

    def status(self, now: float) -> str:
        """One line: for how long, what is under way, how far it is, and what is waited for."""
        parts = [self.doing] if self.doing else []
        parts += [f"{done} of {several(kind, total)}" for kind, done, total in self.counts() if done < total]
        if waited := self.waited(now):
            first = waited[0]
            parts.append(f"waiting for {fold(first.names)} ({first.kind}) for {clock(first.for_s)}")
        return f"  … {clock(now - self.begun)}: {'; '.join(parts) or 'at work'}"


def _line(kind: str, word: str, group: _Group) -> str:
    names = list(dict.fromkeys(group.names))
    took = "" if word == FAILED else f"{group.longest_s:.1f} s"
    number = str(len(group.names)) if len(group.names) > 1 else ""
    beside = ", ".join(each for each in (number, took) if each)
    return f"  {fold(names)}  {kind}  {word}" + (f" ({beside})" if beside else "")
