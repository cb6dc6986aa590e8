"""Locks of dead processes are told apart from those of live ones and of other hosts."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from orch.stacks.errors import Conflict
from orch.stacks.locks import claim, locks
from orch.stacks.project import Project, find, this_host


def lock(project: Project, pid: int, host: str, *, age_s: float = 10, fraction: str = ".123456789") -> Path:
    assert project.local_state is not None
    folder = project.local_state / ".pulumi/locks/organization" / project.name / "fleet"
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - age_s)) + fraction + "Z"
    file = folder / f"{pid}-{host}.json"
    file.write_text(json.dumps({"pid": pid, "username": "ada", "hostname": host, "timestamp": stamp}))
    return file


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_the_lock_of_a_dead_process_of_this_host_is_broken_and_returned(tmp_path: Path) -> None:
    project = find(tmp_path)
    file = lock(project, dead_pid(), this_host())
    (broken,) = claim(project, "fleet")
    assert not file.exists()
    assert 9 < broken.age_s < 60


def test_a_killed_child_that_nobody_collected_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    project = find(tmp_path)
    lock(project, process.pid, this_host())
    assert len(claim(project, "fleet")) == 1
    process.wait()


@pytest.mark.parametrize("host", ["here", "elsewhere"])
def test_a_live_process_or_another_host_keeps_its_lock(tmp_path: Path, host: str) -> None:
    project = find(tmp_path)
    pid = os.getpid() if host == "here" else dead_pid()
    file = lock(project, pid, this_host() if host == "here" else host, fraction="")
    with pytest.raises(Conflict) as caught:
        claim(project, "fleet")
    assert caught.value.exit_code == 9
    assert f"process {pid} of ada@" in (caught.value.where or "")
    assert file.exists()


def test_a_lock_that_cannot_be_read_is_somebodys(tmp_path: Path) -> None:
    project = find(tmp_path)
    lock(project, 1, "x").write_text("{")
    assert [held.user for held in locks(project, "fleet")] == ["unknown"]
    with pytest.raises(Conflict):
        claim(project, "fleet")
