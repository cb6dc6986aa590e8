"""How the changes of a fleet are told in the fleet's own words: what each backend has a row for. Pure.

A plan's `traits` are what its nodes are, a few words each (`disk`: "300 GB"). They are recorded with the
stack, so that the next plan can be compared; a stack that has none yet tells what its pins and the engine's
events tell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from orch.spec.models.blocks import Scratch

Traits = Mapping[str, str]

PINNED = ("project", "region", "zone", "instance_type")
"""Traits that are pins of the same name."""


@dataclass(frozen=True)
class ChangeRow:
    """What a property of a provider's resource says of a fleet.

    `type` and `path` are patterns of the whole. `trait` is what it belongs to; None: it only follows from
    another property, and says nothing by itself. `unit` is what its number counts.
    """

    type: str
    path: str
    trait: str | None
    unit: str = ""

    def about(self, type_: str, path: str) -> bool:
        return re.fullmatch(self.type, type_) is not None and re.fullmatch(self.path, path) is not None


@dataclass(frozen=True)
class Explained:
    """How the changes of one backend are told.

    `traits`: name -> words for it, in the order of the output. `new_nodes`: traits that only a new node can
    have. `noun`: what its nodes are called. `owned_by_user`: the nodes are the user's own machines, and are
    left as they were. `lost`: what is lost with a node; the trait `scratch` names more of it. `template`: the
    type of the resource that new nodes are made from; running nodes do not follow it. `holds_data`: types of
    resources whose data goes with them.
    """

    traits: Mapping[str, str] = field(default_factory=dict[str, str])
    new_nodes: frozenset[str] = frozenset()
    rows: tuple[ChangeRow, ...] = ()
    noun: str = "node"
    owned_by_user: bool = False
    lost: str = "what is on their disks"
    template: str | None = None
    holds_data: frozenset[str] = frozenset()

    # A thousand nodes have the same few properties.
    _found: dict[tuple[str, str], ChangeRow | None] = field(
        default_factory=dict[tuple[str, str], ChangeRow | None], init=False, repr=False, compare=False
    )

    def row(self, type_: str, path: str) -> ChangeRow | None:
        """The first row about a property."""
        if (type_, path) not in self._found:
            self._found[type_, path] = next((row for row in self.rows if row.about(type_, path)), None)
        return self._found[type_, path]


NOTHING = Explained()


def known(outputs: Mapping[str, object]) -> dict[str, str]:
    """The traits that a stack's outputs tell: those recorded, and what is in the pins of an older one."""
    traits: dict[str, str] = {}
    pins, recorded = outputs.get("pins"), outputs.get("traits")
    if isinstance(pins, dict):
        pinned: dict[str, object] = pins
        traits |= {key: str(pinned[key]) for key in PINNED if key in pinned}
        if "image" in pinned:
            traits["image"] = str(pinned["image"]).rpartition("/")[2]
    if isinstance(recorded, dict):
        recorded_traits: dict[str, object] = recorded
        traits |= {key: str(value) for key, value in recorded_traits.items()}
    return traits


def scratch_words(volume: Scratch | None) -> str:
    """`/scratch (xfs)`, with what is not as by default."""
    if volume is None:
        return "none"
    more = [
        *(["never cleaned"] if volume.clean == "never" else []),
        *(["required"] if volume.required else []),
    ]
    return f"{volume.path} ({', '.join([volume.fs, *more])})"


def counted(kinds: list[str]) -> str:
    """`1 ENA, 32 EFA` of the kinds one by one."""
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
