"""Keys of a fleet are rotated: killed at each moment and gone on with, nobody is ever locked out."""

from __future__ import annotations

import base64
import json
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orch.runner.errors import HostUnreachable, LoginRefused
from orch.runner.ledger.changes import Undertaking
from orch.runner.ledger.lease import LeaseLost
from orch.runner.ledger.ledger import Ledger, open_ledger
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import Address, Completed
from orch.spec.errors import OrchError
from orch.spec.state import NodeState
from orch.stacks.errors import StackError
from orch.stacks.events.changes import Change
from orch.stacks.keys.key_plan import FleetKeys, KeyPlan, KeyRotationError
from orch.stacks.keys.key_rotation import Rotation
from orch.stacks.plans.plan import Plan
from orch.stacks.record.change_log import Journal
from orch.stacks.record.node_records import bastion_machine
from orch.stacks.secrets.key_pairs import (
    KeyPair,
    KeyPairs,
    State,
    exchanged,
    made_with_key,
    pairs_of,
    public_key,
    with_next,
    without,
)

pytestmark = pytest.mark.quick

PREFIX = "urn:pulumi:lab::p::orch:fleet:Local$"
SECRET = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270"}
NAMES = ("lab-0", "lab-1", "lab-2")


def sealed(text: str) -> dict[str, str]:
    return {**SECRET, "plaintext": json.dumps(text)}


def blob(name: str) -> str:
    return base64.b64encode(name.encode()).decode()


FIRST = KeyPair("private one\n", f"ssh-ed25519 {blob('one')}\n")


def state(*, cloud: bool = False) -> State:
    keys = f"{PREFIX}orch:index:Keys::lab-keys"
    let_in = f"{FIRST.public.strip()}\nssh-ed25519 {blob('theirs')}"
    resources: list[dict[str, Any]] = [
        {
            "type": "pulumi:pulumi:Stack",
            "urn": "urn:pulumi:lab::p::pulumi:pulumi:Stack::p-lab",
            "outputs": {"identity": sealed(FIRST.private), "pins": {}},
        },
        {
            "type": "orch:index:Keys",
            "urn": keys,
            "inputs": {"name": "lab-keys"},
            "outputs": {
                "name": "lab-keys",
                "client_private_key": sealed(FIRST.private),
                "client_public_key": FIRST.public,
                "host_seed": sealed("seed"),
            },
        },
    ]
    if cloud:
        template = {
            "type": "aws:ec2:LaunchTemplate",
            "urn": f"{PREFIX}t::lab-template",
            "dependencies": [keys],
        }
        return {"version": 3, "deployment": {"resources": [*resources, template]}}
    values = {"name": "c", "authorized_key": let_in}
    node = {"type": "orch:local:Node", "urn": f"{PREFIX}orch:local:Node::lab-0", "dependencies": [keys]}
    return {
        "version": 3,
        "deployment": {
            "resources": [*resources, {**node, "inputs": values, "outputs": {**values, "ssh_port": 1}}]
        },
    }


def resource(clear: State, kind: str) -> dict[str, Any]:
    return next(each for each in clear["deployment"]["resources"] if each["type"] == kind)


def test_the_pairs_of_a_state_change_together_with_all_that_records_the_key() -> None:
    new = KeyPair("private two\n", f"ssh-ed25519 {blob('two')} rotated-2026-01-01")
    before = state()
    assert pairs_of(before) == KeyPairs(FIRST)
    assert public_key(before["deployment"]) == FIRST.public
    beside = with_next(before, new)
    assert pairs_of(beside) == KeyPairs(FIRST, next=new)
    kept = exchanged(beside)
    assert pairs_of(kept) == KeyPairs(new, former=FIRST)
    assert resource(kept, "pulumi:pulumi:Stack")["outputs"]["identity"] == sealed(new.private)
    for side in ("inputs", "outputs"):
        let_in = resource(kept, "orch:local:Node")[side]["authorized_key"]
        assert let_in == f"{new.public}\nssh-ed25519 {blob('theirs')}"
    assert resource(kept, "orch:index:Keys")["outputs"]["host_seed"] == sealed("seed")
    assert pairs_of(without(kept, "former")) == KeyPairs(new)
    back = exchanged(kept)
    assert pairs_of(back) == KeyPairs(FIRST, next=new)
    assert resource(back, "pulumi:pulumi:Stack") == resource(before, "pulumi:pulumi:Stack")
    assert resource(without(back, "next"), "orch:index:Keys") == resource(before, "orch:index:Keys")
    assert "private" not in repr(pairs_of(kept))


