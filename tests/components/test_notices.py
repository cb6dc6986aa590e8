"""What the cloud announces of a node, as the script of its user data reads it from a rehearsed node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.support import until

from orch.components.cloud.machines.cloudinit import READS_NOTICES, prepared
from orch.rehearsal.nodes import metadata_service
from orch.rehearsal.nodes.notices import Kind, documents

JOB = "orch-train-0-0-01234567"


@dataclass(frozen=True)
class Machine:
    """A node in a folder, whose only job runs and has a signal."""

    root: Path
    cloud: str

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def job(self) -> Path:
        return self.home / "control" / JOB

    def announce(self, texts: Mapping[str, str]) -> None:
        """Have the metadata say this, and no more."""
        served = self.root / "served"
        shutil.rmtree(served / "latest", ignore_errors=True)
        for path, text in texts.items():
            file = served / path
            file.parent.mkdir(parents=True, exist_ok=True)
            staged = self.root / "staged"
            staged.write_text(text)
            staged.rename(file)

    def told(self, kind: Kind, ahead_s: float) -> None:
        self.announce(documents(self.cloud, kind, time.time() + ahead_s))

    def nothing(self) -> None:
        instance = "computeMetadata/v1/instance"
        no = {f"{instance}/preempted": "FALSE", f"{instance}/maintenance-event": "NONE"}
        self.announce(no if self.cloud == "gcp" else {})

    def reads(self, name: str) -> str:
        # The script may remove it in between.
        with suppress(FileNotFoundError):
            return (self.home / name).read_text().strip()
        return ""


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    made = Machine(tmp_path, request.param)
    (tmp_path / "bin").mkdir()
    for name, text in {"docker": "echo running", "sleep": "exec /bin/sleep 0.1"}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    made.job.mkdir(parents=True)
    (made.job / "signal.sh").write_text(
        f"mkdir {made.job}/signalled && echo signalled >> {tmp_path}/signals\n"
    )
    made.nothing()
    service = [sys.executable, metadata_service.__file__, made.cloud, str(tmp_path / "served")]
    with subprocess.Popen([*service, "127.0.0.1", "0"], stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        port = serving.stdout.readline().strip()
        files = {file.path: file.content for file in prepared("/prepare", "", (), cloud=made.cloud)}
        script = files[READS_NOTICES].replace("/var/lib/orch", str(made.home))
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        reading = subprocess.Popen(
            ["bash", "-c", script.replace("169.254.169.254", f"127.0.0.1:{port}")],
            env={"PATH": path},
            start_new_session=True,
        )
        try:
            yield made
        finally:
            os.killpg(reading.pid, 9)
            reading.wait()
            serving.kill()


@pytest.mark.parametrize("machine", ["aws", "gcp"], indirect=True)
def test_a_machine_that_is_taken_back_tells_its_jobs_once_and_takes_no_more(machine: Machine) -> None:
    machine.told("spot", 120)
    until((machine.job / "signalled").exists, 60, "the signal")
    assert (machine.job / "interrupted").exists()
    assert machine.reads("notice").startswith("spot")
    assert machine.reads("cordon").startswith("its cloud|")
    assert "it takes this node back" in machine.reads("cordon")
    # `orch cordon --undo`: the same notice cordons it no more, and still tells jobs.
    (machine.home / "cordon").unlink()
    another = machine.job.with_name(JOB.replace("train", "eval"))
    another.mkdir()
    until((another / "interrupted").exists, 60, "another job's mark")
    assert machine.reads("cordon") == ""
    # It was stopped, and is started again: the next life begins without.
    machine.nothing()
    until(lambda: not machine.reads("notice") and not machine.reads("cordon"), 60, "the cordon goes")
    until(lambda: not (machine.job / "interrupted").exists(), 60, "the mark goes")
    assert (machine.root / "signals").read_text() == "signalled\n"


@pytest.mark.parametrize("machine", ["aws", "gcp"], indirect=True)
def test_maintenance_is_told_and_a_cordon_of_somebody_stays(machine: Machine) -> None:
    (machine.home / "cordon").write_text("ann|then|bad fan\n")
    machine.told("maintenance", 1800)
    until((machine.job / "signalled").exists, 60, "the signal")
    assert machine.reads("notice").startswith("maintenance")
    machine.nothing()
    until(lambda: not machine.reads("notice"), 60, "the notice goes")
    assert machine.reads("cordon") == "ann|then|bad fan"


@pytest.mark.parametrize("machine", ["aws"], indirect=True)
def test_what_is_far_away_or_advice_leaves_jobs_alone(machine: Machine) -> None:
    far = documents("aws", "maintenance", time.time() + 14 * 86400)
    machine.announce({**far, **documents("aws", "rebalance", time.time())})
    until(lambda: machine.reads("notice").startswith("rebalance"), 60, "the advice")
    assert machine.reads("cordon") == ""
    assert not (machine.job / "interrupted").exists()
