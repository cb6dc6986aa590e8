"""What clouds hold with the marks of this project and its state does not record: found, and deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from orch.components import registry
from orch.components.cloud.marked import (
    Leftovers,
    Survey,
    leftovers,
    marks_in,
)
from orch.components.cloud.orphans import StackSnapshot
from orch.spec.errors import OrchError
from orch.stacks.errors import Interrupted, StackLocked
from orch.stacks.project import Project, scope_of
from orch.stacks.pulumi.locks import break_dead_locks, locks
from orch.stacks.pulumi.operation import Listener, Note, while_held
from orch.stacks.pulumi.recovery import export, repair_files, snapshot_of
from orch.stacks.secrets.values import backends_with_secrets
from orch.stacks.state import StackState, stacks, unfinished_pins


@dataclass(frozen=True)
class Found:
    """Leftovers of a project.

    `owners`: the stack of its state, by mark; `holders`: who changes a stack at this moment; `looked`:
    whether there was anything to look at.
    """

    leftovers: Leftovers
    survey: Survey
    owners: Mapping[str, str]
    holders: Mapping[str, str]
    looked: bool


@dataclass
class Deleted:
    """What a deletion came to. `skipped`: stacks that somebody else changes, with whom."""

    names: list[str] = field(default_factory=list[str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    errors: list[OrchError] = field(default_factory=list[OrchError])


def find_leftovers(project: Project) -> Found:
    """Look for what bears the project's marks, and sort it by the state. Changes nothing, takes no lock.

    Raises StackError where the state cannot be read. A cloud that does not answer is in the survey.
    """
    states = [StackState(project, name) for name in stacks(project)]
    owners = _owners(states)
    state = replace(_merged(project, states), marks=frozenset(owners))
    survey = registry.survey(project.name, state)
    looked = bool(state.settings) or any(_is_provider(each.type) for each in state.recorded)
    # Read again: what an `up` recorded while the clouds were asked is no leftover.
    for each in states:
        each.invalidate()
    recorded = _merged(project, states).ids
    holders = {each.name: str(live[0]) for each in states if (live := _live_locks(project, each.name))}
    sorted_out = leftovers(survey.resources, owners, recorded, holders)
    return Found(sorted_out, survey, owners, holders, looked)


def _owners(states: list[StackState]) -> dict[str, str]:
    """Mark -> the stack of this state that has it."""
    return {mark: state.name for state in states for mark in _marks(state)}


def _live_locks(project: Project, stack: str) -> list[object]:
    return [lock for lock in locks(project, stack) if not lock.dead]


def _is_provider(kind: str) -> bool:
    return kind.startswith(("pulumi:providers:", "orch:local:"))


def _merged(project: Project, states: list[StackState]) -> StackSnapshot:
    """The resources of all stacks as one."""
    each = [snapshot_of(state.recorded, project) for state in states]
    return StackSnapshot(
        tuple(resource for one in each for resource in one.recorded),
        tuple(resource for one in each for resource in one.unfinished),
        backends_with_secrets(project),
        project.session,
    )


def _marks(state: StackState) -> Iterator[str]:
    """The marks of a stack: those of its resources, and those that its pins or this folder give them."""
    snapshot = snapshot_of(state.recorded, state.project)
    yield from marks_in(each.inputs for each in (*snapshot.recorded, *snapshot.unfinished))
    pins = (state.outputs.get("pins") or {}, unfinished_pins(state.recorded))
    scopes = {str(each["scope"]) for each in pins if each.get("scope")}
    for scope in (*scopes, scope_of(state.project)):
        yield f"{state.project.name}/{state.name}/{scope}"


def delete_leftovers(
    project: Project, found: Found, chosen: Leftovers, listener: Listener, *, data: bool
) -> Deleted:
    """Delete leftovers; with `data` those that hold data, too.

    Those of a stack of this state go while the engine holds it, by what it records then. Raises Interrupted.
    """
    done = Deleted()
    by_stack: dict[str | None, set[str]] = {}
    # A stack that was lost may have been made anew, under its mark, since somebody was asked.
    owners = {**found.owners, **_owners([StackState(project, name) for name in stacks(project)])}
    for mark in sorted(chosen.marks):
        by_stack.setdefault(owners.get(mark), set()).add(mark)
    # Those of no stack first, all at once: some may stand in networks of others.
    for stack, marks in sorted(by_stack.items(), key=lambda each: each[0] or ""):
        own = chosen.of(marks)
        try:
            if stack is None:
                snapshot = replace(_merged(project, []), tell=_telling(listener))
                done.names += _delete(snapshot, own, data=data)
            else:
                done.names += _delete_of_stack(StackState(project, stack), own, listener, data=data)
        except StackLocked as locked:
            done.skipped[stack or ""] = locked.where or "somebody else"
        except Interrupted:
            raise
        except OrchError as error:  # what cannot go keeps nothing else
            done.errors.append(error)
    return done


def _telling(listener: Listener) -> Callable[[str], None]:
    return lambda text: listener(Note(text, lasts=True))


def _delete_of_stack(stack: StackState, own: Leftovers, listener: Listener, *, data: bool) -> list[str]:
    break_dead_locks(stack.project, stack.name)
    repair_files(stack.project, stack.name)

    def clean(still_held: Callable[[], None]) -> list[str]:
        now = snapshot_of(export(stack)["deployment"], stack.project)
        # What an interrupted call had begun without marks is its own next call's.
        now = replace(now, unfinished=(), still_held=still_held, tell=_telling(listener))
        return _delete(now, own, data=data)

    return while_held(stack, clean, listener)


def _delete(snapshot: StackSnapshot, own: Leftovers, *, data: bool) -> list[str]:
    names: list[str] = []
    if resources := (*own.orphans, *own.held, *own.unknown):
        places = frozenset((each.backend, each.region) for each in resources)
        names += registry.delete_orphans(replace(snapshot, marks=own.marks, places=places))
    if data:
        unrecorded = [
            each for each in (*own.data, *own.held) if each.holds_data and each.id not in snapshot.ids
        ]
        for each in unrecorded:
            snapshot.still_held()
            names += registry.delete_data([each], snapshot)
    return names
