"""What a rotation of SSH keys comes to, and what keeps it from beginning. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from orch.runner.hosts import authorized_keys
from orch.runner.ledger.changes import Change, Changes
from orch.runner.node_api.connector import Completed, Connector, fan_out
from orch.spec.errors import ExitCode
from orch.spec.state import FleetState, NodeState
from orch.spec.suggest import counted, few
from orch.stacks.errors import Conflict, StackError
from orch.stacks.events.notation import fold
from orch.stacks.plans.plan import Plan
from orch.stacks.plans.request import content_of, not_brought_up, request_of
from orch.stacks.project.project import Project, ledger_scope
from orch.stacks.provisioning import operations
from orch.stacks.pulumi.progress import Activity, Listener
from orch.stacks.record.fleets import fleet_of, known_fleets, not_up
from orch.stacks.record.node_accounts import bastion_of
from orch.stacks.record.node_records import bastion_machine
from orch.stacks.secrets.key_pairs import made_with_key, public_key
from orch.stacks.stack.leases import refuse_leased
from orch.stacks.stack.state import StackState

VERB = "rotate ssh-keys"

LOOK_S = 15.0
"""How long a node may take to answer."""

_EARLIER = 20

Connect = Callable[[], Connector]
"""Makes a connector to the nodes of the project; who asks for it closes it."""


class KeyRotationError(StackError):
    """Keys were not rotated, or not on all nodes."""

    exit_code = ExitCode.HOSTS
    detail_is_ours = True


class NotOurKeys(StackError):
    """The fleet has no keys that could be rotated."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class FleetKeys:
    """A fleet whose keys are rotated. `nodes`: those that get the new one; `without`: those that keep the old
    one. `changes`: resources of which new nodes are made. `bastion`: it has one, which is made anew.
    `content`: of its file, where that is brought up with the key."""

    name: str
    nodes: tuple[str, ...]
    without: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    bastion: bool = False
    content: str = ""


@dataclass(frozen=True)
class KeyPlan:
    """The fleets, and those that are left alone, each with the reason. `usual_s`: what earlier ones took."""

    fleets: tuple[FleetKeys, ...]
    left_alone: tuple[tuple[str, str], ...] = ()
    usual_s: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.fleets)

    @property
    def subject(self) -> str:
        return f"{'fleet' if len(self.fleets) == 1 else 'fleets'} {', '.join(self.names)}"

    @property
    def holds(self) -> tuple[str, ...]:
        """Names that no other change may hold: a node is not replaced or drained meanwhile."""
        return tuple(
            f"{each.name}/{word}" for each in self.fleets for word in ("keys", *each.nodes, *each.without)
        )

    def as_json(self) -> dict[str, Any]:
        fleets = [asdict(each) for each in self.fleets]
        left = [{"name": name, "why": why} for name, why in self.left_alone]
        return {"fleets": fleets, "left_alone": left, "usual_s": self.usual_s}

    def text(self) -> str:
        return json.dumps(self.as_json())

    @classmethod
    def parse(cls, text: str) -> KeyPlan:
        data = json.loads(text)
        fleets = tuple(
            FleetKeys(
                each["name"],
                *(tuple(each[key]) for key in ("nodes", "without", "changes")),
                bastion=each["bastion"],
                content=each.get("content", ""),
            )
            for each in data["fleets"]
        )
        left = tuple((each["name"], each["why"]) for each in data["left_alone"])
        return cls(fleets, left, data["usual_s"])

    def leaving_out(self, nodes: Collection[str]) -> KeyPlan:
        """The same, with more nodes that keep the old key."""

        def one(fleet: FleetKeys) -> FleetKeys:
            out = tuple(each for each in fleet.nodes if each in nodes)
            kept = tuple(each for each in fleet.nodes if each not in nodes)
            return replace(fleet, nodes=kept, without=(*fleet.without, *out))

        return replace(self, fleets=tuple(one(each) for each in self.fleets))

    def lines(self) -> list[str]:
        """The plan for people."""
        shown: list[str] = []
        for each in self.fleets:
            nodes = f"{counted(len(each.nodes), 'node')}, {fold(each.nodes)}" if each.nodes else "no node"
            shown.append(f"fleet {each.name}: a new key pair for {nodes}")
            if each.changes:
                shown.append(f"  what new nodes are made with changes: {few(each.changes, 5)}")
            if each.bastion:
                shown.append(
                    "  its bastion is made anew: nobody has a shell there; connections through it end, and "
                    "are made again"
                )
            if each.without:
                shown.append(
                    f"  {fold(each.without)} keeps the old key and cannot be logged in to from then on; "
                    f"`orch node replace {fold(each.without)}` ends that"
                )
        shown += [f"left alone: fleet {name}: {why}" for name, why in self.left_alone]
        if self.fleets:
            took = "a minute or two" if self.usual_s is None else f"about {max(1, round(self.usual_s))} s"
            also = "" if any(each.bastion for each in self.fleets) else ", and no connection ends"
            shown.append(f"no run stops{also}; takes {took}")
        return shown


THEIRS = "its hosts are opened by keys of their users, which orch neither makes nor changes"


