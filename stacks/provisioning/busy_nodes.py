"""Keeps nodes while runs are on them: which nodes a plan removes, whose runs are on them, the refusal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orch.components.deployment import Deployment
from orch.spec.deletable import run_words
from orch.spec.errors import OrchError
from orch.spec.state import machine_of
from orch.stacks.errors import Conflict
from orch.stacks.events.changes import changes
from orch.stacks.events.notation import fold
from orch.stacks.plans.headline import FleetRecord
from orch.stacks.plans.plan import lost_nodes
from orch.stacks.plans.program import program
from orch.stacks.project.project import Project
from orch.stacks.provisioning.gang import parallel
from orch.stacks.pulumi.operation import EngineCall, engine
from orch.stacks.pulumi.progress import Listener, Note
from orch.stacks.record.fleets import fleet_of
from orch.stacks.record.volume_attaching import project_volumes
from orch.stacks.secrets.values import tunnels
from orch.stacks.stack.state import StackState

if TYPE_CHECKING:
    from orch.runner.ledger.ledger import Ledger
    from orch.runner.ledger.records import RunRow
    from orch.runner.node_api.claims import Claim
    from orch.runner.node_api.connector import Connector

ANSWER_S = 5.0
"""How long to wait for a node's answer; without one, the ledger alone decides."""


@dataclass(frozen=True)
class Occupant:
    """A run on one node, or, where `node` is empty, one that waits for nodes of the fleet. `own`: this
    project's ledger has it; else only the node reports it. `gpus`: those of the whole run, on all
    of its nodes; None where only the node reports it. `ended`: the ledger has it as ended, and the node still
    has something of it, for Docker there does not answer. `number`: its id in this project's ledger."""

    node: str
    run: str
    by: str
    own: bool
    gpus: int | None = None
    ended: bool = False
    number: int | None = None

    def __str__(self) -> str:
        after = ", which has ended and is not cleared away" if self.ended else ""
        return f"{run_words(self.run, self.by)}{after}"


def refuse_replaced(stack: StackState, compiled: Deployment, before: FleetRecord, listener: Listener) -> None:
    """Refuse an `up` that would remove or replace nodes while runs are on them.

    Only the engine knows which nodes are replaced: it makes a preview when a run of this project is on a node
    that stays, when the ledger cannot be read, and when the nodes' traits differ. Raises Conflict,
    LedgerUnusable when nodes go and their runs are unknown, and what a preview raises.
    """
    if not before.nodes:
        return
    leaving = lost_nodes(before.nodes, compiled)
    staying = set(before.nodes) - leaving
    if staying and (_differ(before, compiled) or _may_have_runs(stack, staying)):
        run = EngineCall(lambda _: None, planning=True)
        engine(stack, ["preview", *parallel(compiled)], run, program(compiled))
        leaving = lost_nodes(before.nodes, compiled, changes(run.events))
    refuse_occupied(stack, leaving, listener)


def refuse_occupied(
    stack: StackState, nodes: Collection[str], listener: Listener, *, whole: bool = False
) -> None:
    """Refuse to remove `nodes` of a fleet while runs are on them: active runs of this project's ledger, and
    runs that hold blocks of the nodes, as the nodes report. `whole`: the fleet goes, so runs that wait for
    nodes of it are in the way too. Changes nothing but the status of ended runs.

    Raises Conflict naming the runs, LedgerUnusable.
    """
    on_nodes = occupants(stack, nodes, listener)
    if whole:
        on_nodes = (*on_nodes, *_in_pods(stack))
    waiting = _waiting(stack) if whole else ()
    if not on_nodes and not waiting:
        return
    summary = f"runs are on nodes of the fleet {stack.name} that would go"
    if not on_nodes:
        summary = f"runs wait for nodes of the fleet {stack.name}, which would go"
    raise Conflict(
        f"{summary}: {', '.join(_names((*on_nodes, *waiting)))}",
        detail="\n".join([*by_run(on_nodes), *(f"no node yet: {each}, which waits" for each in waiting)]),
        hint=_hint(stack.project, (*on_nodes, *waiting), pods=_queue_of(stack) is not None),
        code="ORCH386",
    )


