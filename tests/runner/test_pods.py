"""Runs on pods: nodes that are containers themselves, where a job is a process."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from kit.ledgers import pureruns
from kit.nodes.containershell import inside
from kit.nodes.labmachine import docker, wait_until
from kit.nodes.podlab import RUNPOD, PodLab

from orch import images
from orch.runner.errors import BadTask, ImageUnavailable
from orch.runner.events import LogLine, Recorder, Silent
from orch.runner.launch.pods import check_task_for_pods
from orch.runner.launch.submission import Submission
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.node.runtimes import RUNTIMES
from orch.runner.node.status import claims_of, node_statuses
from orch.runner.node_api.commands import Command
from orch.runner.plan.run_plan import RunPlan
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.ssh.pool import SshConnector
from orch.spec.models import Task
from orch.spec.state import NodeState

Pair = tuple[NodeState, NodeState]
Run = Callable[..., RunRow]

DRIVER = Path(__file__).with_name("drive_run.py")


@pytest.fixture
def run(place: RunnerContext, pods: PodLab, two: Pair) -> Run:
    """Submit a task and see it to its end."""

    def run(*nodes: NodeState, secrets: Mapping[str, str] | None = None, **task: object) -> RunRow:
        row = submit(place, pods, *(nodes or two), secrets=secrets, **task)
        return lifecycle.drive(place, row)

    return run


def submit(
    place: RunnerContext,
    pods: PodLab,
    *nodes: NodeState,
    secrets: Mapping[str, str] | None = None,
    **task: object,
) -> RunRow:
    given = {"name": "job", "nodes": len(nodes), "stop_duration": 3, **task}
    return lifecycle.submit(
        place,
        Submission(
            Task.model_validate(given),
            pods.fleet(*nodes),
            image=images.resolve("orch/mpi"),
            base=place.dot.parent,
            cli_env=secrets or {},
        ),
    )


def lines(place: RunnerContext, rank: int = 0) -> list[str]:
    recorder = place.processor
    assert isinstance(recorder, Recorder)
    told = [event for event in recorder.events if isinstance(event, LogLine)]
    return [line.text for line in told if line.rank == rank]


def left_on(node: NodeState) -> str:
    """What runs have left on a pod: files, claims, processes."""
    files = inside(node.name, "cd /var/lib/orch && ls jobs runs/ control claims | grep -v -e : -e '^$'; true")
    return files.strip() + processes(node)


def processes(node: NodeState) -> str:
    """What runs there beside the first process, its SSH server and who looks."""
    shown = inside(node.name, "ps -eo ppid=,pid=,args=").splitlines()
    own = ("sh /var/lib/orch/first.sh", "sshd: ", "sh", "ps -eo", "/usr/sbin/sshd -D", "sleep 10")
    return "\n".join(line for line in shown if not line.split(maxsplit=2)[2].startswith(own))


def wait_for_end(node: NodeState) -> None:
    wait_until(lambda: left_on(node) == "", f"nothing is left on {node.name}: {left_on(node)}")


def test_a_job_has_the_environment_of_the_pod_without_what_runpod_sets_for_launchers(
    run: Run, place: RunnerContext, two: Pair
) -> None:
    wanted = ("WORLD_SIZE", "MASTER_ADDR", "NODE_RANK", "RUNPOD_POD_ID", "RUNPOD_API_KEY", "QUOTED", "N")
    show = "; ".join(f'echo "{name}=${{{name}-unset}}"' for name in wanted)
    ignored = "grep -h SigIgn /proc/1/status /proc/self/status | uniq | wc -l"  # one line: equal
    row = run(two[0], commands=[show, "pwd", "umask", "echo $HOME", ignored], shell="sh")
    assert (row.status, row.reason) == ("done", "all_jobs_done"), row.message
    assert lines(place) == [
        *("WORLD_SIZE=unset", "MASTER_ADDR=unset", "NODE_RANK=unset", "RUNPOD_POD_ID=x1"),
        *("RUNPOD_API_KEY=unset", "QUOTED=it's", '"two" lines of $HOME', "N=5", "/", "0022", "/root", "1"),
    ]
    assert left_on(two[0]) == ""


def test_the_runs_own_rendezvous_replaces_runpods(run: Run, place: RunnerContext, two: Pair) -> None:
    row = run(commands=['echo "$NODE_RANK of $NNODES, $WORLD_SIZE in all, at $MASTER_ADDR:$MASTER_PORT"'])
    assert row.status == "done", row.message
    first = two[0].internal_ip
    assert [lines(place, rank) for rank in (0, 1)] == [
        [f"{rank} of 2, 2 in all, at {first}:29500"] for rank in (0, 1)
    ]


def test_a_secret_is_in_no_list_of_processes_nor_on_a_disk(run: Run, place: RunnerContext, two: Pair) -> None:
    look = (
        "ps -eo args > /tmp/shown; tr '\\0' '\\n' < /proc/1/environ >> /tmp/shown; "
        'grep -c -e "$TOKEN" /tmp/shown; '
        'find / -xdev -type f -newer /run/orch/hostfile -exec grep -l -e "$TOKEN" {} +; echo looked'
    )
    row = run(two[0], commands=[look, "echo ${#TOKEN}"], secrets={"TOKEN": "sesame-open-4711"}, shell="sh")
    assert row.status == "done", row.message
    assert lines(place) == ["0", "looked", "16"]
    assert inside(two[0].name, "grep -rl sesame /var/lib/orch /usr/local /dev/shm || true") == ""


def test_an_interface_of_the_fabric_counts_only_where_it_is(
    run: Run, place: RunnerContext, two: Pair
) -> None:
    inside(two[0].name, "ip link add ens1 type bridge && ip link set ens1 up")
    try:
        row = run(
            commands=['echo "$NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME $ORCH_IFNAME $ODD"'],
            env={"NCCL_SOCKET_IFNAME": "ens1", "GLOO_SOCKET_IFNAME": "ens1", "ODD": "ens1"},
        )
    finally:
        inside(two[0].name, "ip link del ens1")
    assert row.status == "done", row.message
    assert [lines(place, rank) for rank in (0, 1)] == [["ens1 ens1 eth0 ens1"], ["eth0 eth0 eth0 ens1"]]


def test_the_interface_is_found_in_an_image_without_ip(run: Run, place: RunnerContext, two: Pair) -> None:
    inside(two[1].name, "mv /usr/bin/ip /usr/bin/ip-away")
    try:
        row = run(two[1], commands=["command -v ip; echo $ORCH_IFNAME $orch_cidr"], shell="sh")
    finally:
        inside(two[1].name, "mv /usr/bin/ip-away /usr/bin/ip")
    assert row.status == "done", row.message
    (told,) = lines(place)
    assert told.startswith(f"eth0 {two[1].internal_ip}/")


@pytest.mark.parametrize(
    ("command", "code"), [("exit 3", 3), ("kill -9 $$", 137), ("kill $$", 143), ("/nonexistent", 127)]
)
def test_exit_codes_are_those_of_a_container(run: Run, two: Pair, command: str, code: int) -> None:
    row = run(two[1], commands=[command], shell="sh")
    assert [(rank.status, rank.exit_code) for rank in row.ranks] == [("failed", code)]
    assert row.message is not None
    assert f"exited with code {code}" in row.message


def test_what_a_job_leaves_behind_ends_with_it_whatever_it_did_to_get_away(
    run: Run, place: RunnerContext, two: Pair
) -> None:
    row = run(
        two[0],
        shell="sh",
        commands=[
            "sleep 1001 & setsid sleep 1002 &",
            # Without its mark, its session and its parent.
            "(env -i setsid sh -c 'sleep 1003 & exec sleep 1004' > /dev/null 2>&1 &)",
            "nohup sh -c 'trap \"\" TERM HUP; sleep 1005; sleep 1006' > /dev/null 2>&1 &",
            "until [ $(pgrep -fc '^sleep 100[1-5]') = 5 ]; do sleep 0.05; done",
            "echo all begun",
        ],
    )
    assert (row.status, lines(place)) == ("done", ["all begun"])
    assert left_on(two[0]) == ""


def test_a_job_killed_for_memory_is_told(run: Run, pods: PodLab) -> None:
    small = pods.pod("--memory=200m", "--memory-swap=200m", image="orch/mpi")
    row = run(small, commands=["python3 -c 'x = bytearray(400 << 20)'"])
    docker("rm", "-f", "-v", small.name)
    assert row.message == f"rank 0 on node {small.name} ran out of memory (exit code 137)"


def test_a_process_that_a_login_started_beside_a_job_stays(
    run: Run, two: Pair, transport: SshConnector
) -> None:
    transport.run(two[0], Command("nohup setsid sleep 2001 >/dev/null 2>&1 </dev/null &"))
    row = run(two[0], commands=["echo here"], shell="sh")
    assert row.status == "done"
    assert processes(two[0]).endswith("sleep 2001")
    inside(two[0].name, "pkill -f '[s]leep 2001'")


def test_a_job_that_ignores_the_stop_is_killed_after_its_time(
    place: RunnerContext, pods: PodLab, two: Pair
) -> None:
    stubborn = "trap '' TERM; echo ignoring; while :; do sleep 1; done"
    row = submit(place, pods, *two, commands=[stubborn], stop_duration=2)
    driver = subprocess.Popen([sys.executable, DRIVER, place.dot, "job"], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert "ignoring" in driver.stdout.readline()
    ended = lifecycle.stop(place, place.ledger.by_id(row.id))
    driver.wait(60)
    driver.stdout.close()
    assert (ended.status, ended.reason) == ("terminated", "stopped_by_user")
    for node in two:
        wait_for_end(node)


def test_the_signal_of_a_run_reaches_who_handles_it_alone(run: Run, place: RunnerContext, two: Pair) -> None:
    row = run(
        two[0],
        commands=[
            "perl -e '$| = 1; $SIG{USR1} = sub { print qq(saved\\n); exit 5 }; print qq(begun\\n); sleep 60'"
        ],
        signal="USR1@30",
        max_duration="31s",
    )
    assert lines(place) == ["begun", "saved"]
    assert row.ranks[0].exit_code == 5
    assert left_on(two[0]) == ""


def test_a_driver_killed_in_the_middle_is_taken_over_and_no_line_is_lost(
    place: RunnerContext, pods: PodLab, two: Pair
) -> None:
    count = "i=0; while [ $i -lt 40 ]; do i=$((i + 1)); echo $NODE_RANK: $i; sleep 0.1; done"
    row = submit(place, pods, *two, commands=[count], shell="sh")
    driver = subprocess.Popen([sys.executable, DRIVER, place.dot, "job"], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    seen = [driver.stdout.readline() for _ in range(10)]
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert all(seen)
    ended = lifecycle.drive(place, place.ledger.by_id(row.id))
    assert (ended.status, ended.reason) == ("done", "all_jobs_done")
    for rank in (0, 1):
        kept = place.context(row).folder.log(rank).read_text().splitlines()
        assert [line.partition(" ")[2] for line in kept] == [f"{rank}: {i}" for i in range(1, 41)]
        stamps = [line.partition(" ")[0] for line in kept]
        assert stamps == sorted(set(stamps))
    for node in two:
        wait_for_end(node)


def test_fifty_megabytes_of_log_arrive_whole(run: Run, place: RunnerContext, two: Pair) -> None:
    row = run(two[0], commands=["perl -e 'printf qq(%0999d\\n), $_ for 1..52000; print q(no end)'"])
    assert row.status == "done", row.message
    log = place.context(row).folder.log(0)
    assert log.stat().st_size > 52_000_000
    with log.open() as stream:
        numbers = [line.rstrip("\n").partition(" ")[2].lstrip("0") for line in stream]
    assert numbers == [*map(str, range(1, 52001)), "no end"]


def test_runs_come_one_after_the_other_and_keep_each_other_off(
    place: RunnerContext, pods: PodLab, two: Pair, transport: SshConnector
) -> None:
    held = submit(place, pods, *two, commands=["until [ -e /tmp/go ]; do sleep 0.1; done; cat /etc/hosts"])
    driver = subprocess.Popen([sys.executable, DRIVER, place.dot, "job"], stdout=subprocess.DEVNULL)
    fleet = pods.fleet(*two)
    wait_until(lambda: place.ledger.by_id(held.id).status == "running", "it runs")
    assert [each.status for each in node_statuses(fleet, transport)] == ["busy", "busy"]
    assert [len(each or ()) for each in claims_of(two, transport, deadline_s=10.0)] == [1, 1]
    with pytest.raises(Exception, match="0 are free"):
        submit(place, pods, two[0], name="other", commands=["true"])
    for node in two:
        inside(node.name, ": > /tmp/go")
    assert driver.wait(60) == 0
    assert f"{two[1].internal_ip} {two[1].name} job-1" in place.context(held).folder.log(0).read_text()
    assert [each.status for each in node_statuses(fleet, transport)] == ["idle", "idle"]
    # Its names are not in the way of the next run's.
    again = submit(place, pods, two[0], name="next", commands=["grep job- /etc/hosts; ls -d /run/orch/go"])
    assert lifecycle.drive(place, again).status == "done"
    assert lines(place) == ["/run/orch/go"]


def test_a_user_a_folder_and_files_are_as_in_a_container(
    run: Run, place: RunnerContext, two: Pair, tmp_path: Path
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/one.txt").write_text("one\n")
    row = run(
        two[0],
        user="nobody:daemon",
        working_dir="/tmp/with space",
        files=["set:/tmp/got"],
        commands=["id -un; id -gn; pwd; cat /tmp/got/one.txt", "touch /run/orch/env || echo kept"],
        shell="sh",
    )
    assert row.status == "done", row.message
    assert lines(place)[:4] == ["nobody", "daemon", "/tmp/with space", "one"]
    assert lines(place)[-1] == "kept"
    refused = run(two[0], name="who", user="nosuch", commands=["id"])
    assert refused.message is not None
    assert "has no user nosuch" in refused.message


@pytest.mark.timeout(600)
def test_torchrun_starts_all_processes_on_both_pods(
    place: RunnerContext, pods: PodLab, tmp_path: Path
) -> None:
    images.ensure("job", progress=print)
    nodes = pods.pod(image="orch/job", env=RUNPOD), pods.pod(image="orch/job", env=RUNPOD)
    (tmp_path / "sum.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.ones(1) * (dist.get_rank() + 1)\n"
        "dist.all_reduce(x)\n"
        "os.write(1, f'{dist.get_rank()} {os.environ[\"ORCH_NODE_RANK\"]} {int(x)}\\n'.encode())\n"
    )
    task = Task.model_validate(
        {
            "name": "job",
            "nodes": 2,
            "files": ["sum.py"],
            "env": {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "ens1"},
            "torchrun": {"program": "sum.py", "nproc_per_node": 1},
        }
    )
    fleet = pods.fleet(*nodes, image="orch/job")
    row = lifecycle.submit(place, Submission(task, fleet, image=images.resolve("orch/job"), base=tmp_path))
    row = lifecycle.drive(place, row)
    docker("rm", "-f", "-v", *(node.name for node in nodes))
    assert row.status == "done", (row.message, lines(place), lines(place, 1))
    assert sorted([*lines(place), *lines(place, 1)]) == ["0 0 3", "1 1 3"]


# --- what befalls pods


def started(place: RunnerContext, pods: PodLab, node: NodeState, **task: object) -> tuple[RunRow, RunPlan]:
    """A run whose commands are at work, and that nobody drives."""
    given = {"commands": ["echo at work; sleep 300"], "shell": "sh", **task}
    row = submit(place, pods, node, **given)
    driver = subprocess.Popen([sys.executable, DRIVER, place.dot, "job"], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert "at work" in driver.stdout.readline()
    driver.kill()
    driver.wait()
    driver.stdout.close()
    row = place.ledger.by_id(row.id)
    return row, plan_of(row)


def test_a_pod_that_was_restarted_has_lost_its_job(place: RunnerContext, pods: PodLab, two: Pair) -> None:
    row, _ = started(place, pods, two[1])
    docker("restart", "--time", "0", two[1].name)
    ended = lifecycle.drive(place, row)
    assert ended.status == "failed"
    assert ended.ranks[0].exit_code == 137
    wait_for_end(two[1])
    assert inside(two[1].name, "grep -c job- /etc/hosts || true").strip() == "0"


def test_a_job_whose_supervisor_was_killed_ends_whole(place: RunnerContext, pods: PodLab, two: Pair) -> None:
    row, _ = started(place, pods, two[1])
    inside(two[1].name, "pkill -9 -f '[d]ocker supervise'")
    ended = lifecycle.drive(place, row)
    assert (ended.status, ended.ranks[0].exit_code) == ("failed", 137)
    wait_for_end(two[1])


def test_commands_and_files_go_into_a_running_job(
    place: RunnerContext, pods: PodLab, two: Pair, transport: SshConnector
) -> None:
    runtime = RUNTIMES["process"]
    row, plan = started(place, pods, two[0], env={"COLOUR": "blue"}, user="nobody", working_dir="/tmp")
    text = runtime.job_command(plan, 0, "echo $COLOUR $PWD $(id -un); cat; exit 6")
    done = transport.run(two[0], Command(text, stdin=b"given"))
    assert (done.exit_code, done.stdout) == (6, "blue /tmp nobody\ngiven")
    as_root = transport.run(two[0], Command(runtime.job_command(plan, 0, "id -un", root=True)))
    assert as_root.stdout == "root\n"
    process = transport.run(two[0], Command(runtime.job_process(plan, 0))).stdout.strip()
    assert "supervise" in inside(two[0].name, f"tr '\\0' ' ' < /proc/{process}/cmdline")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("note")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"here"))
    runtime.write_path(transport, plan, 0, "/tmp/deep/er", [buffer.getvalue()])
    assert runtime.is_folder(transport, plan, 0, "/tmp/deep/er")
    assert not runtime.is_folder(transport, plan, 0, "/tmp/deep/er/note")
    inside(two[0].name, "ln -s er /tmp/deep/link; ln -s er/note /tmp/deep/file")
    for path, names in (
        ("/tmp/deep/er", ["er", "er/note"]),
        ("/tmp/deep/link", ["link", "link/note"]),
        ("tmp/deep/file", ["file"]),
    ):
        data: list[bytes] = []
        assert runtime.read_path(transport, plan, 0, path, data.append)
        with tarfile.open(fileobj=io.BytesIO(b"".join(data))) as archive:
            assert archive.getnames() == names
    assert not runtime.read_path(transport, plan, 0, "/tmp/nothing", print)
    lifecycle.stop(place, row, abort=True)
    wait_for_end(two[0])
    assert not runtime.read_path(transport, plan, 0, "/tmp/deep/er", print)
    assert not runtime.read_log(transport, plan, 0, print)
    assert runtime.observe(transport, plan, 0).state == "absent"
    assert transport.run(two[0], Command(text)).exit_code == 1


def test_who_follows_a_log_and_goes_leaves_nobody_reading(
    place: RunnerContext, pods: PodLab, two: Pair
) -> None:
    row, plan = started(place, pods, two[0])
    # The driver that `started` killed followed the log.
    wait_until(lambda: "docker logs" not in processes(two[0]), "its reader has gone")
    assert RUNTIMES["process"].observe(place.connector, plan, 0).state == "running"
    lifecycle.stop(place, row, abort=True)
    wait_for_end(two[0])


# --- what cannot be


@pytest.mark.parametrize(
    ("task", "blocks", "path", "why"),
    [
        ({"privileged": True, "commands": ["true"]}, 1, "privileged", "a pod is not privileged"),
        ({"docker": True, "commands": ["true"]}, 1, "docker", "a pod has no Docker for its job"),
        (
            {"commands": ["true"], "volumes": ["/data:/data"]},
            1,
            "volumes.0",
            "no host whose folders it could mount",
        ),
        ({"image": "x/y"}, 1, "commands", "in place of the image's own program"),
        (
            {"commands": ["true"], "image": "x/y", "registry_auth": {"username": "u", "password": "p"}},
            1,
            "registry_auth",
            "has its image from its cloud",
        ),
        ({"commands": ["true"]}, 2, "", "is a pod, of which a job has all"),
    ],
)
def test_what_no_pod_can_do_is_refused_before_anything_starts(
    task: dict[str, object], blocks: int, path: str, why: str
) -> None:
    pod = pureruns.node(0, runtime="process", blocks=blocks)
    with pytest.raises(BadTask) as caught:
        pureruns.compiled(pureruns.fleet(pod), **task)
    assert (caught.value.code, caught.value.path) == ("ORCH423", path)
    assert why in caught.value.summary


@pytest.mark.parametrize(
    ("volumes", "path", "why"),
    [
        ([{"name": "data", "path": "/data", "instance": True}], "volumes.0", "has no host whose folders"),
        (["data:/data", "more:/more"], "volumes.1", "has one volume at most"),
        ([{"name": "data", "path": "/data", "read_only": True}], "volumes.0", "for writing"),
        (["data-${{ orch.node_rank }}:/data"], "volumes.0", "before its run has names and ranks"),
        (["data:/data/${{ orch.run_name }}"], "volumes.0", "before its run has names and ranks"),
    ],
)
def test_a_pod_has_one_volume_that_is_known_before_it_is_made(
    volumes: list[object], path: str, why: str
) -> None:
    task = Task.model_validate({"image": "x/y", "commands": ["true"], "volumes": volumes})
    with pytest.raises(BadTask) as caught:
        check_task_for_pods(task)
    assert (caught.value.code, caught.value.path) == ("ORCH423", path)
    assert why in caught.value.summary


def test_more_shared_memory_than_the_pod_has_is_refused(run: Run, two: Pair) -> None:
    row = run(two[0], commands=["true"], resources={"shm_size": "1GB"})
    assert row.status == "failed"
    assert "/dev/shm of this pod has 64 MiB, and `shm_size` asks for 1024" in (row.message or "")
    assert left_on(two[0]) == ""


def test_another_image_than_the_pods_is_refused(place: RunnerContext, pods: PodLab, two: Pair) -> None:
    task = Task.model_validate({"name": "job", "nodes": 1, "commands": ["true"]})
    row = lifecycle.submit(place, Submission(task, pods.fleet(two[0]), image="other/image:1", base=place.dot))
    ended = lifecycle.drive(place, row)
    assert ended.status == "failed"
    own = images.resolve("orch/mpi")
    assert f"this pod has the image {own}, and the run asks for other/image:1" in (ended.message or "")
    assert left_on(two[0]) == ""
    (result,) = RUNTIMES["process"].provide_image(place.connector, [two[0]], "other/image:1", Silent())
    assert isinstance(result.error, ImageUnavailable)