def test_the_machine_of_a_bastion_goes_and_not_what_has_its_name() -> None:
    """A security group has it too, and nodes stand on that."""
    urn = "urn:pulumi:lab::p::orch:fleet:Aws$aws:ec2/{}::{}".format
    machine, rule = urn("instance:Instance", "lab-bastion"), urn("rule:Rule", "lab-bastion-ssh")
    fleet = {"fleet": {"nodes": [{"name": "lab-0"}]}}
    resources: list[dict[str, Any]] = [
        {"type": "pulumi:pulumi:Stack", "urn": "urn:pulumi:lab::p::pulumi:pulumi:Stack::p", "outputs": fleet},
        {"type": "aws:ec2/group:Group", "urn": urn("group:Group", "lab-bastion")},
        {
            "type": "aws:ec2/instance:Instance",
            "urn": machine,
            "dependencies": [urn("group:Group", "lab-bastion")],
        },
        {"type": "aws:ec2/rule:Rule", "urn": rule, "dependencies": [machine]},
        {
            "type": "aws:ec2/instance:Instance",
            "urn": urn("instance:Instance", "lab-0"),
            "dependencies": [urn("group:Group", "lab-bastion")],
        },
    ]
    assert bastion_machine({"resources": resources}, "lab-bastion") == (machine, rule)
    assert bastion_machine({"resources": resources[:2]}, "lab-bastion") == ()
    resources[-1]["dependencies"] = [rule]
    with pytest.raises(StackError, match="nodes stand on it"):
        bastion_machine({"resources": resources}, "lab-bastion")


