"""The order in which the stacks of a file or folder are brought up: in waves, each after those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orch.spec.loader.load import Document
    from orch.spec.models import Fleet, Volume
    from orch.stacks.project.project import Project


def waves(depends_on: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """The names in waves, in the order of `depends_on` within each. What is not among them is left out.

    Raises graphlib.CycleError, which the language refuses before (ORCH175).
    """
    order = list(depends_on)
    graph = TopologicalSorter(
        {name: [each for each in others if each in depends_on] for name, others in depends_on.items()}
    )
    graph.prepare()
    found: list[tuple[str, ...]] = []
    while graph.is_active():
        ready = graph.get_ready()
        found.append(tuple(sorted(ready, key=order.index)))
        graph.done(*ready)
    return tuple(found)


@dataclass(frozen=True)
class Stack:
    """A fleet or a volume with its document. `wave` counts from 1."""

    project: Project
    document: Document
    model: Fleet | Volume
    wave: int

    @property
    def title(self) -> str:
        return f"{self.document.kind} {self.model.name}"

    @property
    def fleet(self) -> Fleet | None:
        """The fleet, None for a volume."""
        from orch.spec.models import Fleet

        return self.model if isinstance(self.model, Fleet) else None


def in_waves(project: Project, documents: Sequence[Document]) -> list[Stack]:
    """The volumes and fleets of documents, wave by wave: volumes first, fleets after those they depend on."""
    from orch.spec.models import Fleet, Volume

    volumes = [(each, each.model) for each in documents if isinstance(each.model, Volume)]
    fleets = {each.model.name: (each, each.model) for each in documents if isinstance(each.model, Fleet)}
    found = [Stack(project, document, volume, 1) for document, volume in volumes]
    first = 2 if volumes else 1
    for wave, names in enumerate(waves({name: each[1].depends_on for name, each in fleets.items()}), first):
        found += [Stack(project, *fleets[name], wave) for name in names]
    return found


def order_lines(stacks: Sequence[Stack]) -> list[str]:
    """A line for each wave with what is brought up in it."""
    titles: dict[int, list[str]] = {}
    for each in stacks:
        titles.setdefault(each.wave, []).append(each.title)
    return [f"  {wave}: {', '.join(named)}" for wave, named in titles.items()]


def refuse_missing(stacks: Sequence[Stack]) -> None:
    """Raises NoSuchFleet where a fleet depends on one that is neither among them nor up."""
    from orch.stacks.errors import NoSuchFleet
    from orch.stacks.stack.state import StackState

    names = {each.fleet.name for each in stacks if each.fleet is not None}
    for each in stacks:
        for name in each.fleet.depends_on if each.fleet is not None else ():
            if name in names or "fleet" in StackState(each.project, name).outputs:
                continue
            raise NoSuchFleet(
                f"the {each.title} depends on the fleet {name}, which is not up",
                where=str(each.document.span(("depends_on",))),
                hint=f"bring {name} up first, or give `orch up` a folder that has both",
                code="ORCH396",
            )
