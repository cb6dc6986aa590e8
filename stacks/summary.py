"""What a plan does to a fleet, in its own words: which nodes, why, and what is lost with them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orch.components.deployment import Deployment
from orch.components.explain import NOTHING, Explained, Traits
from orch.stacks.pulumi.changes import GONE, Change, PropertyChange

PLACE = ("project", "region", "zone")


@dataclass(frozen=True)
class Recorded:
    """What a stack knew of its fleet before: its traits, and its nodes, each with what made it."""

    traits: Traits = field(default_factory=dict[str, str])
    nodes: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Headline:
    """The lines that come first. `said`: traits that they tell of, so that leaves need not.

    `moves`: the whole fleet is removed where it is before it is made elsewhere.
    """

    lines: tuple[str, ...] = ()
    said: frozenset[str] = frozenset()
    moves: bool = False
    explained: Explained = NOTHING

    def needless(self, change: Change, leaf: PropertyChange) -> bool:
        """Whether a leaf tells people nothing more: it follows from another, or has been said."""
        if leaf.drift is not None:
            return False
        row = self.explained.row(change.type, leaf.path)
        return leaf.follows or (row is not None and (row.trait is None or row.trait in self.said))


NO_HEADLINE = Headline()


def headline(changes: Sequence[Change], before: Recorded, compiled: Deployment) -> Headline:
    """What the changes come to for the fleet."""
    return _Telling(changes, before, compiled).whole()


def fold(names: Iterable[str]) -> str:
    """`laptop-[0-2]` for laptop-0, laptop-1, laptop-2; names without a number stand beside it."""
    listed = list(names)
    numbered = [name for name in listed if re.search(r"\d", name)]
    if len(numbered) < 2:
        return ", ".join(listed)
    from orch.runner.launch.environment import fold as folded

    return ", ".join([folded(numbered), *(name for name in listed if name not in numbered)])


@dataclass(frozen=True)
class _Telling:
    changes: Sequence[Change]
    before: Recorded
    compiled: Deployment

    def whole(self) -> Headline:
        explained, differing = self.compiled.explained, self._differing()
        nodes = self._nodes()
        if self.compiled.moves:
            return Headline(tuple(self._moved(differing)), frozenset(differing), True, explained)
        made, gone, anew = (
            {name: change for name, change in nodes.items() if change.op == op}
            for op in ("create", "delete", "replace")
        )
        reasons = self._reasons(differing, anew.values()) if anew else {}
        in_place = {
            trait: words
            for trait, words in differing.items()
            if trait not in reasons and self._touching(trait)
        }
        lines = [
            *self._template(),
            *self._anew(list(anew), [*reasons.values()]),
            *self._gone(list(gone)),
            *self._made(made),
            *(f"{words}, in place on {self._touching(trait)}" for trait, words in in_place.items()),
        ]
        said = {*reasons, *in_place, *(("nodes",) if made or gone else ())}
        return Headline(tuple(lines), frozenset(said), False, explained)

    def _template(self) -> Iterator[str]:
        """That nodes which run do not follow a template that changes, where nothing else does."""
        kind, changed = self.compiled.explained.template, [each for each in self.changes if each.op != "same"]
        if self.before.nodes and changed and all(each.type == kind for each in changed):
            yield "what nodes start with changes for new ones; those that run stay as they are"

    # What becomes of the nodes

    def _moved(self, differing: Mapping[str, str]) -> Iterator[str]:
        old, new = self.before.traits, self.compiled.traits
        place = next((each for each in PLACE if each in differing), None)
        where = f"from {old[place]} to {new[place]}" if place else "to where the file allows it"
        others = [words for trait, words in differing.items() if trait not in (*PLACE, "image")]
        why = f" ({'; '.join(others)})" if others else ""
        yield f"the fleet moves {where}{why}: all of it is removed first, then made anew"
        if self.before.nodes:
            names = list(self.before.nodes)
            yield f"{fold(names)}: {self._count(names, 'running ')} destroyed; {self._lost(names)}"
        if len(self.before.nodes) != len(self.compiled.nodes):
            yield f"then there are {len(self.compiled.nodes)} {self._noun(self.compiled.nodes)}"

    def _anew(self, names: Sequence[str], reasons: Sequence[str]) -> Iterator[str]:
        if not names:
            return
        why = f": {'; '.join(reasons)}" if reasons else ""
        if self.compiled.explained.owned_by_user:
            yield f"{fold(names)}: {self._count(names)} registered anew{why}"
        else:
            what = f"{self._count(names, 'running ')} destroyed and made anew"
            yield f"{fold(names)}: {what}{why}; {self._lost(names)}"

    def _gone(self, names: Sequence[str]) -> Iterator[str]:
        if names and self.compiled.explained.owned_by_user:
            left = "it is left as it was found" if len(names) == 1 else "they are left as they were found"
            yield f"{fold(names)}: {self._count(names)} taken out of the fleet; {left}"
        elif names:
            yield f"{fold(names)}: {self._count(names, 'running ')} destroyed; {self._lost(names)}"

    def _made(self, made: Mapping[str, Change]) -> Iterator[str]:
        lost = [name for name, change in made.items() if any(each.observed == GONE for each in change.drift)]
        new = [name for name in made if name not in lost]
        if lost:
            yield f"{fold(lost)}: {self._count(lost)} made again; what was there is gone (drift)"
        if new:
            verb = (
                "added"
                if self.before.nodes
                else "registered"
                if self.compiled.explained.owned_by_user
                else "made"
            )
            yield f"{fold(new)}: {self._count(new)} {verb}"

    # Why

    def _differing(self) -> dict[str, str]:
        """Traits that differ, each in words: by what was recorded, else by what the events tell."""
        explained, old, new = self.compiled.explained, self.before.traits, self.compiled.traits
        found = {
            trait: (old[trait], new[trait])
            for trait in explained.traits
            if trait in old and trait in new and old[trait] != new[trait]
        }
        for change in self.changes:
            for leaf in change.diff:
                row = explained.row(change.type, leaf.path)
                if row is None or row.trait is None or row.trait in old or leaf.drift or leaf.follows:
                    continue
                if row.trait in explained.traits and _plain(leaf.old) and _plain(leaf.new):
                    found.setdefault(row.trait, (f"{leaf.old}{row.unit}", f"{leaf.new}{row.unit}"))
        return {
            trait: f"{explained.traits[trait]} {_from_to(*found[trait])}"
            for trait in explained.traits
            if trait in found
        }

    def _reasons(self, differing: Mapping[str, str], anew: Iterable[Change]) -> dict[str, str]:
        """Why nodes are made anew: traits that only a new one can have, else what forces it by its name."""
        explained, told = self.compiled.explained, dict[str, str]()
        forced = set(explained.new_nodes)
        for change in anew:
            for leaf in change.diff:
                row = explained.row(change.type, leaf.path)
                if not leaf.replaces or (row is not None and row.trait is None):
                    continue
                if leaf.drift is not None:
                    found = leaf.drift
                    told[leaf.path] = (
                        f"{leaf.path} was changed outside orch, {found.registered} -> {found.observed}"
                    )
                elif row is not None and row.trait in differing:
                    forced.add(row.trait or "")
                elif not leaf.follows:
                    told[leaf.path] = f"{leaf.path} {leaf.old} -> {leaf.new}"
        return {**{trait: words for trait, words in differing.items() if trait in forced}, **told}

    def _touching(self, trait: str) -> str:
        """How many resources change in place for a trait; "" when none does."""
        explained, names = self.compiled.explained, set[str]()
        for change in self.changes:
            leaves = (leaf for leaf in change.diff if not (leaf.drift and leaf.drift.registered == leaf.new))
            rows = (explained.row(change.type, leaf.path) for leaf in leaves)
            if change.op == "update" and any(row is not None and row.trait == trait for row in rows):
                names.add(change.urn)
        return f"{len(names)} resource{'s' * (len(names) != 1)}" if names else ""

    # Pieces

    def _nodes(self) -> dict[str, Change]:
        """What becomes of each node, by the resource that makes it."""
        makers = {**self.before.nodes, **{name: name for name in self.compiled.nodes}, **self.compiled.makers}
        found = {each.name: each for each in self.changes if not each.type.startswith("orch:fleet:")}
        return {name: found[maker] for name, maker in makers.items() if maker in found}

    def _noun(self, names: Sequence[str]) -> str:
        return self.compiled.explained.noun + "s" * (len(names) != 1)

    def _count(self, names: Sequence[str], kind: str = "") -> str:
        return f"{len(names)} {kind}{self._noun(names)} {'is' if len(names) == 1 else 'are'}"

    def _lost(self, names: Sequence[str]) -> str:
        lost = self.compiled.explained.lost
        if len(names) == 1:
            lost = lost.replace("their disks", "its disks").replace("their containers", "its container")
        scratch = self.before.traits.get("scratch", self.compiled.traits.get("scratch", ""))
        return f"{lost} is lost" + (f", {scratch.split(' ')[0]} too" if scratch.startswith("/") else "")


def _from_to(old: str, new: str) -> str:
    """`a -> b`; of lists of `key=value` the entries that differ."""
    before, after = old.split(", "), new.split(", ")
    if all("=" in each for each in (*before, *after)):
        old = ", ".join(each for each in before if each not in after) or "(none)"
        new = ", ".join(each for each in after if each not in before) or "(none)"
    return f"{old} -> {new}"


def _plain(value: object) -> bool:
    return isinstance(value, str | int | float)
