"""Drivers that nobody looks at: they outlast a ledger that is away, and say what ended them."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kit.support import Folder, until

from orch import images
from orch.cli.driver.background import ENDED, drive_afresh, supervise
from orch.runner.errors import RunFailed
from orch.runner.events import Notice, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger import database, patience
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.records import RunRow
from orch.runner.node_api.connector import Connector
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.ssh.pool import SshConnector
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeState
from orch.stacks.project.project import find


def submit(place: RunnerContext, grace_s: float, **more: object) -> RunRow:
    """A run on a node that does not answer."""
    node = NodeState(
        name="away",
        index=0,
        address="127.0.0.1",
        port=9,
        user="root",
        internal_ip="127.0.0.1",
        host_key="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPk4xsZSJ7GW4EP2gFSoVPLFVQLD5W8Yv7D9c7R5QmLJ",
        cpus=1,
        memory_mib=1024,
    )
    fleet = FleetState(name="lab", stack="lab", backend="local", nodes=(node,), unreachable_grace_s=grace_s)
    task = Task.model_validate({"name": "job", "commands": ["true"], **more})
    return lifecycle.submit(place, Submission(task, fleet, image=images.resolve("orch/mpi"), base=place.dot))


@pytest.fixture
def away(dot: Path) -> RunnerContext:
    ledger = open_ledger(f"sqlite:///{dot / 'ledger.db'}")
    return RunnerContext(dot, ledger, SshConnector(connect_timeout_s=1.0, deadline_s=1.0), Recorder())


@pytest.mark.sqlite
def test_a_ledger_that_is_away_for_a_while_costs_no_run(away: RunnerContext, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database, "PATIENCE_S", 0.1)
    monkeypatch.setattr(patience, "LEDGER_PAUSE_S", 0.1)
    row = submit(away, 1.0)
    ledger = open_ledger(f"sqlite:///{away.dot / 'ledger.db'}")
    there = RunnerContext(away.dot, ledger, away.connector, Recorder())
    other = sqlite3.connect(away.dot / "ledger.db", isolation_level=None, check_same_thread=False)
    seen: list[str] = []

    class Locks(Recorder):
        """Somebody takes the ledger as soon as the run begins, and gives it back once that was told."""

        def handle(self, event: object, /) -> None:
            if not seen:
                seen.append("locked")
                other.execute("BEGIN IMMEDIATE")
            if isinstance(event, Notice) and "trying again" in event.text:
                seen.append(event.text)
                threading.Timer(0.5, other.execute, ["COMMIT"]).start()

    done = lifecycle.drive(RunnerContext(there.dot, ledger, there.connector, Locks()), row, follow_logs=False)
    assert done.status == "failed"
    assert "node away" in (done.message or "")
    assert len(seen) == 2
    assert "the run ledger cannot be used: database is locked; trying again" in seen[1]
    other.close()


class Broken:
    """A way to nodes with a bug in it, and one in a thread, both of which tell what jobs are given."""

    def run(self, node: NodeState, command: object, **_: object) -> object:
        def crash() -> None:
            raise RuntimeError(f"in a thread: {GIVEN} {OWN}")

        thread = threading.Thread(target=crash)
        thread.start()
        thread.join()
        raise KeyError(f"{node.name} was sent {GIVEN!r} and {OWN}")

    close = hang_up = lambda self: None


GIVEN, OWN = "postgres://ada:canary'1@db/x", "hf_canary_2"


def test_what_a_driver_leaves_in_its_log_tells_no_value(
    away: RunnerContext, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("HF_TOKEN", OWN)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    row = submit(away, 1.0, env={"DATABASE": GIVEN})
    broken: Connector = Broken()  # type: ignore[assignment]
    place = RunnerContext(away.dot, away.ledger, broken, Recorder())
    assert supervise(place, row) == 1
    told = capfd.readouterr().err
    assert "canary" not in told
    assert "in a thread: (secret) (secret)" in told
    assert 'raise KeyError(f"{node.name} was sent' in told
    assert told.splitlines()[-1].startswith(f"{ENDED}KeyError:")


DETACH = """
import sys
from pathlib import Path
from orch.cli.driver.background import drive_behind
from orch.runner.ledger.ledger import open_ledger
from orch.runner.runs.lifecycle import RunnerContext

class Broken:
    def run(self, *words, **more): raise RuntimeError("the way\\nis broken")
    def close(self): pass
    def hang_up(self): pass

dot = Path(sys.argv[1])
ledger = open_ledger(f"sqlite:///{dot / 'ledger.db'}")
drive_behind(RunnerContext(dot, ledger, Broken()), ledger.get("job"))
"""


def test_a_driver_that_does_not_start_is_told_and_its_run_is_over(
    tmp_path: Path, away: RunnerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    project, row = find(tmp_path), submit(away, 1.0)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunFailed) as caught:
        drive_afresh(project, away, row)
    assert caught.value.exit_code == 6
    assert caught.value.detail == "its driver did not start: it ended with code 1"
    now = away.ledger.by_id(row.id)
    assert (now.status, now.message) == ("failed", caught.value.detail)


def test_a_driver_in_the_background_that_fails_says_why_and_ps_tells(tmp_path: Path, away: RunnerContext):
    (tmp_path / "orch.yml").write_text("project: tests\n")
    row = submit(away, 3600.0)
    subprocess.run([sys.executable, "-c", DETACH, str(away.dot)], check=True, timeout=60)
    log = away.dot / "runs/job/driver.log"
    until(lambda: log.exists() and "the driver ended" in log.read_text(), 60, "the driver has ended")
    assert "Traceback" in log.read_text()
    assert log.read_text().splitlines()[-1] == "the driver ended: RuntimeError: the way is broken"
    assert away.ledger.by_id(row.id).active
    said = Folder(tmp_path).orch("ps")
    assert said.code == 0, said.err
    assert "nobody drives run job; `orch attach job` does" in said.err
    assert "its driver ended: RuntimeError: the way is broken" in said.err
