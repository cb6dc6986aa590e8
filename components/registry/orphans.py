"""What killed calls left in the clouds of stacks, and data that a survey found: looked up and deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from orch.components.marks.marked import MarkedResource, Survey
from orch.components.marks.orphans import StackSnapshot
from orch.components.registry.backends import AnyBackend, BrokenBackend, backend
from orch.spec.models.backends import provisioned, queues_pods


def _with_orphans(snapshot: StackSnapshot) -> Iterator[AnyBackend]:
    """Backends that a stack has resources of which a killed call may have left some unrecorded."""
    for name in provisioned():
        try:
            instance = backend(name)
        except BrokenBackend:
            continue  # another package's: whoever uses that backend is told
        if any(any(snapshot.of(prefix)) for prefix in instance.packages) or snapshot.regions(name):
            yield instance


def may_have_orphans(snapshot: StackSnapshot) -> bool:
    """Whether anything of a stack is in a cloud, where what is not recorded may be left."""
    return any(True for _ in _with_orphans(snapshot))


def delete_orphans(snapshot: StackSnapshot) -> Iterator[str]:
    """Remove what a call that did not end left in the clouds of a stack; what was removed, each as it goes.

    Raises what asking the cloud raises."""
    for each in _with_orphans(snapshot):
        yield from each.delete_orphans(snapshot)


def marked_of(project: str, snapshot: StackSnapshot) -> tuple[MarkedResource, ...]:
    """What bears the marks of an orch project where a stack is, and a killed call may have left machines.

    Raises what asking a cloud raises: what could not be looked at may hold anything."""
    found = Survey()
    for each in _with_orphans(snapshot):
        if not queues_pods(each.name):
            found = found.joined(each.survey(project, replace(snapshot, narrow=True)))
    for error in found.unseen:
        raise error
    return found.resources


def delete_data(resources: Iterable[MarkedResource], state: StackSnapshot) -> Iterator[str]:
    """Delete resources of a survey that hold data; the names of what was removed, each as it goes.

    Raises what asking the cloud raises."""
    by_backend: dict[str, list[MarkedResource]] = {}
    for each in resources:
        by_backend.setdefault(each.backend, []).append(each)
    for name, own in by_backend.items():
        yield from backend(name).delete_data(own, state)
