"""Existing servers as a fleet, through the command line: four with real sshd, one behind a jump host."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from kit.nodes.hostlab import Client, Room
from kit.nodes.labmachine import left_behind
from kit.support import ROOT, Said, until

NAMES = ["gpu1", "gpu2", "gpu3", "gpu4"]


def client(room: Room, path: Path) -> Client:
    """A project with the examples, of a user whose ~/.ssh/config knows the servers."""
    shutil.copytree(ROOT / "examples", path / "examples")
    (path / "orch.yml").write_text("project: tests\n")
    return Client(path, room.home)


def changed(said: Said) -> list[tuple[str, str]]:
    return [(c["op"], c["name"]) for c in said.json["changes"] if c["op"] != "same"]


def drifted(project: Client, fleet: str = "on-prem") -> tuple[int, set[tuple[str, str]]]:
    said = project.orch("drift", fleet, "--json")
    return said.code, {(item["name"], item["path"]) for item in said.json["drift"]}


@pytest.fixture(scope="module")
def onprem(room: Room, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """The example's fleet, up for all tests of this file. At its end the servers are as they were found."""
    before = {server.name: server.snapshot() for server in room.servers}
    project = client(room, tmp_path_factory.mktemp("onprem"))
    said = project.orch("up", "examples/ssh/fleet.yml", "--yes", "--json", timeout=300)
    assert said.code == 0, said.out + said.err
    assert sorted(changed(said)) == sorted([("create", "on-prem"), *(("create", name) for name in NAMES)])
    yield project
    said = project.orch("down", "on-prem", "--yes", timeout=300)
    assert said.code == 0, said.err
    for server in room.servers:
        assert left_behind(before[server.name], server.snapshot()) == {}, server.name


def test_up_registers_all_four_with_what_was_found_on_them(onprem: Client, room: Room) -> None:
    said = onprem.orch("fleet", "show", "on-prem", "--json")
    assert said.code == 0, said.err
    (fleet,) = said.json["fleets"]
    assert (fleet["backend"], fleet["status"]) == ("ssh", "active")
    nodes = fleet["nodes"]
    assert [node["name"] for node in nodes] == NAMES
    assert [node["status"] for node in nodes] == ["idle"] * 4
    assert [node["blocks"] for node in nodes] == [8, 8, 1, 1]
    assert [node["internal_ip"] for node in nodes] == [s.address(room.fabric) for s in room.servers]


def test_the_fleet_s_own_words_tell_devices_and_blocks(onprem: Client) -> None:
    said = onprem.orch("fleet", "show", "on-prem", "-v")
    assert said.code == 0, said.err
    assert said.out.count("H100") == 2, said.out


def test_a_second_up_changes_nothing_and_drift_is_clean(onprem: Client) -> None:
    said = onprem.orch("up", "examples/ssh/fleet.yml", "--yes")
    assert said.code == 0, said.err
    assert "no changes" in said.out
    assert onprem.orch("preview", "examples/ssh/fleet.yml", "--exit-code").code == 0
    assert drifted(onprem) == (0, set())


@pytest.mark.soak  # the ring goes through all four, and two nodes train in the quickstart
@pytest.mark.timeout(900)  # four ranks on as many cores as there are
def test_torchrun_trains_across_all_four(onprem: Client) -> None:
    said = onprem.orch("run", "examples/ssh/train.yml", "--json", timeout=540)
    assert said.code == 0, said.err
    run = said.json
    assert run["status"] == "done"
    assert sorted(node["node"] for node in run["nodes"]) == NAMES
    assert [node["exit_code"] for node in run["nodes"]] == [0, 0, 0, 0]
    logs = onprem.orch("logs", run["run"]).out
    assert logs.count("identical on 4 ranks") == 4
    assert "times lower: ok" in logs


def test_mpirun_passes_its_ring_through_all_four(onprem: Client) -> None:
    said = onprem.orch("run", "examples/ssh/ring.yml", timeout=300)
    assert said.code == 0, said.err
    for rank in range(4):
        assert f"rank {rank} of 4 on " in said.out
    assert said.out.count("token 6, sum 10") == 4


