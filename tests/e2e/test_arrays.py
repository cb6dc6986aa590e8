"""An array on two nodes, through the command line: left with Ctrl-C, its driver killed, gone on with."""

from __future__ import annotations

import os
import signal
from contextlib import closing, suppress

import pytest
from kit.support import Folder, at_work, until

from orch.runner.ledger.ledger import Ledger, open_ledger
from orch.stacks.project.project import find

SWEEP = """\
type: task
name: sweep
array: 1-5%2
image: orch/mpi
commands:
  - echo begun $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT, $ORCH_RUN_NAME
  - sleep 1
  - '[ ${{ orch.array_task_id }} != 3 ]'
"""


def statuses(ledger: Ledger) -> dict[str, str]:
    array = ledger.arrays.find("sweep")
    return {} if array is None else {each.name: each.status for each in ledger.arrays.members(array)}


@pytest.mark.timeout(900)  # the fleet may be brought up for it
def test_an_array_outlasts_its_drivers_and_begins_no_member_twice(quickstart: Folder) -> None:
    quickstart.write("sweep.yml", SWEEP)
    with closing(open_ledger(find(quickstart.path).ledger_url)) as ledger:
        with quickstart.start("run", "sweep.yml") as attached:
            until(lambda: "running" in statuses(ledger).values(), 120, "one runs")
            attached.send_signal(signal.SIGINT)
            _, err = attached.communicate(timeout=60)
        assert attached.returncode == 130, err
        assert "array sweep on fleet laptop: sweep_[1-5], at most 2 at once" in err
        assert "detached, the array goes on; `orch attach sweep` follows, `orch stop sweep` ends it" in err

        drivers = at_work(quickstart.path, "attach", "--supervise", "sweep")
        assert len(drivers) == 1
        with suppress(ProcessLookupError):
            os.kill(drivers[0], signal.SIGKILL)
        until(lambda: not at_work(quickstart.path, "attach", "--supervise", "sweep"), 60, "it is gone")
        refused = quickstart.orch("run", "sweep.yml", "--detach")
        assert (refused.code, "an array named sweep is active" in refused.err) == (9, True)
        seen = quickstart.orch("ps", "-o", "json")
        assert "note: nobody drives array sweep; `orch attach sweep` does" in seen.err
        (last,) = (run for run in seen.json["runs"] if run["run"] == "sweep_5")
        assert (last["status"], last["reason"], last["array"]["limit"]) == ("pending", "array limit", 2)
        assert "array sweep: 1 run" in quickstart.orch("stop", "sweep_[5]").err
        assert quickstart.orch("reconcile").code == 0

        said = quickstart.orch("attach", "sweep")
        assert said.code == 6, said.err
        assert "sweep_3: failed: rank 0 on node laptop-" in said.err
        assert "; its log: orch logs sweep_3" in said.err
        assert statuses(ledger) == {
            **{f"sweep_{index}": "done" for index in (1, 2, 4)},
            **{"sweep_3": "failed", "sweep_5": "terminated"},
        }
    for index in range(1, 5):
        log = (quickstart.path / f".orch/runs/sweep_{index}/logs/0.log").read_text()
        assert log.count(f"begun {index} of 5, sweep_{index}") == 1, log
    assert "3 done, 1 failed, 1 terminated" in quickstart.orch("show", "sweep").out
    assert quickstart.orch("stop", "sweep_[7]").code == 2
