"""New SSH keys in place of those of a fleet, while its nodes stay as they are.

A rotation goes by the pairs in the fleet's state (`key_pairs.py`), which say how far it is: the new one is
`next` until it opens every node, then it is the fleet's, and the old one is `former` until it opens none. At
each moment the fleet's own key opens every node. Whoever goes on with a rotation finds the pair there, also
in another clone; steps on nodes look at what is there, and are done again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from orch.runner.errors import HostUnreachable, LoginRefused, error_text
from orch.runner.hosts import authorized_keys
from orch.runner.ledger.run_folder import new_key_pair
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import Completed, Connector, fan_out
from orch.spec.errors import OrchError
from orch.spec.state import NodeState
from orch.spec.suggest import counted, few
from orch.stacks.events.notation import fold
from orch.stacks.keys.key_places import FleetPlace, KeyPlace
from orch.stacks.keys.key_plan import LOOK_S, VERB, Connect, FleetKeys, KeyPlan, KeyRotationError, why_refused
from orch.stacks.plans.plan import Plan
from orch.stacks.project.project import Project
from orch.stacks.pulumi.progress import Activity, Listener
from orch.stacks.record.change_log import Journal, is_over, undertaken
from orch.stacks.secrets.key_pairs import FORMER, KEYS, NEXT, KeyPair, exchanged, pairs_of, with_next, without

READY_S = 600.0
"""How long a bastion may take to boot."""
PAUSE_S = 3.0

ADD, LOG_IN = "let the new key in", "log in with the new key"
THROUGH = "log in through the new bastion"
REMOVE, REFUSED = "take the old key away", "the old key is refused"


def rotate_keys(project: Project, plan: KeyPlan, connect: Connect, listener: Listener) -> KeyPlan:
    """Rotate the keys of fleets, one after the other: the same call goes on with one that was killed. Returns
    the plan with the nodes that were there at its end.

    Raises KeyRotationError, ChangeUnderWay, LeaseLost, Leased, StackLocked, StackError.
    """
    left_out = {node for each in plan.fleets for node in each.without}
    with undertaken(project, VERB, plan.subject, plan=plan.text(), holds=plan.holds) as journal:
        plan = KeyPlan.parse(journal.change.plan).leaving_out(left_out)
        journal.set_plan(plan.text())
        done: list[FleetKeys] = []
        for fleet in plan.fleets:
            place = FleetPlace(project, fleet.name, listener, fleet.content)
            rotation = Rotation(place, fleet, journal, connect, listener)
            rotation.carry_out()
            done.append(replace(fleet, nodes=rotation.opened))
        nodes = sum(len(each.nodes) for each in done)
        kept = [node for each in plan.fleets for node in each.without]
        also = f"; {fold(kept)} has the old key" if kept else ""
        journal.result = f"{counted(len(plan.fleets), 'pair')} for {counted(nodes, 'node')}{also}"
    return replace(plan, fleets=tuple(done))


class Rotation:
    """The rotation of one fleet."""

    def __init__(
        self, place: KeyPlace, fleet: FleetKeys, journal: Journal, connect: Connect, listener: Listener
    ) -> None:
        self.place, self.fleet, self.journal = place, fleet, journal
        self.connect, self.listener = connect, listener
        self.opened = fleet.nodes
        """The nodes that the new key opens, and the old one does not."""

    # What steps of the fleet as a whole are called in the journal

    @property
    def making(self) -> str:
        return f"make a pair for {self.fleet.name}"

    @property
    def keeping(self) -> str:
        return f"keep the new pair of {self.fleet.name}"

    @property
    def removing(self) -> str:
        return f"remove the bastion of {self.fleet.name}"

    @property
    def applying(self) -> str:
        return f"make new nodes of {self.fleet.name} with the new key"

    @property
    def forgetting(self) -> str:
        return f"forget the old pair of {self.fleet.name}"

    def carry_out(self) -> None:
        """Rotate the fleet's keys, or go on with it. Raises KeyRotationError, LeaseLost, StackError."""
        if not self.journal.is_done("", self.forgetting):
            with self.place.held():
                self._carry_out()

    def _carry_out(self) -> None:
        pairs = pairs_of(self.place.read())
        made = self.journal.message_of("", self.making)
        if made is not None and pairs.next is None and pairs.former is None:
            if pairs.client.public != made:
                raise KeyRotationError(
                    f"the state of the fleet {self.fleet.name} does not have the new pair any more",
                    detail="an older version of it was put in its place since",
                    hint=f"`orch log {self.journal.change.id} --abandon`, then rotate the keys again",
                    code="ORCH441",
                )
            self._forget()  # one that was killed has done so, and nobody has written it
            return
        if pairs.former is None:
            self._open()
        self._close()

    # Forward, while the old key opens all nodes: what fails is taken back

    def _open(self) -> None:
        try:
            self._again("", self.making, self._make)
            pairs = pairs_of(self.place.read())
            if pairs.next is None:
                raise KeyRotationError(f"the pair of {self.fleet.name} is not in its state", code="ORCH441")
            old, new = pairs.client, pairs.next
            self._say(f"letting the new key in on {counted(len(self.fleet.nodes), 'node')}")
            with self._connected() as connector:
                self._on_each(ADD, lambda node: _add(connector, node, old, new))
            with self._connected() as connector, self.place.key_file(NEXT, new) as file:
                self._on_each(
                    LOG_IN,
                    lambda node: connector.run(node.reached(identity=file), _NOTHING, deadline_s=LOOK_S),
                )
            self._again("", self.keeping, self._keep)
            self._refuse_replacing()
        except OrchError as error:
            if is_over(error):
                raise
            self._undo()
            told = KeyRotationError(
                f"the keys of the fleet {self.fleet.name} were not rotated, all is as before",
                where=error.where,
                detail=error_text(error),
                hint=error.hint,
                code=error.code or "ORCH441",
            )
            told.detail_is_ours = error.detail_is_ours
            raise told from error

    def _make(self) -> str:
        """Make the new pair, sealed in the state; its public key. One that is there already is the one."""
        clear = self.place.read()
        new = pairs_of(clear).next
        if new is None:
            pair = new_key_pair()
            # Its comment tells it from the first pair of a fleet, and people when it was made.
            stamp = time.strftime("%Y-%m-%d", time.gmtime())
            new = KeyPair(pair.private, f"{pair.public.strip()} rotated-{stamp}")
            self.place.write(with_next(clear, new))
        return new.public

    def _keep(self) -> None:
        clear = self.place.read()
        if pairs_of(clear).next is not None:
            self.place.write(exchanged(clear))

    def _refuse_replacing(self) -> None:
        """Raises KeyRotationError where the new key would change nodes: they stay as they are."""
        if not self.fleet.changes:
            return
        plan = self.place.planned()
        self._require_kept(plan)

    def _require_kept(self, plan: Plan) -> None:
        """Raises KeyRotationError where a plan changes nodes, or makes other keys."""
        nodes = {word for each in self.place.nodes() for word in (each.name, each.made_by)}
        others = [
            f"{each.op} {each.name}"
            for each in plan.changes
            if each.op != "same" and (each.name in nodes or each.type == KEYS)
        ]
        if plan.lost_nodes or others:
            raise KeyRotationError(
                f"a new key would change nodes of the fleet {self.fleet.name}",
                detail=few(others, 5) or fold(sorted(plan.lost_nodes)),
                hint=f"`orch down {self.fleet.name}` and `orch up` make its nodes anew, with another key",
                code="ORCH442",
            )

    def _undo(self) -> None:
        """Take the new key back everywhere: the old one opens all nodes still."""
        self._say("taking the new key back")
        clear = self.place.read()
        if pairs_of(clear).former is not None:
            clear = exchanged(clear)
            self.place.write(clear)
        pairs = pairs_of(clear)
        if pairs.next is not None:
            new, old = pairs.next, pairs.client
            with self._connected() as connector:
                # A node that does not answer keeps a key that nobody has any more.
                fan_out(self._nodes(), lambda node: _remove(connector, node, new, old))
            self.place.write(without(clear, NEXT))
        own = {self.making, self.keeping}
        for step in self.journal.steps:
            if step.status == "done" and (step.name in own or step.host in self.fleet.nodes):
                self.journal.end_step(step.host, step.name, "undone")
        self.journal.final = True

    # Forward, when the new key is the fleet's: what fails is gone on with

    def _close(self) -> None:
        pairs = pairs_of(self.place.read())
        assert pairs.former is not None
        old, new = pairs.former, pairs.client
        try:
            if self.fleet.bastion:
                # Its keys are those it was made with. Until the next step has made it anew nobody gets in.
                self.journal.step("", self.removing, self.place.remove_bastion)
            if self.fleet.changes:
                self._again("", self.applying, self._apply)
            if self.fleet.bastion:
                with self._connected() as connector:
                    self._on_each(THROUGH, lambda node: _reach(connector, node))
            self._say(f"taking the old key off {counted(len(self.fleet.nodes), 'node')}")
            with self._connected() as connector:
                self._on_each(REMOVE, lambda node: _remove(connector, node, old, new))
            with self._connected() as connector, self.place.key_file(FORMER, old) as file:
                self._on_each(REFUSED, lambda node: _refused(connector, node.reached(identity=file)))
            self.opened = tuple(each.name for each in self._nodes())
        except OrchError as error:
            if is_over(error):
                raise
            told = KeyRotationError(
                f"the new key of the fleet {self.fleet.name} is in use, and the rotation is not at its end",
                where=error.where,
                detail=error_text(error),
                hint=f"`orch {VERB} {self.fleet.name}` goes on; `--without NODE` leaves out one that is gone",
                code=error.code or "ORCH441",
            )
            told.detail_is_ours = error.detail_is_ours
            raise told from error
        self._forget()

    def _apply(self) -> str:
        plan = self.place.planned()
        if not plan.pending:
            return "they are"
        self._require_kept(plan)
        self.place.bring_up(plan)
        return few(plan.in_words, 5)

    def _forget(self) -> None:
        def forget() -> None:
            clear = self.place.read()
            if pairs_of(clear).former is not None:
                self.place.write(without(clear, FORMER))

        self.journal.step("", self.forgetting, forget)

    # What steps share

    def _say(self, text: str) -> None:
        self.listener(Activity(f"fleet {self.fleet.name}: {text}"))

    def _again(self, host: str, name: str, do: Callable[[], object]) -> None:
        """Do a step, also one that is done: it looks at what is there."""
        if self.journal.is_done(host, name):
            do()
        else:
            self.journal.step(host, name, do)

    def _nodes(self) -> tuple[NodeState, ...]:
        """The nodes as they are now: some may have been made or removed since the plan."""
        return tuple(each for each in self.place.nodes() if each.name not in self.fleet.without)

    def _on_each(self, step: str, do: Callable[[NodeState], object]) -> None:
        """Do a step on all nodes at once. Raises KeyRotationError that names those where it failed."""
        results = fan_out(self._nodes(), lambda node: self._again(node.name, step, lambda: _told(do(node))))
        failed = {each.node.name: each.error for each in results if each.error is not None}
        for error in failed.values():
            if is_over(error):
                raise error
        if failed:
            first = next(iter(failed.values()))
            raise KeyRotationError(
                f"`{step}` failed on {fold(list(failed))}",
                detail="\n".join(f"{name}: {error.summary}" for name, error in failed.items()),
                hint=first.hint,
                code=first.code or "ORCH441",
            )

    @contextmanager
    def _connected(self) -> Iterator[Connector]:
        """Connections of their own: those of another key would stay open."""
        connector = self.connect()
        try:
            yield connector
        finally:
            connector.close()


