"""A fleet through the command line, with the real engine and real containers: what a user does and sees."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.support import Folder, Said, containers, fleet_yaml, networks

from orch.stacks.project.project import find

FLEET = "e2efleet"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """A fleet of two nodes, previewed before it was brought up."""
    path = tmp_path_factory.mktemp("fleet")
    (path / "orch.yml").write_text("project: tests\n")
    folder = Folder(path)
    folder.write("fleet.yml", fleet_yaml(FLEET, 2))
    before = folder.orch("preview", "fleet.yml", "--json")
    assert before.code == 0, before.err
    (path / "before.json").write_text(before.out)
    said = folder.orch("up", "fleet.yml", "--yes", timeout=600)
    assert said.code == 0, said.err
    yield folder
    assert folder.orch("down", FLEET, "--yes").code == 0
    assert containers(folder, FLEET) == {}
    assert networks(folder, FLEET) == []
    assert {entry.name for entry in path.iterdir()} <= {
        ".orch",
        "orch.yml",
        "fleet.yml",
        "before.json",
        "Pulumi.yaml",
        "__main__.py",
        "__pycache__",
    }


def test_a_first_preview_only_creates(up: Folder) -> None:
    plan = json.loads((up.path / "before.json").read_text())
    assert plan["schema"] == 1
    assert plan["summary"] == {"create": 5, "update": 0, "replace": 0, "delete": 0, "same": 0}
    assert [change["urn"] for change in plan["changes"]] == sorted(
        change["urn"] for change in plan["changes"]
    )
    assert {change["op"] for change in plan["changes"]} == {"create"}


def test_a_preview_after_up_finds_all_the_same(up: Folder) -> None:
    said = up.orch("preview", "fleet.yml", "--json", "--exit-code")
    assert said.code == 0, said.err
    assert {change["op"] for change in said.json["changes"]} == {"same"}


def test_a_third_node_is_the_only_thing_a_larger_fleet_creates(up: Folder) -> None:
    up.write("three.yml", fleet_yaml(FLEET, 3))
    said = up.orch("preview", "three.yml", "--json", "--exit-code")
    (up.path / "three.yml").unlink()
    assert said.code == 10
    changed = [(c["op"], c["name"]) for c in said.json["changes"] if c["op"] != "same"]
    assert changed == [("create", f"{FLEET}-2")]


def test_changed_memory_is_shown_at_its_leaf_and_changed_in_place(up: Folder) -> None:
    up.write("larger.yml", fleet_yaml(FLEET, 2).replace("1GB", "1536MB"))
    said = up.orch("preview", "larger.yml", "--json")
    changed = [c for c in said.json["changes"] if c["op"] != "same"]
    assert [c["name"] for c in changed] == [f"{FLEET}-0", f"{FLEET}-1"]
    assert changed[0]["op"] == "update"
    (leaf,) = changed[0]["diff"]
    assert leaf == {"path": "memory_mib", "old": 1024, "new": 1536, "replaces": False, "drift": None}
    text = up.orch("preview", "larger.yml").out
    (up.path / "larger.yml").unlink()
    assert f"~ {FLEET}-[0-1]  node (2)" in text
    assert "memory 1024 MiB -> 1536 MiB, in place on 2 resources" in text


def test_a_second_up_says_no_changes(up: Folder) -> None:
    said = up.orch("up", "fleet.yml", "--yes")
    assert said.code == 0, said.err
    assert "no changes" in said.out


def test_the_fleet_lists_its_nodes_as_idle(up: Folder) -> None:
    said = up.orch("fleet", "list", "--json")
    assert said.code == 0, said.err
    (fleet,) = said.json["fleets"]
    assert (fleet["name"], fleet["backend"], fleet["status"]) == (FLEET, "local", "active")
    assert [(n["index"], n["status"], n["busy_blocks"]) for n in fleet["nodes"]] == [
        (0, "idle", 0),
        (1, "idle", 0),
    ]


def test_each_node_tells_since_when_it_is_there_and_what_docker_calls_it(up: Folder) -> None:
    nodes = up.orch("fleet", "list", "--json").json["fleets"][0]["nodes"]
    ids = up.orch("fleet", "ids", FLEET).out.split()
    assert ids == [node["id"] for node in nodes]
    assert set(ids) == set(containers(up, FLEET))
    assert all(node["created_at"] and node["spot"] is False for node in nodes)
    assert re.search(r"\d+[smh] ago", up.orch("fleet").out)


WRONG_RUNS = {
    "instances: [e2eflet-0]": (
        "3:13: error ORCH246: no fleet here has a node 'e2eflet-0'",
        "e2efleet: e2efleet-[0-1]",
        "did you mean 'e2efleet-0'?",
    ),
    "exclude_nodes: ['e2efleet-[0-1]']": (
        "3:16: error ORCH245",
        "`exclude_nodes` leaves out e2efleet-[0-1]",
        "or change `exclude_nodes` of the task",
    ),
    "regions: [us-east-1]": (
        "3:10: error ORCH245",
        "`regions` asks for us-east-1, its nodes have no region",
        "or change `regions` of the task",
    ),
    "groups: [{commands: [a]}, {nodes: 2, commands: [b]}]": (
        "3:9: error ORCH245",
        "it has 2 nodes, the task needs 3",
        "lower the `nodes` of its groups",
    ),
    "groups: [{commands: [a]}, {commands: [b], resources: {gpu: 8}}]": (
        "3:60: error ORCH245",
        "node e2efleet-0 has 0 GPUs, group 1 asks for 8",
        "or change `groups[1].resources.gpu` of the task",
    ),
}


@pytest.mark.parametrize("line", WRONG_RUNS)
def test_a_task_that_fits_nowhere_is_told_at_its_place(up: Folder, line: str) -> None:
    commands = "" if line.startswith("groups") else "commands: [true]\n"
    up.write("task.yml", f"type: task\nname: job\n{line}\n{commands}")
    said = up.orch("run", "task.yml")
    (up.path / "task.yml").unlink()
    place, told, hint = WRONG_RUNS[line]
    assert said.code == 3, said.err
    assert said.err.startswith(f"task.yml:{place}")
    assert told in said.err
    assert hint in said.err
    assert not list(up.path.glob(".orch/runs/job*"))


def test_drift_of_an_untouched_fleet_is_empty(up: Folder) -> None:
    said = up.orch("drift", "fleet.yml", "--json")
    assert (said.code, said.json["drift"]) == (0, [])


@pytest.mark.parametrize("harm", ["rm", "stop", "limit"])
def test_drift_names_what_was_harmed_and_up_mends_that_alone(up: Folder, harm: str) -> None:
    victim = next(name for name in containers(up, FLEET) if name.endswith("-1"))
    command = {
        "rm": ["docker", "rm", "-f", "-v", victim],
        "stop": ["docker", "stop", "-t", "0", victim],
        "limit": ["docker", "update", "--memory", "900m", "--memory-swap", "900m", victim],
    }[harm]
    subprocess.run(command, check=True, capture_output=True)

    said = up.orch("drift", FLEET, "--json")
    assert said.code == 10
    (found,) = said.json["drift"]
    assert found["name"] == f"{FLEET}-1"
    expected = {"rm": ("", "(gone)"), "stop": ("status", "exited"), "limit": ("memory_mib", 900)}[harm]
    assert (found["path"], found["observed"]) == expected

    mended = up.orch("up", "fleet.yml", "--yes", "--json")
    assert mended.code == 0, mended.err
    changed = [(c["op"], c["name"]) for c in mended.json["changes"] if c["op"] != "same"]
    assert changed == [("create" if harm == "rm" else "update", f"{FLEET}-1")]
    assert up.orch("drift", FLEET).code == 0


SMALLER = fleet_yaml(FLEET, 1)
ANEW = fleet_yaml(FLEET, 2).replace("resources: {memory: 1GB}\n", "")
"""Docker does not lift a limit of memory: the containers are made anew."""


def held_by(folder: Folder, node: str) -> Callable[[], Said]:
    """A colleague's run on a node, of which the node alone knows; how it ends."""
    claim = "/var/lib/orch/claims/0"
    words = ("exec", FLEET, "--node", node, "--")
    line = "orch-theirs-0-0-0123|theirs|ada@desk|2026-01-01T00:00:00Z|1"
    said = folder.orch(*words, f"mkdir -p {claim.rpartition('/')[0]} && ln -s '{line}' {claim}")
    assert said.code == 0, said.err
    return lambda: folder.orch(*words, f"rm -f {claim}")


