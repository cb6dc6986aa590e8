"""Runs on two real nodes: what a job sees, how runs end, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from kit.nodes.nodelab import Lab, docker
from kit.nodes.stocked import stocked

from orch import images
from orch.runner.errors import BadTask, HostfileIncomplete, NodesBusy, RunConflict
from orch.runner.events import LogLine, Notice, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.records import RunRow
from orch.runner.node.status import node_statuses
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.runs.read_logs import Selection, read_logs
from orch.runner.ssh.pool import SshConnector
from orch.spec.errors import ExitCode
from orch.spec.grammar.hosts import fold
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeState
from orch.templates import render

Pair = tuple[NodeState, NodeState]
Run = Callable[..., RunRow]


on_pods_too = pytest.mark.parametrize("kind", ["machines", "pods"], indirect=True)


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """What the two nodes of a test are."""
    return getattr(request, "param", "machines")


@pytest.fixture
def pair(kind: str, pair: Pair, request: pytest.FixtureRequest) -> Pair:
    """Two nodes with Docker, or two that are containers themselves."""
    return request.getfixturevalue("two") if kind == "pods" else pair


@pytest.fixture
def fleet(lab: Lab, pair: Pair) -> FleetState:
    return lab.fleet(*pair)


@pytest.fixture
def run(place: RunnerContext, fleet: FleetState, tmp_path: Path) -> Run:
    """Submit a task and see it to its end."""

    def run(image: str = "orch/mpi", **task: object) -> RunRow:
        row = submit(place, fleet, tmp_path, image=image, **task)
        return lifecycle.drive(place, row)

    return run


def submit(
    place: RunnerContext, fleet: FleetState, base: Path, image: str = "orch/mpi", **task: object
) -> RunRow:
    given = {"name": "job", "nodes": 2, **task}
    return lifecycle.submit(
        place,
        Submission(
            Task.model_validate(given),
            fleet,
            image=images.resolve(image),
            base=base,
            caller_env={"FROM_CALLER": "yes"},
            cli_env={"FROM_CLI": "1"},
        ),
    )


def lines(place: RunnerContext, rank: int | None = None) -> list[str]:
    recorder = place.processor
    assert isinstance(recorder, Recorder)
    told = [event for event in recorder.events if isinstance(event, LogLine)]
    return [line.text for line in told if rank in (None, line.rank)]


def ends(row: RunRow) -> list[tuple[str, int | None, str | None]]:
    return [(rank.status, rank.exit_code, rank.reason) for rank in row.ranks]


@on_pods_too
def test_commands_run_on_both_nodes_with_their_own_environment(
    run: Run, place: RunnerContext, pair: Pair, left_on: Callable[[NodeState], str]
):
    row = run(
        commands=[
            "cat > /tmp/here <<'END'\na here-document\nEND",
            "cat /tmp/here # and a comment",
            'echo "rank $NODE_RANK of $NNODES at $MASTER_ADDR:$MASTER_PORT via $GLOO_SOCKET_IFNAME"',
            'printf "%s\\n" "$DSTACK_NODES_IPS" | tr "\\n" " "; echo',
            'echo "$MULTI|$FROM_CALLER|$FROM_CLI"',
            "cat $DSTACK_MPI_HOSTFILE",
        ],
        env={"MULTI": "it's\ntwo lines", "FROM_CALLER": None},
    )
    assert (row.status, row.reason) == ("done", "all_jobs_done")
    assert ends(row) == [("done", 0, "done")] * 2
    first, second = (node.internal_ip for node in pair)
    for rank in (0, 1):
        assert lines(place, rank) == [
            "a here-document",
            f"rank {rank} of 2 at {first}:29500 via eth0",
            f"{first} {second} ",
            "it's",
            "two lines|yes|1",
            f"{first}",
            f"{second}",
        ]
    assert [left_on(node) for node in pair] == ["", ""]
    assert not (place.dot / "runs/job/environment.json").exists(), (
        "secrets stay only until the containers run"
    )


@on_pods_too
def test_a_failing_rank_stops_the_others_and_is_named_with_its_code(
    run: Run, pair: Pair, left_on: Callable[[NodeState], str]
):
    row = run(
        commands=["if [ $ORCH_NODE_RANK = 1 ]; then sleep 1; exit 3; fi", "sleep 60"],
        stop_duration=10,
    )
    assert row.status == "failed"
    assert row.message == f"rank 1 on node {pair[1].name} exited with code 3"
    assert ends(row)[1] == ("failed", 3, "container_exited_with_error")
    assert ends(row)[0][0::2] == ("terminated", "sibling_failed")
    assert lifecycle.exit_code(row) == ExitCode.RUN_FAILED
    assert row.finished_at is not None
    assert row.started_at is not None
    assert row.finished_at - row.started_at < 40
    assert [left_on(node) for node in pair] == ["", ""]


@on_pods_too
def test_groups_run_their_own_commands_in_one_run_and_reach_each_other(
    run: Run, place: RunnerContext, pair: Pair, left_on: Callable[[NodeState], str]
):
    serve = "$s = IO::Socket::INET->new(LocalPort => 4711, Listen => 1) or die; print {$s->accept} q(hello)"
    head = "/dev/tcp/${{ groups[0].nodes[0].IP_ADDRESS }}/4711"
    row = run(
        nodes=1,
        shell="bash",
        groups=[
            {
                "name": "head",
                "commands": [f"perl -MIO::Socket::INET -e '{serve}'", 'echo "$ORCH_GROUP served"'],
            },
            {
                "name": "worker",
                "commands": [
                    f"until exec 3<>{head}; do sleep 0.2; done 2>/dev/null",
                    'echo "$ORCH_GROUP, rank $ORCH_NODE_RANK of $NNODES, heard $(cat <&3) from $HEAD"',
                ],
                "env": {"HEAD": "${{ groups[0].nodes[0].IP_ADDRESS }}"},
            },
        ],
        tags={"team": "research"},
    )
    assert (row.status, row.reason) == ("done", "all_jobs_done")
    assert lines(place, 0) == ["head served"]
    assert lines(place, 1) == [f"worker, rank 1 of 2, heard hello from {pair[0].internal_ip}"]
    recorder = Recorder()
    read_logs(replace(place, processor=recorder), row, Selection((0, 1)))
    kept = [event for event in recorder.events if isinstance(event, LogLine)]
    assert {line.rank: line.group for line in kept} == {0: "head", 1: "worker"}
    assert [left_on(node) for node in pair] == ["", ""]


def test_the_master_starts_first_when_asked(run: Run, place: RunnerContext):
    stamp = "date +%s.%N"  # at once, for the others follow soon
    run(commands=[stamp, "sleep 1"], startup_order="master-first")
    assert float(lines(place, 0)[0]) < float(lines(place, 1)[0])


def test_workers_start_first_when_asked(run: Run, place: RunnerContext):
    stamp = "date +%s.%N"
    run(commands=[stamp, "sleep 1"], startup_order="workers-first")
    assert float(lines(place, 1)[0]) < float(lines(place, 0)[0])


@on_pods_too
def test_the_masters_end_stops_the_others_when_asked(run: Run):
    row = run(
        commands=["[ $ORCH_NODE_RANK = 0 ] || sleep 100"],
        stop_criteria="master-done",
        stop_duration=5,
    )
    assert row.status == "done"
    assert [rank.status for rank in row.ranks] == ["done", "done"]


@on_pods_too
def test_max_duration_ends_a_run_and_is_told(run: Run, pair: Pair):
    row = run(commands=["sleep 100"], max_duration=2, stop_duration=3)
    assert row.status == "failed"
    assert "max_duration_exceeded" in [rank.reason for rank in row.ranks]
    assert "reached max_duration (2 s)" in (row.message or "")
    assert lifecycle.exit_code(row) == ExitCode.RUN_FAILED


@on_pods_too
def test_signals_reach_the_whole_process_group_and_a_job_may_end_by_itself(run: Run, place: RunnerContext):
    row = run(
        commands=[
            # Until the other one has set its traps.
            "if [ $ORCH_NODE_RANK = 1 ]; then sleep 5; exit 1; fi",
            "sh -c 'trap \"echo child told; exit 0\" TERM; sleep 30 & wait' & "
            "trap 'echo told; wait; exit 0' TERM; wait",
        ],
        stop_duration=20,
    )
    assert sorted(lines(place, 0)) == ["child told", "told"]
    assert ends(row)[0] == ("terminated", 0, "sibling_failed")


def test_a_second_run_on_the_same_nodes_is_told_who_holds_them(
    place: RunnerContext, fleet: FleetState, tmp_path: Path, transport: SshConnector, lab: Lab
):
    first = submit(place, fleet, tmp_path, name="first", commands=["sleep 60"], stop_duration=2)
    lease = place.ledger.take(first.id, "a test")
    assert lease is not None
    # A laptop with another ledger knows nothing of the first run: the nodes tell it.
    from orch.runner.ledger.ledger import open_ledger
    from orch.runner.runs.driver import Driver

    elsewhere = RunnerContext(
        tmp_path / "elsewhere",
        open_ledger(f"sqlite:///{tmp_path / 'elsewhere/ledger.db'}"),
        transport,
        Recorder(),
    )
    second = submit(elsewhere, fleet, tmp_path, name="second", commands=["true"])
    driver = Driver(place.context(first), first, lease, follow_logs=False)
    driver.step()
    assert [status.status for status in node_statuses(fleet, transport)] == ["busy", "busy"]
    assert "run first" in (node_statuses(fleet, transport)[0].reason or "")
    # One that comes later is not submitted, one that was submitted before learns it when it starts.
    with pytest.raises(NodesBusy) as refused:
        submit(elsewhere, fleet, tmp_path, name="third", commands=["true"])
    names = [node.name for node in fleet.nodes]
    assert (refused.value.exit_code, refused.value.detail) == (
        ExitCode.CONFLICT,
        f"in use: {fold(names)} by first, second",
    )
    assert [row.name for row in elsewhere.ledger.runs()] == ["second"]
    second = lifecycle.drive(elsewhere, second)
    assert second.status == "failed"
    assert "is busy with run first" in (second.message or "")
    assert {rank.reason for rank in second.ranks} == {"failed_to_start_due_to_no_capacity"}
    assert lifecycle.exit_code(second) == ExitCode.CONFLICT
    assert [status.status for status in node_statuses(fleet, transport)] == ["busy", "busy"]

    place.ledger.release(lease)
    stopped = lifecycle.stop(place, place.ledger.get("first"))
    assert (stopped.status, stopped.reason) == ("terminated", "stopped_by_user")
    assert [rank.reason for rank in stopped.ranks] == ["terminated_by_user"] * 2
    assert lifecycle.exit_code(stopped) == ExitCode.OK
    assert [status.status for status in node_statuses(fleet, transport)] == ["idle", "idle"]


def test_blocks_let_two_jobs_share_a_node_and_no_more(
    place: RunnerContext, lab: Lab, pair: Pair, tmp_path: Path, transport: SshConnector
):
    sliced = lab.fleet(pair[0].model_copy(update={"blocks": 2}))
    rows = [
        submit(place, sliced, tmp_path, name=name, nodes=1, commands=["sleep 30"], stop_duration=1)
        for name in ("one", "two")
    ]
    for row in rows:
        lease = place.ledger.take(row.id, "a test")
        assert lease is not None
        from orch.runner.runs.driver import Driver

        Driver(place.context(row), row, lease, follow_logs=False).step()
        place.ledger.release(lease)
    (status,) = node_statuses(sliced, transport)
    assert (status.status, status.busy_blocks) == ("busy", 2)
    with pytest.raises(NodesBusy, match="the run needs 1 node, 0 are free"):
        submit(place, sliced, tmp_path, name="three", nodes=1, commands=["true"])
    for row in rows:
        lifecycle.stop(place, place.ledger.by_id(row.id), abort=True)
    assert node_statuses(sliced, transport)[0].status == "idle"


@on_pods_too
def test_files_land_where_they_are_asked_for(run: Run, place: RunnerContext, tmp_path: Path):
    (tmp_path / "data/deep").mkdir(parents=True)
    (tmp_path / "data/deep/a.txt").write_text("deep")
    (tmp_path / "plain.txt").write_text("plain")
    run(
        files=["data:/opt/in here", "plain.txt", "plain.txt:~/mine/other.txt"],
        commands=["cat '/opt/in here/deep/a.txt' plain.txt ~/mine/other.txt; echo; pwd"],
        working_dir="/job place",
        nodes=1,
    )
    assert lines(place) == ["deepplainplain", "/job place"]


def test_a_missing_file_is_told_before_anything_happens(run: Run, place: RunnerContext):
    with pytest.raises(BadTask, match=r"nowhere\.py"):
        run(files=["nowhere.py"], commands=["true"])
    assert place.ledger.runs() == ()


def test_an_unset_variable_is_told_before_anything_happens(run: Run):
    with pytest.raises(BadTask, match="NOT_SET_ANYWHERE"):
        run(env={"NOT_SET_ANYWHERE": None}, commands=["true"])


def test_a_node_without_internal_address_stops_the_run_before_any_command(
    place: RunnerContext, lab: Lab, pair: Pair, tmp_path: Path
):
    broken = lab.fleet(pair[0], pair[1].model_copy(update={"internal_ip": None}))
    with pytest.raises(HostfileIncomplete) as caught:
        submit(place, broken, tmp_path, commands=["true"])
    assert caught.value.code == "ORCH420"
    assert pair[1].name in caught.value.summary
    assert place.ledger.runs() == ()


def test_instance_volumes_are_mounted_and_optional_ones_may_be_missing(run: Run, place: RunnerContext):
    row = run(
        volumes=["/var/log:/node-log", {"instance_path": "/not/there", "path": "/no", "optional": True}],
        commands=["ls /node-log/sshd.log; [ -e /no ] || echo none"],
        nodes=1,
    )
    assert row.status == "done"
    assert lines(place) == ["/node-log/sshd.log", "none"]


@on_pods_too
def test_slurm_variables_come_when_the_text_mentions_them(run: Run, place: RunnerContext, pair: Pair):
    first, second = (node.name for node in pair)
    run(
        commands=[
            "echo $SLURM_PROCID $(hostname) $SLURMD_NODENAME",
            "scontrol show hostnames $SLURM_JOB_NODELIST",
            f"getent hosts job-1 {first} {second}",
        ]
    )
    *said, by_run, one, other = lines(place, 1)
    assert said == [f"1 {second} {second}", first, second]
    assert by_run.split() == other.split() == [pair[1].internal_ip, second, "job-1"]
    assert one.split() == [pair[0].internal_ip, first, "job-0"]


@on_pods_too
def test_commands_start_several_times_per_node_when_asked(run: Run, place: RunnerContext):
    row = run(commands=["echo $SLURM_PROCID.$SLURM_LOCALID"], ntasks_per_node=2)
    assert row.status == "done"
    assert sorted(lines(place)) == ["0.0", "1.1", "2.0", "3.1"]


@on_pods_too
def test_one_failing_process_of_several_ends_the_others_with_its_code(run: Run):
    row = run(
        commands=["[ $SLURM_PROCID != 1 ] || { sleep 0.5; exit 9; }; sleep 60"],
        ntasks_per_node=2,
        nodes=1,
    )
    assert ends(row) == [("failed", 9, "container_exited_with_error")]


@on_pods_too
def test_mpirun_reaches_every_rank_with_that_ranks_environment(
    run: Run, place: RunnerContext, pair: Pair, left_on: Callable[[NodeState], str]
):
    program = (
        "import os, socket; "
        "print(os.environ['OMPI_COMM_WORLD_RANK'], os.environ['ORCH_NODE_RANK'], os.environ['COLOUR'], "
        "os.environ['LATE'], os.environ['RANK'], os.environ['WORLD_SIZE'])"
    )
    row = run(
        mpirun={
            "program": "python3",
            "args": ["-c", program],
            "nproc_per_node": 2,
            "torch_env": True,
            "export": ["LATE"],
        },
        commands=["export LATE=$(( 40 + 2 ))"],
        env={"COLOUR": "it's blue"},
    )
    assert row.status == "done", row.message
    assert [rank.exit_code for rank in row.ranks] == [0, 0]
    assert sorted(lines(place)) == [f"{r} {r // 2} it's blue 42 {r} 4" for r in range(4)]
    assert [left_on(node) for node in pair] == ["", ""]


@on_pods_too
def test_mpirun_that_fails_fails_the_run_with_its_code(run: Run):
    row = run(mpirun={"program": "sh", "args": ["-c", "exit 7"]}, stop_duration=5)
    assert ends(row)[0] == ("failed", 7, "container_exited_with_error")


def test_an_image_without_mpirun_is_told(run: Run, place: RunnerContext):
    row = run(mpirun="./a.out", nodes=1, commands=["rm /usr/bin/mpirun"])
    assert row.ranks[0].exit_code == 127
    assert any("has no mpirun" in line for line in lines(place))


def test_an_image_without_torchrun_is_told(run: Run, place: RunnerContext):
    row = run(torchrun="train.py", nodes=1)
    assert row.ranks[0].exit_code == 127
    assert any("has no torchrun" in line for line in lines(place))


@pytest.mark.timeout(900)  # the nodes' image may be made for it
def test_torchrun_starts_all_processes_on_both_nodes(place: RunnerContext, lab: Lab, tmp_path: Path):
    (tmp_path / "sum.py").write_text(
        "import os, sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.ones(1) * (dist.get_rank() + 1)\n"
        "dist.all_reduce(x)\n"
        "words = [dist.get_rank(), os.environ['ORCH_NODE_RANK'], int(x), *sys.argv[1:]]\n"
        "os.write(1, (' '.join(map(str, words)) + '\\n').encode())\n"
    )
    image = stocked("job")
    nodes = lab.node(image=image), lab.node(image=image)
    row = submit(
        place,
        lab.fleet(*nodes),
        tmp_path,
        image="orch/job",
        files=["sum.py"],
        env={"OMP_NUM_THREADS": "1"},
        torchrun={"program": "sum.py", "args": ["--name", "$ORCH_RUN_NAME", "a b"], "nproc_per_node": 2},
    )
    row = lifecycle.drive(place, row)
    assert row.status == "done", lines(place)
    for node in nodes:
        docker("rm", "-f", "-v", node.name)
    assert sorted(lines(place)) == [f"{r} {r // 2} 10 --name job a b" for r in range(4)]


def test_a_name_in_use_is_refused_while_its_run_is_active(
    place: RunnerContext, fleet: FleetState, tmp_path: Path
):
    submit(place, fleet, tmp_path, nodes=1, commands=["true"])
    with pytest.raises(RunConflict, match="a run named job is active"):
        submit(place, fleet, tmp_path, nodes=1, commands=["true"])


@on_pods_too
def test_logs_can_be_read_during_and_after_a_run(
    place: RunnerContext, fleet: FleetState, tmp_path: Path, run: Run
):
    row = run(commands=["for i in 1 2 3; do echo line $i; done; printf unfinished"])
    again = Recorder()
    reader = RunnerContext(place.dot, place.ledger, place.connector, again)
    read_logs(reader, row, Selection((0, 1), tail=2))
    texts = [event.text for event in again.events if isinstance(event, LogLine)]
    assert sorted(texts) == ["line 3", "line 3", "unfinished", "unfinished"]
    kept = (place.dot / "runs/job/logs/0.log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in kept] == ["line 1", "line 2", "line 3", "unfinished"]


def test_an_earlier_run_of_the_same_name_keeps_its_log(run: Run, place: RunnerContext):
    first = run(commands=["echo first"], nodes=1)
    second = run(commands=["echo second"], nodes=1)
    texts = [place.context(row).folder.log(0).read_text().split(" ", 1)[1] for row in (first, second)]
    assert texts == ["first\n", "second\n"]


def test_protected_variables_are_refused_with_a_warning(run: Run, place: RunnerContext):
    run(commands=["echo $ORCH_NODE_RANK $MASTER_PORT"], env={"ORCH_NODE_RANK": "9", "MASTER_PORT": "1234"})
    assert lines(place, 1) == ["1 1234"]
    assert isinstance(place.processor, Recorder)
    assert any("ORCH193" in event.text for event in place.processor.events if isinstance(event, Notice))


def test_a_job_killed_for_memory_is_told(place: RunnerContext, lab: Lab, pair: Pair, tmp_path: Path):
    small = pair[0].model_copy(update={"blocks": 2, "memory_mib": 128})
    row = submit(
        place,
        lab.fleet(small),
        tmp_path,
        nodes=1,
        commands=["exec python3 -c 'x = bytearray(300 << 20)'"],
    )
    row = lifecycle.drive(place, row)
    assert row.status == "failed"
    assert "ran out of memory" in (row.message or "")


def test_a_kill_for_memory_of_which_docker_was_not_told_is_seen_in_the_log_of_the_kernel(
    lab: Lab, request: pytest.FixtureRequest, tmp_path: Path
):
    name = f"{lab.tag}-memory"
    request.addfinalizer(lambda: docker("rm", "--force", name, check=False))
    # Docker's own flag, as it is where its shim came too late.
    shim = tmp_path / "docker"
    shim.write_text('#!/bin/sh\nPATH="$REAL" docker "$@" | sed "s/|true|/|false|/"\n')
    shim.chmod(0o755)
    path = {"PATH": f"{shim.parent}:{os.environ['PATH']}", "REAL": os.environ["PATH"]}
    script = render("node-observe.sh.j2", home=str(tmp_path), name=name)

    def ended_by(*command: str) -> list[str]:
        docker("run", "--name", name, "--memory", "64m", images.resolve("orch/job"), *command, check=False)
        seen = subprocess.run(["sh", "-c", script], env=path, capture_output=True, text=True, check=True)
        docker("rm", "--force", name)
        return seen.stdout.split("|")[:3]

    assert ended_by("python3", "-c", "x = bytearray(300 << 20)") == ["exited", "137", "true"]
    assert ended_by("python3", "-c", "import os; os._exit(137)") == ["exited", "137", "false"]


def test_plans_in_the_ledger_hold_no_environment(place: RunnerContext, fleet: FleetState, tmp_path: Path):
    row = submit(place, fleet, tmp_path, commands=["true"], env={"TOKEN": "s3cret-value"})
    assert "s3cret-value" not in row.plan
    kept = place.dot / "runs/job/environment.json"
    assert "s3cret-value" in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert json.loads(row.plan)["run"] == "job"
