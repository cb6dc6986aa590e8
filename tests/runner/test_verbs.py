"""`orch run`, `ps`, `logs`, `attach`, `stop` as a user types them, on the quickstart's fleet."""

from __future__ import annotations

import json
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator

import pytest
from kit.nodes.containershell import inside
from kit.support import Folder, containers, until

COUNT = """\
type: task
nodes: 2
image: orch/mpi
stop_duration: 5
commands: ["for i in $(seq 12); do echo line $i; sleep 0.5; done"]
"""

# The same, which goes on after its first line when it is let: however long it takes to be seen running.
GATED = COUNT.replace(
    "for i in $(seq 12); do echo line $i; sleep 0.5; done",
    "echo line 1; until [ -e /gate/$ORCH_RUN_NAME ]; do sleep 0.1; done; "
    "for i in $(seq 2 12); do echo line $i; done",
)
GATED += 'volumes: ["/srv/gate:/gate"]\n'


def let_go_on(project: Folder, run: str) -> None:
    for node in containers(project, "laptop"):
        inside(node, f"touch /srv/gate/{run}")


@pytest.fixture
def project(quickstart: Folder) -> Iterator[Folder]:
    quickstart.write("count.yml", COUNT)
    yield quickstart
    for run in quickstart.orch("ps", "--json").json["runs"]:
        quickstart.orch("stop", run["run"], "--abort")


def wait_for(project: Folder, run: str, status: str, seconds: float = 120) -> dict[str, object]:
    end = time.monotonic() + seconds
    while True:
        rows = {row["run"]: row for row in project.orch("ps", "-a", "--json").json["runs"]}
        if rows.get(run, {}).get("status") == status:
            return rows[run]
        assert time.monotonic() < end, rows.get(run)
        time.sleep(0.2)


def test_a_detached_run_goes_on_by_itself_and_can_be_read_and_attached(project: Folder) -> None:
    project.write("slow.yml", GATED)
    said = project.orch("run", "slow.yml", "--detach", "--name", "alone", "--json")
    assert said.code == 0, said.err
    assert (said.json["run"], said.json["status"]) == ("alone", "submitted")
    assert [node["rank"] for node in said.json["nodes"]] == [0, 1]
    wait_for(project, "alone", "running")
    assert "line 1" in project.orch("logs", "alone").out
    let_go_on(project, "alone")
    attached = project.orch("attach", "alone", "--json")
    assert attached.code == 0, attached.err
    assert attached.json["status"] == "done"
    one = project.orch("logs", "alone", "--node", "1", "--tail", "2")
    assert one.out == "line 11\nline 12\n"
    both = project.orch("logs", "alone").out.splitlines()
    assert len(both) == 24
    assert both[0].startswith("[")
    assert project.orch("logs", "alone", "--since", "0s").out == ""
    assert len(project.orch("logs", "alone", "--since", "1h").out.splitlines()) == 24


def test_interrupting_detaches_says_how_to_come_back_and_the_run_goes_on(project: Folder) -> None:
    project.write("slow.yml", GATED)
    process = project.start("run", "slow.yml", "--name", "left")
    wait_for(project, "left", "running")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "orch attach left" in err
    assert "orch stop left" in err
    let_go_on(project, "left")
    row = wait_for(project, "left", "done")
    assert [node["exit_code"] for node in row["nodes"]] == [0, 0]  # type: ignore[index, union-attr, attr-defined]


SERVE = """\
type: task
image: orch/mpi
stop_duration: 1
ports: ["{port}:8742"]
commands: ["echo served > page; exec python3 -m http.server 8742 --bind 127.0.0.1"]
"""


