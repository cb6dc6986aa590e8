"""An array on two nodes, through the command line: left with Ctrl-C, its driver killed, gone on with."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from support import Folder, at_work, until

SWEEP = """\
type: task
name: sweep
array: 1-6%2
image: orch/mpi
commands:
  - echo begun $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT, $ORCH_RUN_NAME
  - sleep 2
  - '[ ${{ orch.array_task_id }} != 3 ]'
"""


def drivers(folder: Path) -> list[int]:
    return at_work(folder, "attach", "--supervise", "sweep")


def statuses(folder: Folder) -> dict[str, str]:
    shown = folder.orch("show", "sweep", "--json").json["array"]["runs"]
    return {each["run"]: each["status"] for each in shown}


@pytest.mark.timeout(900)  # the fleet may be brought up for it
def test_an_array_outlasts_its_drivers_and_begins_no_member_twice(quickstart: Folder) -> None:
    quickstart.write("sweep.yml", SWEEP)
    with quickstart.start("run", "sweep.yml") as attached:
        until(lambda: "running" in statuses_or_none(quickstart).values(), 120, "one runs")
        attached.send_signal(signal.SIGINT)
        _, err = attached.communicate(timeout=60)
    assert attached.returncode == 130, err
    assert "array sweep on fleet laptop: sweep_[1-6], at most 2 at once" in err
    assert "detached, the array goes on; `orch attach sweep` follows, `orch stop sweep` ends it" in err
    until(lambda: len(drivers(quickstart.path)) == 1, 60, "one process drives it")
    refused = quickstart.orch("run", "sweep.yml", "--detach")
    assert (refused.code, "an array named sweep is active" in refused.err) == (9, True)

    for pid in drivers(quickstart.path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not drivers(quickstart.path), 60, "it is gone")
    table = quickstart.orch("ps")
    assert "note: nobody drives array sweep; `orch attach sweep` does" in table.err
    assert "sweep_[" in table.out
    runs = quickstart.orch("ps", "-o", "json").json["runs"]
    assert {run["array"]["name"] for run in runs} == {"sweep"}
    (last,) = (run for run in runs if run["run"] == "sweep_6")
    assert (last["status"], last["reason"], last["array"]["limit"]) == ("pending", "array limit", 2)
    assert quickstart.orch("reconcile").code == 0

    stopped = quickstart.orch("stop", "sweep_[6]")
    assert "array sweep: 1 run" in stopped.err
    said = quickstart.orch("attach", "sweep")
    assert said.code == 6, said.err
    assert "sweep_3: failed: rank 0 on node laptop-" in said.err
    assert "; its log: orch logs sweep_3" in said.err
    assert statuses(quickstart) == {
        **{f"sweep_{index}": "done" for index in (1, 2, 4, 5)},
        **{"sweep_3": "failed", "sweep_6": "terminated"},
    }
    for index in range(1, 6):
        log = quickstart.orch("logs", f"sweep_{index}").out
        assert log.count(f"begun {index} of 6, sweep_{index}") == 1, log
    shown = quickstart.orch("show", "sweep")
    assert "4 done, 1 failed, 1 terminated" in shown.out
    assert quickstart.orch("stop", "sweep_[7]").code == 2


def statuses_or_none(folder: Folder) -> dict[str, str]:
    """As `statuses`; nothing before it was submitted."""
    said = folder.orch("show", "run:sweep", "--json")
    return {} if said.code else {each["run"]: each["status"] for each in said.json["array"]["runs"]}