def uuids(text: str) -> list[str]:
    return [line.partition("UUID: ")[2].strip(" )") for line in text.splitlines() if "UUID: " in line]


def test_a_job_for_one_gpu_gets_one_of_a_server_s_eight(onprem: Client) -> None:
    said = onprem.orch("run", "examples/ssh/one-gpu.yml", timeout=120)
    assert said.code == 0, said.err
    assert len(uuids(said.out)) == 1


def test_the_fleet_s_env_reaches_a_job(onprem: Client) -> None:
    task = "type: task\nimage: orch/mpi\ncommands: ['echo threads=$OMP_NUM_THREADS']\n"
    file = onprem.write("env.yml", f"{task}resources: {{memory: 1GB}}\n")
    said = onprem.orch("run", file, timeout=120)
    assert (said.code, "threads=1" in said.out) == (0, True), said.err


def test_a_shell_on_a_host_goes_by_its_jump_host_with_the_pinned_key(onprem: Client, room: Room) -> None:
    said = onprem.orch("ssh", "gpu4", "--", "hostname")
    assert (said.code, said.out.strip()) == (0, "gpu4"), said.err
    with room.servers[2].other_host_key():
        said = onprem.orch("ssh", "gpu3", "--", "hostname")
        assert said.code != 0
        assert "gpu3" not in said.out


@pytest.mark.timeout(900)
def test_two_clients_never_get_the_same_gpu(onprem: Client, room: Room, tmp_path: Path) -> None:
    other = client(room, tmp_path)
    assert other.orch("up", "examples/ssh/fleet.yml", "--yes", timeout=300).code == 0
    # Each holds its GPU until all have one, however long the last of them takes to begin.
    wait = "until (exec 3<>/dev/tcp/127.0.0.1/7000) 2>/dev/null; do sleep 0.5; done"
    task = f"type: task\nimage: orch/mpi\ncommands: [nvidia-smi -L, \"timeout 600 bash -c '{wait}'\"]\n"
    task += "resources: {gpu: 1, memory: 1GB}\n"
    users = (onprem, other)
    for user in users:
        user.write("hold.yml", task)

    def held() -> list[str]:
        logs = [user.orch("logs", f"hold{turn}").out for user in users for turn in range(2)]
        return [uuid for text in logs for uuid in uuids(text)]

    try:
        running = [
            user.start("run", "hold.yml", "--name", f"hold{turn}", "--json")
            for turn in range(2)
            for user in users
        ]
        until(lambda: len(held()) == 4, 400, "all four have a GPU")
        with room.servers[0].open_port(7000), room.servers[1].open_port(7000):
            ended = [process.communicate(timeout=300) for process in running]
        assert [process.returncode for process in running] == [0] * 4, [err for _, err in ended]
        got = held()
        assert len(got) == len(set(got)) == 4
    finally:
        assert other.orch("down", "on-prem", "--yes", timeout=300).code == 0
    assert drifted(onprem) == (0, set())


@pytest.fixture
def edit(onprem: Client) -> Iterator[Callable[[str, str], str]]:
    """The fleet's file with a text replaced; afterwards the fleet is as the example says again."""
    file = onprem.path / "examples/ssh/fleet.yml"
    original = file.read_text()

    def change(old: str, new: str) -> str:
        assert old in original
        return onprem.write("examples/ssh/fleet.yml", original.replace(old, new))

    yield change
    if file.read_text() == original:
        return  # the test has brought it up again itself
    file.write_text(original)
    assert onprem.orch("up", "examples/ssh/fleet.yml", "--yes", timeout=300).code == 0


