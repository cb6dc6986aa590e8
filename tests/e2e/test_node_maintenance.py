"""`orch node` on real containers: faults before, in the middle and after, kills, and two at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kit.nodes.stocked import stocked
from kit.support import Folder, containers, docker, until

from orch.runner.ledger.changes import Change, Step
from orch.runner.ledger.ledger import open_ledger
from orch.stacks.project.project import find

pytestmark = [pytest.mark.timeout(1200), pytest.mark.usefixtures("engine")]

VERBS = ("node", "rollout")
FLEET = "type: fleet\nname: care\nbackend: local\nnodes: 3\nresources: {memory: 512MB}\n"
TASK = """\
type: task
name: {name}
image: orch/mpi
fleets: [care]
instances: [{node}]
resources: {{cpu: 0.., memory: 64MB..}}
commands: ["trap 'echo was told; exit 0' TERM", "echo begun", "while :; do sleep 1; done"]
stop_duration: 60s
"""


@pytest.fixture(scope="module")
def care(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    path = tmp_path_factory.mktemp("care")
    backend = f"{{type: local, node_image: '{stocked('mpi')}'}}"
    (path / "orch.yml").write_text(f"project: tests\nbackends: [{backend}]\n")
    folder = Folder(path)
    folder.write("fleet.yml", FLEET)
    said = folder.orch("up", "fleet.yml", "--yes", timeout=600)
    assert said.code == 0, said.err
    yield folder
    said = folder.orch("down", "fleet.yml", "--yes", "--force", timeout=600)
    assert said.code == 0, said.err


def container(folder: Folder, index: int) -> str:
    return next(name for name in containers(folder, "care") if name.endswith(f"-{index}"))


def lives(folder: Folder) -> list[str]:
    """What tells the present life of each node's container from others."""
    return lives_of(folder, 0, 1, 2)


def lives_of(folder: Folder, *indices: int) -> list[str]:
    names = [container(folder, index) for index in indices]
    return docker("inspect", "-f", "{{.Id}} {{.State.StartedAt}}", *names).splitlines()


def statuses(folder: Folder) -> dict[str, str]:
    listed = folder.orch("fleet", "list", "--json").json["fleets"][0]["nodes"]
    return {each["name"]: each["status"] for each in listed}


def submit(folder: Folder, name: str, node: int) -> None:
    file = folder.write(f"{name}.yml", TASK.format(name=name, node=f"care-{node}"))
    said = folder.orch("run", file, "--detach")
    assert said.code == 0, said.err
    until(lambda: "begun" in folder.orch("logs", name).out, 120, f"run {name} has begun")


def status_of(folder: Folder, run: str) -> str:
    return next(
        each["status"] for each in folder.orch("ps", "-a", "--json").json["runs"] if each["run"] == run
    )


def latest(folder: Folder) -> tuple[Change, tuple[Step, ...]]:
    """The last change of a node, and its journal."""
    with closing(open_ledger(find(folder.path).ledger_url)) as ledger:
        change = ledger.changes.listed("tests", verbs=VERBS)[0]
        return change, ledger.changes.steps(change.id)


def done(steps: tuple[Step, ...]) -> list[tuple[str, str]]:
    return [(each.host, each.name) for each in steps if each.status == "done"]


def killed_when(folder: Folder, reached: Callable[[tuple[Step, ...]], bool], *words: str) -> None:
    """Begin a command, and kill it -9 when its journal has come so far."""
    before = len(changes(folder))
    with folder.start(*words) as process:
        until(lambda: len(changes(folder)) > before or process.poll() is not None, 120, "it has begun")
        until(lambda: reached(latest(folder)[1]) or process.poll() is not None, 240, "it has come so far")
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)


def changes(folder: Folder) -> tuple[Change, ...]:
    with closing(open_ledger(find(folder.path).ledger_url)) as ledger:
        return ledger.changes.listed("tests", verbs=VERBS)


def begun(step: str, host: str) -> Callable[[tuple[Step, ...]], bool]:
    return lambda steps: any((each.name, each.host) == (step, host) for each in steps)


@contextmanager
def unsupported(folder: Folder, index: int) -> Iterator[None]:
    """A node that says it is of a kind that orch does not know: `orch check` fails there."""
    node, uname = container(folder, index), "/usr/local/bin/uname"
    text = '#!/bin/sh\\n[ "$*" != "-s -m" ] || { echo Linux riscv64; exit; }\\nexec /bin/uname "$@"\\n'
    docker("exec", node, "sh", "-c", f"printf '{text}' > {uname}; chmod 755 {uname}")
    try:
        yield
    finally:
        docker("exec", node, "rm", uname)


