"""A rehearsed cloud takes a node back from a run: notice, signal, checkpoint, new nodes, and their end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from kit.clouds.rehearsals import Rehearsed
from kit.clouds.spotfleet import SHARED, instance_of, spot_fleet
from kit.nodes.labmachine import docker
from kit.support import until

from orch.rehearsal.__main__ import main as rehearsal
from orch.rehearsal.nodes import notices
from orch.rehearsal.nodes.names import scope

# It trains until it is told to leave; the next attempt goes on from there.
TRAIN = """\
import os, signal, sys, time

state = os.path.join(os.environ["ORCH_CHECKPOINT_DIR"], os.environ["ORCH_NODE_RANK"])
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
TASK = f"""\
type: task
name: train
nodes: 2
image: orch/mpi
files: [train.py]
commands: [python3 train.py]
checkpoint: {SHARED}
signal: USR1@60
stop_duration: 60
retry: {{on_events: [interruption], duration: 1h}}
"""


def log(there: Rehearsed, attempt: int) -> str:
    """What the ranks of an attempt have said so far."""
    run = there.path / ".orch/rehearsal/runs/train"
    folder = run / "logs" if attempt == 0 else run / f"attempts/{attempt}/logs"
    return "".join(each.read_text() for each in sorted(folder.glob("*.log")))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("gcp", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["aws", "gcp"])
def test_a_run_saves_gets_new_nodes_goes_on_and_its_nodes_end(tmp_path: Path, *, gcp: bool) -> None:
    there, kind = spot_fleet(tmp_path, gcp=gcp)
    there.write("train.py", TRAIN)
    there.write("train.yml", TASK)
    try:
        said = there.up("lab.yml")
        assert said.code == 0, said.err
        assert there.nodes(kind) == {}
        run = there.start("run", "train.yml", "--rehearse", "--yes")
        try:
            until(lambda: log(there, 0).count("begins at 0") == 2, 240, "two new nodes train")
            lost = instance_of(there, "lab-1")
            notices.announce(there.cloud, lost, "spot", 120)
            # The rank whose node is not taken has its signal from who drives the run.
            until(lambda: log(there, 0).count("saved") == 2, 120, "both have saved")
            assert rehearsal([str(there.account_file), "interrupt", lost, "--in", "0"]) == 0
            out, err = run.communicate(timeout=400)
        except BaseException:
            run.send_signal(signal.SIGKILL)
            raise
        assert run.returncode == 0, err
        assert "was interrupted: its cloud takes it back" in err
        assert (out.count("begins at 41"), out.count("trained")) == (2, 2)
        shown = there.orch("show", "train", "--rehearse", "--json").json["run"]
        (failed,) = shown["attempts"]
        assert (shown["status"], failed["events"]) == ("done", ["interruption"])

        told = ["ps", "-q", "--filter", f"name=orch-sim-{scope(there.cloud)}-"]
        until(lambda: not docker(*told), 240, "the end of all nodes")
        said = there.orch("preview", "lab.yml", "--rehearse", "--exit-code")
        assert said.code == 0, said.out + said.err
        assert "ended themselves, or the cloud took them back" in said.out
        # The stopped instances of GCP cost their disks until a pass, or an `up`, takes them away.
        assert len(there.nodes(kind)) == (2 if gcp else 0)
        said = there.orch("reconcile", "--rehearse")
        assert (said.code, there.nodes(kind)) == (0, {}), said.err
        assert "disk" not in there.kinds()
    finally:
        said = there.down("lab")
    assert said.code == 0, said.err
    assert there.cloud.everything() == {}