def plan_keys(
    project: Project,
    names: Sequence[str],
    without: Collection[str],
    connect: Connect,
    listener: Listener,
    *,
    usual: float | None = None,
) -> KeyPlan:
    """The plan for these fleets, or for all. Looks at every node, and has the engine compare fleets of
    clouds.

    Raises NoSuchFleet, NotOurKeys, KeyRotationError (nodes that do not answer), Conflict (a file that is not
    brought up, pods), Leased, StackError.
    """
    known = known_fleets(project)
    for name in names:
        if name not in known:
            raise not_up(project, name)
    fleets: list[FleetKeys] = []
    left: list[tuple[str, str]] = []
    for name in names or known:
        stack = known[name]
        refuse_leased(stack)
        if public_key(stack.recorded) is not None:
            fleets.append(_fleet(stack, fleet_of(stack), without, connect, listener))
        elif name in names:
            raise NotOurKeys(
                f"the keys of the fleet {name} are not orch's",
                detail=THEIRS,
                hint="put the new public key into the hosts' authorized_keys, set `identity_file` to the new "
                "key, then `orch up` the file",
                code="ORCH438",
            )
        else:
            left.append((name, THEIRS))
    return KeyPlan(tuple(fleets), tuple(left), usual)


def _fleet(
    stack: StackState, state: FleetState, without: Collection[str], connect: Connect, listener: Listener
) -> FleetKeys:
    name = stack.name
    if pods := [each.name for each in state.nodes if each.is_pod]:
        raise Conflict(
            f"nodes of the fleet {name} are pods: {fold(pods)}",
            detail="a pod takes its keys from its first command, again at each start",
            hint="they go with their runs: rotate the keys when these have ended",
            code="ORCH439",
        )
    bastion = bool(bastion_machine(stack.recorded, bastion_of(name)))
    if bastion:
        operations.refuse_protected(stack)
    chosen = [each for each in state.nodes if each.name not in without]
    key = public_key(stack.recorded) or ""
    listener(Activity(f"looking at the nodes of the fleet {name}"))
    connector = connect()
    try:
        refuse_unfit(name, look_at(with_machines(stack.project, chosen, state), connector, key))
    finally:
        connector.close()
    changes = made_with_key(stack.recorded)
    # What new nodes are made with is brought up with the key, and other changes of the file would be with it.
    if changes and (plan := planned(stack, listener)).pending:
        request = request_of(stack.project, name)
        raise not_brought_up(request, plan.in_words, "its keys are not rotated, nothing was changed")
    kept = tuple(each.name for each in state.nodes if each.name in without)
    content = content_of(request_of(stack.project, name)) if changes else ""
    return FleetKeys(name, tuple(each.name for each in chosen), kept, changes, bastion, content)


def with_machines(project: Project, nodes: Sequence[NodeState], state: FleetState) -> tuple[NodeState, ...]:
    """The same nodes as they are reached; in a rehearsal some have no machine, and do not answer."""
    present = {each.name: each for each in project.machines(state)}
    return tuple(present.get(each.name, each) for each in nodes)


def look_at(nodes: Sequence[NodeState], connector: Connector, key: str) -> dict[str, str]:
    """Return the reasons that nodes cannot get a new key, by name. `key`: the public one that they accept
    now."""

    def ask(node: NodeState) -> Completed:
        command = authorized_keys.look(connector.address(node).user, key)
        return connector.run(node, command, deadline_s=LOOK_S)

    reasons: dict[str, str] = {}
    for result in fan_out(nodes, ask):
        if result.error is not None:
            reasons[result.node.name] = result.error.summary
        elif result.value is not None and not result.value.ok:
            reasons[result.node.name] = why_refused(result.value)
    return reasons


def why_refused(said: Completed) -> str:
    """Return the reason that a node did not change its keys."""
    if said.exit_code == authorized_keys.LACKS:
        return "no file there that says who may log in has the fleet's key"
    if said.exit_code == authorized_keys.ALONE:
        return "a file there has the old key and not the new one"
    return f"{said.ending}: {said.stderr.strip()[-200:] or 'it said nothing'}"


def refuse_unfit(fleet: str, reasons: Mapping[str, str]) -> None:
    """Raises KeyRotationError for nodes that cannot get a new key."""
    if not reasons:
        return
    names = list(reasons)
    raise KeyRotationError(
        f"{counted(len(names), 'node')} of the fleet {fleet} cannot get a new key: {fold(names)}",
        detail="\n".join(f"{name}: {why}" for name, why in reasons.items()) + "\nnothing was changed",
        hint=f"bring them back, or replace them with `orch node replace {fold(names)}`; `--without "
        f"{fold(names)}` leaves them out: they keep the old key, and cannot be logged in to",
        code="ORCH440",
    )


def planned(stack: StackState, listener: Listener) -> Plan:
    """Return the plan of bringing the fleet's file up now. Raises as `operations.preview`."""
    return operations.preview(stack.project, request_of(stack.project, stack.name), listener)


def usual_s(changes: Changes, project: Project) -> float | None:
    """Return the median duration of earlier rotations, in seconds; None if there were none."""
    done = changes.listed(project.name, verbs=(VERB,), limit=_EARLIER)
    took = [each.ended_at - each.began_at for each in done if each.status == "done" and each.ended_at]
    return median(took) if took else None


def interrupted(changes: Changes, project: Project, names: Collection[str]) -> Change | None:
    """The same rotation, where it was begun and nobody is at work on it."""
    for each in changes.listed(project.name, verbs=(VERB,), unfinished=True):
        own = (each.scope, each.verb, each.held) == (ledger_scope(project), VERB, False)
        if own and (not names or set(KeyPlan.parse(each.plan).names) == set(names)):
            return each
    return None