def by_run(on_nodes: Iterable[Occupant]) -> list[str]:
    """`lab-[1-2]: run train of ada@desk`, a line for each run."""
    of_run: dict[str, list[str]] = {}
    for each in on_nodes:
        of_run.setdefault(str(each), []).append(each.node)
    return [f"{fold(dict.fromkeys(names))}: {run}" for run, names in of_run.items()]


def _names(on_nodes: Iterable[Occupant]) -> list[str]:
    return list(dict.fromkeys(each.run or "?" for each in on_nodes))


def _hint(project: Project, on_nodes: Sequence[Occupant], *, pods: bool = False) -> str:
    from orch.runner.plan.run_names import as_argument

    rehearse = " --rehearse" if project.rehearsal else ""
    own = _names(each for each in on_nodes if each.own and not each.ended)
    theirs = [run for run in _names(each for each in on_nodes if not each.own) if run != "?"]
    ways = [f"`orch stop {as_argument(run)}{rehearse}`" for run in own]
    ways += [f"`orch stop {as_argument(run)}` where it was started" for run in theirs]
    first = f"end them with {' and '.join(ways)}" if ways else "wait for their end"
    if left := list(dict.fromkeys(each.node for each in on_nodes if each.ended)):
        mend = f"see to Docker of {fold(left)}: once it answers, what the ended run left is cleared away"
        first = f"{first}, and {mend}" if ways or theirs else mend
    forced = "removes the fleet, and leaves them their pods" if pods else "removes the nodes under them"
    return f"{first}; or `--force` {forced}"


def occupants(stack: StackState, nodes: Collection[str], listener: Listener) -> tuple[Occupant, ...]:
    """The runs on these nodes of a fleet, by ledger and by the nodes' own report. Raises LedgerUnusable."""
    if not nodes:
        return ()
    with _unknown_runs(f"are on {fold(sorted(nodes))}"):
        return _occupants(stack, frozenset(nodes), listener)


@contextmanager
def _unknown_runs(verb: str) -> Iterator[None]:
    """A ledger that the block cannot read says what nobody knows then: which runs `verb`."""
    from orch.runner.errors import LedgerUnusable, NewerLedger

    try:
        yield
    except (LedgerUnusable, NewerLedger) as error:
        unknown = f"so nobody knows which runs {verb}"
        raise type(error)(
            error.summary,
            where=error.where,
            detail=f"{error.detail}; {unknown}" if error.detail else unknown,
            hint=f"{error.hint}; or `--force` removes the nodes, whoever is on them"
            if error.hint
            else "make the ledger readable; or `--force` removes the nodes, whoever is on them",
            code=error.code,
        ) from error


def _occupants(stack: StackState, names: frozenset[str], listener: Listener) -> tuple[Occupant, ...]:
    from orch.runner.connect import open_connector
    from orch.runner.runs.lifecycle import RunnerContext, reconcile_once

    project, name = stack.project, stack.name
    with closing(open_connector(deadline_s=ANSWER_S, tunnels=tunnels(project))) as connector:
        own: list[Occupant] = []
        containers, left = set[str](), frozenset[str]()
        with _ledger(project) as ledger:
            if ledger is not None:
                machines = _machines(stack, names)
                # A run whose end nobody noticed would hold its nodes for ever, as one would whose node did
                # not answer then. A plan without the key asks no node and writes no row.
                if not project.keyless:
                    reconcile_once(
                        RunnerContext(project.dot, ledger, connector, volumes=project_volumes(project)),
                        [*(row for row, _ in _on(ledger, name, machines)), *ledger.uncollected(name)],
                    )
                left = frozenset().union(*map(_containers, ledger.uncollected(name)))
                for row, nodes in _on(ledger, name, machines):
                    gpus = _gpus(row)
                    own += [
                        Occupant(node, row.name, row.submitted_by, own=True, gpus=gpus, number=row.id)
                        for node in nodes
                    ]
                    containers |= _containers(row)
        theirs = [
            Occupant(node, claim.run, claim.by, own=claim.container in left, ended=claim.container in left)
            for node, claim in _claims(stack, names, connector, listener)
            if claim.container not in containers
        ]
    return (*own, *theirs)


