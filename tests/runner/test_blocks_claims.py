"""Who gets a block when many want one, what becomes of claims nobody uses, and nodes that take no jobs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.nodes.blocklab import begin, end_all, fleet, left_on, node, person, run, submit
from kit.nodes.hostlab import Room
from kit.nodes.labserver import Server, wait_until

from orch.runner.errors import NodeCordoned, NodesBusy
from orch.runner.events import Notice, Recorder
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.node.status import node_statuses
from orch.runner.node_api.cordon import mark, unmark
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.ssh.pool import SshConnector
from orch.spec.errors import ExitCode
from orch.spec.state import FleetState

GATE = "/srv/gate"
AT_THE_GATE = {"commands": ["until [ -e /gate/open ]; do sleep 0.1; done"], "volumes": [f"{GATE}:/gate"]}
DRIVER = Path(__file__).with_name("drive_run.py")


@pytest.fixture
def somebody(tmp_path: Path, transport: SshConnector) -> Iterator[RunnerContext]:
    """A second person, whose runs end with the test."""
    somebody = person(tmp_path / "somebody", transport)
    yield somebody
    end_all(somebody)


def all_at_once(
    people: list[RunnerContext], server: Server, blocks: int, **task: object
) -> tuple[list[RunRow], list[RunRow]]:
    """Every one of `people` runs the task in a process of their own: those who got in, and those who did not.

    All who got in hold their blocks until everybody has an answer.
    """
    server.run(f"mkdir -p {GATE}; rm -f {GATE}/open")
    on = fleet(node(server, blocks=blocks))
    rows = [submit(one, on, name=f"job-{index}", **AT_THE_GATE, **task) for index, one in enumerate(people)]
    processes = [
        subprocess.Popen([sys.executable, DRIVER, one.dot, row.name], stdout=subprocess.DEVNULL)
        for one, row in zip(people, rows, strict=True)
    ]

    def now() -> list[RunRow]:
        return [one.ledger.by_id(row.id) for one, row in zip(people, rows, strict=True)]

    try:
        wait_until(
            lambda: all(row.status in ("running", "failed") for row in now()), "all have an answer", 150
        )
        got_in = [row for row in now() if row.status == "running"]
        held = server.run("for c in /var/lib/orch/claims/*; do readlink $c; done").splitlines()
        assert len(held) == sum(len(row.ranks) for row in got_in) * blocks_each(got_in), held
        server.run(f"touch {GATE}/open")
        for process in processes:
            process.wait(90)
    finally:
        for process in processes:
            process.kill()
    ended = now()
    return [row for row in ended if row.status == "done"], [row for row in ended if row.status == "failed"]


def blocks_each(rows: list[RunRow]) -> int:
    return plan_of(rows[0]).ranks[0].blocks


@pytest.mark.parametrize(("gpus", "winners"), [(2, 4), (4, 2)])
def test_of_ten_who_want_blocks_at_once_as_many_get_them_as_there_are(
    tmp_path: Path, transport: SshConnector, gpu1: Server, gpus: int, winners: int
):
    """`gpus` make one block of four, or two."""
    check_race(tmp_path, transport, gpu1, gpus, winners)


def test_nobody_shares_a_block_on_a_server_without_flock_either(
    tmp_path: Path, transport: SshConnector, gpu1: Server
):
    gpu1.run("mv /usr/bin/flock /usr/bin/.flock")
    try:
        check_race(tmp_path, transport, gpu1, 2, 4)
    finally:
        gpu1.run("mv /usr/bin/.flock /usr/bin/flock")


def check_race(tmp_path: Path, transport: SshConnector, gpu1: Server, gpus: int, winners: int) -> None:
    people = [person(tmp_path / str(index), transport) for index in range(10)]
    done, failed = all_at_once(people, gpu1, 4, resources={"gpu": gpus})
    assert (len(done), len(failed)) == (winners, 10 - winners)
    winning = {row.name for row in done}
    for row in failed:
        assert "node gpu1 is busy with run " in (row.message or "")
        assert any(f"run {name} of" in (row.message or "") for name in winning), row.message
        assert lifecycle.exit_code(row) == ExitCode.CONFLICT
    assert left_on(gpu1) == ""


def test_blocks_that_are_not_enough_are_given_back(
    place: RunnerContext, somebody: RunnerContext, gpu1: Server, ended: None
):
    on = fleet(node(gpu1, blocks=4))
    row = submit(place, on, commands=["true"], resources={"gpu": 6})
    begin(somebody, on, "one")
    begin(somebody, on, "two")
    row = lifecycle.drive(place, row)
    assert row.status == "failed"
    assert "3 of its 4 blocks are needed" in (row.message or "")
    assert "run one of" in (row.message or "")
    assert "run two of" in (row.message or "")
    assert node_statuses(on, place.connector)[0].busy_blocks == 2


def test_two_fleets_that_cut_one_server_differently_never_share_it(
    place: RunnerContext, somebody: RunnerContext, gpu1: Server, ended: None
):
    rows = [
        (blocks, one, submit(one, fleet(node(gpu1, blocks=blocks)), name="other", commands=["true"]))
        for blocks, one in ((4, place), (1, somebody))
    ]
    begin(place, fleet(node(gpu1, blocks=8)), "one")
    for blocks, one, row in rows:
        ended_row = lifecycle.drive(one, row)
        assert ended_row.status == "failed"
        assert f"it is cut into 8 blocks there, and into {blocks} by this fleet" in (ended_row.message or "")
    end_all(place)
    assert run(place, fleet(node(gpu1, blocks=4)), commands=["echo in"]) == ["in"]


def test_a_job_goes_where_enough_blocks_are_free_whoever_uses_the_others(
    room: Room, place: RunnerContext, somebody: RunnerContext, gpu1: Server, ended: None
):
    both = fleet(node(gpu1, blocks=4), node(room.servers[1], blocks=4, index=1))
    begin(somebody, both, "theirs", resources={"gpu": 4})
    # Two blocks are free on the first server: enough for two GPUs, and it is the fuller one; not for six.
    where = [
        submit(place, both, name=f"mine-{at}", commands=["true"], resources={"gpu": gpus}).ranks[0].node
        for at, gpus in enumerate((2, 6, 2, 2))
    ]
    assert where == ["gpu1", "gpu2", "gpu1", "gpu2"], "what is submitted and not started counts too"


def test_the_claim_of_a_job_that_never_started_is_taken_over_after_an_hour(
    place: RunnerContext, gpu1: Server
):
    on = fleet(node(gpu1, blocks=1))
    row = submit(place, on, name="early", commands=["true"])
    gpu1.run(
        "mkdir -p /var/lib/orch/claims; ln -s 'orch-lost-0-0|lost|eve@away|then|1' /var/lib/orch/claims/0"
    )
    with pytest.raises(NodesBusy) as refused:
        submit(place, on, name="other", commands=["true"])
    assert refused.value.detail == "in use: gpu1 by lost of eve@away, early"
    row = lifecycle.drive(place, row)
    assert row.status == "failed"
    assert "run lost of eve@away since then" in (row.message or "")
    gpu1.run("touch -h -d '2 hours ago' /var/lib/orch/claims/0")
    assert run(place, on, name="late", commands=["echo in"]) == ["in"]
    assert left_on(gpu1) == ""


def test_the_block_of_a_job_that_ended_long_ago_is_taken_over_and_its_log_kept(
    place: RunnerContext, somebody: RunnerContext, gpu1: Server
):
    on = fleet(node(gpu1, blocks=1))
    early = submit(place, on, name="early", commands=["true"])
    row = begin(somebody, on, "theirs", commands=["echo precious"])
    wait_until(lambda: "Exited" in gpu1.run("docker ps -a"), "their job has ended")
    assert lifecycle.drive(place, early).status == "failed"
    gpu1.put(
        "/usr/local/bin/docker",
        "#!/bin/sh\n"
        '[ "$1" = ps ] || exec /usr/bin/docker "$@"\n'
        "/usr/bin/docker \"$@\" | sed 's/ [a-zA-Z0-9 ]* ago$/ 2 hours ago/'\n",
        0o755,
    )
    try:
        assert run(place, on, name="late", commands=["echo in"]) == ["in"]
    finally:
        gpu1.run("rm /usr/local/bin/docker")
    assert isinstance(place.processor, Recorder)
    told = [event.text for event in place.processor.events if isinstance(event, Notice)]
    assert any("took over a claim left by orch-theirs-0-0" in text for text in told)
    # Its client comes back at last: the log is still there.
    lifecycle.reconcile_once(somebody)
    kept = somebody.context(row).folder.log(0).read_text()
    assert kept.split(" ", 1)[1] == "precious\n"
    assert left_on(gpu1) == ""


def test_the_next_look_releases_what_a_client_that_died_for_good_held(
    place: RunnerContext, gpu1: Server, transport: SshConnector
):
    on = fleet(node(gpu1, blocks=4))
    gpu1.run(f"mkdir -p {GATE}; rm -f {GATE}/open")
    submit(place, on, name="job", **AT_THE_GATE, resources={"gpu": 4})
    driver = subprocess.Popen([sys.executable, DRIVER, place.dot, "job"], stdout=subprocess.DEVNULL)
    wait_until(lambda: place.ledger.get("job").status == "running", "it runs")
    driver.kill()
    driver.wait()
    assert node_statuses(on, transport)[0].busy_blocks == 2
    gpu1.run(f"touch {GATE}/open")
    wait_until(lambda: "Exited" in gpu1.run("docker ps -a"), "the job ends by itself")
    lifecycle.reconcile_once(place)
    assert place.ledger.get("job").status == "done"
    assert left_on(gpu1) == ""


def test_a_restart_of_docker_ends_the_run_by_name_and_leaves_nothing(place: RunnerContext, gpu1: Server):
    begin(place, fleet(node(gpu1, blocks=1)), "job")
    with gpu1.docker_stopped():
        lifecycle.reconcile_once(place)
        assert place.ledger.get("job").active, "a Docker that is away is waited for"
    row = lifecycle.drive(place, place.ledger.get("job"))
    assert row.status == "failed"
    assert "rank 0 on node gpu1 exited with code " in (row.message or "")
    assert left_on(gpu1) == ""


# --- cordon


@pytest.fixture
def pair(room: Room, gpu1: Server, transport: SshConnector) -> Iterator[FleetState]:
    """A fleet of two, whose nodes take jobs again at the end."""
    on = fleet(node(gpu1, blocks=4), node(room.servers[1], blocks=4, index=1))
    yield on
    unmark(on.nodes, transport, deadline_s=30.0)


def test_a_cordoned_node_takes_no_new_job_and_keeps_its_running_ones(
    place: RunnerContext, somebody: RunnerContext, pair: FleetState, transport: SshConnector, ended: None
):
    begin(place, pair, "before")
    mark(pair.nodes[:1], transport, "fan | broken", deadline_s=30.0)
    first, second = node_statuses(pair, transport)
    assert (first.status, first.busy_blocks, second.status) == ("cordoned", 1, "idle")
    assert (first.reason or "").startswith("fan | broken, by ")
    assert place.ledger.get("before").active

    row = submit(place, pair, name="after", commands=["true"])
    assert [rank.node for rank in row.ranks] == ["gpu2"]
    assert isinstance(place.processor, Recorder)
    assert Notice("1 node is cordoned: gpu1 (fan | broken)", "warning") in place.processor.events

    # Somebody else, with a ledger of their own, sees the same.
    with pytest.raises(NodeCordoned, match=r"1 node is cordoned: gpu1 \(fan | broken\)") as caught:
        submit(somebody, pair, nodes=2, commands=["true"])
    assert caught.value.exit_code == ExitCode.CONFLICT

    unmark(pair.nodes, transport, deadline_s=30.0)
    assert [status.status for status in node_statuses(pair, transport)] == ["busy", "idle"]


def test_a_node_cordoned_between_the_look_and_the_start_refuses(
    place: RunnerContext, pair: FleetState, transport: SshConnector, gpu1: Server
):
    row = submit(place, pair, commands=["true"])
    mark(pair.nodes, transport, "", deadline_s=30.0)
    row = lifecycle.drive(place, row)
    assert row.status == "failed"
    assert "node gpu1 is cordoned (by " in (row.message or "")
    assert lifecycle.exit_code(row) == ExitCode.CONFLICT
    assert left_on(gpu1) == ""


def test_two_people_may_run_the_same_file_on_one_server(
    place: RunnerContext, somebody: RunnerContext, gpu1: Server, ended: None
):
    on = fleet(node(gpu1, blocks=4))
    rows = [begin(one, on, "train") for one in (place, somebody)]
    assert rows[0].id == rows[1].id, "their ledgers know nothing of each other"
    assert node_statuses(on, place.connector)[0].busy_blocks == 2
    assert len(gpu1.run("docker ps -q").split()) == 2
    end_all(place)
    assert somebody.ledger.get("train").active
    assert node_statuses(on, place.connector)[0].busy_blocks == 1
