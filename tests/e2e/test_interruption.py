"""A rehearsed cloud takes a node back in the middle of a run: notice, signal, checkpoint, another node."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from rehearsals import L4, Rehearsed, RehearsedGcp
from stocked import stocked
from support import until

from orch.rehearsal.__main__ import main as rehearsal
from orch.rehearsal.scenario import NodeScenario

# It trains until it is told to leave; the next attempt goes on from there.
TRAIN = """\
import os, signal, sys, time

state = os.path.join(os.environ["ORCH_CHECKPOINT_DIR"], "step")
leave = False


def on_signal(*_):
    global leave
    leave = True


signal.signal(signal.SIGUSR1, on_signal)
step = int(open(state).read()) if os.environ.get("ORCH_RESUME") else 0
print("begins at", step, "on", os.environ["ORCH_INSTANCE"], flush=True)
while not leave and step == 0:
    time.sleep(0.1)
if leave:
    open(state, "w").write("41")
    print("saved", flush=True)
    sys.exit(0)
print("trained", flush=True)
"""
TASK = """\
type: task
name: train
image: orch/mpi
files: [train.py]
commands: [python3 train.py]
checkpoint: /shared/data
signal: USR1@60
stop_duration: 5
retry: {on_events: [interruption], duration: 1h}
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("gcp", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["aws", "gcp"])
def test_a_run_saves_leaves_and_goes_on_elsewhere(tmp_path: Path, *, gcp: bool) -> None:
    cloud, kind = (RehearsedGcp, L4) if gcp else (Rehearsed, "m7i.large")
    more = {"instance_types": [kind], "network": {"bastion": False, "interconnect": "ethernet"}}
    mounts = [{"type": "filestore" if gcp else "efs", "path": "/shared/data", "create": True}]
    there = cloud.make(tmp_path, nodes=NodeScenario(image=stocked("mpi"), placeholders=False))
    there.fleet(2, name="lab", spot_policy="spot", mounts=mounts, **more)
    there.write("train.py", TRAIN)
    there.write("train.yml", TASK)
    try:
        said = there.up("lab.yml")
        assert said.code == 0, said.err
        assert len(there.nodes(kind)) == 2
        run = there.start("run", "train.yml", "--rehearse")
        try:
            until(lambda: "begins at 0" in there.orch("logs", "train", "--rehearse").out, 120, "it trains")
            (name,) = re.findall(r"begins at 0 on (\S+)", there.orch("logs", "train", "--rehearse").out)
            # Machines of GCP have longer names, which end in the same number.
            (lost,) = [each for each in there.nodes(kind) if each.endswith(name[-2:])] if gcp else [name]
            assert rehearsal([str(there.account_file), "interrupt", lost, "--in", "5"]) == 0
            out, err = run.communicate(timeout=300)
        except BaseException:
            run.send_signal(signal.SIGKILL)
            raise
        assert run.returncode == 0, err
        assert "takes it back" in err
        assert "saved" in out
        assert "begins at 41" in out
        assert out.rstrip().endswith("trained")
        assert len(there.nodes(kind)) == 1
        shown = there.orch("show", "train", "--rehearse", "--json").json
        assert shown["status"] == "done"
    finally:
        said = there.down("lab")
    assert said.code == 0, said.err
