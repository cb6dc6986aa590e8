"""What an examination came to: the file on the node, by a real shell, and what placement makes of it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from kit.nodes.foldernodes import FolderLab, folder_of

from orch.runner.errors import CommandTimeout, HostUnreachable, NodeUnfit
from orch.runner.events import Event, Notice
from orch.runner.health import gate
from orch.runner.health.findings import Finding, HealthReport, report
from orch.runner.node.status import read_status
from orch.runner.node_api import verdict
from orch.runner.node_api.connector import Connector, NodeResult
from orch.runner.node_api.status import NodeStatus
from orch.runner.node_api.verdict import Verdict, read_verdict, record, unhealthy_error
from orch.runner.placement.availability import NodeAvailability
from orch.runner.placement.placement import place_task, unhealthy_message
from orch.spec.errors import OrchError
from orch.spec.models import Task
from orch.spec.state import FleetHealth, FleetState, NodeState

LOST = Finding("xid", "failure", "GPU 3 (0000:5d:00)", "Xid 79: the GPU has fallen off the bus", "reboot")
HOT = Finding("thermal", "warning", "GPU 1 (0000:2a:00)", "slowed down by heat")


@pytest.fixture
def lab(tmp_path: Path) -> FolderLab:
    return FolderLab(tmp_path)


def written(lab: FolderLab, node: NodeState, status: Any, reason: str, depth: str = "light") -> Verdict:
    (result,) = record({node.name: (status, reason)}, [node], lab.connector, depth, deadline_s=5)
    assert result.value is not None, result.error
    return result.value


def test_a_verdict_is_on_the_node_and_says_since_when(lab: FolderLab) -> None:
    node = lab.node(0)
    first = written(lab, node, "failure", "GPU 3 | lost\nby 'all' $(means) `x` \\n %s")
    assert (first.status, first.former) == ("failure", None)
    assert first.reason == "GPU 3 / lost by 'all' $(means) `x` \\n %s"
    file = folder_of(node) / "health"
    line = file.read_text().replace(first.since, "2026-01-01T00:00:00Z")
    file.write_text(line)
    again = written(lab, node, "failure", "GPU 3 lost")
    assert (again.since, again.former) == ("2026-01-01T00:00:00Z", "failure")
    assert again.at > again.since
    well = written(lab, node, "healthy", "")
    assert (well.status, well.reason, well.former, well.since) == ("healthy", "", "failure", well.at)
    assert not well.stale


def test_a_light_look_keeps_what_a_deep_one_of_this_boot_was(lab: FolderLab) -> None:
    node = lab.node(0)
    assert written(lab, node, "healthy", "", "dcgm").depth == "dcgm"
    assert written(lab, node, "healthy", "").depth == "dcgm"
    file = folder_of(node) / "health"
    boot = Path(verdict.BOOT_ID).read_text().strip()
    file.write_text(file.read_text().replace(boot, "00000000-0000-0000-0000-000000000000"))
    assert written(lab, node, "healthy", "").depth == "light"


def test_what_a_deep_look_found_is_not_forgotten_by_a_light_one(lab: FolderLab) -> None:
    node = lab.node(0)
    written(lab, node, "failure", "GPU 3: the memory test failed", "dcgm")
    light = written(lab, node, "healthy", "")
    assert (light.status, light.reason, light.depth) == ("failure", "GPU 3: the memory test failed", "dcgm")
    for status in ("warning", "failure"):  # neither lets jobs on the node nor is what it waits for
        other = written(lab, node, status, "GPU 1")
        assert (other.status, other.reason, other.depth) == (
            "failure",
            "GPU 3: the memory test failed",
            "dcgm",
        )
    assert written(lab, node, "healthy", "", "dcgm").status == "healthy"


def test_what_a_light_look_finds_is_over_when_it_finds_it_no_more_also_after_a_deep_one(
    lab: FolderLab,
) -> None:
    node = lab.node(0)
    written(lab, node, "healthy", "", "nccl")
    found = written(lab, node, "failure", "GPU 1 lost")
    assert (found.status, found.reason, found.depth) == ("failure", "GPU 1 lost", "nccl/light")
    assert found.passed("nccl")
    assert found.found_by == "light"
    assert written(lab, node, "failure", "GPU 2: the memory test failed", "dcgm").depth == "nccl/dcgm"
    light = written(lab, node, "healthy", "")
    assert (light.status, light.depth) == ("failure", "nccl/dcgm")
    well = written(lab, node, "healthy", "", "dcgm")
    assert (well.status, well.depth) == ("healthy", "nccl")
    # A warning of a deep look makes way for a failure of a light one.
    written(lab, node, "warning", "a slow link", "nccl")
    assert written(lab, node, "failure", "GPU 1 lost").depth == "nccl/light"
    assert written(lab, node, "healthy", "").status == "healthy"


@pytest.mark.parametrize(
    "line",
    [
        "bogus|x|x|{boot}|nccl|y\n",
        "healthy\n",
        "failure|" * 300_000,
        "failure|x|x|{boot}|nccl|" + "y" * 9000,
        "\0\xff\n|",
    ],
    ids=["status", "fields", "bars", "long", "bytes"],
)
def test_a_file_that_is_none_of_ours_is_read_in_part_and_written_anew(lab: FolderLab, line: str) -> None:
    node = lab.node(0)
    written(lab, node, "failure", "GPU 1 lost")
    boot = Path(verdict.BOOT_ID).read_text().strip()
    (folder_of(node) / "health").write_bytes(line.replace("{boot}", boot).encode("latin-1"))
    script = verdict.SCRIPT.replace("/var/lib/orch", str(folder_of(node)))
    shown = subprocess.run(["sh", "-c", script], capture_output=True, check=True)
    assert len(shown.stdout) < 3000
    found = read_verdict(shown.stdout.decode(errors="replace").splitlines())
    assert found is None or len(found.reason) <= verdict.MOST_CHARACTERS
    well = written(lab, node, "healthy", "")
    assert (well.status, well.depth) == ("healthy", "light")


@pytest.mark.parametrize(
    ("depth", "stale", "gates"),
    [
        ("light", False, {"none", "light"}),
        ("dcgm", False, {"none", "light", "dcgm", "nccl"}),
        ("dcgm", True, set[str]()),
    ],
)
def test_which_gates_a_verdict_passes(depth: str, stale: bool, gates: set[str]) -> None:
    told = Verdict("healthy", "", "", "b", depth, "", stale)
    assert {each for each in ("none", "light", "dcgm", "nccl") if told.passed(each)} == gates


@pytest.mark.parametrize("line", ["", "failure", "a|b|c|d|e|f", "failure|1|2|3|4", "FAILURE|1|2|3|4|5"])
def test_what_is_no_verdict_is_none(line: str) -> None:
    assert read_verdict([f"health {line}"]) is None


def test_the_status_of_a_node_tells_its_health_of_this_boot(lab: FolderLab) -> None:
    node = lab.node(0)
    written(lab, node, "warning", "slowed down by heat")
    script = verdict.SCRIPT.replace("/var/lib/orch", str(folder_of(node)))
    here = read_status(subprocess.check_output(["sh", "-c", script], text=True))
    assert here.health is not None
    assert (here.in_words(), here.unhealthy, here.health.stale) == ("idle (warning)", None, False)
    file = folder_of(node) / "health"
    boot = Path(verdict.BOOT_ID).read_text().strip()
    file.write_text(file.read_text().replace(boot, "another").replace("warning", "failure", 1))
    there = read_status(subprocess.check_output(["sh", "-c", script], text=True))
    assert there.health is not None
    assert (there.in_words(" 1/2"), there.unhealthy, there.health.stale) == (
        "idle 1/2 (failure)",
        "slowed down by heat",
        True,
    )


def test_a_notice_of_health_goes_with_the_fault_and_a_cloud_s_stays(lab: FolderLab) -> None:
    node = lab.node(0)
    notice = folder_of(node) / "notice"
    notice.write_text("health \n")
    written(lab, node, "failure", "lost")
    assert notice.exists()
    written(lab, node, "healthy", "")
    assert not notice.exists()
    notice.write_text("spot 2026-01-01T00:00:00Z\n")
    written(lab, node, "healthy", "")
    assert notice.exists()


# The gate


@dataclass
class Looks:
    """Stands in for looks at nodes: what is found on each, and which were asked."""

    found: dict[str, HealthReport | OrchError]
    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def __call__(
        self, nodes: Sequence[NodeState], connector: Connector, depth: str, **_: Any
    ) -> tuple[NodeResult[HealthReport], ...]:
        self.asked += [(node.name, depth) for node in nodes]
        results: list[NodeResult[HealthReport]] = []
        for node in nodes:
            told = self.found.get(node.name, report(()))
            failed = isinstance(told, OrchError)
            results.append(NodeResult(node, error=told) if failed else NodeResult(node, value=told))
        return tuple(results)


@dataclass
class Heard:
    texts: list[str] = field(default_factory=list[str])

    def handle(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.texts.append(event.text)


Gate = Callable[..., tuple[NodeStatus, ...]]


def fleet(lab: FolderLab, gate_: Any = "light") -> FleetState:
    return lab.fleet().model_copy(update={"health": FleetHealth(gate=gate_)})


def looks(monkeypatch: pytest.MonkeyPatch, **found: HealthReport | OrchError) -> Looks:
    stand_in = Looks({name.replace("_", "-"): each for name, each in found.items()})
    monkeypatch.setattr(gate, "examine", stand_in)
    return stand_in


def test_nodes_are_examined_before_their_first_job_and_once(
    lab: FolderLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in, heard = looks(monkeypatch, box_1=report([LOST])), Heard()
    here = fleet(lab)
    now = gate.through_gate(here, [NodeStatus("idle")] * 2, lab.connector, heard)
    assert [each.in_words() for each in now] == ["idle", "idle (failure)"]
    assert now[1].unhealthy == str(LOST)
    again = gate.through_gate(here, now, lab.connector, heard)
    assert (again, stand_in.asked) == (now, [("box-0", "light"), ("box-1", "light")])
    # One where a run failed is looked at again; after a boot, all are.
    gate.through_gate(here, now, lab.connector, heard, suspects=["box-0"])
    assert stand_in.asked[2:] == [("box-0", "light")]
    booted = [replace(each, health=replace(each.health, stale=True)) for each in now if each.health]
    gate.through_gate(here, booted, lab.connector, heard)
    assert len(stand_in.asked) == 5


@pytest.mark.parametrize("gate_", ["none", None])
def test_without_a_gate_nothing_is_examined(
    lab: FolderLab, monkeypatch: pytest.MonkeyPatch, gate_: str | None
) -> None:
    stand_in = looks(monkeypatch)
    health = FleetHealth(gate="none") if gate_ else None
    here = lab.fleet().model_copy(update={"health": health})
    statuses = (NodeStatus("idle"), NodeStatus("idle"))
    assert gate.through_gate(here, statuses, lab.connector, Heard()) == statuses
    assert stand_in.asked == []


def test_a_deep_gate_waits_for_jobs_to_end_and_says_that_it_takes_minutes(
    lab: FolderLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in, heard = looks(monkeypatch), Heard()
    busy = read_status("claim orch-x-0|train|ada@laptop|2026-01-01T00:00:00Z|1\n")
    gate.through_gate(fleet(lab, "dcgm"), [busy, NodeStatus("idle")], lab.connector, heard)
    assert stand_in.asked == [("box-1", "dcgm")]
    assert heard.texts == ["examining box-1 of fleet boxes before its first job: minutes"]


def test_one_that_cannot_be_examined_is_told_and_one_that_hangs_is_a_failure(
    lab: FolderLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, away = CommandTimeout("it hangs", where="box-0"), HostUnreachable("away", where="box-1")
    looks(monkeypatch, box_0=hangs, box_1=away)
    heard = Heard()
    statuses = [NodeStatus("idle"), NodeStatus("idle")]
    now = gate.through_gate(fleet(lab), statuses, lab.connector, heard)
    assert [each.in_words() for each in now] == ["idle (failure)", "idle"]
    assert now[0].unhealthy == "node: its examination does not end"
    assert heard.texts == []  # who places the run tells of one that does not answer
    looks(monkeypatch, box_0=OrchError("it answers something else"), box_1=report([HOT]))
    now = gate.through_gate(fleet(lab), statuses, lab.connector, heard)
    assert [each.in_words() for each in now] == ["idle", "idle (warning)"]
    assert heard.texts == ["node box-0 could not be examined: it answers something else"]


@pytest.mark.parametrize("status", ["provisioning", "unreachable", "terminated", "failure"])
def test_what_cannot_run_anything_is_not_examined(
    lab: FolderLab, monkeypatch: pytest.MonkeyPatch, status: Any
) -> None:
    stand_in = looks(monkeypatch)
    gate.through_gate(fleet(lab), [NodeStatus(status)] * 2, lab.connector, Heard())
    assert stand_in.asked == []


def test_two_looks_at_once_leave_one_whole_verdict(lab: FolderLab) -> None:
    node = lab.node(0)
    reasons = [f"fault {number}" for number in range(8)]
    threads = [threading.Thread(target=written, args=(lab, node, "failure", each)) for each in reasons]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = Verdict.parse((folder_of(node) / "health").read_text().strip())
    assert told is not None
    assert told.reason in reasons


# Placement


def test_no_job_goes_to_a_node_that_failed(lab: FolderLab) -> None:
    here = lab.fleet()
    task = Task(type="task", name="train", commands=["true"], resources={"cpu": "0.."})  # pyright: ignore
    ill = {"box-0": NodeAvailability(unhealthy="GPU 3 lost")}
    (seat,) = place_task(task, here, ill)
    assert seat.node.name == "box-1"
    assert unhealthy_message(here, ill) == "1 node is kept out for their health: box-0 (GPU 3 lost)"
    with pytest.raises(NodeUnfit) as refused:
        place_task(task, here, {**ill, "box-1": NodeAvailability(unhealthy="hot")})
    assert (refused.value.code, refused.value.where) == ("ORCH390", "box-0")
    assert "`orch health boxes`" in (refused.value.hint or "")
    assert unhealthy_error("a", "", "f").detail is None
