"""Shared file systems are unmounted from the inside to the outside, and what cannot be stays in the table."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from orch.runner.preparation.mounts import unmount

STACK = "0123456789ab"
OWN = f"bind,_netdev,nofail,x-orch=orch-init-{STACK} 0 0"
STUB = """\
#!/bin/sh
path=$(printf %s "$*" | sed 's/.*-- //')
case ${0##*/} in
mountpoint) grep -qxF -- "$path" "$MOUNTED";;
umount)
  case $path in "$BUSY") echo 'target is busy' >&2; exit 32;; esac
  echo "$path" >> "$MOUNTED.order"
  grep -vxF -- "$path" "$MOUNTED" > "$MOUNTED.new"
  mv "$MOUNTED.new" "$MOUNTED";;
esac
"""


class Machine:
    """A folder in place of /etc and /run, with two file systems of a stack, one in the other."""

    def __init__(self, path: Path) -> None:
        self.path, self.outer, self.inner = path, path / "shared", path / "shared" / "inner"
        for folder in ("etc", "run", "bin", "shared/inner"):
            (path / folder).mkdir(parents=True)
        for name in ("mountpoint", "umount"):
            (path / "bin" / name).write_text(STUB)
            (path / "bin" / name).chmod(0o755)
        self.mounted = path / "mounted"
        self.mounted.write_text(f"{self.outer}\n{self.inner}\n")
        self.other = "/dev/sda1 / ext4 defaults 0 1"
        self.table = path / "etc" / "fstab"
        self.table.write_text(
            f"{self.other}\n/srv/a {self.outer} none {OWN}\n/srv/b {self.inner} none {OWN}\n"
        )

    def unmount(self, busy: Path | None = None) -> subprocess.CompletedProcess[str]:
        script = re.sub(r"/(etc|run)\b", rf"{self.path}/\1", str(unmount(STACK)))
        path = f"{self.path}/bin:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "MOUNTED": str(self.mounted), "BUSY": str(busy or "none")}
        return subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, check=False)

    @property
    def order(self) -> list[str]:
        file = Path(f"{self.mounted}.order")
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_last_one_is_unmounted_first(machine: Machine) -> None:
    done = machine.unmount()
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.order == [str(machine.inner), str(machine.outer)]
    assert machine.table.read_text() == f"{machine.other}\n"
    assert not machine.outer.exists()


def test_one_that_is_in_use_stops_it_with_a_message_and_goes_the_next_time(machine: Machine) -> None:
    done = machine.unmount(busy=machine.outer)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"{machine.outer} cannot be unmounted: something uses it"
    assert machine.order == [str(machine.inner)]
    assert machine.table.read_text() == f"{machine.other}\n/srv/a {machine.outer} none {OWN}\n"
    assert machine.unmount().returncode == 0
    assert machine.table.read_text() == f"{machine.other}\n"


def test_one_that_is_in_use_inside_keeps_what_is_around_it(machine: Machine) -> None:
    before = machine.table.read_text()
    done = machine.unmount(busy=machine.inner)
    assert (done.returncode, machine.order) == (1, [])
    assert f"{machine.inner} cannot be unmounted" in done.stderr
    assert machine.table.read_text() == before
