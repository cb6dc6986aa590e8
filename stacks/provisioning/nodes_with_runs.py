"""Nodes that are containers of one run: they are made with it, and removed as soon as it has ended.

Their resources bear the mark of the making (`made_for`), and so do the nodes in the fleet's state and in the
plan of the run. By that they are removed: no file is needed for it, and no other run's nodes go with them.
A run is in the ledger only after its nodes are there; until then a file on this machine, locked by whoever
makes them, says that somebody is about to submit it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from orch.runner.connect import open_connector
from orch.runner.errors import RunnerError
from orch.runner.ledger.ledger import Ledger, open_ledger
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.private import private_folder
from orch.spec.deletable import Evidence, run_words, why_kept
from orch.spec.errors import OrchError
from orch.spec.models.backends import made_with_runs
from orch.spec.state import FleetState
from orch.stacks.engine.process import pause
from orch.stacks.errors import EngineFailed, StackLocked
from orch.stacks.events.notation import fold, name_of, parse_time
from orch.stacks.project.project import Project
from orch.stacks.provisioning.busy_nodes import ANSWER_S, answers_of
from orch.stacks.pulumi.operation import EngineCall, engine
from orch.stacks.pulumi.progress import Activity, ExpectedNodes, Listener, Note
from orch.stacks.pulumi.recovery import recover
from orch.stacks.record.node_accounts import accounted
from orch.stacks.secrets.values import tunnels
from orch.stacks.stack.locks import locks
from orch.stacks.stack.state import StackState

SUBMITTED_WITHIN_S = 3600.0
"""How long after nodes were asked for on another machine their run is to be in the ledger: their image is
pulled first."""

COLLECTED_WITHIN_S = 3600.0
"""How long nodes stay for what a run that has ended left on them, where they answer."""

RUNS = 200
"""How many ended runs of a fleet are looked at."""

LOCKED_PAUSE_S = 3.0
LOCKED_PATIENCE_S = 1800.0

Listening = Callable[[], AbstractContextManager[Listener]]
"""Opens what hears of the engine while that is at work."""

ClaimsOn = Callable[[StackState, Collection[str]], Mapping[str, tuple[str, ...]]]
"""Asks nodes of a fleet for the runs on them; those that do not answer are left out."""

_HELD: dict[str, int] = {}
"""The marks of nodes that this process makes, each with its locked file."""


def are_made_with_runs(state: FleetState) -> bool:
    return made_with_runs([state.backend])


def new_mark() -> str:
    return secrets.token_hex(6)


# -- who is about to submit a run


@contextmanager
def making(project: Project, mark: str | None) -> Iterator[None]:
    """Say that the block makes nodes of this mark, if any, and that their run comes afterwards: until
    `submitted`, `give_up`, or the end of this process. If it fails they are given up."""
    if mark is None:
        yield
        return
    file = os.open(_file(project, mark), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _HELD[mark] = file
    try:
        yield
    except BaseException:
        give_up(mark)
        raise


def submitted(project: Project, mark: str) -> None:
    """Their run is in the ledger."""
    _file(project, mark).unlink(missing_ok=True)
    give_up(mark)


@contextmanager
def given_back(project: Project, fleet: str, mark: str | None, listening: Listening) -> Iterator[None]:
    """Remove the nodes of a mark, if any, where the block fails: their run will not come."""
    try:
        yield
    except BaseException:
        if mark is not None:
            give_up(mark)
            with listening() as listener:
                try:
                    remove_unused(project, fleet, listener)
                except OrchError as error:
                    left = f"{error.summary}; `orch reconcile` removes what was made for the run"
                    listener(Note(f"warning: {left}", lasts=True))
        raise


@contextmanager
def until_submitted(project: Project, fleet: str, mark: str | None, listening: Listening) -> Iterator[None]:
    """The block submits the run that nodes of this mark, if any, were made for; where it fails, they go."""
    with given_back(project, fleet, mark, listening):
        yield
    if mark is not None:
        submitted(project, mark)


def give_up(mark: str) -> None:
    """No run of this process comes for nodes of this mark any more: whoever looks next may remove them."""
    if (file := _HELD.pop(mark, None)) is not None:
        os.close(file)


def _file(project: Project, mark: str) -> Path:
    return private_folder(project.dot / "making") / mark


def _maker(project: Project, mark: str) -> Literal["at work", "gone"] | None:
    """Return whether the process of this machine that makes nodes of this mark may still submit their run;
    None where another machine made them.

    The file of one whose maker is gone stays until its nodes are: a removal may fail, or be killed."""
    try:
        file = os.open(_file(project, mark), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "at work"
    finally:
        os.close(file)
    return "gone"


# -- what is removed


def make_way(project: Project, fleets: Iterable[FleetState], listening: Listening) -> bool:
    """Remove what these fleets have for runs that ended or never came: it is in the way of a run that needs
    nodes, also where a killed call has made only a part. Whether there was some."""
    removed = False
    for fleet in fleets:
        if are_made_with_runs(fleet):
            with listening() as listener:
                done = remove_unused(project, fleet.stack, listener)
                removed |= bool(done.removed)
                for text in kept_words(fleet.stack, done):
                    listener(Note(text, lasts=True))
    return removed


def kept_words(fleet: str, done: Removal) -> Iterator[str]:
    """Yield why nodes of unknown runs stay and what removes them, a line per reason."""
    reasons: dict[str, list[str]] = {}
    for node, why in done.kept.items():
        reasons.setdefault(why, []).append(node)
    for why, nodes in reasons.items():
        ways = f"stop its run where it was started, or `orch down {fleet}`"
        yield f"{fold(sorted(nodes))} stays: {why}; {ways} removes it"


def remove_unused(project: Project, name: str, listener: Listener) -> Removal:
    """Remove the nodes of a fleet that were made for runs which have ended, or never came. Those of runs that
    the ledger does not know stay, unless it has everybody's and the nodes report no run.

    Waits for whoever changes the fleet's stack. Raises StackError, Conflict, Interrupted."""
    if not has_marked(StackState(project, name)):
        return Removal()
    patience = time.monotonic() + LOCKED_PATIENCE_S
    while True:
        try:
            return _remove_unused(project, name, listener)
        except StackLocked:
            if time.monotonic() >= patience:
                raise
        listener(Activity(f"waiting for whoever changes the fleet {name}, to remove nodes of it"))
        while any(not lock.dead for lock in locks(project, name)):
            pause(LOCKED_PAUSE_S)
        pause(0.2)