def test_a_host_taken_out_is_one_delete_and_put_back_one_create(
    onprem: Client, edit: Callable[[str, str], str]
) -> None:
    said = onprem.orch("up", edit("    - gpu3\n", ""), "--yes", "--json", timeout=300)
    assert (said.code, changed(said)) == (0, [("delete", "gpu3")])
    said = onprem.orch("up", edit("    - gpu3\n", "    - gpu3\n"), "--yes", "--json", timeout=300)
    assert (said.code, changed(said)) == (0, [("create", "gpu3")])


def test_other_blocks_are_one_update(onprem: Client, edit: Callable[[str, str], str]) -> None:
    said = onprem.orch("up", edit("    - gpu3\n", "    - {hostname: gpu3, blocks: 2}\n"), "--yes", "--json")
    assert (said.code, changed(said)) == (0, [("update", "gpu3")])
    (diff,) = [c["diff"] for c in said.json["changes"] if c["name"] == "gpu3"]
    assert [(d["path"], d["old"], d["new"]) for d in diff] == [("blocks", 1, 2)]


def test_another_key_file_is_one_update_that_changes_nothing_on_the_host(
    onprem: Client, room: Room, edit: Callable[[str, str], str]
) -> None:
    gpu3 = room.servers[2]
    key = room.lab.new_key("second")
    before = gpu3.snapshot()
    gpu3.authorize(key, users=("ops",))
    try:
        file = edit("    - gpu3\n", f"    - {{hostname: gpu3, identity_file: {key.path}}}\n")
        said = onprem.orch("up", file, "--yes", "--json")
        assert (said.code, changed(said)) == (0, [("update", "gpu3")])
        (diff,) = [c["diff"] for c in said.json["changes"] if c["name"] == "gpu3"]
        assert [d["path"] for d in diff] == ["identity"]
    finally:
        gpu3.revoke(key)
    assert left_behind(before, gpu3.snapshot()) == {}


def test_a_host_that_is_not_there_fails_by_name_and_the_others_are_registered(
    room: Room, tmp_path: Path
) -> None:
    project = client(room, tmp_path)
    file = project.write("two.yml", "type: fleet\nname: two\nssh_config: {hosts: [gpu1, gpu3]}\n")
    with room.servers[2].ssh_stopped():
        said = project.orch("up", file, "--yes", "--json")
        assert said.code == 7, said.err
        assert changed(said) == [("create", "gpu1"), ("create", "two")]
        assert [d["host"] for d in said.json["diagnostics"] if d["severity"] == "error"] == ["gpu3"]
    said = project.orch("up", file, "--yes", "--json")
    assert (said.code, changed(said)) == (0, [("create", "gpu3")])
    assert project.orch("down", "two", "--yes").code == 0


def test_people_s_keys_come_with_a_fleet_and_go_with_it(room: Room, tmp_path: Path) -> None:
    project, gpu3 = client(room, tmp_path), room.servers[2]
    ada, eve = room.lab.new_key("ada"), room.lab.new_key("eve")
    before = gpu3.snapshot()

    def up(*keys: str) -> None:
        text = f"type: fleet\nname: shared\nauthorized_keys: [{', '.join(keys)}]\n"
        text += "ssh_config: {hosts: [gpu3]}\n"
        assert project.orch("up", project.write("shared.yml", text), "--yes").code == 0

    up(ada.public, eve.public)
    lines = gpu3.run("cat /home/ops/.ssh/authorized_keys")
    assert ada.public in lines
    assert eve.public in lines
    up(ada.public)
    lines = gpu3.run("cat /home/ops/.ssh/authorized_keys")
    assert ada.public in lines
    assert eve.public not in lines
    assert project.orch("down", "shared", "--yes").code == 0
    assert left_behind(before, gpu3.snapshot()) == {}


STEPS = """\
type: fleet
name: steps
ssh_config: {hosts: [gpu1, gpu3]}
init:
  - name: set up
    run: |
      echo "$(id -un) $TOKEN" >>/tmp/steps
      [ ! -e /tmp/full ] || { echo "no room on $(hostname)" >&2; exit 3; }
    env: {TOKEN: hR3vK-first}
"""


