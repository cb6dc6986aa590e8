"""`orch exec` in the containers of a run, as a user types it, on the quickstart's fleet."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator

import pytest
from kit.support import ORCH, Folder, until

TASK = """\
type: task
name: held
nodes: 2
image: orch/mpi
stop_duration: 1
working_dir: /tmp
env: {COLOUR: "it's blue"}
commands: [sleep 600]
"""


@pytest.fixture(scope="module")
def held(quickstart: Folder) -> Iterator[Folder]:
    """A project with a run on both nodes."""
    quickstart.write("held.yml", TASK)
    said = quickstart.orch("run", "held.yml", "--detach")
    assert said.code == 0, said.err
    until(lambda: quickstart.orch("ps", "--json").json["runs"][0]["status"] == "running", 120, "the run runs")
    yield quickstart
    quickstart.orch("stop", "held", "--abort")


def test_a_command_runs_in_every_container_as_the_job_does(held: Folder) -> None:
    said = held.orch("exec", "held", "--", "echo $COLOUR $PWD $(id -un) of $ORCH_NODES_NUM; cat")
    assert (said.code, said.err) == (0, "")
    head, line = said.out.splitlines()
    assert (head.endswith("(2):"), line) == (True, "  it's blue /tmp root of 2")
    one = held.orch("exec", "held", "--rank", "1", "--json", "--", "echo $ORCH_NODE_RANK; exit 3")
    assert (one.code, one.json["run"]) == (3, "held")
    assert [(node["rank"], node["stdout"]) for node in one.json["nodes"]] == [(1, "1\n")]
    by_name = held.orch("exec", "run:held", "--node", one.json["nodes"][0]["node"], "--json", "--", "true")
    assert [node["rank"] for node in by_name.json["nodes"]] == [1]
    on_nodes = held.orch("exec", "laptop", "--json", "--", "docker ps -q | wc -l")
    assert [node["stdout"] for node in on_nodes.json["nodes"]] == ["1\n", "1\n"]


def test_a_command_that_is_given_up_goes_on_nowhere(held: Folder) -> None:
    said = held.orch("exec", "held", "--rank", "0", "--timeout", "2s", "--", "exec sleep 7777")
    assert (said.code, said.out) == (7, "")
    assert "took longer than 2 s, and was ended there" in said.err
    assert "exec sleep 7777" in said.err
    others = held.orch(
        "exec", "held", "--rank", "0", "--json", "--", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    )
    (node,) = others.json["nodes"]
    assert "sleep 600" in node["stdout"]
    assert "sleep 7777" not in node["stdout"]


def test_a_command_in_one_container_has_the_terminal_it_is_typed_on(held: Folder) -> None:
    ours, theirs = pty.openpty()
    words = [
        *ORCH,
        "exec",
        "held",
        "--rank",
        "1",
        "--",
        'tty >/dev/null && echo "$ORCH_NODE_RANK typed: $(head -n1)"',
    ]
    process = subprocess.Popen(words, cwd=held.path, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, b"a word\n")
    shown = b""
    with open(ours, "rb", buffering=0) as terminal:
        while b"typed: a word" not in shown:
            try:
                shown += terminal.read(1024)
            except OSError:  # its other end is closed
                break
        assert process.wait(120) == 0, shown
    assert b"1 typed: a word" in shown


def test_what_a_run_and_its_fleet_use_is_told(held: Folder) -> None:
    said = held.orch("metrics", "held", "--json")
    assert said.code == 0, said.err
    assert [(node["rank"], node["problem"]) for node in said.json["nodes"]] == [(0, None), (1, None)]
    for node in said.json["nodes"]:
        assert node["cpu"]["cores"] is not None
        assert 0 < node["memory"]["used_bytes"] < node["memory"]["total_bytes"]
        assert node["network"] is not None
    fleet = held.orch("metrics", "laptop")
    assert (fleet.code, fleet.err) == (0, "")
    heading, *rows = fleet.out.splitlines()
    assert heading.split()[:3] == ["NODE", "CPU", "MEMORY"]
    assert [row.split()[0][-2:] for row in rows] == ["-0", "-1"]


def test_what_is_no_container_is_told(held: Folder) -> None:
    held.write("name.yml", TASK.replace("name: held", "name: laptop").replace("nodes: 2", "nodes: 1"))
    for words, code, told in (
        (("held", "--rank", "2"), 2, "run held has no rank 2"),
        (("laptop", "--rank", "0"), 2, "laptop is a fleet, which has no ranks"),
        (("fleet:held",), 3, "the fleet held is not up"),
        (("run:laptop",), 3, "no run named 'laptop'"),
        (("nope",), 3, "neither a fleet nor a run of this project is named 'nope'"),
    ):
        said = held.orch("exec", *words, "--", "true")
        assert (said.code, told in said.err) == (code, True), said.err
    held.orch("stop", "held", "--abort")
    said = held.orch("exec", "held", "--", "true")
    assert (said.code, "run held has ended" in said.err) == (9, True), said.err
    said = held.orch("metrics", "held", "--json", "--since", "1h")
    assert (said.code, said.json["run"], said.json["attempt"]) == (0, "held", 0), said.err
    for words, code, told in (
        (("held", "--since", "2001-01-01T00:00:00Z", "--attempt", "1"), 2, "has no attempt 1"),
        (("held", "--since", "soon"), 2, "neither a time nor an age"),
        (("held", "--since", "1h", "--serve", "0"), 2, "`--since` and `--attempt` what was"),
        (("laptop", "--since", "1h"), 2, "laptop is a fleet: what is kept is kept of runs"),
    ):
        said = held.orch("metrics", *words)
        assert (said.code, told in said.err) == (code, True), said.err
    said = held.orch("run", "name.yml", "--detach")
    try:
        said = held.orch("exec", "laptop", "--", "true")
        assert (said.code, "laptop is a fleet, and an active run" in said.err) == (2, True), said.err
        assert held.orch("exec", "fleet:laptop", "--", "true").code == 0
    finally:
        held.orch("stop", "laptop", "--abort")