def _remove_unused(project: Project, name: str, listener: Listener) -> Removal:
    stack = StackState(project, name)
    with closing(open_ledger(project.ledger_url)) as ledger:
        marks, kept = unused(project, ledger, stack, claims_on)
    bearing = _marked(stack)

    def nodes_of(marks: Collection[str]) -> Iterator[tuple[str, str]]:
        """Each node with its mark; what stands for one that never was."""
        names = {name_of(urn): mark for urn, mark in bearing.items() if mark in marks}
        found = {node: names[maker] for node, maker in stack.makers.items() if maker in names}
        yield from (found or names).items()

    left = {node: kept[mark] for node, mark in nodes_of(kept)}
    if not marks:
        return Removal(kept=left)
    project.prepare()
    recover(stack, listener)
    bearing = _marked(stack)
    gone = tuple(sorted(node for node, _ in nodes_of(marks)))
    listener(ExpectedNodes(frozenset(name_of(urn) for urn, mark in bearing.items() if mark in marks)))
    listener(Activity(f"removing what was made for a run on the fleet {name}"))
    remove_marked(stack, marks, listener)
    return Removal(gone, left)


def remove_marked(stack: StackState, marks: Collection[str], listener: Listener) -> EngineCall:
    """Remove what of a stack bears these marks; the engine's call, which tells what went.

    Raises StackError, Interrupted."""
    urns = [urn for urn, mark in _marked(stack).items() if mark in marks]
    try:
        call = _destroy(stack, urns, listener)
    except EngineFailed:
        stack.invalidate()
        left = [urn for urn in urns if urn in _marked(stack)]
        if len(left) == len(urns):
            raise
        # The engine's refresh found that some are gone, and then no targets: now it has forgotten them.
        call = _destroy(stack, left, listener)
    for mark in marks:
        submitted(stack.project, mark)
    return call


def _destroy(stack: StackState, urns: Sequence[str], listener: Listener) -> EngineCall:
    call = EngineCall(listener, planning=False)
    if urns:
        with accounted(stack, listener, verb="reconcile") as account:
            targets = [word for urn in urns for word in ("--target", urn)]
            engine(stack, ["destroy", "--yes", "--skip-preview", *targets], call)
            account.call = call
    return call


