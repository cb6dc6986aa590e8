"""The lives of a project's nodes in its ledger: written whenever a stack has changed, or is looked at.

What cannot be written keeps nothing from being done: a warning tells it, and the next look makes up for it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from orch.components.lifetime import ends_of
from orch.components.request import Spent
from orch.spec.errors import OrchError
from orch.spec.models import Fleet
from orch.spec.state import OF_THE_USER, hourly_price, machine_of
from orch.stacks.events.changes import changes
from orch.stacks.events.notation import fold, name_of, parse_time
from orch.stacks.project.project import Project, ledger_scope
from orch.stacks.pulumi.operation import EngineCall
from orch.stacks.pulumi.progress import Listener, Note
from orch.stacks.record.change_log import logged
from orch.stacks.record.fleets import documents_of
from orch.stacks.record.node_records import NodeRecord, node_records
from orch.stacks.stack.state import StackState, stacks

if TYPE_CHECKING:
    from orch.runner.ledger.history.node_lives import Look, PresentNode
    from orch.runner.ledger.ledger import Ledger


@dataclass
class Account:
    """Context in which a change of a fleet's nodes is recorded.

    `call`: the engine call that made it, once that has ended: nodes that it deleted ended now, others that
    are gone were found gone. `emptied`: no node is left.
    """

    call: EngineCall | None = None
    emptied: bool = False


@contextmanager
def accounted(
    stack: StackState,
    listener: Listener,
    tags: Mapping[str, str] | None = None,
    *,
    verb: str,
    ended: Collection[str] = (),
    only: Collection[str] = (),
) -> Iterator[Account]:
    """Record which nodes are there once the block has changed a fleet's stack, however it ends; nobody waits
    any more for what runs have left on machines that are gone. The change is logged as one of `verb`.

    `tags`: those of the fleet, None where the block does not bring its file up. `ended`: nodes that had ended
    themselves before. `only`: the nodes that the block changes, where those are not all.
    """
    makers, ends = stack.makers, ends_of(stack.outputs.get("pins") or {})
    machines = _machines(stack)
    account = Account()
    try:
        of = f"nodes {fold(only)} of " if only else ""
        with logged(stack.project, verb, f"{of}fleet {stack.name}", listener) as outcome:
            yield account
            if account.call is not None:
                outcome.made(changes(account.call.events))
    finally:
        deleted = _deleted_by(account.call) if account.call is not None else frozenset[str]()
        removed = frozenset(node for node, maker in makers.items() if maker in deleted and node not in ended)
        removed |= deleted & {bastion_of(stack.name)}
        try:
            look = _look(stack, tags, removed=removed, ends=ends, emptied=account.emptied)
            with _ledger(stack.project) as ledger:
                ledger.record_nodes(stack.project.name, ledger_scope(stack.project), look)
                _forget(ledger, stack.name, machines - (set() if account.emptied else _machines(stack)))
        except OrchError as error:
            listener(Note(f"warning: {_unrecorded(stack.name, error)}"))


def _machines(stack: StackState) -> frozenset[str]:
    """The machines of a fleet's nodes, but for servers: those go on when a fleet no longer has them."""
    servers = (stack.outputs.get("fleet") or {}).get("backend") == "ssh"
    return frozenset() if servers else frozenset(map(machine_of, stack.nodes))


def _forget(ledger: Ledger, fleet: str, gone: Collection[str]) -> None:
    left = ledger.uncollected(fleet) if gone else ()
    if left:
        from orch.runner.runs.lifecycle import forget_machines

        forget_machines(ledger, left, gone)


def _deleted_by(call: EngineCall) -> frozenset[str]:
    """Names of the resources that an engine call deleted: what its refresh found gone is not among them."""
    begun = (event.get("resourcePreEvent") for event in call.events)
    steps = (each["metadata"] for each in begun if each is not None)
    return frozenset(name_of(each["urn"]) for each in steps if each["op"] in ("delete", "delete-replaced"))


@dataclass
class Recorded:
    """Result of recording all fleets of a project: the end of each fleet's `ttl`, if it has one, and problems
    of fleets that could not be read."""

    ends: dict[str, float] = field(default_factory=dict[str, float])
    problems: list[str] = field(default_factory=list[str])


def record_all(project: Project, ledger: Ledger, ended: Callable[[StackState], Collection[str]]) -> Recorded:
    """Record which nodes the fleets of a project have: also what a `pulumi` by hand changed, and fleets that
    an earlier version brought up.

    `ended` tells which of a fleet's recorded nodes ended themselves. Raises LedgerUnusable.
    """
    from orch.runner.errors import LedgerReadOnly

    recorded, own = Recorded(), ledger_scope(project)
    open_fleets = ledger.fleets_with_nodes(project.name, own)
    try:
        names = {name for name in stacks(project) if "." not in name}
        tags = tags_by_fleet(project)
    except OrchError as error:
        recorded.problems.append(_unrecorded(", ".join(sorted(open_fleets)) or "the project", error))
        return recorded
    for name in sorted(names | open_fleets):
        stack = StackState(project, name)
        try:
            gone = ended(stack) if name in names else ()
            look = _look(stack, None, gone=gone, other_tags=tags.get(name, {}))
        except OrchError as error:
            recorded.problems.append(_unrecorded(name, error))
            continue
        if look.ends is not None:
            recorded.ends[name] = look.ends
        if look.present or name in open_fleets:
            try:
                ledger.record_nodes(project.name, own, look)
            except LedgerReadOnly as error:  # what others recorded can be told all the same
                recorded.problems.append(_unrecorded(name, error))
    return recorded