def test_no_node_goes_under_a_run_that_the_node_names(up: Folder) -> None:
    up.write("smaller.yml", SMALLER)
    up.write("anew.yml", ANEW)
    before = containers(up, FLEET)
    end = held_by(up, f"{FLEET}-1")
    try:
        for words in (
            ("down", FLEET),
            ("fleet", "delete", FLEET, "-i", "1"),
            ("up", "smaller.yml"),
            ("up", "anew.yml"),
        ):
            said = up.orch(*words, "--yes")
            assert said.code == 9, (words, said.err)
            assert f"  {FLEET}-1: run theirs of ada@desk" in said.err
            assert "`orch stop theirs` where it was started" in said.err
        assert containers(up, FLEET) == before
        assert up.orch("up", "fleet.yml", "--yes").code == 0  # a plan that takes no node goes its way
        shown = up.orch("preview", "smaller.yml")
        assert shown.code == 0, shown.err
        assert "warning: runs are on nodes that go" in shown.out
        assert f"  {FLEET}-1: run theirs of ada@desk" in shown.out
        (on,) = up.orch("preview", "smaller.yml", "--json").json["runs"]
        assert (on["run"], on["node"]) == ("theirs", f"{FLEET}-1")
        assert up.orch("preview", "fleet.yml", "--json").json["runs"] == []
    finally:
        assert end().code == 0
        (up.path / "smaller.yml").unlink()
        (up.path / "anew.yml").unlink()