def _in_pods(stack: StackState) -> tuple[Occupant, ...]:
    """The runs whose pods a fleet of a cluster has: no node of it stands for them. Raises LedgerUnusable."""
    queue = _queue_of(stack)
    if queue is None:
        return ()
    from orch.runner.connect import open_connector
    from orch.runner.runs.lifecycle import RunnerContext, reconcile_once

    project, mark = stack.project, queue.get("mark")
    with _unknown_runs(f"have pods of {stack.name}"), _ledger(project) as ledger:
        if ledger is None or not (rows := _with_pods(ledger, stack.name, mark)):
            return ()
        with closing(open_connector(deadline_s=ANSWER_S, tunnels=tunnels(project))) as connector:
            volumes = project_volumes(project)
            reconcile_once(RunnerContext(project.dot, ledger, connector, volumes=volumes), rows)
        return tuple(
            Occupant(rank.node, row.name, row.submitted_by, own=True, gpus=_gpus(row), number=row.id)
            for row in _with_pods(ledger, stack.name, mark)
            for rank in row.ranks
        )


def _queue_of(stack: StackState) -> Mapping[str, Any] | None:
    """Return the queue of the pods of a fleet's runs; None for a fleet with nodes of its own."""
    return (stack.outputs.get("fleet") or {}).get("queue")


def _with_pods(ledger: Ledger, fleet: str, mark: str | None) -> list[RunRow]:
    """The active runs of a fleet that have pods: another fleet of its name has another mark."""
    return [row for row in ledger.placed_on(fleet) if _mark(row) in (None, mark)]


def _mark(row: RunRow) -> str | None:
    """The mark of the project whose queue a run's pods came from; None where its plan does not say."""
    from orch.runner.errors import RunnerError
    from orch.runner.ledger.plans import plan_of

    try:
        return next((node.access.model_dump().get("mark") for node in plan_of(row).nodes), None)
    except RunnerError:
        return None


def _waiting(stack: StackState) -> tuple[Occupant, ...]:
    """The runs of this project that wait for nodes of a fleet: in line, or for their next attempt.

    Of a ledger that projects share, those that were last planned on a node that the fleet has. Raises
    LedgerUnusable."""
    from orch.runner.runs.arrays.choose import fold_waiting

    machines = set(_machines(stack, [node["name"] for node in stack.nodes]).values())
    with _unknown_runs(f"wait for nodes of {stack.name}"), _ledger(stack.project) as ledger:
        rows = [
            row
            for row in (ledger.runs(active_only=True) if ledger is not None else ())
            if (row.fleet, row.status) == (stack.name, "pending")
            and (stack.project.local_ledger is not None or machines.intersection(_nodes_of(row).values()))
        ]
    return tuple(Occupant("", row.name, row.submitted_by, own=True) for row in fold_waiting(rows))


def _claims(
    stack: StackState, names: frozenset[str], connector: Connector, listener: Listener
) -> Iterator[tuple[str, Claim]]:
    """The claims on blocks of the nodes, as the nodes report. A note names nodes that do not answer, and
    those that a plan without the key does not ask."""
    if stack.project.keyless:
        listener(Note(f"{fold(sorted(names))}: not asked; {_BY_LEDGER}"))
        return
    try:
        answers = answers_of(stack, names, connector)
    except OrchError as error:
        listener(Note(f"the nodes of {stack.name} cannot be asked ({error.summary}): {_BY_LEDGER}"))
        return
    for node, claims in answers.items():
        for claim in claims or ():
            yield node, claim
    if silent := [node for node, claims in answers.items() if claims is None]:
        listener(Note(f"{fold(silent)}: no answer; {_BY_LEDGER}"))