def test_what_new_nodes_are_made_with_is_what_stands_on_the_keys() -> None:
    assert made_with_key(state()["deployment"]) == ()
    assert made_with_key(state(cloud=True)["deployment"]) == ("lab-template",)
    assert public_key({"resources": [{"type": "pulumi:pulumi:Stack", "urn": "urn"}]}) is None


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Lab:
    """Nodes with the keys that open each, and the state of their fleet, which is where a rotation works.

    `moments`: acts so far; `dies_at`: the one at which the process is killed, before it or right `after`.
    `out`: nodes that are left out.
    """

    clear: State = field(default_factory=state)
    plan: Plan | None = None
    opens: dict[str, list[str]] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    fails: dict[str, int] = field(default_factory=dict)
    stubborn: set[str] = field(default_factory=set)
    refuses: set[str] = field(default_factory=set)
    out: set[str] = field(default_factory=set)
    dies_at: int = -1
    after: bool = False
    moments: int = 0
    applied: int = 0
    bastion: str | None = None
    pairs: set[str] = field(default_factory=set)
    privates: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.opens = {name: [blob("theirs"), blob("one")] for name in NAMES}

    def act(self, do: Callable[[], Any]) -> Any:
        """Something that changes the world. After each of them the fleet's key opens every node."""
        with self.lock:
            self.moments += 1
            if self.moments == self.dies_at and not self.after:
                raise Killed
            result = do()
            self.require_open()
            if self.moments == self.dies_at:
                raise Killed
            return result

    def require_open(self) -> None:
        pairs = pairs_of(self.clear)
        present = pairs.client.public.split()[1]
        assert all(present in keys for name, keys in self.opens.items() if name not in self.out), "locked out"
        assert all(blob("theirs") in keys for keys in self.opens.values())
        self.pairs |= {each.public for each in (pairs.client, pairs.next, pairs.former) if each is not None}

    # The place

    @contextmanager
    def held(self) -> Iterator[None]:
        yield

    def read(self) -> State:
        return self.clear

    def write(self, clear: State) -> None:
        def put() -> None:
            self.clear = json.loads(json.dumps(clear))

        self.act(put)

    def nodes(self) -> tuple[NodeState, ...]:
        return tuple(node(name, "fleet") for name in self.opens)

    def planned(self) -> Plan:
        assert self.plan is not None
        return self.plan

    def bring_up(self, plan: Plan) -> None:
        self.applied += 1
        self.bastion = pairs_of(self.clear).client.public

    def remove_bastion(self) -> None:
        def remove() -> None:
            self.bastion = ""

        self.act(remove)

    @contextmanager
    def key_file(self, name: str, pair: KeyPair) -> Iterator[str]:
        self.privates[name] = pair.public.split()[1]
        yield name

    # The connector

    def run(self, node: NodeState, command: Command, **_: object) -> Completed:
        if self.bastion is not None and self.bastion != pairs_of(self.clear).client.public:
            raise LoginRefused("none of our keys", where="the bastion")
        if node.name in self.down:
            raise HostUnreachable(f"node {node.name} does not answer", where=node.name)
        identity = node.ssh.identity or ""
        key = (
            pairs_of(self.clear).client.public.split()[1] if identity == "fleet" else self.privates[identity]
        )
        opens = key in self.opens[node.name] and not (identity == "next" and node.name in self.refuses)
        if not opens and node.name not in self.stubborn:
            raise LoginRefused("none of our keys", where=node.name)
        code = self.act(lambda: self.changed(node.name, command))
        return Completed(node.name, command, code, "", "", 0.0)

    def changed(self, name: str, command: Command) -> int:
        if self.fails.get(f"{name} {command.label}", 0) > 0:
            self.fails[f"{name} {command.label}"] -= 1
            return 1
        keys = self.opens[name]
        words = shlex.split(command.text.replace("\n", " ")) if command.label != "log in" else []
        text = next((word for word in words if "present=" in word), "")
        present, other = (
            (text.partition(f"{which}=")[2].split()[0] for which in ("present", "other"))
            if text
            else ("", "")
        )
        if command.label == "let the new key in":
            assert present in keys or other in keys
            if other not in keys:
                keys.insert(keys.index(present) + 1, other)
        elif command.label == "take the old key away" and present in keys:
            assert other in keys
            keys.remove(present)
        return 0

    def address(self, node: NodeState) -> Address:
        return Address(node.name, "root")

    def close(self) -> None:
        return


def node(name: str, identity: str) -> NodeState:
    record = {"index": int(name[-1]), "name": name, "address": name, "user": "root", "host_key": name}
    return NodeState.model_validate({**record, "identity": identity})


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    yield opened
    opened.close()


def rotate(lab: Lab, ledger: Ledger, scope: str = "s") -> Journal:
    """One call of the command, as far as it comes: the journal has what it did."""
    nodes = tuple(each for each in NAMES if each not in lab.out)
    changes = ("lab-template",) if lab.plan is not None else ()
    fleet = FleetKeys("lab", nodes, tuple(lab.out), changes, bastion=lab.bastion is not None)
    plan = KeyPlan((fleet,))
    new = Undertaking("p", scope, "rotate ssh-keys", plan.subject, plan=plan.text(), holds=plan.holds)
    journal = Journal(ledger.changes, ledger.changes.begin(new))
    try:
        Rotation(lab, fleet, journal, lambda: lab, lambda _: None).carry_out()
    except BaseException as error:
        journal.end(error)
        raise
    journal.end(None)
    return journal