@dataclass(frozen=True)
class Removal:
    """Result of removing nodes that no run needs: names of the removed nodes, and by node why others of
    unknown runs stay."""

    removed: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict[str, str])


def unused(
    project: Project, ledger: Ledger, stack: StackState, claims_on: ClaimsOn
) -> tuple[set[str], Mapping[str, str]]:
    """Return the marks of a stack's resources that no run needs; and of those that the ledger does not know,
    why they stay. `claims_on` asks nodes."""
    created = {mark: _created(stack, urn) for urn, mark in _marked(stack).items()}
    if not created:
        return set(), {}
    # Before the ledger is read: whoever made them may submit their run, and end, in between.
    makers = {mark: _maker(project, mark) for mark in created}
    using, ended = _marks_of_runs(ledger, stack.name)
    unknown = {
        mark
        for mark, at in created.items()
        if mark not in using | ended and makers[mark] is None and not _is_young(at)
    }
    nodes = {str(node["name"]): str(node["made_for"]) for node in stack.nodes if node.get("made_for")}
    asked = [node for node, mark in nodes.items() if mark in unknown] if project.knows_all_runs else ()
    claims = claims_on(stack, asked)
    kept: dict[str, str] = {}
    for mark in created.keys() - using:
        own = [node for node, each in nodes.items() if each == mark]
        known = Evidence(
            claims=_joined([claims.get(node) for node in own]),
            over=mark in ended or makers[mark] == "gone",
            awaited=makers[mark] == "at work" or (makers[mark] is None and _is_young(created[mark])),
            recorded=True,
            finished=bool(own),
            all_runs_known=project.knows_all_runs,
        )
        if (why := why_kept(known)) is not None:
            kept[mark] = why
    return created.keys() - using - kept.keys(), {mark: kept[mark] for mark in unknown & kept.keys()}


def claims_on(stack: StackState, nodes: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """The runs that nodes of a fleet report, in words, by node; without those that do not answer."""
    if not nodes:
        return {}
    try:
        with closing(open_connector(deadline_s=ANSWER_S, tunnels=tunnels(stack.project))) as connector:
            answers = answers_of(stack, nodes, connector)
    except OrchError:
        return {}
    return {
        node: tuple(run_words(claim.run, claim.by) for claim in claims)
        for node, claims in answers.items()
        if claims is not None
    }


def _joined(claims: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """The claims on several nodes; None where one of them cannot be asked and no other has any."""
    found = tuple(each for one in claims for each in one or ())
    return None if None in claims and not found else found


def _is_young(created: float) -> bool:
    return time.time() - created < SUBMITTED_WITHIN_S


def has_marked(stack: StackState) -> bool:
    """Return True if anything of a stack was created for a run."""
    return bool(_marked(stack))


def _marked(stack: StackState) -> Mapping[str, str]:
    """Urn -> the mark of the making, of the resources that bear one."""
    found = ((str(each["urn"]), (each.get("inputs") or {}).get("made_for")) for each in stack.resources)
    return {urn: str(mark) for urn, mark in found if mark}


def _created(stack: StackState, urn: str) -> float:
    text = next((each.get("created") for each in stack.resources if each["urn"] == urn), None)
    at = parse_time(text)
    return at.timestamp() if at is not None else time.time()


def _marks_of_runs(ledger: Ledger, fleet: str) -> tuple[set[str], set[str]]:
    """The marks of nodes that runs have, and of those that runs had."""
    using = {mark for row in ledger.placed_on(fleet) for mark in _marks(row, row.plan)}
    had = set[str]()
    for row in ledger.listed(ended=True, fleets=[fleet], limit=RUNS).rows:
        marks = set(_marks(row, row.plan))
        had |= marks.union(*(_marks(row, each.plan) for each in row.attempts))
        since = row.now - (row.finished_at or row.now)
        if since < COLLECTED_WITHIN_S and any(
            not rank.collected and rank.silent_since is None for rank in row.ranks
        ):
            using |= marks
    return using, had


def _marks(row: RunRow, plan: str) -> Iterator[str]:
    with suppress(RunnerError):
        yield from filter(None, (rank.node.made_for for rank in plan_of(replace(row, plan=plan)).ranks))
