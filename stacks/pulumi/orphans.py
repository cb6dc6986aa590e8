"""What clouds hold of a stack that its state does not record, and which of it stays: the evidence for
spec/deletable.py, from the ledger, the state, the engine's history and the nodes themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from orch.components.marks.marked import MarkedResource, machine_name, marks_in
from orch.components.marks.orphans import RecordedResource, StackSnapshot
from orch.components.registry import orphans
from orch.components.registry.backends import backends_of
from orch.spec.access import OtherAccess
from orch.spec.deletable import Call, Evidence, occupied, run_words, why_kept
from orch.spec.state import NodeState, machine_of
from orch.stacks.errors import StackError
from orch.stacks.events.notation import name_of, parse_time
from orch.stacks.project.project import Project, scope_of
from orch.stacks.pulumi.progress import Left, Listener
from orch.stacks.secrets.values import backends_with_secrets, tunnels
from orch.stacks.stack.command import plain
from orch.stacks.stack.locks import Lock
from orch.stacks.stack.state import StackExport, StackState, unfinished_pins

if TYPE_CHECKING:
    from orch.runner.ledger.history.node_lives import NodeLife
    from orch.runner.ledger.ledger import Ledger

ANSWER_S = 5.0
"""How long to wait for a node's answer."""

RUNS = 200
"""How many ended runs of a fleet are looked at for the way to its nodes."""

APART_S = 60.0
"""How long after its creation a machine may be that the ledger says is older, where ids do not tell it."""

ENDED_AFTER = timedelta(seconds=10)
"""How long after it has last written the state a call may end."""

BESIDE = "a machine of its mark stays"

AT_WORK = timedelta(hours=1)
"""How long a killed engine may have been at work after it last wrote the state."""


# -- what is recorded


def snapshot_of(recorded: StackExport | None, project: Project) -> StackSnapshot:
    """The recorded resources of a stack, and those whose creation had begun."""
    recorded = recorded or {}
    resources = [_recorded(each) for each in recorded.get("resources") or ()]
    begun = [
        replace(_recorded(operation["resource"]), id=None)
        for operation in recorded.get("pending_operations") or ()
        if operation["type"] == "creating"
    ]
    used = backends_of(each.type for each in (*resources, *begun))
    return StackSnapshot(
        tuple(resources), tuple(begun), backends_with_secrets(project, used), project.session
    )


def _recorded(resource: dict[str, Any]) -> RecordedResource:
    """A resource as it is recorded. What was deleted to be made anew has no id: what bears that in the cloud,
    where ids are names, is the new one, whose creation was not recorded."""
    id_ = None if resource.get("pendingReplacement") else resource.get("id")
    return RecordedResource(
        resource["type"], name_of(resource["urn"]), id_ or None, resource.get("inputs") or {}
    )


def marks_of(stack: StackState) -> Iterator[str]:
    """The marks of a stack: those of its resources, and those that its pins or this folder give them."""
    snapshot = snapshot_of(stack.recorded, stack.project)
    yield from marks_in(each.inputs for each in (*snapshot.recorded, *snapshot.unfinished))
    pins = (stack.outputs.get("pins") or {}, unfinished_pins(stack.recorded))
    scopes = {str(each["scope"]) for each in pins if each.get("scope")}
    for scope in (*scopes, scope_of(stack.project)):
        yield f"{stack.project.name}/{stack.name}/{scope}"


def killed_call(stack: StackState, recorded: StackExport, broken: Sequence[Lock] = ()) -> Call | None:
    """Return the call that was killed while it changed a stack; None when what is `recorded` tells of none,
    or is an older copy. `broken`: the locks that the call left."""
    updated, begun = _updated(recorded), bool(recorded.get("pending_operations"))
    if not (begun or broken) or updated is None:
        return None
    past = _past(stack)
    # Another call wrote it than the one that ended last; an end is told in whole seconds.
    is_older = not begun or past.changed_after(updated - timedelta(seconds=1))
    writer = None if is_older else Call(past.last, updated + AT_WORK)
    if not broken:
        return writer
    # Nobody else changes a stack while it is locked. The lock may be of a recovery that was killed too.
    began = datetime.now(timezone.utc) - timedelta(seconds=max(lock.age_s for lock in broken))
    return None if past.changed_after(began) else Call(began, earlier=writer)


def _updated(recorded: StackExport) -> datetime | None:
    """Return the time at which a state was last written."""
    return parse_time((recorded.get("manifest") or {}).get("time"))