def spent_by(stack: StackState) -> Spent:
    """Return the cost of a fleet's nodes so far, including those that exist now. Writes nothing."""
    from orch.runner import costs
    from orch.runner.ledger.history.node_lives import compare

    project = stack.project
    try:
        look = _look(stack, None)
        if project.local_ledger is not None and not project.local_ledger.exists():
            now = time.time()
            amounts = costs.spent(compare((), look, now).lives, now)
        else:
            with _ledger(project) as ledger:
                lives = ledger.compared_nodes(project.name, ledger_scope(project), look)
                amounts = costs.spent(lives, ledger.now())
    except OrchError as error:
        return Spent(None, problem=error.summary)
    return Spent(amounts.dollars, amounts.unpriced_node_s / 3600)


def tags_by_fleet(project: Project) -> dict[str, dict[str, str]]:
    """The tags of the fleets that the project's files describe."""
    found = documents_of(project.root, Fleet, "fleet")
    return {fleet.name: fleet_tags(project, fleet) for _, fleet in found}


def fleet_tags(project: Project, fleet: Fleet) -> dict[str, str]:
    return {**fleet.tags, **project.tags}


@contextmanager
def _ledger(project: Project) -> Iterator[Ledger]:
    from orch.runner.ledger.ledger import open_ledger

    with closing(open_ledger(project.ledger_url)) as ledger:
        yield ledger


def _unrecorded(fleet: str, error: OrchError) -> str:
    detail = f" ({error.detail})" if error.detail else ""
    return f"since when the nodes of {fleet} are there is not recorded: {error.summary}{detail}"


def _look(
    stack: StackState,
    tags: Mapping[str, str] | None,
    *,
    removed: Collection[str] = (),
    gone: Collection[str] = (),
    ends: int | None = None,
    emptied: bool = False,
    other_tags: Mapping[str, str] | None = None,
) -> Look:
    """A look at a fleet by its stack. `gone`: nodes that it records, and that are there no longer."""
    from orch.runner.ledger.history.node_lives import Look

    present = () if emptied else tuple(each for each in present_nodes(stack) if each.node not in gone)
    if ends is None and not emptied:
        ends = ends_of(stack.outputs.get("pins") or {})
    return Look(stack.name, present, tags, other_tags or {}, removed, ends)


def present_nodes(stack: StackState) -> tuple[PresentNode, ...]:
    """The nodes that a stack records, and the machine that it has beside them. Of nodes of an `up` that was
    not finished no price is known."""
    fleet: dict[str, Any] = stack.outputs.get("fleet") or {}
    backend = str(fleet.get("backend", ""))
    records = node_records(stack.recorded)
    counted = not (fleet.get("simulated") and backend in OF_THE_USER)
    nodes = [_recorded_node(node, backend, records[node["name"]], counted=counted) for node in stack.nodes]
    known = {each.node for each in nodes} | {node.get("made_by") for node in stack.nodes}
    beside, others = bastion_of(stack.name), stack.node_names - known
    for each in stack.resources:
        name = name_of(each["urn"])
        if not each.get("id") or each.get("delete") or name not in (beside, *others):
            continue
        if name == beside:
            price = fleet.get("beside_hourly")
            node = _bare_node(name, each, None if price is None else float(price))
            nodes.append(replace(node, kind="beside"))
        else:
            nodes.append(_bare_node(name, each, None))
        others, beside = others - {name}, "" if name == beside else beside
    return tuple(nodes)


def _recorded_node(
    node: Mapping[str, Any], backend: str, record: NodeRecord, *, counted: bool
) -> PresentNode:
    """A node of a fleet's outputs. `counted`: its GPUs are there: local nodes may pretend some."""
    from orch.runner.ledger.history.node_lives import PresentNode

    created = None if record.created is None else record.created.timestamp()
    market = "spot" if record.spot else "reserved" if node.get("reservation") else "on-demand"
    return PresentNode(
        str(node["name"]),
        _identity(node, record.id, created),
        backend,
        "own" if backend in OF_THE_USER else market,
        instance_type=node.get("instance_type"),
        gpus=int((node.get("gpus") or {}).get("count") or 0) if counted else 0,
        price_hourly=hourly_price(backend, node.get("price_hourly")),
        created=created,
    )


def _bare_node(name: str, resource: Mapping[str, Any], price: float | None) -> PresentNode:
    """A machine of which the stack has the resource alone."""
    from orch.runner.ledger.history.node_lives import PresentNode

    moment = parse_time(resource.get("created"))
    created = None if moment is None else moment.timestamp()
    package, _, rest = str(resource["type"]).partition(":")
    backend = rest.partition(":")[0] if package == "orch" else package
    own = backend in OF_THE_USER
    return PresentNode(
        name,
        _identity({}, str(resource["id"]), created),
        backend,
        "own" if own else "on-demand",
        price_hourly=hourly_price(backend, price),
        created=created,
    )


def bastion_of(fleet: str) -> str:
    """The name of the machine that clouds' fleets have beside their nodes."""
    return f"{fleet}-bastion"


def _identity(node: Mapping[str, Any], resource: str | None, created: float | None) -> str:
    """Return the identity of a machine among others of its name: the cloud's own number of it, else the id of
    its resource, which may be derived from its name."""
    if node.get("machine"):
        return str(node["machine"])
    if resource is None:
        return hashlib.sha256(machine_of(node).encode()).hexdigest()[:32]
    words = resource if created is None else f"{resource} {created:.0f}"
    return words if len(words) <= 200 else hashlib.sha256(words.encode()).hexdigest()