def answers_of(
    stack: StackState, names: Collection[str], connector: Connector
) -> Mapping[str, tuple[Claim, ...] | None]:
    """The claims on these nodes of a fleet, by node; None where one does not answer. Raises OrchError where
    the way to them is not known."""
    from orch.runner.node.status import claims_of

    requested = [node for node in stack.project.machines(fleet_of(stack)) if node.name in names]
    answers = claims_of(requested, connector, deadline_s=ANSWER_S)
    return {node.name: claims for node, claims in zip(requested, answers, strict=True)}


_BY_LEDGER = "which runs are there is known by this project's ledger alone"


@contextmanager
def _ledger(project: Project) -> Iterator[Ledger | None]:
    """The project's ledger; None when no run was ever recorded."""
    file = project.local_ledger
    if file is not None and not file.exists():
        yield None
        return
    from orch.runner.ledger.ledger import open_ledger

    with closing(open_ledger(project.ledger_url)) as ledger:
        yield ledger


def _may_have_runs(stack: StackState, names: Collection[str]) -> bool:
    """Return True if the ledger has active runs on any of the nodes, or cannot be read."""
    from orch.runner.errors import LedgerUnusable, NewerLedger

    try:
        with _ledger(stack.project) as ledger:
            return ledger is not None and any(_on(ledger, stack.name, _machines(stack, names)))
    except (LedgerUnusable, NewerLedger):
        return True


def _machines(stack: StackState, names: Collection[str]) -> dict[str, str]:
    """Recorded nodes by name, each with the identity of its machine."""
    return {node["name"]: machine_of(node) for node in stack.nodes if node["name"] in names}


def _on(ledger: Ledger, name: str, machines: Mapping[str, str]) -> Iterator[tuple[RunRow, tuple[str, ...]]]:
    """Active runs of the fleet that are on these nodes, each with its nodes.

    A run that waits for its next attempt is on none.
    A fleet that was removed and created again has other machines under the same names, and so has a fleet of
    another project in a shared ledger: the identity of the machine distinguishes them.
    """
    for row in ledger.placed_on(name):
        nodes = _nodes_of(row)
        on_these = tuple(
            node for node, machine in nodes.items() if node in machines and machine in (None, machines[node])
        )
        if on_these:
            yield row, on_these


def _nodes_of(row: RunRow) -> dict[str, str | None]:
    """The nodes of a run, each with the identity of its machine; None when its plan cannot be read."""
    from orch.runner.errors import RunnerError
    from orch.runner.ledger.plans import plan_of

    try:
        return {node.name: node.access.machine for node in plan_of(row).nodes}
    except RunnerError:
        return dict.fromkeys(rank.node for rank in row.ranks)


def _gpus(row: RunRow) -> int | None:
    """The GPUs of a run on all of its nodes; None when its plan cannot be read."""
    from orch.runner.errors import RunnerError
    from orch.runner.ledger.plans import plan_of

    try:
        ranks = plan_of(row).ranks
    except RunnerError:
        return None
    return sum(rank.node.gpus.count * rank.blocks // max(rank.node.blocks, 1) for rank in ranks)


def _containers(row: RunRow) -> set[str]:
    """The names of a run's containers, which its claims carry."""
    from orch.runner.errors import RunnerError
    from orch.runner.ledger.plans import plan_of

    try:
        plan = plan_of(row)
    except RunnerError:
        return set()
    return {plan.container(rank.rank) for rank in plan.ranks}


def _differ(before: FleetRecord, compiled: Deployment) -> bool:
    """Return True if any trait of the nodes changes."""
    old, new = before.traits, compiled.traits
    return any(old[trait] != new[trait] for trait in old.keys() & new.keys())
