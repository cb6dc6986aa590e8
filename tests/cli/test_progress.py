"""What is told while a fleet changes: folded lines, a word every ten seconds, one live view on a terminal."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import termios
from collections.abc import Iterable
from pathlib import Path

import pytest
from kit.support import fork_server

from orch.cli.output.progress import Tally
from orch.cli.output.ticking import clock
from orch.stacks.pulumi.progress import Activity, EngineStep, ExpectedNodes, Note

INSTANCE, GROUP = "aws:ec2/instance:Instance", "aws:ec2/securityGroup:SecurityGroup"


def heard(*events: EngineStep | Activity | ExpectedNodes | Note, at: Iterable[float] = ()) -> Tally:
    tally, times = Tally(0.0), iter(at)
    for event in events:
        tally.hear(event, next(times, 0.0))
    return tally


def steps(phase: str, type_: str, *names: str, op: str = "create", seconds: float = 0.0) -> list[EngineStep]:
    return [EngineStep(phase, op, type_, name, seconds) for name in names]


NODES = [f"p5-{at}" for at in range(8)]


# Lines of what has ended


def test_equal_nodes_are_one_line_with_their_kind_and_number() -> None:
    tally = heard(
        *steps("start", INSTANCE, *NODES),
        *steps("done", INSTANCE, *NODES[:7], seconds=3.0),
        *steps("done", INSTANCE, NODES[7], seconds=4.2),
    )
    assert tally.ready(0.1) == [], "others like it may follow"
    assert tally.ready(1.0) == ["  p5-[0-7]  instance  created (8, 4.2 s)"]
    assert tally.ready(9.0) == [], "each line is told once"


def test_resources_of_one_name_are_told_apart_by_their_kinds() -> None:
    types = [
        f"aws:ec2/{each}" for each in ("vpc:Vpc", "securityGroup:SecurityGroup", "natGateway:NatGateway")
    ]
    tally = heard(*(EngineStep("done", "create", each, "p5-nodes", 0.3) for each in types))
    assert tally.ready(1.0) == [
        "  p5-nodes  VPC  created (0.3 s)",
        "  p5-nodes  security group  created (0.3 s)",
        "  p5-nodes  NAT gateway  created (0.3 s)",
    ]


def test_nodes_that_are_under_way_still_hold_back_the_line_of_those_that_are_done() -> None:
    tally = heard(*steps("start", INSTANCE, *NODES), *steps("done", INSTANCE, *NODES[:3], seconds=2.0))
    assert tally.ready(5.0) == []
    assert tally.ready(5.0, all_of_them=True) == ["  p5-[0-2]  instance  created (3, 2.0 s)"]


def test_what_failed_has_a_line_of_its_own() -> None:
    tally = heard(
        *steps("start", INSTANCE, *NODES[:4]),
        *steps("done", INSTANCE, "p5-0", "p5-3", seconds=1.0),
        *steps("failed", INSTANCE, "p5-1", "p5-2"),
    )
    assert tally.ready(1.0) == [
        "  p5-[0,3]  instance  created (2, 1.0 s)",
        "  p5-[1-2]  instance  FAILED (2)",
    ]


# What is under way


def test_a_status_tells_place_counts_and_what_is_waited_for_since_when() -> None:
    tally = heard(
        ExpectedNodes(frozenset(NODES)),
        Note("trying use1-az1", lasts=True),
        *steps("start", GROUP, "p5-nodes"),
        *steps("done", GROUP, "p5-nodes"),
        *steps("start", INSTANCE, *NODES[:4]),
        *steps("done", INSTANCE, *NODES[:3]),
        at=[0, 1, 1, 2, 3, 3, 3, 4, 9, 9, 9],
    )
    # Of eight nodes four are asked for already: what is told is how far the fleet is.
    assert tally.status(75.0) == (
        "  … 1m 15s: trying use1-az1; 3 of 8 instances; waiting for p5-3 (instance) for 1m 11s"
    )
    assert tally.counts() == [("security group", 1, 1), ("instance", 3, 8)]


def test_a_queue_is_what_is_done_until_something_else_is() -> None:
    tally = heard(Note("waiting for 4 nodes in the queue", lasts=True), Note("no word of it"))
    assert tally.status(30.0) == "  … 30s: waiting for 4 nodes in the queue"
    tally.hear(Activity("making the nodes"), 31.0)
    assert tally.status(40.0) == "  … 40s: making the nodes"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0s"), (59.9, "59s"), (61, "1m 01s"), (3599, "59m 59s"), (7320, "2h 02m")]
)
def test_times_are_told_as_people_tell_them(seconds: float, words: str) -> None:
    assert clock(seconds) == words


# On a terminal and elsewhere

START = """
import sys, time
from orch.cli import errors
from orch.cli.output import progress, ticking
from orch.stacks.pulumi.operation import Activity, EngineStep, Note
from orch.stacks.errors import StackError

ticking.QUIET_S = 0.5
INSTANCE = "aws:ec2/instance:Instance"