_NOTHING = Command("true", "log in", timeout_s=30.0)


def _told(_: object) -> None:
    """Ignore what a step on a node returns: the journal does not keep it."""


def _reach(connector: Connector, node: NodeState) -> None:
    """Wait until a node is reached through a bastion that boots. Raises what the last try raised."""
    ends = time.monotonic() + READY_S
    while True:
        try:
            connector.run(node, _NOTHING, deadline_s=LOOK_S)
        except HostUnreachable:
            # Also where it refuses the key: it answers before its user is there.
            if time.monotonic() > ends:
                raise
            time.sleep(PAUSE_S)
        else:
            return


def _add(connector: Connector, node: NodeState, old: KeyPair, new: KeyPair) -> None:
    command = authorized_keys.add(connector.address(node).user, old.public, new.public)
    _require(connector.run(node, command, deadline_s=LOOK_S))


def _remove(connector: Connector, node: NodeState, gone: KeyPair, stays: KeyPair) -> None:
    command = authorized_keys.remove(connector.address(node).user, gone.public, stays.public)
    _require(connector.run(node, command, deadline_s=LOOK_S))


def _require(said: Completed) -> None:
    if not said.ok:
        raise KeyRotationError(why_refused(said), where=said.node, code="ORCH441")


def _refused(connector: Connector, node: NodeState) -> None:
    """Raises KeyRotationError where a node lets this key in."""
    try:
        connector.run(node, _NOTHING, deadline_s=LOOK_S)
    except LoginRefused:
        return
    raise KeyRotationError(
        "it lets the old key in still",
        where=node.name,
        hint="something else than its authorized_keys has the key: see `sshd -T` there",
        code="ORCH443",
    )