@dataclass(frozen=True)
class Past:
    """The last calls that ended on a stack, by the engine's history. `changed`: when those ended that changed
    a resource; `last`: when the last one ended; `known`: whether the history could be read."""

    changed: tuple[datetime, ...] = ()
    last: datetime | None = None
    known: bool = True

    def changed_after(self, moment: datetime) -> bool:
        """Return True if the stack may have been changed after a moment."""
        return not self.known or any(end > moment for end in self.changed)


def _past(stack: StackState) -> Past:
    words = ["stack", "history", "--json", "--page-size", "10", "--page", "1"]
    try:
        rows = json.loads(plain(stack, words).stdout) or ()
    except StackError:
        return Past(known=False)
    ends = [(end, row) for row in rows if (end := parse_time(row.get("endTime"))) is not None]
    changed = (end for end, row in ends if (row.get("resourceChanges") or {}).keys() - {"same"})
    return Past(tuple(changed), max((end for end, _ in ends), default=None))


def _is_older(stack: StackState) -> bool:
    """Return True if a stack was changed after its state was written: the state is an older copy then."""
    updated = _updated(stack.recorded or {})
    return stack.exists and updated is not None and _past(stack).changed_after(updated + ENDED_AFTER)


# -- what is known of machines


@dataclass(frozen=True)
class Books:
    """Records of the ledger and the state about the machines of a fleet. `readable`: the ledger could be
    read.

    `ids`: of recorded machines; `nodes`: as they are recorded; `runs`: active ones, with their nodes;
    `ways`: nodes of former and active runs, by name, with the way to them."""

    ids: frozenset[str]
    nodes: Mapping[str, Mapping[str, Any]]
    lives: Sequence[NodeLife] = ()
    runs: Sequence[tuple[str, Sequence[NodeState]]] = ()
    ways: Mapping[str, NodeState] = field(default_factory=dict[str, NodeState])
    readable: bool = True

    def runs_on(self, name: str, resource: MarkedResource) -> tuple[str, ...]:
        """The runs of the ledger on a machine that is not recorded."""
        return tuple(
            run
            for run, nodes in self.runs
            if any(each.machine and each.machine == resource.machine for each in nodes)
            or any(each.name == name and not self._is_recorded(each) for each in nodes)
        )

    def _is_recorded(self, node: NodeState) -> bool:
        known = self.nodes.get(node.name)
        return known is not None and (
            (known.get("machine"), machine_of(known)) == (node.machine, node.access.machine)
        )

    def had(self, name: str, resource: MarkedResource) -> bool:
        """Return True if a finished change recorded the machine as a node, and none has deleted it since."""
        latest: dict[str, NodeLife] = {}
        for life in sorted(self.lives, key=lambda each: each.began_at):
            if life.node == name or life.identity == resource.machine:
                latest[life.identity] = life
        return any(
            _may_be(life, resource)
            for life in latest.values()
            if not (life.ended_at is not None and life.exact)
            and not any(life.identity == each or life.identity.startswith(f"{each} ") for each in self.ids)
        )


def _may_be(life: NodeLife, resource: MarkedResource) -> bool:
    """Return True if a life in the ledger may be that of a machine."""
    if resource.machine:
        return life.identity == resource.machine or life.identity.startswith(f"{resource.id} ")
    if resource.created is None:
        return True
    created = resource.created.timestamp()
    return created <= life.began_at + APART_S and (life.ended_at is None or created <= life.ended_at)


def _books(project: Project, stack: StackState) -> Books:
    from orch.runner.errors import LedgerUnusable, NewerLedger
    from orch.runner.ledger.ledger import open_ledger

    nodes = {str(each["name"]): each for each in stack.nodes}
    ids = {str(each["id"]) for each in stack.resources if each.get("id")}
    ids |= {str(each["machine"]) for each in nodes.values() if each.get("machine")}
    books = Books(frozenset(ids), nodes)
    if (file := project.local_ledger) is not None and not file.exists():
        return books
    try:
        with closing(open_ledger(project.ledger_url)) as ledger:
            return replace(
                books,
                lives=ledger.node_lives(project.name, fleets=[stack.name]),
                runs=list(_placed(ledger, stack.name)),
                ways=_ways(ledger, stack.name),
            )
    except (LedgerUnusable, NewerLedger):
        return replace(books, readable=False)


def _placed(ledger: Ledger, fleet: str) -> Iterator[tuple[str, Sequence[NodeState]]]:
    from orch.runner.errors import RunnerError
    from orch.runner.ledger.plans import plan_of

    for row in ledger.placed_on(fleet):
        try:
            yield run_words(row.name, row.submitted_by), plan_of(row).nodes
        except RunnerError:  # the plan of another version: the names are there
            access = OtherAccess(kind="unknown")
            nodes = [NodeState(index=0, name=each.node, access=access) for each in row.ranks]
            yield run_words(row.name, row.submitted_by), nodes


