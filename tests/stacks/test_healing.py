"""Nodes that failed are replaced by themselves: once, whoever else is at work, and to the end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orch.runner.errors import LedgerReadOnly
from orch.runner.events import Notice
from orch.runner.health.findings import Finding, report
from orch.runner.health.gate import Examined
from orch.runner.ledger.changes import Undertaking
from orch.runner.ledger.history.node_health import Examination
from orch.runner.ledger.ledger import Ledger, open_ledger
from orch.runner.node_api.cordon import CLOUD, Cordon
from orch.runner.node_api.status import NodeStatus
from orch.spec.access import SshAccess
from orch.spec.errors import OrchError
from orch.spec.state import FleetHealth, FleetSpares, FleetState, NodeState
from orch.stacks.health import healing
from orch.stacks.health import watch as watch_module
from orch.stacks.health.healing import Healer, NotReplaced
from orch.stacks.health.protection import REASON, VERB, Protection, protection_of
from orch.stacks.maintenance.context import Maintenance
from orch.stacks.maintenance.drive import CHECK
from orch.stacks.maintenance.plan import MaintenancePlan, NodeLook, Options, plan_of
from orch.stacks.maintenance.reboot import READY
from orch.stacks.maintenance.serial import NONE, Share
from orch.stacks.project.project import Project, find, ledger_scope
from orch.stacks.record.change_log import undertaken
from orch.stacks.record.node_records import NodeRecord
from orch.stacks.stack.state import StackState

pytestmark = pytest.mark.quick


def node(index: int) -> NodeState:
    access = SshAccess(address="127.0.0.1", user="root", host_key=f"ssh-ed25519 {index}")
    return NodeState(index=index, name=f"lab-{index}", access=access)


def plan(name: str, reason: str = f"{REASON}: Xid 79") -> MaintenancePlan:
    look = NodeLook("lab", "local", name, int(name[-1]), f"i-{name}")
    return plan_of("replace", [look], [], Options((Share(1),), NONE, False, 0, reason), me="ada@desk")


class Lab:
    """A fleet of two nodes whose replacement only writes that it was carried out."""

    def __init__(self, project: Project, ledger: Ledger) -> None:
        self.project, self.ledger = project, ledger
        before = datetime.now(timezone.utc) - timedelta(hours=1)
        self.made: dict[str, datetime] = {"lab-0": before, "lab-1": before}
        self.nodes: tuple[NodeState, ...] = (node(0), node(1))
        self.backend = "local"
        self.done: list[str] = []
        self.fails: Exception | None = None
        self.fails_at = "evidence"
        self.interval_s, self.most = 0, 2
        self.spares: FleetSpares | None = None
        self.cordon: Cordon | None = None
        self.on_plan: Any = lambda: None

    @property
    def fleet(self) -> FleetState:
        health = FleetHealth(auto_replace=True, max_replacements=self.most, interval_s=self.interval_s)
        return FleetState(
            name="lab",
            stack="lab",
            backend=self.backend,
            nodes=self.nodes,
            health=health,
            spares=self.spares,
        )

    def carry_out(self, at: Maintenance) -> None:
        for name in at.plan.names:
            at.journal.step(name, "evidence", lambda: None)
            if self.fails is not None and self.fails_at == "evidence":
                raise self.fails
            at.journal.step(name, self.fails_at, self._check)
            self.done.append(name)
            self.made[name] = datetime.now(timezone.utc) + timedelta(seconds=1)

    def _check(self) -> None:
        if self.fails is not None:
            raise self.fails

    def protection(self) -> Protection | None:
        return protection_of(self.ledger.changes, self.project.name, ledger_scope(self.project), "lab")

    def look(self, name: str) -> NodeLook:
        return NodeLook("lab", "local", name, int(name[-1]), f"i-{name}", cordon=self.cordon)

    def found(self, name: str, status: str = "failure") -> None:
        one = Examination(name, status, "Xid 79" if status != "healthy" else "", "{}")
        self.ledger.record_health(self.project.name, ledger_scope(self.project), "lab", [one])

    def heal(self) -> list[Notice]:
        runner: Any = SimpleNamespace(ledger=self.ledger, connector=None)
        healer = Healer(self.project, runner, lambda event: None, lambda fleet, names: {})
        return list(healer.heal(StackState(self.project, "lab")))

    def begun(self, name: str, reason: str = f"{REASON}: Xid 79") -> int:
        """A replacement whose process was killed after its first step."""
        own = plan(name, reason)
        new = Undertaking(
            self.project.name,
            ledger_scope(self.project),
            VERB,
            own.subject,
            plan=own.text(),
            holds=own.holds,
        )
        begun = self.ledger.changes.begin(new)
        self.ledger.changes.begin_step(begun.lease, name, "evidence")
        self.ledger.changes.end(begun.lease, "interrupted", "killed")
        return begun.change.id


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    (tmp_path / "orch.yml").write_text("project: demo\n")
    project = find(tmp_path)
    project.prepare()
    ledger = open_ledger(project.ledger_url)
    lab = Lab(project, ledger)

    def planned_for(*_: Any, **__: Any) -> MaintenancePlan:
        (name,) = _[3]["lab"]
        lab.on_plan()
        return plan(name)

    monkeypatch.setattr(healing, "fleet_of", lambda stack: lab.fleet)
    monkeypatch.setattr(
        healing, "node_records", lambda recorded: {n: NodeRecord(n, at) for n, at in lab.made.items()}
    )
    monkeypatch.setattr(healing, "runs_on", lambda *_: [])
    monkeypatch.setattr(healing, "look_at", lambda stack, names, connector: [lab.look(names[0])])
    monkeypatch.setattr(healing, "planned_for", planned_for)
    monkeypatch.setattr(healing, "carry_out", lab.carry_out)
    yield lab
    ledger.close()


def test_a_failure_is_replaced_once(lab: Lab) -> None:
    lab.found("lab-0", "healthy")
    lab.found("lab-1")
    assert [each.text for each in lab.heal()] == [
        "node lab-1 is replaced: Xid 79",
        "node lab-1 is replaced, passed its checks and takes jobs again",
    ]
    # The new machine boots and was not examined yet: what is kept is of the one before it.
    assert lab.heal() == []
    assert lab.done == ["lab-1"]


def test_a_node_that_another_process_mends_meanwhile_is_left_alone(lab: Lab) -> None:
    lab.found("lab-1")
    lab.on_plan = lambda: lab.found("lab-1", "healthy")
    assert lab.heal() == []
    assert lab.done == []


def test_who_came_first_is_told_and_is_no_failure(lab: Lab) -> None:
    lab.found("lab-1")
    own = plan("lab-1", "by hand")
    with undertaken(lab.project, VERB, own.subject, plan=own.text(), holds=own.holds):
        (told,) = lab.heal()
    assert "node lab-1: `orch node replace` is under way" in told.text
    assert (type(told), told.level) == (Notice, "note")

    late: list[Any] = []

    def other_begins() -> None:
        late.append(undertaken(lab.project, VERB, own.subject, plan=own.text(), holds=own.holds))
        late[0].__enter__()

    lab.on_plan = other_begins
    (told,) = lab.heal()
    assert "is under way" in told.text
    assert type(told) is Notice
    late[0].__exit__(None, None, None)
    assert lab.done == []


def test_a_replacement_whose_process_was_killed_goes_on_though_its_new_machine_is_healthy(lab: Lab) -> None:
    number = lab.begun("lab-1")
    lab.found("lab-1", "healthy")
    lab.nodes = (node(0),)  # killed between the removal and the new machine
    assert f"its replacement goes on (change {number})" in lab.heal()[0].text
    assert lab.done == ["lab-1"]
    change = lab.ledger.changes.get(number)
    assert change is not None
    assert (change.status, change.calls) == ("done", 2)
    assert lab.heal() == []


def test_what_a_person_left_interrupted_is_not_gone_on_with(lab: Lab) -> None:
    lab.begun("lab-1", "by hand")
    lab.found("lab-1", "healthy")
    assert lab.heal() == []


def test_one_that_cannot_be_replaced_keeps_no_other(lab: Lab) -> None:
    lab.found("lab-0")
    lab.found("lab-1")
    lab.fails = OrchError("the budget is spent")
    told = lab.heal()
    kept = [each.text for each in told if isinstance(each, NotReplaced)]
    assert kept == [f"node lab-{n} is not replaced: the budget is spent" for n in (0, 1)]
    lab.fails = None
    lab.heal()
    assert lab.done == ["lab-0", "lab-1"]
    # Both count, each once though it was begun twice.
    lab.made["lab-0"] -= timedelta(hours=1)
    (told_of,) = lab.heal()
    assert isinstance(told_of, NotReplaced)
    assert "2 nodes of its fleet were within a day, `max_replacements` is 2" in told_of.text


def test_a_change_of_another_version_is_passed_over(lab: Lab) -> None:
    own = plan("lab-0")
    text = own.text().replace('"verb"', '"of_later": 1, "verb"')
    for later in ("{}", text):
        with undertaken(lab.project, VERB, own.subject, plan=later, holds=own.holds):
            pass
    lab.found("lab-1")
    lab.heal()
    assert lab.done == ["lab-1"]


@pytest.mark.parametrize(
    ("by", "reason", "replaced"),
    [
        ("ada@desk", "I look at it", False),
        ("eve@away", "", False),
        ("cloud", "taken back", True),
        ("ada@desk", "not in order after orch node reboot: GPU lost", True),
        ("ada@desk", f"{REASON}: Xid 79 (change 3 of demo)", True),
    ],
)
def test_what_somebody_cordoned_stays_also_their_own(lab: Lab, by: str, reason: str, replaced: bool) -> None:
    lab.cordon = Cordon(CLOUD if by == "cloud" else by, "2026-01-01T00:00:00Z", reason)
    lab.found("lab-1")
    told = lab.heal()
    assert lab.done == (["lab-1"] if replaced else [])
    assert ("somebody cordoned it" in told[0].text) is not replaced


def test_existing_hosts_are_kept_out(lab: Lab) -> None:
    lab.backend = "ssh"
    lab.found("lab-1")
    (told,) = lab.heal()
    assert isinstance(told, NotReplaced)
    assert "it is an existing host" in told.text


def test_runs_that_another_version_drives_are_waited_for(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from orch.runner.errors import RunnerError
    from orch.stacks.maintenance.plan import PlannedRun

    def of_later(row: object) -> None:
        raise RunnerError("run 7 is of a newer version")

    present = PlannedRun("train", "ada@desk", ("lab-1",), 7, stops=False)
    monkeypatch.setattr(healing, "runs_on", lambda *_: [present])
    monkeypatch.setattr(healing, "run_plan_of", of_later)
    monkeypatch.setattr(type(lab.ledger), "by_id", lambda self, number: None)
    lab.found("lab-1")
    (told,) = lab.heal()
    assert "run train is waited for: run 7 is of a newer version" in told.text
    assert not isinstance(told, NotReplaced)


def test_what_the_ledger_does_not_keep_is_told_all_the_same(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = report([Finding("xid", "failure", "GPU 0", "Xid 79", "reboot")])

    def read_only(*_: object) -> None:
        raise LedgerReadOnly("this login may only read the run ledger")

    monkeypatch.setattr(watch_module, "node_statuses", lambda fleet, _: [NodeStatus("idle")] * 2)
    monkeypatch.setattr(
        watch_module, "examine_nodes", lambda nodes, *_, **__: tuple(Examined(each, lost) for each in nodes)
    )
    monkeypatch.setattr(type(lab.ledger), "record_health", read_only)
    with_ledger: Any = (lab.project, lab.ledger, None, lab.fleet)
    with pytest.raises(LedgerReadOnly):
        watch_module.watch(*with_ledger)
    told: list[OrchError] = []
    assert watch_module.watch(*with_ledger, unkept=told.append).failed == ("lab-0", "lab-1")
    assert [each.summary for each in told] == ["this login may only read the run ledger"]


def test_a_node_that_another_machine_would_not_help_is_told_and_kept(lab: Lab) -> None:
    slow = report([Finding("verify figure", "failure", "node", "all_reduce reaches 20 GB/s of 300", "none")])
    one = Examination("lab-1", "failure", "all_reduce reaches 20 GB/s of 300", slow.to_json())
    lab.ledger.record_health(lab.project.name, ledger_scope(lab.project), "lab", [one])
    (told,) = lab.heal()
    assert isinstance(told, NotReplaced)
    assert "another machine would not help" in told.text
    assert lab.done == []


@pytest.mark.parametrize("step", [CHECK, READY])
def test_a_fleet_is_protected_when_a_new_machine_is_not_in_order_look_after_look(lab: Lab, step: str) -> None:
    lab.found("lab-1")
    lab.fails, lab.fails_at = OrchError("node lab-1 is not in order"), step
    for _ in range(3):
        assert lab.protection() is None
        assert isinstance(lab.heal()[-1], NotReplaced)
    lab.fails = None
    # From now on nothing is replaced, another node neither.
    lab.found("lab-0")
    (told,) = lab.heal()
    assert isinstance(told, NotReplaced)
    assert "fleet lab is protected, and none of its nodes is replaced by itself" in told.text
    assert "the new machine of node lab-1 failed its checks 3 times" in told.text
    assert "node lab-1 is not in order" in told.text
    found = lab.protection()
    assert found is not None
    change = lab.ledger.changes.get(found.change)
    assert change is not None
    assert (lab.done, change.calls, change.shown_status) == ([], 3, "interrupted")

    # Who replaces the node by hand goes on with that change: it ends well, and others are replaced again.
    own = plan("lab-1", "by hand")
    with undertaken(lab.project, VERB, own.subject, plan=own.text(), holds=own.holds) as journal:
        assert journal.resumed
    lab.found("lab-1", "healthy")
    assert lab.protection() is None
    lab.heal()
    assert lab.done == ["lab-0"]


def test_who_gives_the_change_up_has_another_machine_made(lab: Lab) -> None:
    lab.found("lab-1")
    lab.fails, lab.fails_at = OrchError("not in order"), CHECK
    for _ in range(3):
        lab.heal()
    lab.fails = None
    found = lab.protection()
    assert found is not None
    assert f"`orch log {found.change} --abandon`" in str(found)
    lab.ledger.changes.abandon(found.change)
    assert lab.protection() is None
    lab.heal()
    assert lab.done == ["lab-1"]


def test_a_new_machine_that_is_not_in_order_is_looked_at_again_after_an_interval(lab: Lab) -> None:
    lab.interval_s = 3600
    lab.found("lab-1")
    lab.fails, lab.fails_at = OrchError("not in order"), CHECK
    lab.heal()
    lab.fails = None
    (told,) = lab.heal()
    assert isinstance(told, NotReplaced)
    assert "its new machine is not in order, and is looked at again" in told.text
    assert lab.done == []
    lab.interval_s = 0
    lab.heal()
    assert lab.done == ["lab-1"]


def test_want_of_room_protects_no_fleet(lab: Lab) -> None:
    lab.found("lab-1")
    lab.fails = OrchError("no capacity")
    for _ in range(5):
        lab.heal()
    assert lab.protection() is None
    lab.fails = None
    lab.heal()
    assert lab.done == ["lab-1"]


def test_runs_leave_for_a_spare_also_where_nothing_is_replaced(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orch.runner.node_api.claims import Claim
    from orch.stacks.maintenance.plan import PlannedRun

    busy = NodeStatus(
        "busy", busy_blocks=1, claims=(Claim("orch-train-0", "train", "ada@desk", "2026-01-01T00:00:00Z"),)
    )
    statuses = [NodeStatus("idle"), busy, NodeStatus("idle")]
    present = PlannedRun("train", "ada@desk", ("lab-1",), 7, stops=False)
    left: list[str] = []
    monkeypatch.setattr(healing, "runs_on", lambda *_: [present])
    monkeypatch.setattr(healing, "node_statuses", lambda *_: statuses)
    monkeypatch.setattr(Healer, "_make_leave", lambda self, node, runs: iter([left.append(node.name)][:0]))
    lab.nodes = (node(0), node(1), node(2))
    lab.most = 0
    lab.found("lab-1")
    assert isinstance(lab.heal()[0], NotReplaced)
    assert left == []
    lab.spares = FleetSpares(count=1, of=3)
    lab.heal()
    assert left == ["lab-1"]
    # The one that there is takes no jobs either.
    statuses[2] = NodeStatus("unreachable")
    statuses[0] = busy
    lab.heal()
    assert left == ["lab-1"]
