"""Fleets that are up and that no file of the project describes: `up --prune` alone removes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orch.cli.errors import tell
from orch.spec.suggest import counted, few

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orch.stacks.project.project import Project


@dataclass(frozen=True)
class Undescribed:
    """A fleet that is up and that no file describes. `hourly`: its price in US dollars an hour."""

    name: str
    nodes: int
    hourly: float
    protected: bool

    def text(self) -> str:
        price = f", ${self.hourly:,.2f} an hour" if self.hourly else ""
        kept = "; it is protected" if self.protected else ""
        what = f"{counted(self.nodes, 'node')}{price}"
        return f"the fleet {self.name} is up and no file describes it ({what}){kept}"

    def as_json(self) -> dict[str, Any]:
        return {
            "fleet": self.name,
            "nodes": self.nodes,
            "hourly": self.hourly,
            "currency": "USD",
            "protected": self.protected,
        }


def undescribed(project: Project) -> tuple[Undescribed, ...]:
    """The fleets that are up and that no YAML file of the project describes, in whatever folder it lies.

    Raises ProjectError when a file that may describe one has errors.
    """
    from orch.stacks.errors import ProjectError
    from orch.stacks.provisioning.kept_data import is_protected
    from orch.stacks.record.fleets import described_fleets
    from orch.stacks.stack.state import StackState, stacks

    # Stacks with a dot in their name are no fleets.
    up = [name for name in stacks(project) if "." not in name]
    if not up:
        return ()
    described, broken = described_fleets(project.root)
    states = [StackState(project, name) for name in up if name not in described]
    found = tuple(
        Undescribed(each.name, len(each.nodes), each.hourly, is_protected(each))
        for each in states
        if each.resources
    )
    if found and broken:
        raise ProjectError(
            f"whether a file describes the fleet {found[0].name} is not known: files have errors",
            where=str(project.root),
            detail=few([str(each.relative_to(project.root)) for each in broken], 5),
            hint="`orch validate .` tells the errors; mend them, or call `orch up` without --prune",
            code="ORCH398",
        )
    return found


def found_undescribed(project: Project) -> tuple[Undescribed, ...]:
    """The same; where it cannot be known, a warning tells why."""
    from orch.stacks.errors import ProjectError

    try:
        return undescribed(project)
    except ProjectError as error:
        tell(error.text().replace("error", "warning", 1))
        return ()


def told(found: Sequence[Undescribed], target: str) -> None:
    """Tell of fleets that no file describes, and what removes them."""
    for each in found:
        tell(f"note: {each.text()}")
    if found:
        tell(f"  hint: `orch up {target} --prune` removes {'it' if len(found) == 1 else 'them'}")


def refuse_protected(found: Sequence[Undescribed]) -> None:
    """Raises StackError for fleets that are protected, before anything is changed."""
    from orch.stacks.errors import StackError

    kept = [each.name for each in found if each.protected]
    if kept:
        raise StackError(
            f"no file describes the fleet {kept[0]}, and it is protected: nothing was changed",
            detail=f"protected: {', '.join(kept)}" if len(kept) > 1 else None,
            hint="write its file again with `protect: false` and `orch up` it, or leave --prune out",
            code="ORCH348",
        )