def change():
    with progress.watching(as_json="--json" in sys.argv) as told:
        told(Note("trying use1-az1", lasts=True))
        for at in range(8):
            told(EngineStep("start", "create", INSTANCE, f"p5-{at}"))
        for at in range(7):
            told(EngineStep("done", "create", INSTANCE, f"p5-{at}", 1.5))
        print("ready", flush=True)
        END

errors.run(change)
"""
WAITS = START.replace("END", "time.sleep(1.5)")
FAILS = START.replace(
    "END",
    'time.sleep(1.5); told(EngineStep("failed", "create", INSTANCE, "p5-7")); '
    'raise StackError("no such subnet")',
)
HANGS = START.replace("END", "time.sleep(600)")


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("CI", "TERM", "NO_COLOR")}
    return {**kept, "TERM": "xterm-256color", **more}


def on_a_terminal(
    script: str, *words: str, send: signal.Signals | None = None, columns: int = 0, **more: str
) -> tuple[int, str, str]:
    """Exit code, stdout, and what a terminal on stderr was given. `send`: a signal, once something is waited
    for."""
    ours, theirs = os.openpty()
    if columns:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    read, write = os.pipe()
    streams = (theirs, write, os.dup(theirs))
    process = fork_server().start(script, ["-c", *words], environment(**more), streams)
    with os.fdopen(read) as printed:
        out = printed.readline()
        told = b""
        if send is not None:
            while b"waiting for" not in told:
                told += os.read(ours, 65_536)
            process.send_signal(send)
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # nobody has the terminal any more
                break
            told += part
        out += printed.read()
    os.close(ours)
    return process.wait(), out, told.decode()


def in_a_pipe(script: str, *words: str, **more: str) -> tuple[int, str, str]:
    return fork_server().call(["-c", *words], Path.cwd(), environment(**more), code=script)


def test_a_terminal_has_one_view_of_what_is_done_and_waited_for() -> None:
    code, out, told = on_a_terminal(WAITS)
    assert (code, out) == (0, "ready\n"), told
    assert re.search(r"instance\b.*7/8", told), told
    assert re.search("waiting for p5-7 for [0-9]+s", told)
    assert re.search(r"1s.{0,9}  trying use1-az1", told)
    # It is gone in the end, and what had ended is there once.
    assert told.count("p5-[0-6]  instance  created (7, 1.5 s)") == 1
    assert told.rindex("\x1b[?25h") > told.rindex("\x1b[?25l"), "the cursor is back"
    assert "…" not in told, "no second telling in plain lines"


def test_the_error_of_a_failure_stands_below_the_view_on_a_terminal() -> None:
    code, _, told = on_a_terminal(FAILS)
    assert code == 5
    assert "p5-7  instance  FAILED" in told
    assert "error: no such subnet" in told.rpartition("\x1b[?25h")[2]


def test_a_narrow_terminal_shortens_the_view_and_breaks_no_line_that_is_told() -> None:
    code, _, told = on_a_terminal(WAITS, columns=34)
    assert code == 0, told
    assert told.count("p5-[0-6]  instance  created (7, 1.5 s)") == 1, told
    views = [
        line for line in re.split(r"[\r\n]+", re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "\n", told)) if "7/8" in line
    ]
    assert views
    assert max(map(len, views)) <= 34


@pytest.mark.parametrize("send", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_view_and_leaves_the_terminal_as_it_was(send: signal.Signals) -> None:
    code, _, told = on_a_terminal(HANGS, send=send)
    assert code == 130
    assert "p5-[0-6]  instance  created" in told
    assert told.rindex("\x1b[?25h") > told.rindex("\x1b[?25l"), "the cursor is back"
    assert "interrupted" in told.rpartition("\x1b[?25h")[2]


@pytest.mark.parametrize(
    "where",
    [
        lambda: in_a_pipe(WAITS),
        lambda: on_a_terminal(WAITS, CI="true"),
        lambda: on_a_terminal(WAITS, "--json"),
        lambda: on_a_terminal(WAITS, TERM="dumb"),
    ],
    ids=["a pipe", "CI", "--json", "a dumb terminal"],
)
def test_elsewhere_there_are_plain_lines_and_a_word_from_time_to_time(where: object) -> None:
    code, out, told = where()  # type: ignore[operator]
    assert (code, out) == (0, "ready\n"), told
    assert "\x1b" not in told
    assert "\r" not in told.replace("\r\n", "\n"), "a terminal itself makes these of line ends"
    lines = told.splitlines()
    assert lines[0] == "trying use1-az1"
    assert "  p5-[0-6]  instance  created (7, 1.5 s)" in lines
    assert re.search(
        r"  … [0-9]+s: trying use1-az1; 7 of 8 instances; waiting for p5-7 \(instance\) for [0-9]+s", told
    )


def test_a_failure_in_a_pipe_loses_no_line() -> None:
    code, _, told = in_a_pipe(FAILS)
    assert code == 5
    lines = told.splitlines()
    assert lines.index("  p5-7  instance  FAILED") < lines.index("error: no such subnet")
