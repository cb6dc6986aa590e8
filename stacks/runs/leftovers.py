"""What nobody is there to remove. What clouds hold with the marks of this project and its state does not
record: found, and deleted. And what the state records: fleets whose time is over, what is left of nodes
that ended themselves, and what killed calls left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from orch.components.file_systems import MOUNTED_PIN, mounted, mounts_one_of
from orch.components.marks.marked import Leftovers, MarkedResource, Survey, leftovers, stack_of
from orch.components.marks.orphans import StackSnapshot
from orch.components.registry.orphans import delete_data, delete_orphans
from orch.spec.deletable import Call
from orch.spec.errors import OrchError
from orch.spec.models import Fleet
from orch.stacks.errors import Conflict, Interrupted, OtherAccount, ProjectError, StackLocked
from orch.stacks.project.project import Project
from orch.stacks.pulumi.accounts import require_own, require_surveyed
from orch.stacks.pulumi.operation import while_held
from orch.stacks.pulumi.orphans import judged, killed_call, marks_of, snapshot_of
from orch.stacks.pulumi.progress import Listener, Note
from orch.stacks.pulumi.recovery import export, repair_files
from orch.stacks.record.fleets import documents_of
from orch.stacks.runs.surveyed import survey_all
from orch.stacks.secrets.values import backends_with_secrets
from orch.stacks.stack.leases import lease_of, refuse_leased
from orch.stacks.stack.locks import break_dead_locks, locks
from orch.stacks.stack.state import StackState, stacks


@dataclass(frozen=True)
class Found:
    """Leftovers of a project.

    `owners`: the stack of its state, by mark; `holders`: who changes a stack at this moment; `mounted`: the
    fleets of this state that mount a file system, by its id; `looked`: the backends where it was looked;
    `kept`: why orphans stay unless their mark is named, by id.
    """

    leftovers: Leftovers
    survey: Survey
    owners: Mapping[str, str]
    holders: Mapping[str, str]
    mounted: Mapping[str, tuple[str, ...]]
    looked: tuple[str, ...]
    kept: Mapping[str, str]

    @property
    def not_seen(self) -> tuple[OrchError, ...]:
        """Return errors for what could not be looked at: it may hold anything."""
        if self.looked:
            return (*self.survey.unseen, *self.survey.closed)
        return (
            ProjectError(
                "no cloud was looked at, so what is left is not known",
                detail="neither orch.yml, the state nor a fleet's file names a backend, and the environment "
                "has no credentials of one",
                hint="name the backends that the project has used in orch.yml: `backends: [{type: aws}]`",
            ),
        )

    @property
    def deletable(self) -> Leftovers:
        """Return the leftovers that are deleted without naming their stack."""
        return Leftovers(tuple(each for each in self.leftovers.orphans if each.id not in self.kept))


@dataclass
class Deleted:
    """Result of a deletion, also while it runs. `skipped`: stacks that somebody else changes, with that
    owner."""

    names: list[str] = field(default_factory=list[str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    errors: list[OrchError] = field(default_factory=list[OrchError])

    def remaining(self, chosen: Leftovers) -> list[MarkedResource]:
        """Return the resources that were to be deleted and were not seen to be."""
        gone = {word for name in self.names for word in re.split(r"[\s(),]+", name)}
        return [each for each in chosen.all if not {each.id, each.part_of} & gone]


def find_leftovers(project: Project) -> Found:
    """Look for what bears the project's marks, and sort it by the state. Changes nothing, takes no lock.

    Raises StackError where the state cannot be read. A cloud that does not answer is in the survey.
    """
    states = [StackState(project, name) for name in stacks(project)]
    untold = _require_own(states)
    owners = _owners(states)
    state = replace(_merged(project, states), marks=frozenset(owners))
    looked = survey_all(project, state)
    survey = replace(looked.survey, unseen=(*untold, *looked.survey.unseen))
    for each in states:
        require_surveyed(each, survey)
    # Read again: what an `up` recorded while the clouds were asked is no leftover.
    for each in states:
        each.invalidate()
    recorded = _merged(project, states).ids
    holders = {each.name: who for each in states if (who := _holder(each)) is not None}
    sorted_out = leftovers(survey.resources, owners, recorded, holders)
    in_use = _mounted(project, states, (*sorted_out.data, *sorted_out.held))
    kept = {
        each: why
        for state in states
        for each, why in _kept(
            state, [each for each in sorted_out.orphans if owners[each.mark] == state.name]
        ).items()
    }
    return Found(sorted_out, survey, owners, holders, in_use, looked.backends, kept)


def _require_own(states: Sequence[StackState]) -> tuple[OrchError, ...]:
    """Raise OtherAccount if the credentials lead to another account than a stack's; why that of some cannot
    be asked. These keep nothing on other clouds from being found; before theirs goes, it is asked again."""
    untold: dict[str, OrchError] = {}
    for each in states:
        try:
            require_own(each)
        except OtherAccount:
            raise
        except OrchError as error:
            untold.setdefault(error.summary, error)
    return tuple(untold.values())


def _kept(stack: StackState, orphans: Sequence[MarkedResource]) -> Mapping[str, str]:
    """Return the reasons that orphans of a stack stay, by id."""
    return judged(stack, orphans, killed_call(stack, stack.recorded or {})).kept if orphans else {}


def refuse_in_use(project: Project, chosen: Leftovers) -> None:
    """Raises Conflict (ORCH386) where runs are on machines that are to be deleted."""
    by_stack: dict[str, list[MarkedResource]] = {}
    for each in chosen.all:
        by_stack.setdefault(stack_of(each.mark), []).append(each)
    for stack, own in by_stack.items():
        users = judged(StackState(project, stack), own, None).occupied
        for each in own:
            if each.id in users:
                raise Conflict(
                    f"{each.kind} {each.name} ({each.id}) is {users[each.id]}",
                    hint="stop the run with `orch stop RUN`; or `--force` deletes the machine under it",
                    code="ORCH386",
                )


def _mounted(
    project: Project, states: Sequence[StackState], data: Collection[MarkedResource]
) -> Mapping[str, tuple[str, ...]]:
    """The fleets that are up and mount what holds data, by its id: as they were recorded, or as their files
    are, for those of earlier versions and of other backends recorded none."""
    if not data:
        return {}
    words = {state.name: str((state.outputs.get("pins") or {}).get(MOUNTED_PIN, "")) for state in states}
    for _, fleet in documents_of(project.root, Fleet, "fleet"):
        if fleet.name in words:
            words[fleet.name] += f" {mounted(fleet.mounts).get(MOUNTED_PIN, '')}"
    users = {
        each.id: tuple(name for name, text in words.items() if mounts_one_of(text, each.mounted_as))
        for each in data
    }
    return {each: fleets for each, fleets in users.items() if fleets}


def refuse_mounted(found: Found, chosen: Leftovers) -> None:
    """Raises Conflict where a fleet of this state mounts what is to be deleted."""
    for each in chosen.all:
        if each.holds_data and (fleets := found.mounted.get(each.id)):
            raise Conflict(
                f"{each.kind} {each.id} is mounted by the fleet {', '.join(fleets)}",
                hint="`orch down` the fleet, or remove it from `mounts` and make all its nodes anew: "
                "until then they mount it",
            )


def _owners(states: list[StackState]) -> dict[str, str]:
    """Mark -> the stack of this state that has it."""
    return {mark: state.name for state in states for mark in marks_of(state)}


def _live_locks(project: Project, stack: str) -> list[object]:
    return [lock for lock in locks(project, stack) if not lock.dead]


def _holder(stack: StackState) -> str | None:
    """Return who changes a stack at this moment, or has a lease of it that binds this caller; None if nobody
    does."""
    if live := _live_locks(stack.project, stack.name):
        return str(live[0])
    lease = lease_of(stack)
    binds = lease is not None and lease.binds(stack.project.owner, datetime.now(timezone.utc))
    return lease.words if lease is not None and binds else None


def _merged(project: Project, states: list[StackState]) -> StackSnapshot:
    """The resources of all stacks as one."""
    each = [snapshot_of(state.recorded, project) for state in states]
    return StackSnapshot(
        tuple(resource for one in each for resource in one.recorded),
        tuple(resource for one in each for resource in one.unfinished),
        backends_with_secrets(project),
        project.session,
    )


def delete_leftovers(
    project: Project, found: Found, chosen: Leftovers, listener: Listener, done: Deleted, *, data: bool
) -> None:
    """Delete leftovers; with `data` those that hold data, too. `done` tells what went, also after an error.

    Those of a stack of this state go while the engine holds it, by what it records then. Raises Interrupted.
    """
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
                snapshot = replace(_merged(project, []), tell=_telling(listener), call=Call())
                _delete(snapshot, own, done, data=data)
            else:
                whole = own if data else found.leftovers.of(marks)
                _delete_of_stack(StackState(project, stack), own, whole, listener, done, data=data)
        except StackLocked as locked:
            done.skipped[stack or ""] = locked.where or "somebody else"
        except Interrupted:
            raise
        except OrchError as error:  # what cannot go keeps nothing else
            done.errors.append(error)


def _telling(listener: Listener) -> Callable[[str], None]:
    return lambda text: listener(Note(text, lasts=True))


def _delete_of_stack(
    stack: StackState, own: Leftovers, whole: Leftovers, listener: Listener, done: Deleted, *, data: bool
) -> None:
    """Delete what of `own` may still go, or all if its mark was named. `whole`: all that bears its marks."""
    refuse_leased(stack)
    require_own(stack)
    break_dead_locks(stack.project, stack.name)
    repair_files(stack.project, stack.name)

    def clean(still_held: Callable[[], None]) -> None:
        now = snapshot_of(export(stack)["deployment"], stack.project)
        # What an interrupted call had begun without marks is its own next call's.
        now = replace(now, unfinished=(), still_held=still_held, tell=_telling(listener), call=Call())
        if not data:
            call = killed_call(stack, stack.recorded or {})
            now = replace(now, call=call, kept=frozenset(judged(stack, whole.orphans, call).kept))
        _delete(now, own, done, data=data)

    while_held(stack, clean, listener)


def _delete(snapshot: StackSnapshot, own: Leftovers, done: Deleted, *, data: bool) -> None:
    if resources := (*own.orphans, *own.held, *own.unknown):
        places = frozenset((each.backend, each.region) for each in resources)
        for name in delete_orphans(replace(snapshot, marks=own.marks, places=places)):
            done.names.append(name)
    if data:
        unrecorded = [
            each for each in (*own.data, *own.held) if each.holds_data and each.id not in snapshot.ids
        ]
        for each in unrecorded:
            snapshot.still_held()
            done.names += delete_data([each], snapshot)
