"""The headline of a plan: which nodes it creates, replaces and removes, why, and what is lost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orch.components.deployment import Deployment
from orch.components.explain import NOTHING, Explained, Traits
from orch.stacks.events.changes import GONE, Change, PropertyChange
from orch.stacks.events.masking import KNOWN_LATER
from orch.stacks.events.notation import fold

PLACE = ("project", "region", "zone")


@dataclass(frozen=True)
class FleetRecord:
    """The recorded fleet of a stack: its traits, and its nodes, each with the resource that made it."""

    traits: Traits = field(default_factory=dict[str, str])
    nodes: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Headline:
    """The first lines of a plan. `covered`: traits that they name, so that leaves need not repeat them.

    `moves`: the whole fleet is removed in one place, then made in another. `forced_by`: why nodes are
    replaced or the fleet moves, each reason in words.
    """

    lines: tuple[str, ...] = ()
    covered: frozenset[str] = frozenset()
    moves: bool = False
    explained: Explained = NOTHING
    forced_by: tuple[str, ...] = ()

    def is_redundant(self, change: Change, leaf: PropertyChange) -> bool:
        """Return True if a leaf repeats what another leaf or the headline says."""
        if leaf.drift is not None:
            return False
        row = self.explained.row(change.type, leaf.path)
        return leaf.follows or (row is not None and (row.trait is None or row.trait in self.covered))


NO_HEADLINE = Headline()


def headline(changes: Sequence[Change], before: FleetRecord, compiled: Deployment) -> Headline:
    """The headline of these changes for the fleet."""
    return _HeadlineText(changes, before, compiled).headline()


@dataclass(frozen=True)
class _HeadlineText:
    changes: Sequence[Change]
    before: FleetRecord
    compiled: Deployment

    def headline(self) -> Headline:
        explained, differing = self.compiled.explained, self._differing()
        nodes = self._nodes()
        if self.compiled.moves:
            lines = [*self._moved(differing), *self._data_lost()]
            return Headline(tuple(lines), frozenset(differing), True, explained, tuple(differing.values()))
        created, removed, replaced = (
            {name: change for name, change in nodes.items() if change.op == op}
            for op in ("create", "delete", "replace")
        )
        reasons = self._reasons(differing, replaced.values()) if replaced else {}
        in_place = {
            trait: words
            for trait, words in differing.items()
            if trait not in reasons and self._updated_in_place(trait)
        }
        lines = [
            *self._template(),
            *self._replaced(list(replaced), [*reasons.values()]),
            *self._removed(list(removed)),
            *self._created(created),
            *self._data_lost(),
            *(f"{words}, in place on {self._updated_in_place(trait)}" for trait, words in in_place.items()),
        ]
        covered = {*reasons, *in_place, *(("nodes",) if created or removed else ())}
        return Headline(tuple(lines), frozenset(covered), False, explained, tuple(reasons.values()))

    def _template(self) -> Iterator[str]:
        """A line for a plan that changes the template alone: running nodes do not follow it."""
        kind, changed = self.compiled.explained.template, [each for each in self.changes if each.op != "same"]
        if self.before.nodes and changed and all(each.type == kind for each in changed):
            yield "what nodes start with changes for new ones; those that run stay as they are"

    # Lines for the nodes

    def _moved(self, differing: Mapping[str, str]) -> Iterator[str]:
        old, new = self.before.traits, self.compiled.traits
        place = next((each for each in PLACE if each in differing), None)
        where = f"from {old[place]} to {new[place]}" if place else "to where the file allows it"
        others = [words for trait, words in differing.items() if trait not in (*PLACE, "image")]
        why = f" ({'; '.join(others)})" if others else ""
        yield f"the fleet moves {where}{why}: all of it is removed first, then made anew"
        if self.before.nodes:
            names = list(self.before.nodes)
            yield f"{fold(names)}: {self._count(names, 'running ')} destroyed; {self._loss(names)}"
        if len(self.before.nodes) != len(self.compiled.nodes):
            yield f"then there are {len(self.compiled.nodes)} {self._noun(self.compiled.nodes)}"

    def _replaced(self, names: Sequence[str], reasons: Sequence[str]) -> Iterator[str]:
        if not names:
            return
        why = f": {'; '.join(reasons)}" if reasons else ""
        if self.compiled.explained.owned_by_user:
            yield f"{fold(names)}: {self._count(names)} registered anew{why}"
        else:
            what = f"{self._count(names, 'running ')} destroyed and made anew"
            yield f"{fold(names)}: {what}{why}; {self._loss(names)}"

    def _removed(self, names: Sequence[str]) -> Iterator[str]:
        if names and self.compiled.explained.owned_by_user:
            left = "it is left as it was found" if len(names) == 1 else "they are left as they were found"
            yield f"{fold(names)}: {self._count(names)} taken out of the fleet; {left}"
        elif names:
            yield f"{fold(names)}: {self._count(names, 'running ')} destroyed; {self._loss(names)}"

    def _data_lost(self) -> Iterator[str]:
        """A line for each file system that is deleted or replaced."""
        for change in self.changes:
            if change.op in ("delete", "replace") and change.type in self.compiled.explained.holds_data:
                again = " and made anew" if change.op == "replace" else ""
                yield f"{change.name}: the file system is destroyed{again}; all data on it is lost"

    def _created(self, created: Mapping[str, Change]) -> Iterator[str]:
        lost = [
            name for name, change in created.items() if any(each.observed == GONE for each in change.drift)
        ]
        new = [name for name in created if name not in lost]
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

    # Lines for the reasons

    def _differing(self) -> dict[str, str]:
        """Traits that differ, each in words: compared with the record, else as the events report them."""
        explained, old, new = self.compiled.explained, self.before.traits, self.compiled.traits
        pairs = {
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
                    pairs.setdefault(row.trait, (f"{leaf.old}{row.unit}", f"{leaf.new}{row.unit}"))
        return {
            trait: f"{explained.traits[trait]} {_from_to(*pairs[trait])}"
            for trait in explained.traits
            if trait in pairs
        }

    def _reasons(self, differing: Mapping[str, str], replaced: Iterable[Change]) -> dict[str, str]:
        """Return why nodes are replaced: traits that only a new node can have, a resource under them that is
        gone, else the property that forces it."""
        explained, by_path = self.compiled.explained, dict[str, str]()
        gone = self._gone()
        forcing = set(explained.new_nodes)
        for change in replaced:
            for leaf in change.diff:
                row = explained.row(change.type, leaf.path)
                if not leaf.replaces or (row is not None and row.trait is None):
                    continue
                if leaf.drift is not None:
                    drift = leaf.drift
                    by_path[leaf.path] = (
                        f"{leaf.path} was changed outside orch, {drift.registered} -> {drift.observed}"
                    )
                elif row is not None and row.trait in differing:
                    forcing.add(row.trait or "")
                elif gone and KNOWN_LATER in str(leaf.new):
                    by_path[GONE] = gone
                elif not leaf.follows:
                    by_path[leaf.path] = f"{leaf.path} {leaf.old} -> {leaf.new}"
        found = {**{trait: words for trait, words in differing.items() if trait in forcing}, **by_path}
        return found or ({GONE: gone} if gone else {})

    def _gone(self) -> str:
        """Return what is created again because it is gone, except nodes; "" if nothing is."""
        nodes = {change.urn for change in self._nodes().values()}
        names = [
            change.name
            for change in self.changes
            if change.op == "create"
            and change.urn not in nodes
            and any(each.observed == GONE for each in change.drift)
        ]
        return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} gone (drift)" if names else ""

    def _updated_in_place(self, trait: str) -> str:
        """`3 resources`: how many change in place for a trait; "" when none does."""
        explained, names = self.compiled.explained, set[str]()
        for change in self.changes:
            leaves = (leaf for leaf in change.diff if not (leaf.drift and leaf.drift.registered == leaf.new))
            rows = (explained.row(change.type, leaf.path) for leaf in leaves)
            if change.op == "update" and any(row is not None and row.trait == trait for row in rows):
                names.add(change.urn)
        return f"{len(names)} resource{'s' * (len(names) != 1)}" if names else ""

    # Pieces

    def _nodes(self) -> dict[str, Change]:
        """The change of each node, by the resource that makes it."""
        makers = {**self.before.nodes, **{name: name for name in self.compiled.nodes}, **self.compiled.makers}
        by_resource = {each.name: each for each in self.changes if not each.type.startswith("orch:fleet:")}
        return {name: by_resource[maker] for name, maker in makers.items() if maker in by_resource}

    def _noun(self, names: Sequence[str]) -> str:
        return self.compiled.explained.noun + "s" * (len(names) != 1)

    def _count(self, names: Sequence[str], kind: str = "") -> str:
        return f"{len(names)} {kind}{self._noun(names)} {'is' if len(names) == 1 else 'are'}"

    def _loss(self, names: Sequence[str]) -> str:
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