def test_a_drain_stops_what_the_plan_says_and_is_taken_back(care: Folder) -> None:
    submit(care, "alpha", 0)
    submit(care, "beta", 1)
    refused = care.orch("node", "drain", "care-0", "--yes")
    assert refused.code == 9
    assert "ORCH386" in refused.err
    assert "alpha" in refused.err
    assert "beta" not in refused.err
    assert changes(care) == ()
    asks = care.orch("node", "drain", "care-0", "--stop-runs")
    assert asks.code == 2
    assert "no terminal" in asks.err
    planned = care.orch("node", "drain", "care-0", "--stop-runs", "--plan-only")
    assert planned.code == 0
    assert "run stops: alpha (run 1)" in planned.out
    assert status_of(care, "alpha") == "running"
    assert changes(care) == ()

    said = care.orch("node", "drain", "care-0", "--stop-runs", "--yes", "--reason", "fan", "--report", "r.md")
    assert said.code == 0, said.err
    assert status_of(care, "alpha") == "terminated"
    assert "was told" in care.orch("logs", "alpha").out
    assert status_of(care, "beta") == "running"
    assert statuses(care) == {"care-0": "cordoned", "care-1": "busy", "care-2": "idle"}
    change, steps = latest(care)
    assert (change.status, change.verb, change.subject) == ("done", "node drain", "nodes care-0")
    assert done(steps) == [("care-0", "cordon"), ("", "stop run alpha (1)"), ("care-0", "drain")]
    report = (care.path / "r.md").read_text()
    assert "- run alpha (1)" in report
    assert "| care-0 | drain | done |" in report

    # A cordon that others wrote stays.
    docker("exec", container(care, 2), "sh", "-c", "echo 'eve@away|now|fan' > /var/lib/orch/cordon")
    undone = care.orch("node", "drain", "care-[0,2]", "--undo")
    assert undone.code == 7
    assert "care-0: may take jobs again" in undone.out
    assert "care-2: left alone" in undone.err
    assert statuses(care) == {"care-0": "idle", "care-1": "busy", "care-2": "cordoned"}


def test_a_reboot_leaves_what_others_cordoned_and_is_killed_and_gone_on_with(care: Folder) -> None:
    before = lives(care)
    alone = care.orch("node", "reboot", "care-2", "--yes")
    assert alone.code == 7
    assert "somebody else cordoned it" in alone.err
    words = ("node", "reboot", "care-[0-2]", "--yes", "--stop-runs", "--serial", "1")
    killed_when(care, begun("reboot", "care-0"), *words)
    change, _ = latest(care)
    assert change.shown_status == "interrupted"
    # Others may not take these nodes, and the same command with another end is none of it.
    other = care.orch("node", "drain", "care-1", "--yes", "--stop-runs")
    assert other.code == 9
    assert "ORCH389" in other.err
    assert care.orch("node", "reboot", "care-[0-2]", "--yes", "--wait", "1h").code == 2
    said = care.orch(*words, "--json")
    assert said.code == 0, said.err
    ended, steps = latest(care)
    assert (ended.id, ended.status, ended.calls) == (change.id, "done", 2)
    assert said.json["change"] == change.id
    assert [each["name"] for each in said.json["plan"]["left_alone"]] == ["care-2"]
    assert done(steps).count(("", "stop run beta (2)")) == 1
    after = lives(care)
    assert [a.split()[0] == b.split()[0] for a, b in zip(before, after, strict=True)] == [True] * 3
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, True]
    assert [restarts(care, index) for index in range(3)] == [1, 1, 0]
    assert statuses(care) == {"care-0": "idle", "care-1": "idle", "care-2": "cordoned"}
    docker("exec", container(care, 2), "rm", "/var/lib/orch/cordon")


def restarts(folder: Folder, index: int) -> int:
    """How often a node's container was started anew: its SSH server has told each start."""
    words = (
        "exec",
        container(folder, index),
        "grep",
        "-c",
        "Server listening on 0.0.0.0",
        "/var/log/sshd.log",
    )
    return int(docker(*words)) - 1


def test_a_node_that_is_not_in_order_ends_the_waves_and_a_later_run_is_not_stopped(care: Folder) -> None:
    words = ("node", "reboot", "care-[0-1]", "--yes", "--stop-runs")
    with unsupported(care, 0):
        said = care.orch(*words)
        assert said.code == 7, said.err
        assert "ORCH399" in said.err
        assert "host.os" in said.err
        assert "the next wave does not begin: care-1" in said.err
        listed = care.orch("fleet", "list", "--json").json["fleets"][0]["nodes"]
        assert "not in order after orch node reboot: host.os" in listed[0]["reason"]
    assert statuses(care) == {"care-0": "cordoned", "care-1": "idle", "care-2": "idle"}
    submit(care, "late", 1)
    again = care.orch(*words)
    assert again.code == 7, again.err
    assert "run late came after the plan and is not stopped" in again.err
    assert status_of(care, "late") == "running"
    assert statuses(care) == {"care-0": "idle", "care-1": "cordoned", "care-2": "idle"}
    assert [restarts(care, index) for index in range(3)] == [2, 1, 0]
    assert care.orch("stop", "late").code == 0
    last = care.orch(*words)
    assert last.code == 0, last.err
    assert [restarts(care, index) for index in range(3)] == [2, 2, 0]
    assert latest(care)[0].calls == 3
    assert set(statuses(care).values()) == {"idle"}