def test_a_ledger_that_cannot_be_read_stops_no_up_that_takes_no_node(up: Folder) -> None:
    ledger = find(up.path).local_ledger
    assert ledger is not None
    kept = ledger.read_bytes() if ledger.exists() else None
    up.write("smaller.yml", fleet_yaml(FLEET, 1))
    try:
        ledger.write_text("no database at all" * 100)
        said = up.orch("up", "fleet.yml", "--yes")
        assert said.code == 0, said.err
        refused = up.orch("up", "smaller.yml", "--yes")
        assert refused.code == 3, refused.err
        assert "`--force` removes the nodes" in refused.err
    finally:
        (up.path / "smaller.yml").unlink()
        ledger.unlink()
        if kept is not None:
            ledger.write_bytes(kept)


def test_with_force_a_node_goes_under_a_run(up: Folder) -> None:
    held_by(up, f"{FLEET}-1")
    said = up.orch("down", FLEET, "-i", "1", "--yes", "--force")
    assert said.code == 0, said.err
    assert list(containers(up, FLEET)) == [name for name in containers(up, FLEET) if name.endswith("-0")]
    mended = up.orch("up", "fleet.yml", "--yes")
    assert mended.code == 0, mended.err


def test_steps_of_init_run_on_nodes_once_and_those_where_one_fails_take_no_jobs(up: Folder) -> None:
    def on(node: str, *command: str) -> str:
        container = next(name for name in containers(up, FLEET) if name.endswith(node))
        words = ["docker", "exec", container, *command]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    def statuses() -> list[str]:
        (fleet,) = up.orch("fleet", "show", FLEET, "--json").json["fleets"]
        statuses = [node["status"] for node in fleet["nodes"]]
        if statuses != ["idle"] * len(statuses):
            print([(node["status"], node["reason"]) for node in fleet["nodes"]])
        return statuses

    step = "init:\n  - run: echo $(id -un) $(hostname) >>/tmp/steps; echo $TOKEN; test ! -e /tmp/full\n"
    steps = f"{step}    name: set up\n    env: {{TOKEN: hR3vK}}\n"
    up.write("steps.yml", fleet_yaml(FLEET, 3, steps))
    try:
        on("-1", "touch", "/tmp/full")
        plan = up.orch("preview", "steps.yml")
        assert "init: (none) -> {00 set up: (secret)}" in plan.out, plan.out
        assert "steps run on the 2 nodes that are there" in plan.out
        said = up.orch("up", "steps.yml", "--yes", timeout=300)
        assert said.code != 0
        assert f"{FLEET}-1: init step set up failed with 1" in said.out + said.err
        assert statuses()[1] == "failure"
        on("-1", "rm", "/tmp/full")
        said = up.orch("up", "steps.yml", "--yes", timeout=300)
        assert said.code == 0, said.out + said.err
        assert statuses() == ["idle"] * 3
        said = up.orch("up", "steps.yml", "--yes")
        assert "no changes" in said.out, said.out
        ran = [on(f"-{index}", "cat", "/tmp/steps").splitlines() for index in range(3)]
        assert ran == [[f"root {FLEET}-{index}"] * (2 if index == 1 else 1) for index in range(3)]
        for path in up.path.rglob("*"):
            assert path.name == "steps.yml" or not path.is_file() or b"hR3vK" not in path.read_bytes(), path
    finally:
        (up.path / "steps.yml").unlink()
        assert up.orch("up", "fleet.yml", "--yes", timeout=300).code == 0
    assert statuses() == ["idle"] * 2
    # One that failed and is taken back, in a fleet that has none.
    try:
        up.write("fails.yml", fleet_yaml(FLEET, 2, "init: [exit 3]\n"))
        assert up.orch("up", "fails.yml", "--yes", timeout=300).code != 0
        assert statuses() == ["failure"] * 2
    finally:
        (up.path / "fails.yml").unlink()
        said = up.orch("up", "fleet.yml", "--yes", timeout=300)
        assert said.code == 0, said.out + said.err
    assert statuses() == ["idle"] * 2
    assert "no changes" in up.orch("up", "fleet.yml", "--yes").out