def require_done(lab: Lab, *others: str) -> str:
    """One new pair was made, and it alone opens every node."""
    pairs = pairs_of(lab.clear)
    assert (pairs.next, pairs.former) == (None, None)
    assert len(lab.pairs) == 2, "another pair was made"
    present = pairs.client.public.split()[1]
    assert present != blob("one")
    for name, keys in lab.opens.items():
        assert keys == ([blob("theirs"), present] if name not in others else [blob("theirs"), blob("one")])
    return present


def test_a_new_pair_takes_the_place_of_the_old_one(ledger: Ledger) -> None:
    lab = Lab()
    journal = rotate(lab, ledger)
    require_done(lab)
    steps = {(each.host, each.name) for each in journal.steps}
    assert all(each.status == "done" for each in journal.steps)
    assert {name for _, name in steps} == {
        *("make a pair for lab", "let the new key in", "log in with the new key", "keep the new pair of lab"),
        *("take the old key away", "the old key is refused", "forget the old pair of lab"),
    }
    assert "private" not in "".join(each.message or "" for each in journal.steps)


def test_killed_at_any_moment_it_is_gone_on_with(ledger: Ledger) -> None:
    whole = Lab()
    rotate(whole, ledger)
    assert whole.moments >= 12
    for moment in range(1, whole.moments + 1):
        for after in (False, True):
            lab, scope = Lab(dies_at=moment, after=after), f"{moment} {after}"
            with pytest.raises(Killed):
                rotate(lab, ledger, scope)
            lab.dies_at = -1
            assert rotate(lab, ledger, scope).resumed, moment
            require_done(lab)


def test_killed_twice_and_with_a_node_made_anew_meanwhile(ledger: Ledger) -> None:
    lab = Lab(dies_at=5, after=True)
    with pytest.raises(Killed):
        rotate(lab, ledger)
    # They were replaced while nobody was at work: the journal says that it is done there.
    for name in NAMES:
        lab.opens[name] = [blob("theirs"), blob("one")]
    lab.opens["lab-3"] = [blob("theirs"), blob("one")]
    lab.dies_at = lab.moments + 3
    with pytest.raises(Killed):
        rotate(lab, ledger)
    rotate(lab, ledger)
    require_done(lab)


@pytest.mark.parametrize("what", ["a file that cannot be written", "a file that sshd does not read"])
def test_what_fails_before_the_new_key_is_the_fleets_is_taken_back(ledger: Ledger, what: str) -> None:
    lab = Lab(fails={"lab-1 let the new key in": 1}) if "written" in what else Lab(refuses={"lab-1"})
    before = lab.clear
    with pytest.raises(KeyRotationError, match="were not rotated, all is as before") as caught:
        rotate(lab, ledger)
    assert "lab-1" in (caught.value.detail or "")
    assert lab.clear == before
    assert list(lab.opens.values()) == [[blob("theirs"), blob("one")]] * 3
    (change,) = ledger.changes.listed("p")
    assert change.status == "failed"
    assert {each.status for each in ledger.changes.steps(change.id)} == {"undone", "failed"}
    lab.refuses.clear()
    lab.pairs = {FIRST.public}
    rotate(lab, ledger)
    require_done(lab)


def test_a_node_that_goes_when_the_new_key_is_in_use_is_left_out_or_waited_for(ledger: Ledger) -> None:
    lab = Lab(fails={"lab-2 take the old key away": 1})
    with pytest.raises(KeyRotationError, match="the new key of the fleet lab is in use") as caught:
        rotate(lab, ledger)
    assert "--without" in (caught.value.hint or "")
    (change,) = ledger.changes.listed("p")
    assert change.shown_status == "interrupted"
    rotate(lab, ledger)
    require_done(lab)


def test_a_node_that_is_left_out_keeps_the_old_key(ledger: Ledger) -> None:
    lab = Lab(down={"lab-1"}, out={"lab-1"})
    rotate(lab, ledger)
    require_done(lab, "lab-1")