def test_a_dead_node_is_replaced_under_its_index_though_the_call_is_killed(care: Folder) -> None:
    before = [each.split()[0] for each in lives(care)]
    docker("kill", container(care, 1))
    assert care.orch("node", "reboot", "care-1", "--yes").code == 7
    words = ("node", "replace", "care-1", "--yes")
    killed_when(care, begun("make care-1", ""), *words)
    said = care.orch(*words, timeout=600)
    assert said.code == 0, said.err
    change, steps = latest(care)
    assert (change.status, change.calls >= 2) == ("done", True)
    assert ("", "remove care-1") in done(steps)
    after = [each.split()[0] for each in lives(care)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]
    assert set(statuses(care).values()) == {"idle"}
    assert care.orch("preview", "fleet.yml", "--exit-code").code == 0
    (node,) = [each for each in nodes(care) if each["name"] == "care-1"]
    assert node["index"] == 1
    # What the file has beside is not brought up with it.
    care.write("fleet.yml", FLEET.replace("nodes: 3", "nodes: 4"))
    other = care.orch("node", "replace", "care-1", "--yes")
    assert other.code == 9, other.err
    assert "ORCH406" in other.err
    care.write("fleet.yml", FLEET)


def nodes(folder: Folder) -> list[dict[str, Any]]:
    return folder.orch("fleet", "list", "--json").json["fleets"][0]["nodes"]


def test_two_at_once_take_neighbours_and_not_the_same_node(care: Folder) -> None:
    submit(care, "long", 0)
    before = [each.split()[0] for each in lives(care)]
    with care.start("node", "replace", "care-0", "--yes", "--wait", "1h") as first:
        until(lambda: begun("cordon", "care-0")(latest(care)[1]), 240, "the first has its node")
        for verb in ("drain", "replace"):
            refused = care.orch("node", verb, "care-0", "--yes", "--stop-runs")
            assert refused.code == 9, refused.err
            assert "ORCH389" in refused.err
        drained = care.orch("node", "drain", "care-1", "--yes")
        assert drained.code == 0, drained.err
        assert first.poll() is None
        assert status_of(care, "long") == "running"
        assert care.orch("stop", "long").code == 0
        _, err = first.communicate(timeout=600)
        assert first.returncode == 0, err
    after = [each.split()[0] for each in lives(care)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, True]
    assert statuses(care) == {"care-0": "idle", "care-1": "cordoned", "care-2": "idle"}
    assert care.orch("node", "drain", "care-1", "--undo").code == 0


def test_what_the_file_changes_comes_to_one_wave_after_the_other(care: Folder) -> None:
    """Docker does not lift a limit of memory, so that nodes without one are new ones."""
    same = care.orch("rollout", "fleet.yml", "--yes")
    assert same.code == 0, same.err
    assert "no node differs" in same.out
    # Of the four nodes that it may have by then, one is a spare.
    more = FLEET.replace("nodes: 3", "nodes: {min: 3, target: 3, max: 4}")
    care.write("fleet.yml", more.replace("{memory: 512MB}", "{cpu: 1..}"))
    submit(care, "busy", 1)
    before = [each.split()[0] for each in lives(care)]
    refused = care.orch("rollout", "fleet.yml", "--yes")
    assert refused.code == 9
    assert "ORCH386" in refused.err
    words = ("rollout", "fleet.yml", "--yes", "--stop-runs", "--serial", "1,2")
    killed_when(care, begun("roll care-0", ""), *words)
    # What it holds nobody else takes; the wave that had not begun is as it was.
    assert care.orch("node", "reboot", "care-2", "--yes").code == 9
    assert [each.split()[0] for each in lives_of(care, 1, 2)] == before[1:]
    assert status_of(care, "busy") == "running"
    said = care.orch(*words, timeout=600)
    assert said.code == 0, said.err
    change, steps = latest(care)
    assert (change.verb, change.status, change.calls) == ("rollout", "done", 2)
    assert [name for host, name in done(steps) if not host] == [
        *("make spare care-3", "roll care-0", "stop run busy (5)", "roll care-[1-2]"),
        *("remove spare care-3", "bring up the rest"),
    ]
    after = [each.split()[0] for each in lives(care)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False] * 3
    assert status_of(care, "busy") == "terminated"
    assert set(statuses(care).values()) == {"idle"}
    assert care.orch("preview", "fleet.yml", "--exit-code").code == 0
