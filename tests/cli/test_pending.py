"""Nobody waits for a run in silence: what it waits for is told every ten seconds, with its percent."""

from __future__ import annotations

import subprocess
import sys

import pytest

from orch.cli.output.live import Pending
from orch.runner.events import Event, FilesProgress, ImageProgress, LogLine, Preparing, RunChanged

BEGUN = RunChanged("train", "provisioning")
MIB = 1 << 20

CASES: list[tuple[list[Event], str]] = [
    ([], ""),
    ([BEGUN], "run train is starting"),
    ([BEGUN, RunChanged("train", "running")], ""),
    ([BEGUN, Preparing(("p5-0", "p5-1"))], "first boot of p5-[0-1]"),
    ([BEGUN, Preparing(("p5-0",)), Preparing(())], "run train is starting"),
    (
        [BEGUN, ImageProgress("p5-0", "i", 0, None), ImageProgress("p5-1", "i", 0, None)],
        "p5-[0-1] pulling the image",
    ),
    (
        [
            BEGUN,
            ImageProgress("p5-0", "i", 12 * MIB, 100 * MIB),
            ImageProgress("p5-1", "i", 45 * MIB, 100 * MIB),
        ],
        "p5-[0-1] receiving the image, 12 to 45 %",
    ),
    (
        [
            ImageProgress("p5-0", "i", 100, 100),
            ImageProgress("p5-1", "i", 99, 100),
            ImageProgress("p5-2", "i", 100, 100, finished=True),
        ],
        "p5-1 receiving the image, 99 %; p5-0 unpacking the image",
    ),
    ([BEGUN, FilesProgress("p5-0", 30, 120)], "p5-0 receiving files, 25 %"),
    ([BEGUN, FilesProgress("p5-0", 120, 120)], "run train is starting"),
    (
        [BEGUN, FilesProgress("p5-0", 30, 120), FilesProgress("p5-0", 120, 120, finished=True)],
        "run train is starting",
    ),
]


@pytest.mark.parametrize(("events", "words"), CASES)
def test_what_a_run_waits_for(events: list[Event], words: str) -> None:
    pending = Pending()
    for event in events:
        pending.hear(event)
    pending.hear(LogLine(0, "p5-0", "", "a line changes nothing"))
    assert pending.status() == words


SCRIPT = """
import sys, time
from orch.cli.output import ticking
from orch.cli.output.live import Live
from orch.runner.events import FilesProgress, LogLine, LogLines, RunChanged

ticking.QUIET_S = 0.5
live = Live(sys.stdout, colour=False)
with ticking.still(live.status):
    live.handle(RunChanged("train", "provisioning"))
    live.handle(FilesProgress("p5-0", 1, 4))
    time.sleep(1.5)
    live.handle(FilesProgress("p5-0", 4, 4, finished=True))
    live.handle(RunChanged("train", "running"))
    live.handle(LogLine(0, "p5-0", "", "epoch 1"))
    live.handle(LogLines(1, "p5-1", "T1 epoch 1\\r\\nT2 \\nT3 epoch  2\\n", "b"))
    time.sleep(1.5)
"""


def test_a_run_that_receives_files_says_so_and_one_that_runs_is_silent() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    lines = ["[0 p5-0] epoch 1", "[1 b p5-1] epoch 1", "[1 b p5-1] ", "[1 b p5-1] epoch  2"]
    assert done.stdout == "".join(f"{line}\n" for line in lines), "what a job writes is all that is on stdout"
    before, _, after = done.stderr.partition("run train: running\n")
    assert before.startswith("run train: starting\n")
    assert "p5-0 receiving files, 25 %" in before
    assert after == ""


INSTALL = """
import time
from orch.cli.output import ticking

ticking.QUIET_S = 0.5
with ticking.still(lambda: "building the engine"):
    time.sleep(1.5)
"""


def test_what_takes_long_tells_for_how_long() -> None:
    done = subprocess.run([sys.executable, "-c", INSTALL], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert lines
    assert all(line.startswith("  … ") and line.endswith("s: building the engine") for line in lines)