def _ways(ledger: Ledger, fleet: str) -> dict[str, NodeState]:
    from orch.runner.errors import RunnerError
    from orch.runner.ledger.plans import plan_of

    found: dict[str, NodeState] = {}
    for row in ledger.listed(ended=True, fleets=[fleet], limit=RUNS).rows:
        try:
            for node in plan_of(row).nodes:
                found.setdefault(node.name, node)
        except RunnerError:
            continue
    return found


# -- what stays


@dataclass(frozen=True)
class Judged:
    """Resources that stay, by id, with the reason; `occupied`: those with runs on them."""

    kept: Mapping[str, str]
    occupied: Mapping[str, str]


def judged(
    stack: StackState, resources: Sequence[MarkedResource], call: Call | None, *, alone: bool = False
) -> Judged:
    """Judge what bears the marks of a stack and is not recorded. `call`, `alone`: as in Evidence.

    What is no machine stays as long as a machine of its mark does: that may need it. Asks nodes."""
    if not resources:
        return Judged({}, {})
    machines = {each: name for each in resources if (name := machine_name(each)) is not None}
    books, recorded = _books(stack.project, stack), stack.recorded or {}
    claims = _claims(stack.project, books, machines)
    older = call is None and _is_older(stack)
    known: dict[MarkedResource, Evidence] = {}
    for each in resources:
        # No run is on what is no machine, and no ledger has it.
        evidence = Evidence(all_runs_known=True, created=each.created, updated=_updated(recorded))
        if (name := machines.get(each)) is not None:
            evidence = replace(
                evidence,
                runs=books.runs_on(name, each),
                claims=claims.get(each.id),
                finished=books.had(name, each),
                all_runs_known=stack.project.knows_all_runs,
                readable=books.readable,
            )
        known[each] = replace(evidence, call=call, alone=alone, older=older)
    kept = {each.id: why for each, evidence in known.items() if (why := why_kept(evidence)) is not None}
    marks = {each.mark for each in machines if each.id in kept}
    beside = {each.id: BESIDE for each in resources if each.mark in marks and each not in machines}
    users = {each.id: who for each, evidence in known.items() if (who := occupied(evidence)) is not None}
    return Judged({**beside, **kept}, users)


def _claims(
    project: Project, books: Books, machines: Mapping[MarkedResource, str]
) -> Mapping[str, tuple[str, ...]]:
    """The runs that machines report, by id: those that answer, where a run of the ledger knows the way."""
    from orch.runner.connect import open_connector
    from orch.runner.node.status import claims_of

    ways = {
        each.id: way
        for each, name in machines.items()
        if (way := books.ways.get(name)) is not None and way.machine in (None, each.machine or each.id)
    }
    if not ways:
        return {}
    with closing(open_connector(deadline_s=ANSWER_S, tunnels=tunnels(project))) as connector:
        answers = claims_of(list(ways.values()), connector, deadline_s=ANSWER_S)
    return {
        each: tuple(run_words(claim.run, claim.by) for claim in answer)
        for each, answer in zip(ways, answers, strict=True)
        if answer is not None
    }


def delete_orphans(
    stack: StackState, snapshot: StackSnapshot, call: Call | None, listener: Listener
) -> Iterator[str]:
    """Delete what a call left that ended half way: what was deleted, each as it goes. What else is not
    recorded stays, and a note tells it. `call`: None where the state is an older copy; nothing goes then.

    Raises what asking the cloud raises."""
    if not orphans.may_have_orphans(snapshot):
        return
    own = marks_in(each.inputs for each in (*snapshot.recorded, *snapshot.unfinished))
    marks = frozenset((*marks_of(stack), *own))
    found = [
        each
        for each in orphans.marked_of(stack.project.name, replace(snapshot, marks=marks))
        if each.mark in marks and not {each.id, each.part_of} & snapshot.ids and not each.holds_data
    ]
    kept = judged(stack, found, call, alone=True).kept
    for each in found:
        if each.id in kept and machine_name(each) is not None:
            listener(Left(f"warning: {left(each, kept[each.id])}", lasts=True))
    if call is None:
        return
    unfinished = () if kept else snapshot.unfinished
    yield from orphans.delete_orphans(
        replace(snapshot, unfinished=unfinished, kept=frozenset(kept), call=call)
    )


def left(resource: MarkedResource, why: str) -> str:
    """Return a message on what stays, why, and what deletes it."""
    what = f"{resource.kind} {resource.name} ({resource.id})"
    return f"not recorded, and not deleted: {what}: {why}; `orch gc --stack {resource.mark}` deletes it"
