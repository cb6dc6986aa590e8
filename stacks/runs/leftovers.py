"""What nobody is there to remove. What clouds hold with the marks of this project and its state does not
record: found, and deleted. And what the state records: fleets whose time is over, what is left of nodes
that ended themselves, and what killed calls left.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from orch.components.file_systems import MOUNTED_PIN, mounted, mounts_one_of
from orch.components.idleness import resources_of
from orch.components.lifetime import doubt, ends_of, is_over
from orch.components.marks.marked import (
    Leftovers,
    MarkedResource,
    Survey,
    leftovers,
    stack_of,
)
from orch.components.marks.orphans import StackSnapshot
from orch.components.registry.orphans import delete_data, delete_orphans
from orch.runner.ledger.ledger import open_ledger
from orch.runner.node.clock import seconds_of
from orch.runner.runs.pods.admission import remove_leftover_pods
from orch.spec.deletable import Call
from orch.spec.errors import OrchError
from orch.spec.grammar.hosts import fold
from orch.spec.models import Fleet
from orch.stacks.errors import Conflict, Interrupted, OtherAccount, ProjectError, StackError, StackLocked
from orch.stacks.events.notation import name_of
from orch.stacks.plans.request import ended_nodes
from orch.stacks.project.project import Project
from orch.stacks.provisioning import operations
from orch.stacks.provisioning.kept_data import is_protected
from orch.stacks.provisioning.nodes_with_runs import kept_words, remove_unused
from orch.stacks.pulumi.accounts import require_own, require_surveyed
from orch.stacks.pulumi.operation import EngineCall, engine, while_held
from orch.stacks.pulumi.orphans import judged, killed_call, marks_of, snapshot_of
from orch.stacks.pulumi.progress import Activity, ExpectedNodes, Left, Listener, Note, Progress
from orch.stacks.pulumi.recovery import export, recover, repair_files
from orch.stacks.record.fleets import documents_of, fleet_of
from orch.stacks.record.node_accounts import accounted
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
        """What could not be looked at: it may hold anything."""
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
        """What goes without a word of whose it is."""
        return Leftovers(tuple(each for each in self.leftovers.orphans if each.id not in self.kept))


@dataclass
class Deleted:
    """What a deletion came to, also while it goes on. `skipped`: stacks that somebody
    else changes, with whom."""

    names: list[str] = field(default_factory=list[str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    errors: list[OrchError] = field(default_factory=list[OrchError])

    def remaining(self, chosen: Leftovers) -> list[MarkedResource]:
        """What was to go, and was not seen to."""
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
    """Why orphans of a stack stay, by id."""
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
    """Who changes a stack at this moment, or has a lease of it that keeps this caller from that."""
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


@dataclass(frozen=True)
class Swept:
    """What a sweep did to a fleet, or why it could not."""

    fleet: str
    done: str
    error: OrchError | None = None


def sweep(project: Project, listener: Listener) -> tuple[Swept, ...]:
    """Remove fleets whose time is over, and of others the nodes that ended themselves, which may still cost
    (GCP keeps a stopped instance with its disk), and what killed calls left; those that nobody changes now.

    A fleet that is protected stays, and so does one with file systems of its own: data goes by the user's
    word alone. Where a cloud does not tell which nodes ended, as without credentials, they stay.
    """
    done: list[Swept] = []
    for name in stacks(project):
        if "." in name:
            continue
        stack, present = StackState(project, name), locks(project, name)
        if any(not lock.dead for lock in present):
            continue
        hearing = _hearing(name, done, listener)
        try:
            if is_over(stack.outputs.get("pins") or {}, time.time()) and not is_protected(stack):
                _refuse_by_clock(stack, time.time())
                if stack.file_systems:
                    done.append(Swept(name, f"its time is over; `orch down {name}` removes it with its data"))
                    continue
                recover(stack, hearing)
                operations.down(project, name, hearing)
                done.append(Swept(name, "its time is over: removed"))
                continue
            if present or (stack.recorded or {}).get("pending_operations"):
                recover(stack, hearing)
                done.append(Swept(name, "what a killed call left is cleared"))
            unused = remove_unused(project, name, hearing)
            if unused.removed:
                done.append(Swept(name, f"{fold(unused.removed)} is removed: made for a run that has ended"))
            done += [Swept(name, text) for text in kept_words(name, unused)]
            if (stack.outputs.get("fleet") or {}).get("queue") and (removed := _remove_pods(project, stack)):
                done.append(Swept(name, f"pods of runs that have ended are removed: {fold(removed)}"))
            ended = frozenset() if is_protected(stack) else ended_nodes(stack)
            if ended and (removed := _remove_rest(project, name, ended, hearing)):
                which = fold(sorted(removed))
                done.append(
                    Swept(name, f"what is left of {which} is removed: ended when idle, or taken back")
                )
        except Interrupted:
            raise
        except OrchError as error:
            done.append(Swept(name, "not swept", error))
    return tuple(done)


def _refuse_by_clock(stack: StackState, now: float) -> None:
    """Raise StackError if the clock of this machine is in doubt: a fleet is not removed by it."""
    ends = ends_of(stack.outputs.get("pins") or {})
    changed = seconds_of(((stack.recorded or {}).get("manifest") or {}).get("time") or "")
    reason = "" if ends is None else doubt(now, ends, changed)
    if reason:
        raise StackError(
            f"the fleet {stack.name} is not removed at its end: {reason}",
            detail="the moment was compared with this machine's clock alone",
            hint=f"`date -u` shows the clock; if it is right, `orch down {stack.name}` removes the fleet",
            code="ORCH233",
        )


def _hearing(fleet: str, done: list[Swept], listener: Listener) -> Listener:
    """A listener that keeps what stays of a fleet for the outcome."""

    def hear(event: Progress) -> None:
        if isinstance(event, Left):
            done.append(Swept(fleet, event.text))
        else:
            listener(event)

    return hear


def _remove_pods(project: Project, stack: StackState) -> tuple[str, ...]:
    with closing(open_ledger(project.ledger_url)) as ledger:
        return remove_leftover_pods(ledger, fleet_of(stack))


def _remove_rest(project: Project, name: str, ended: frozenset[str], listener: Listener) -> frozenset[str]:
    """Forget those nodes that are gone, and delete what is there of the others. The names of all of them.

    One that somebody has started again since it was asked for stays.
    """
    project.prepare()
    recover(StackState(project, name), listener)
    listener(ExpectedNodes(ended))
    listener(Activity(f"removing what is left of {fold(sorted(ended))}"))
    for command in ("refresh", "destroy"):
        stack = StackState(project, name)
        if command == "destroy":
            ended -= stack.node_names - ended_nodes(stack)
        urns = [each["urn"] for each in stack.resources if name_of(each["urn"]) in resources_of(ended)]
        if urns:
            targets = [word for urn in urns for word in ("--target", urn)]
            run = EngineCall(listener, planning=False)
            with accounted(stack, listener, verb="reconcile", ended=ended):
                engine(stack, [command, "--yes", "--skip-preview", *targets], run)
    return ended