def test_steps_of_init_run_once_on_each_host_and_a_host_where_one_fails_is_left_as_it_was(
    room: Room, tmp_path: Path
) -> None:
    project, gpu1, gpu3 = client(room, tmp_path), room.servers[0], room.servers[2]
    file = project.write("steps.yml", STEPS)
    gpu1.run("touch /tmp/full")
    before = gpu1.run("find /var/lib/orch | sort")
    try:
        said = project.orch("up", file, "--yes", "--json", timeout=300)
        assert said.code == 7, said.out + said.err
        assert changed(said) == [("create", "gpu3"), ("create", "steps")]
        (amiss,) = [each for each in said.json["diagnostics"] if each["severity"] == "error"]
        assert (amiss["code"], amiss["host"]) == ("ORCH391", "gpu1")
        told = f"{amiss['summary']} {amiss.get('detail')}"
        assert "init step set up failed with 3" in told
        assert "no room on gpu1" in told
        assert gpu1.run("find /var/lib/orch | sort") == before
        gpu1.run("rm /tmp/full /tmp/steps")
        said = project.orch("up", file, "--yes", "--json", timeout=300)
        assert (said.code, changed(said)) == (0, [("create", "gpu1")])
        said = project.orch("up", file, "--yes")
        assert (said.code, "no changes" in said.out) == (0, True), said.out
        assert drifted(project, "steps") == (0, set())
        # Other steps: a plan tells it, and they run on the hosts that are there.
        project.write("steps.yml", STEPS.replace("first", "second"))
        said = project.orch("preview", file)
        assert 'init["00 set up"]' in said.out, said.out
        assert "steps run on the 2 hosts that are there" in said.out
        gpu3.run("touch /tmp/full")
        said = project.orch("up", file, "--yes", "--json", timeout=300)
        assert (said.code, changed(said)) == (7, [("update", "gpu1")]), said.out + said.err
        nodes = project.orch("fleet", "show", "steps", "--json").json["fleets"][0]["nodes"]
        assert [node["status"] for node in nodes] == ["idle", "failure"]
        gpu3.run("rm /tmp/full")
        said = project.orch("up", file, "--yes", "--json", timeout=300)
        assert (said.code, changed(said)) == (0, [("update", "gpu3")])
        nodes = project.orch("fleet", "show", "steps", "--json").json["fleets"][0]["nodes"]
        assert [node["status"] for node in nodes] == ["idle", "idle"]
        assert gpu1.run("cat /tmp/steps").split("\n")[:2] == ["root hR3vK-first", "root hR3vK-second"]
        # A step that fails and is taken back: the file is as it was, and the host is not.
        gpu3.run("touch /tmp/full")
        project.write("steps.yml", STEPS.replace("first", "third"))
        assert project.orch("up", file, "--yes", timeout=300).code == 7
        project.write("steps.yml", STEPS.replace("first", "second"))
        gpu3.run("rm /tmp/full")
        assert drifted(project, "steps") == (10, {("gpu3", "status")})
        said = project.orch("up", file, "--yes", "--json", timeout=300)
        assert (said.code, changed(said)) == (0, [("update", "gpu1"), ("update", "gpu3")])
        assert drifted(project, "steps") == (0, set())
        nodes = project.orch("fleet", "show", "steps", "--json").json["fleets"][0]["nodes"]
        assert [node["status"] for node in nodes] == ["idle", "idle"]
        for path in project.path.rglob("*"):
            assert path.name == "steps.yml" or not path.is_file() or b"hR3vK" not in path.read_bytes(), path
    finally:
        assert project.orch("down", "steps", "--yes").code == 0
        for server in (gpu1, gpu3):
            server.run("rm -f /tmp/steps /tmp/full")
    assert gpu1.run("find /var/lib/orch | sort") == before


