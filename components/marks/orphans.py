"""What a call that did not end may have left in a cloud, as the engine recorded it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from orch.components.marks.marked import MACHINES, MarkedResource, Survey, is_ours, mark_of, project_of
from orch.spec.deletable import Call

if TYPE_CHECKING:
    from orch.spec.models.backends.base import BackendSettings

TRIES, PAUSE_S = 60, 2.0


@dataclass(frozen=True)
class RecordedResource:
    """A resource of a stack. `id` is None while its creation is under way."""

    type: str
    name: str
    id: str | None
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class StackSnapshot:
    """A stack's resources: those it has `recorded`, and those whose creation is `unfinished`.

    `settings` are the backends' of orch.yml; `session` gives what a backend is asked through, None where it
    is the user's own account. `still_held` is called before anything is looked for or removed, and raises
    when the stack is no longer held: from then on what is there may be somebody else's. `tell` says what is
    waited for. `marks`, and `places` (backend and region): what to look for and where, beyond what the
    resources tell; `narrow`: a look goes nowhere else, and for machines alone. `kept`: ids of what is not
    recorded and stays. `call`: the call whose leftovers are cleared, None where it is not known.
    """

    recorded: tuple[RecordedResource, ...]
    unfinished: tuple[RecordedResource, ...]
    settings: Sequence[BackendSettings] = ()
    session: Callable[[str], Any] = lambda backend: None
    still_held: Callable[[], None] = lambda: None
    tell: Callable[[str], None] = lambda text: None
    marks: frozenset[str] = frozenset()
    places: frozenset[tuple[str, str]] = frozenset()
    narrow: bool = False
    kept: frozenset[str] = frozenset()
    call: Call | None = None

    def regions(self, backend: str) -> set[str]:
        """Regions of a backend where to look beyond those of its resources; "" is what has no region."""
        return {region for name, region in self.places if name == backend}

    def of(self, prefix: str) -> Iterator[RecordedResource]:
        """Resources of one provider (`aws:`), both kinds."""
        return (each for each in (*self.recorded, *self.unfinished) if each.type.startswith(prefix))

    def emptied(self) -> StackSnapshot:
        """The same after all that is recorded was removed."""
        return replace(self, recorded=tuple(replace(each, id=None) for each in self.recorded))

    def before(self, now: StackSnapshot) -> StackSnapshot:
        """What was there before a removal, by what is recorded `now`, after it."""
        gone = self.emptied()
        return replace(
            now, recorded=(*now.recorded, *gone.recorded), unfinished=(*now.unfinished, *gone.unfinished)
        )

    @property
    def ids(self) -> frozenset[str]:
        """Of what stays."""
        return self.kept.union(each.id for each in self.recorded if each.id)


def retry_until_gone(remove: Callable[[], bool]) -> bool:
    """Call `remove` until it returns True, TRIES times at most; whether it did."""
    for _ in range(TRIES):
        if remove():
            return True
        time.sleep(PAUSE_S)
    return False


# Clouds without labels: what is there is found by its name.


@dataclass(frozen=True)
class NamedResource:
    """Something in a cloud without labels that is no data. `remove` ends when it is gone; `hourly`: US
    dollars an hour, None where it is not known; `alone`: it is one machine, not several. The others as in
    MarkedResource."""

    kind: str
    id: str
    name: str
    remove: Callable[[], None]
    region: str = ""
    created: str | None = None
    hourly: Callable[[], float | None] = lambda: 0.0
    alone: bool = True


def delete_named(
    snapshot: StackSnapshot, package: str, listed: Callable[[], Iterable[NamedResource]]
) -> Iterator[str]:
    """Remove what has a name of the stack's and is not recorded; what was removed, each as it goes.

    `package`: what types of its resources begin with; `listed`: all that is there, of which what others use
    comes last. Raises CloudRefused.
    """
    own = snapshot.of(package)
    marks = frozenset(str(each.inputs["mark"]) for each in own if "mark" in each.inputs) | snapshot.marks
    if not marks:
        return
    projects = {project_of(mark) for mark in marks}
    for each in listed():
        if each.id in snapshot.ids or not marks & {mark_of(each.name, project) for project in projects}:
            continue
        snapshot.still_held()
        each.remove()
        yield f"{each.name} ({each.id})"


def survey_named(backend: str, project: str, listed: Iterable[NamedResource]) -> Survey:
    """What has a name of the project's, and how much has a name of orch's that is of others."""
    ours = [each for each in listed if is_ours(each.name)]
    own = [(each, mark) for each in ours if (mark := mark_of(each.name, project)) is not None]
    found = tuple(
        MarkedResource(
            backend,
            mark,
            each.kind,
            each.id,
            each.name,
            each.region,
            datetime.fromisoformat(each.created.replace("Z", "+00:00")) if each.created else None,
            each.hourly(),
            machine=each.id if each.kind in MACHINES and each.alone else "",
        )
        for each, mark in own
    )
    return Survey(found, foreign=len(ours) - len(own))