def test_ports_lead_to_the_job_while_a_command_is_attached_and_others_can_be_chosen(project: Folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        project.write("serve.yml", SERVE.format(port=taken))
        refused = project.orch("run", "serve.yml", "--name", "refused")
        assert refused.code == 9, refused.err
        assert f"serve.yml:4:9: error: port {taken} of this machine is taken" in refused.err
        detached = project.orch("run", "serve.yml", "--name", "served", "--detach", "--json")
        assert (detached.code, detached.json["forwards"]) == (0, []), detached.err
        assert "refused" not in {row["run"] for row in project.orch("ps", "-a", "--json").json["runs"]}
        attached = project.start("attach", "served", "--json")
        assert attached.stderr is not None
        told = attached.stderr.readline()
        assert f"port {taken} of this machine is taken: port 8742 of the run is not forwarded" in told
        assert "--port OTHER:8742" in attached.stderr.readline()
        wait_for(project, "served", "running")
        again = project.start("attach", "served", "--json", "--port", "*:8742")
        assert again.stderr is not None
        line = next(line for line in again.stderr if " -> " in line)
        address, _, rest = line.partition(" -> ")
        assert rest.startswith("port 8742 of rank 0 on node laptop-")
        until(lambda: page(f"http://{address}/page") == "served\n", 120, "the job's page is there")
        stopped = project.orch("stop", "served", "--json")
        assert stopped.json["forwards"] == []
        ended = json.loads(again.communicate(timeout=120)[0])
        assert [(each["address"], each["port"]) for each in ended["forwards"]] == [(address, 8742)]
        assert json.loads(attached.communicate(timeout=120)[0])["forwards"] == []


def page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def test_a_killed_command_line_loses_nothing(project: Folder) -> None:
    process = project.start("run", "count.yml", "--name", "killed")
    assert process.stdout is not None
    first = [process.stdout.readline() for _ in range(4)]
    process.kill()
    rest, _ = process.communicate()
    shown = "".join(first) + rest
    attached = project.orch("attach", "killed")
    assert attached.code == 0, attached.err
    lines = (shown + attached.out).splitlines()
    assert len(lines) == len(set(lines))
    assert len(lines) >= 22, "a line of each rank may be kept and not yet shown at the moment of the kill"
    assert len(set(project.orch("logs", "killed").out.splitlines())) == 24


def test_stop_ends_a_run_and_its_command_line_with_success(project: Folder) -> None:
    project.write("hold.yml", COUNT.replace("sleep 0.5", "sleep 20"))
    process = project.start("run", "hold.yml", "--name", "halt", "--json")
    wait_for(project, "halt", "running")
    stopped = project.orch("stop", "halt", "--json")
    assert (stopped.code, stopped.json["status"], stopped.json["reason"]) == (
        0,
        "terminated",
        "stopped_by_user",
    )
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert json.loads(out)["status"] == "terminated"
    assert project.orch("stop", "halt").code == 0, "stopping twice is no error"


def test_a_second_run_on_busy_nodes_is_a_conflict_that_names_the_first(project: Folder) -> None:
    project.write("long.yml", COUNT.replace("sleep 0.5", "sleep 20"))
    project.orch("run", "long.yml", "--detach", "--name", "first")
    wait_for(project, "first", "running")
    for more in ((), ("--detach",)):
        second = project.orch("run", "count.yml", "--name", "second", *more)
        assert second.code == 9, second.err
        assert "the run needs 2 nodes, 0 are free" in second.err
        assert "in use: laptop-[0-1] by first" in second.err
        assert "`--wait` has this run wait in line" in second.err
    # None of them is a run, and the one that waits begins when it is its turn.
    assert "second" not in project.orch("ps", "-a").out
    waits = project.orch("run", "count.yml", "--name", "third", "--detach", "--wait")
    assert waits.code == 0, waits.err
    assert wait_for(project, "third", "pending")["place_in_line"] == 1
    same = project.orch("run", "count.yml", "--name", "first")
    assert same.code == 9
    assert "a run named first is active" in same.err
    # Its id stands for its name.
    number = str(wait_for(project, "first", "running")["id"])
    assert "line 1" in project.orch("logs", number, "--node", "laptop-1", "--no-fold").out
    assert project.orch("show", number, "--json").json["run"]["run"] == "first"
    assert project.orch("exec", number, "--rank", "1", "--", "hostname").code == 0
    assert project.orch("stop", number, "--abort", "--json").json["run"] == "first"
    assert project.orch("logs", "third", "--node", "laptop-7").code == 2
    wait_for(project, "third", "done")
    folded = [line[1:].split("] ") for line in project.orch("logs", "third", "--fold").out.splitlines()]
    both = [
        (rank, text)
        for head, text in folded
        for rank in ("0-1" if " " not in head else head[0])
        if rank != "-"
    ]
    assert sorted(both) == sorted((rank, f"line {i}") for rank in "01" for i in range(1, 13))


def test_a_failing_job_gives_6_and_tells_rank_node_and_code(project: Folder) -> None:
    project.write(
        "bad.yml", 'type: task\nnodes: 2\nimage: orch/mpi\ncommands: ["exit $((ORCH_NODE_RANK * 3))"]\n'
    )
    said = project.orch("run", "bad.yml", "--json", "--name", "bad")
    assert said.code == 6
    assert said.json["status"] == "failed"
    assert [(node["exit_code"], node["reason"]) for node in said.json["nodes"]][1] == (
        3,
        "container_exited_with_error",
    )
    assert "rank 1 on node laptop-1 exited with code 3" in said.json["message"]
    assert "exited (3)" in project.orch("ps", "-a").out


def test_arguments_and_variables_reach_the_job(project: Folder) -> None:
    project.write(
        "say.yml",
        'type: task\nimage: orch/mpi\nenv: [TOKEN]\ncommands: ["echo $TOKEN $LR ${{ run.args }}"]\n',
    )
    said = project.orch(
        "run", "say.yml", "--env", "LR=0.1", "--env", "TOKEN", "--", "--x", "a b", env={"TOKEN": "t0k"}
    )
    assert said.code == 0, said.err
    assert "t0k 0.1 --x a b" in said.out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("run", "fleet.yml"), 3, "there is no task in it"),
        (("run", "count.yml", "--fleet", "nope"), 3, "the fleet nope is not up in this project"),
        (("run", "count.yml", "--env", "NOT_SET_HERE"), 2, "NOT_SET_HERE"),
        (("logs", "nope"), 3, "no run named 'nope'"),
        (("attach", "nope"), 3, "no run named 'nope'"),
        (("stop", "nope"), 3, "no run named 'nope'"),
    ],
)
def test_mistakes_are_told_in_one_block_without_a_traceback(
    project: Folder, words: tuple[str, ...], code: int, told: str
) -> None:
    said = project.orch(*words)
    assert said.code == code, said.err
    assert told in said.err
    assert "Traceback" not in said.err


def test_without_a_fleet_the_way_to_one_is_told(folder: Folder) -> None:
    folder.write("count.yml", COUNT)
    said = folder.orch("run", "count.yml")
    assert said.code == 3
    assert "orch up" in said.err