def test_a_node_whose_step_fails_does_not_come_to_be(up: Folder) -> None:
    before = containers(up, FLEET)
    step = "init:\n  - run: 'case $(hostname) in *-2) echo no such driver; exit 4; esac'\n"
    up.write("fails.yml", fleet_yaml(FLEET, 3, step))
    try:
        said = up.orch("up", "fails.yml", "--yes", timeout=300)
        assert said.code == 5, said.out + said.err
        assert f"{FLEET}-2: init step step 0 failed with 4" in said.out + said.err
        assert "no such driver" in said.out + said.err
        assert containers(up, FLEET) == before
    finally:
        (up.path / "fails.yml").unlink()
        assert up.orch("up", "fleet.yml", "--yes", timeout=300).code == 0


def test_pulumi_by_hand_sees_no_change_and_its_up_is_none_for_orch(up: Folder) -> None:
    assert up.orch("init").code == 0
    env = dict(
        line.removeprefix("export ").split("=", 1) for line in up.orch("engine", "env").out.splitlines()
    )
    script = "".join(f"export {key}={value}\n" for key, value in env.items())
    for verb in ("preview --expect-no-changes", "up --yes --skip-preview --expect-no-changes"):
        done = subprocess.run(
            ["bash", "-c", f"{script}pulumi --non-interactive {verb} --stack {FLEET}"],
            cwd=up.path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert verb.startswith("up") or "reasons" not in done.stdout, done.stdout
    said = up.orch("preview", "fleet.yml", "--json", "--exit-code")
    assert said.code == 0, said.out


def test_a_state_of_a_newer_orch_is_refused(up: Folder) -> None:
    checkpoint = up.path / ".orch/state/.pulumi/stacks/tests" / f"{FLEET}.json"
    original = checkpoint.read_text()
    state = json.loads(original)
    resources = state["checkpoint"]["latest"]["resources"]
    outputs = next(each["outputs"] for each in resources if each["type"] == "pulumi:pulumi:Stack")
    outputs["orch"] = {"version": "99.0", "schema": 99}
    checkpoint.write_text(json.dumps(state))
    try:
        for verb in (("up", "fleet.yml", "--yes"), ("preview", "fleet.yml"), ("fleet", "list")):
            said = up.orch(*verb)
            assert said.code == 9, said.err
            assert "99.0" in said.err
    finally:
        checkpoint.write_text(original)


def test_a_folder_that_cannot_hold_the_state_is_told(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    (tmp_path / ".orch").write_text("a file where the folder belongs")
    folder = Folder(tmp_path)
    folder.write("fleet.yml", fleet_yaml(FLEET, 1))
    said = folder.orch("up", "fleet.yml", "--yes")
    assert said.code == 3
    assert ".orch" in said.err
    assert "hint" in said.err


def test_more_than_the_machine_has_is_an_error_at_its_place(folder: Folder) -> None:
    folder.write("fleet.yml", fleet_yaml(FLEET, 1).replace("memory: 1GB", "cpu: 4000"))
    said = folder.orch("preview", "fleet.yml")
    assert said.code == 3
    assert "fleet.yml:6:18: error ORCH210" in said.err


def test_a_fleet_that_is_not_up_is_told_and_its_file_can_be_taken_down_twice(folder: Folder) -> None:
    folder.write("fleet.yml", fleet_yaml("nobody", 1))
    for words in (("drift", "fleet.yml"), ("down", "nobody", "--yes")):
        said = folder.orch(*words)
        assert said.code == 3
        assert "nobody is not up" in said.err
    said = folder.orch("down", "fleet.yml", "--yes")
    assert (said.code, said.out) == (0, "fleet nobody: not up, nothing to remove\n")


def test_without_a_terminal_up_wants_yes(folder: Folder) -> None:
    folder.write("fleet.yml", fleet_yaml("nobody", 1))
    said = folder.orch("up", "fleet.yml")
    assert said.code == 2
    assert "--yes" in said.err
