"""Which processes are certainly dead: those of our own boot and pid namespace alone can be judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from orch.runner.ledger.ledger import open_ledger
from orch.runner.processes import (
    GONE,
    Process,
    describe_owner,
    gone,
    is_dead,
    is_dead_owner,
    process,
    process_owner,
    start_time_of,
    this_process,
)

MINE = this_process()
assert MINE is not None


@pytest.mark.parametrize(("found", "dead"), [("500", False), ("501", True), (GONE, True), (None, False)])
def test_a_number_with_another_start_or_none_is_a_process_that_is_gone(found: str | None, dead: bool):
    assert gone(Process("boot", "1", 17, "500"), found) is dead


def test_this_process_lives_and_another_of_its_number_does_not():
    assert not is_dead(MINE)
    assert is_dead(replace(MINE, born="1"))
    assert not is_dead_owner(process_owner())


def test_of_another_boot_or_namespace_nothing_is_known():
    ended = replace(MINE, born="1")
    assert not is_dead(replace(ended, namespace="1"))
    assert not is_dead(replace(ended, boot="0" * 36))


def test_a_process_that_ended_is_gone_also_before_its_parent_has_collected_it():
    child = subprocess.Popen(["sleep", "600"])
    there = process(child.pid)
    assert there is not None
    assert not is_dead(there)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(there)
    child.wait()
    assert start_time_of(child.pid) == GONE
    assert is_dead(there)


def test_an_owner_is_told_to_people_without_its_marks():
    told = describe_owner(process_owner())
    assert told.startswith(f"process {os.getpid()} of ")
    assert MINE.boot not in told
    assert describe_owner("ada@laptop:7:9") == "ada@laptop:7:9"


# Takes the lease of a run in a pid namespace and on a host of its own, as a container has them, and says its
# number and whether it has it.
CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--uts", "--ipc"]
CONTAINER += ["--user", "--map-root-user"] if os.getuid() else []
TAKE = """
import json, os, socket, sys
from orch.runner.ledger.ledger import open_ledger
from orch.runner.processes import process_owner
socket.sethostname("ci")
url, number = sys.argv[1], int(sys.argv[2])
lease = open_ledger(url).take(number, process_owner())
print(json.dumps([os.getpid(), socket.gethostname(), lease is not None]), flush=True)
sys.stdin.read()
"""


def test_two_containers_of_one_host_name_do_not_take_a_run_from_each_other(ledger_url: str):
    ledger = open_ledger(ledger_url)
    number = ledger.create("job", "lab", ["n0"], lambda _: "{}").id

    def container() -> subprocess.Popen[str]:
        words = [*CONTAINER, sys.executable, "-c", TAKE, ledger_url, str(number)]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def says(one: subprocess.Popen[str]) -> list[object]:
        assert one.stdout is not None
        return json.loads(one.stdout.readline())

    first = container()
    assert says(first) == [1, "ci", True]
    second = container()
    assert says(second) == [1, "ci", False]
    assert ledger.by_id(number).held
    for each in (first, second):
        each.communicate("", timeout=60)
    # Of the container nothing is known from here, dead or alive: its lease ends by time.
    assert ledger.by_id(number).held
    ledger.close()