DRIFTS: dict[str, tuple[Callable[[Room], AbstractContextManager[object]], str, str]] = {
    "a lost GPU": (lambda room: room.servers[0].lost_gpu(), "gpu1", "gpu_count"),
    "a gone Docker": (lambda room: room.servers[1].docker_stopped(), "gpu2", "docker"),
    "another host key": (lambda room: room.servers[2].other_host_key(), "gpu3", "status"),
    "a silent host": (lambda room: room.servers[2].ssh_stopped(), "gpu3", "status"),
    "a jump host that is gone": (lambda room: room.login.ssh_stopped(), "gpu4", "status"),
}


@pytest.mark.parametrize(
    "what",
    [pytest.param(each, marks=pytest.mark.soak if each == "a silent host" else ()) for each in DRIFTS],
)
def test_drift_tells(onprem: Client, room: Room, what: str) -> None:
    broken, name, path = DRIFTS[what]
    with broken(room):
        code, found = drifted(onprem)
        assert code == 10
        assert found == {(name, path)}
    assert drifted(onprem) == (0, set())


def test_a_changed_host_key_is_refused_until_it_is_accepted_by_name(onprem: Client, room: Room) -> None:
    gpu3 = room.servers[2]
    with gpu3.other_host_key():
        said = onprem.orch("up", "examples/ssh/fleet.yml", "--yes")
        assert said.code == 7
        assert "gpu3" in said.err
        said = onprem.orch(
            "up", "examples/ssh/fleet.yml", "--yes", "--json", "--accept-host-key", "gpu3", timeout=300
        )
        assert (said.code, changed(said)) == (0, [("update", "gpu3")])
        assert drifted(onprem) == (0, set())
    words = ("up", "examples/ssh/fleet.yml", "--yes", "--accept-host-key", "gpu3")
    assert onprem.orch(*words, timeout=300).code == 0


def test_a_lost_gpu_is_taken_as_it_is_only_when_accepted(onprem: Client, room: Room) -> None:
    with room.servers[0].lost_gpu():
        assert onprem.orch("up", "examples/ssh/fleet.yml", "--yes").code == 7
        assert drifted(onprem)[0] == 10
    assert drifted(onprem) == (0, set())


def test_a_command_runs_on_all_hosts_and_equal_output_is_told_once(onprem: Client) -> None:
    said = onprem.orch("exec", "on-prem", "--", "echo", "hello")
    assert said.code == 0, said.err
    assert said.out.count("hello") == 1
    assert "gpu[1-4]" in said.out
    assert onprem.orch("exec", "on-prem", "--", "exit $(hostname | tr -dc 0-9)").code == 4


def test_a_cordoned_host_gets_no_job(onprem: Client) -> None:
    assert onprem.orch("cordon", "gpu1").code == 0
    try:
        said = onprem.orch("run", "examples/ssh/one-gpu.yml", "--json", timeout=120)
        assert said.code == 0, said.err
        assert [node["node"] for node in said.json["nodes"]] == ["gpu2"]
    finally:
        assert onprem.orch("cordon", "gpu1", "--undo").code == 0


def test_a_busy_host_is_left_with_force_alone_and_its_job_is_ended(onprem: Client, room: Room) -> None:
    onprem.write(
        "busy.yml", "type: task\nname: busy\nimage: orch/mpi\ncommands: [sleep 300]\nresources: {gpu: 1}\n"
    )
    assert onprem.orch("run", "busy.yml", "--detach", timeout=120).code == 0
    until(lambda: '"running"' in onprem.orch("ps", "--json").out, 120, "the job runs")
    try:
        said = onprem.orch("down", "on-prem", "--yes", "-i", "0")
        assert said.code == 9, said.err
        assert "  gpu1: run busy of " in said.err
        said = onprem.orch("down", "on-prem", "--yes", "-i", "0", "--force")
        assert said.code == 0, said.err
        assert "orch-busy-" not in room.servers[0].run("docker ps -a --format '{{.Names}}'; ls /var/lib")
    finally:
        onprem.orch("stop", "busy", "--abort", timeout=120)
    assert onprem.orch("up", "examples/ssh/fleet.yml", "--yes", timeout=300).code == 0