def test_an_old_key_that_still_opens_a_node_is_told(ledger: Ledger) -> None:
    lab = Lab(stubborn={"lab-0"})
    with pytest.raises(KeyRotationError) as caught:
        rotate(lab, ledger)
    assert caught.value.code == "ORCH443"
    assert pairs_of(lab.clear).former == FIRST
    lab.stubborn.clear()
    rotate(lab, ledger)
    require_done(lab)


def change(op: Any, name: str) -> Change:
    return Change(op, "aws:ec2:Thing", name, f"urn::{name}")


def test_what_new_nodes_are_made_with_is_brought_up_and_no_node_is_changed(ledger: Ledger) -> None:
    lab = Lab(
        plan=Plan("lab", "lab", (change("update", "lab-template"), change("same", "lab-0")), (), 0.0, 0.0)
    )
    rotate(lab, ledger)
    require_done(lab)
    assert lab.applied == 1
    lab = Lab(plan=Plan("lab", "lab", (change("replace", "lab-0"),), (), 0.0, 0.0))
    before = lab.clear
    with pytest.raises(KeyRotationError) as caught:
        rotate(lab, ledger)
    assert caught.value.code == "ORCH442"
    assert (lab.clear, lab.applied) == (before, 0)
    assert list(lab.opens.values()) == [[blob("theirs"), blob("one")]] * 3


def test_a_bastion_is_made_anew_when_all_nodes_have_the_new_key(ledger: Ledger) -> None:
    plan = Plan("lab", "lab", (change("create", "lab-bastion"),), (), 0.0, 0.0)
    whole = Lab(plan=plan, bastion=FIRST.public)
    rotate(whole, ledger, "whole")
    require_done(whole)
    assert whole.bastion == pairs_of(whole.clear).client.public
    for moment in range(1, whole.moments + 1):
        lab = Lab(plan=plan, bastion=FIRST.public, dies_at=moment, after=True)
        with pytest.raises(Killed):
            rotate(lab, ledger, str(moment))
        lab.dies_at = -1
        rotate(lab, ledger, str(moment))
        require_done(lab)
        assert (lab.bastion, lab.applied > 0) == (pairs_of(lab.clear).client.public, True)


def test_a_state_that_an_older_one_took_the_place_of_is_not_rotated_again(ledger: Ledger) -> None:
    lab = Lab(dies_at=3, after=True)
    with pytest.raises(Killed):
        rotate(lab, ledger)
    lab.clear, lab.dies_at = state(), -1
    with pytest.raises(KeyRotationError, match="does not have the new pair any more"):
        rotate(lab, ledger)


def test_another_process_that_goes_on_with_it_ends_this_one(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab()
    act = lab.act

    def taken(do: Callable[[], Any]) -> Any:
        if lab.moments == 2:
            raise LeaseLost("another process goes on")
        return act(do)

    monkeypatch.setattr(lab, "act", taken)
    with pytest.raises(OrchError):
        rotate(lab, ledger)
    assert pairs_of(lab.clear).next is not None, "what the other one goes on with is taken away"


def test_a_plan_tells_who_keeps_the_old_key_and_survives_the_ledger() -> None:
    plan = KeyPlan(
        (FleetKeys("lab", NAMES, (), ("lab-template",), content="1f2e"),), (("hosts", "theirs"),), 21.4
    )
    assert KeyPlan.parse(plan.text()) == plan
    assert plan.holds == ("lab/keys", "lab/lab-0", "lab/lab-1", "lab/lab-2")
    assert plan.lines() == [
        "fleet lab: a new key pair for 3 nodes, lab-[0-2]",
        "  what new nodes are made with changes: lab-template",
        "left alone: fleet hosts: theirs",
        "no run stops, and no connection ends; takes about 21 s",
    ]
    less = plan.leaving_out({"lab-1"})
    assert less.fleets[0].nodes == ("lab-0", "lab-2")
    assert less.leaving_out({"lab-1"}) == less
    assert "lab-1 keeps the old key" in less.lines()[2]
