"""Plans of maintenance: waves, what is left alone, which runs stop, and what people read of it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit.support import until

from orch.cli.maintenance.maintain import Begin
from orch.cli.maintenance.options import Handling
from orch.review.markdown import maintenance_report as report
from orch.runner.ledger.changes import Change, Step
from orch.runner.node_api.cordon import CLOUD, Cordon
from orch.spec.models import Fleet
from orch.stacks.errors import Conflict
from orch.stacks.maintenance import evacuate
from orch.stacks.maintenance.errors import CannotReplace
from orch.stacks.maintenance.evacuation import Evacuation
from orch.stacks.maintenance.plan import LeftAlone, MaintenancePlan, NodeLook, Options, PlannedRun, plan_of
from orch.stacks.maintenance.reboot import BOOT_ID, REBOOT_TEXT
from orch.stacks.maintenance.serial import DEFAULT, Share, in_turn, parse_serial
from orch.stacks.maintenance.spares import spares_of

pytestmark = pytest.mark.quick

ME, EVE = "ada@desk", "eve@away"
TRAIN = PlannedRun("train", ME, ("lab-0", "lab-1"), 7, stops=False)
THEIRS = PlannedRun("other", EVE, ("lab-2",), None, stops=False)


def look(index: int, **more: Any) -> NodeLook:
    return replace(NodeLook("lab", "aws", f"lab-{index}", index, f"i-{index} then", fleet_size=4), **more)


LAB = tuple(look(index, price_hourly=2.5) for index in range(4))


def planned(*looks: NodeLook, runs: tuple[PlannedRun, ...] = (), verb: Any = "reboot", **options: Any) -> Any:
    chosen = {"serial": parse_serial(DEFAULT), **options}
    return plan_of(verb, looks or LAB, runs, Options(**chosen), me=ME)


def sizes(count: int, serial: str) -> list[int]:
    names = [f"n{number}" for number in range(count)]
    waves = in_turn(names, parse_serial(serial))
    assert [name for wave in waves for name in wave] == names
    return [len(wave) for wave in waves]


def test_waves_grow_and_the_last_size_repeats() -> None:
    assert sizes(100, DEFAULT) == [1, 10, 25, 25, 25, 14]
    assert sizes(3, DEFAULT) == [1, 1, 1]
    assert sizes(5, "2") == [2, 2, 1]
    assert sizes(5, "100%") == [5]
    assert sizes(7, "1, 50%") == [1, 3, 3]
    assert sizes(0, DEFAULT) == []


@pytest.mark.parametrize("text", ["", "0", "-1", "1,", "101%", "10%%", "ten", "\u0664", "1.5"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write a number of nodes|at most 100%"):
        parse_serial(text)


def test_so_many_may_fail() -> None:
    assert Share.parse("0", least=0).of(50) == 0
    assert Share.parse("10%", least=0).of(50) == 5
    assert planned(max_fail=Share(50, percent=True)).max_fail == 2


def test_nodes_that_others_cordoned_are_left_alone() -> None:
    plan = planned(
        look(0, cordon=Cordon(EVE, "now", "fan broken")),
        look(1, cordon=Cordon(ME, "now", "fan broken")),
        look(2, cordon=Cordon(CLOUD, "now", "it takes it")),
        look(3),
    )
    assert [each.name for each in plan.nodes] == ["lab-1", "lab-2", "lab-3"]
    (alone,) = plan.left_alone
    assert alone.name == "lab-0"
    assert "fan broken, by eve@away" in alone.why
    assert alone.hint is not None
    assert "orch cordon --undo lab-0" in alone.hint
    assert "  left alone: lab-0, somebody else cordoned it" in "\n".join(plan.lines())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(parse_serial(DEFAULT)), []),
        (
            Options((Share(2), Share(50, percent=True)), Share(10, percent=True), True, 5400, "fan $(id)"),
            [
                *("--stop-runs", "--wait", "1h30m", "--serial", "2,50%"),
                *("--max-fail", "10%", "--reason", "fan $(id)"),
            ],
        ),
    ],
    ids=["none", "all"],
)
def test_what_a_user_is_told_to_write_has_the_options_that_were_given(
    options: Options, words: list[str]
) -> None:
    asked = Begin("drain", options, lambda _: False, lambda *_: planned(), ["node", "drain", "lab-[0-2]"])
    typed = shlex.split(asked.command(Handling(report=Path("a b.md"), as_json=True)))
    assert typed == [
        *("orch", "node", "drain", "lab-[0-2]"),
        *words,
        *("--report", "a b.md", "--json", "--yes"),
    ]


def test_what_does_not_answer_can_be_replaced_and_nothing_else() -> None:
    silent, pod = look(0, answers=False), look(1, pod=True)
    for verb, taken in {"drain": ["lab-1"], "reboot": [], "replace": ["lab-0", "lab-1"]}.items():
        assert [each.name for each in planned(silent, pod, verb=verb).nodes] == taken
    assert [each.why for each in planned(silent, pod).left_alone] == [
        "it does not answer",
        "a pod cannot be rebooted",
    ]


def test_runs_stop_only_where_it_was_said_and_where_they_are_ours() -> None:
    with pytest.raises(Conflict) as caught:
        planned(runs=(TRAIN,)).refuse_runs()
    assert (caught.value.code, caught.value.exit_code) == ("ORCH386", 9)
    assert "train (run 7) of ada@desk on lab-[0-1]" in str(caught.value.detail)
    assert "--stop-runs" in str(caught.value.hint)
    stops = planned(runs=(TRAIN, THEIRS), stop_runs=True)
    assert [each.stops for each in stops.runs] == [True, False]
    with pytest.raises(Conflict) as caught:
        stops.refuse_runs()
    assert "other" in caught.value.summary
    assert "train" not in caught.value.summary
    assert "--stop-runs" not in str(caught.value.hint)
    assert "`orch stop other` where it was started" in str(caught.value.hint)
    for waits in (
        planned(runs=(TRAIN, THEIRS), wait_s=60),
        planned(runs=(TRAIN,), stop_runs=True),
        planned(),
    ):
        waits.refuse_runs()


def test_runs_on_nodes_that_are_left_alone_are_none_of_it() -> None:
    alone = look(2, cordon=Cordon(EVE, "now", ""))
    plan = planned(look(0), alone, runs=(TRAIN, THEIRS), stop_runs=True)
    assert [each.name for each in plan.runs] == ["train"]


def test_people_read_waves_runs_time_and_cost() -> None:
    plan = planned(runs=(TRAIN,), stop_runs=True, wait_s=1800)
    assert plan.lines() == [
        "orch node reboot: 4 nodes in 4 waves",
        *(f"  wave {number + 1}: lab-{number}" for number in range(4)),
        "  run stops: train (run 7) of ada@desk on lab-[0-1]",
        "  time: up to 30m for runs to end, and the `stop_duration` of the runs that stop, and at most 30m a "
        "wave, not known better yet",
        "  cost: the nodes do no work meanwhile, $10.00 an hour for all of them; none is paid twice",
        "  stops at the first node that fails",
    ]
    assert "about 1m35s a wave, as before" in "\n".join(replace(plan, usual_s=95.2).lines())
    unpriced = planned(*LAB[:3], look(3))
    assert "what an hour of them costs is not known" in "\n".join(unpriced.lines())


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = planned(*LAB, look(9, answers=False), runs=(TRAIN, THEIRS), stop_runs=True, wait_s=5)
    assert MaintenancePlan.parse(plan.text()) == plan
    assert plan.subject == "nodes lab-[0-3,9]"
    assert plan.holds == ("lab/lab-0", "lab/lab-1", "lab/lab-2", "lab/lab-3")


def test_nothing_that_a_node_tells_is_markup_in_the_report() -> None:
    plan = planned(LAB[0])
    change = Change(
        *(5, "demo", "", "node reboot", plan.subject, "orch node reboot lab-0", "here", plan.text()),
        *(plan.holds, ME, "done", "1 node done", 0, None, None, 1, 2, 0.0, 90.0, 95.0),
    )
    steps = (
        Step("lab-0", "drain", "done", "<img src=x>| [link](x) `code`\n# head", 10.0, 11.2),
        Step("", "stop run train (7)", "done", "terminated", 5.0, 9.0),
        Step("lab-0", "reboot", "running", None, 12.0, None),
    )
    text = report(plan, change, steps, ["nvidia-smi.txt"])
    who = "by ada@&#8203;desk, begun 1970-01-01 00:00:00 UTC"
    assert f"Change 5 of demo, {who}: **done**, 1 node done" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert [row.split(" | ")[1] for row in rows] == ["stop run train (7)", "drain", "reboot"]
    assert rows[1].endswith("| 1s | &lt;img src=x&gt;\\| \\[link\\](x) \\`code\\` #&#8203; head |")
    assert "- run train (7)\n" in text
    assert "- nvidia-smi.txt\n" in text


@pytest.mark.parametrize(
    ("has", "asked"), [("systemctl", "systemctl reboot"), ("reboot", "reboot"), ("", "")]
)
def test_a_machine_reboots_with_what_it_has(tmp_path: Path, has: str, asked: str) -> None:
    """It finds the commands of this folder alone: those of this machine would reboot it."""
    for name in ("sh", "sleep"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    if has:
        (tmp_path / has).write_text(f"#!{tmp_path}/sh\necho {has} $* >> {tmp_path}/asked\n")
        (tmp_path / has).chmod(0o755)
    path = {"PATH": str(tmp_path)}
    words = [str(tmp_path / "sh"), "-c", REBOOT_TEXT]
    done = subprocess.run(words, env=path, capture_output=True, text=True, timeout=60, check=False)
    if not has:
        assert (done.returncode, done.stderr) == (1, "there is neither systemctl nor reboot\n")
        return
    assert (done.returncode, done.stderr) == (0, "")
    until((tmp_path / "asked").exists, 60, "it reboots")
    until(lambda: (tmp_path / "asked").read_text() == f"{asked}\n", 60, "it was asked so")


def test_a_life_of_a_machine_has_a_number() -> None:
    told = subprocess.run(["sh", "-c", BOOT_ID], capture_output=True, text=True, check=True).stdout.split()
    assert len(told) == 2
    assert told[0] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert told[1] == Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]


def test_an_evacuation_tells_what_is_paid_twice_and_what_it_takes_along() -> None:
    plan = planned(verb="evacuate", serial=parse_serial("1,3"))
    names = ("use1-az2", "us-east-1a")
    plan = replace(plan, zone=names[0], zone_names=names, notes=("no new node goes there",))
    assert plan.leaves("lab", "US-east-1a")
    assert not plan.leaves("lab", "us-east-1b")
    assert not plan.leaves("other", "use1-az2")
    assert plan.title == "fleet evacuate"
    assert MaintenancePlan.parse(plan.text()) == plan
    text = "\n".join(plan.lines())
    assert "orch fleet evacuate: 4 nodes in 2 waves" in text
    assert "  no new node goes there\n" in text
    assert "paid for minutes both, $7.50 an hour more" in text
    whole = replace(plan, whole=True, waves=(plan.names,))
    plan = replace(plan, content="1f2e")
    assert MaintenancePlan.parse(plan.text()) == plan
    whole = replace(whole, content="1f2e")
    one_by_one = Evacuation(names[0], names, plan.names, whole=False, notes=plan.notes, content="1f2e")
    together = replace(one_by_one, whole=True)
    assert (one_by_one.of(plan), together.of(whole)) == (plan, whole)
    assert together.in_waves(Options(DEFAULT)).serial == (Share(100, percent=True),)
    assert one_by_one.in_waves(Options(DEFAULT)) == Options(DEFAULT)
    alone = (LeftAlone("lab-1", "somebody else cordoned it", "ask them"),)
    assert one_by_one.of(replace(plan, left_alone=alone)).left_alone == alone
    with pytest.raises(CannotReplace) as refused:
        together.of(replace(whole, left_alone=alone))
    assert refused.value.code == "ORCH429"
    assert "none is paid twice" in "\n".join(whole.lines())
    # A node of a zone that fails may not answer.
    assert planned(look(0, answers=False), verb="evacuate").left_alone == ()


def test_what_is_given_up_lets_nodes_take_jobs_first_and_names_those_that_do_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = replace(planned(verb="evacuate"), zone="use1-az2", zone_names=("use1-az2",))
    begun = SimpleNamespace(id=7, plan=plan.text(), holds=("lab/lab-0",), held=False, scope="here")
    done: list[str] = []
    changes = SimpleNamespace(listed=lambda *_, **__: [begun], abandon=lambda _: done.append("given up"))
    nodes = [SimpleNamespace(name=each.name) for each in plan.nodes]

    def unmark(nodes: Any, *_: Any, **__: Any) -> list[Any]:
        done.append("may take jobs")
        errors = [None, OSError("no answer")]
        pairs = zip(nodes, errors, strict=False)
        return [SimpleNamespace(node=node, error=error, value=None) for node, error in pairs]

    monkeypatch.setattr(evacuate, "StackState", lambda *_: SimpleNamespace(outputs={"fleet": {}}))
    monkeypatch.setattr(evacuate, "fleet_of", lambda _: None)
    monkeypatch.setattr(evacuate, "ledger_scope", lambda _: "here")
    monkeypatch.setattr(evacuate, "unmark_of", unmark)
    project: Any = SimpleNamespace(name="tests", machines=lambda _: nodes)
    runner: Any = SimpleNamespace(ledger=SimpleNamespace(changes=changes), connector=None)
    found = list(evacuate.give_up(project, runner, "lab", "use1-az2"))
    assert found == [(begun, "use1-az2", ("lab-0",), ("lab-1",))]
    assert done == ["may take jobs", "given up"]


def test_spare_nodes_come_where_the_file_allows_more_and_not_all_at_once() -> None:
    stack: Any = SimpleNamespace(
        nodes=[{"index": index} for index in range(3)],
        node_names=frozenset(f"lab-{index}" for index in range(3)),
    )

    def spares(nodes: object, waves: tuple[tuple[str, ...], ...], **more: object) -> tuple[str, ...]:
        fleet = Fleet.model_validate({"type": "fleet", "name": "lab", "nodes": nodes, **more})
        return spares_of(fleet, stack, waves)[0]

    waves = (("lab-0",), ("lab-1", "lab-2"))
    assert spares("3..8", waves) == ("lab-3", "lab-4")
    assert spares("0..4", waves) == ("lab-3",)
    assert spares("3..8", waves[:1]) == ("lab-3",)
    assert spares(3, waves) == spares("0..3", waves) == ()
    assert spares("3..8", waves, placement="cluster") == ()
    assert spares("3..8", waves, gang="all-or-nothing") == ()
    plan = replace(planned(verb="rollout"), spares=("lab-4",))
    assert MaintenancePlan.parse(plan.text()) == plan
    assert "lab/lab-4" in plan.holds
    assert "the spare ones are paid beside them, $2.50 an hour" in "\n".join(plan.lines())
