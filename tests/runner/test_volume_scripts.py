"""The scripts that mount a volume on a node, on real block devices of this machine: loop devices on files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orch.runner.node.volumes import APPEAR_S, FAILED, FOREIGN, PREPARING
from orch.templates import render

MIB = 1 << 20


def ready() -> bool:
    """Whether this machine lends loop devices to this user."""
    if os.geteuid() != 0 or shutil.which("losetup") is None or shutil.which("mkfs.ext4") is None:
        return False
    return subprocess.run(["losetup", "--find"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not ready(), reason="needs root and loop devices")


@dataclass(frozen=True)
class Disk:
    """A loop device, and the folder of a node that has it."""

    device: str
    file: Path
    home: Path

    @property
    def folder(self) -> Path:
        return self.home / "volumes" / "vol-1"

    def mount(
        self, user: str, *, read_only: bool = False, ours: bool = True, path: str = ""
    ) -> tuple[int, str]:
        values = {"home": str(self.home), "name": user, "volume": "vol-1", "folder": str(self.folder)}
        text = render(
            "node-volume.sh.j2",
            **values,
            paths=("/dev/not-there", path or self.device),
            filesystem="ext4",
            read_only=read_only,
            may_format=ours and not read_only,
            simulated=False,
            appear_s=1 if path else APPEAR_S,
            preparing=PREPARING,
            failed=FAILED,
            foreign=FOREIGN,
        )
        done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)
        return done.returncode, done.stderr.strip()

    def release(self, user: str) -> str:
        values = {"home": str(self.home), "name": user, "volume": "vol-1", "folder": str(self.folder)}
        text = render("node-volume-release.sh.j2", **values)
        done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    @property
    def mounted(self) -> bool:
        return f" {self.folder} " in Path("/proc/self/mounts").read_text()

    def size_mib(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_blocks * found.f_frsize // MIB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    file = tmp_path / "disk"
    with file.open("wb") as opened:
        opened.truncate(32 * MIB)
    words = ["losetup", "--find", "--show", str(file)]
    device = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    disk = Disk(device, file, tmp_path / "home")
    disk.home.mkdir()
    try:
        yield disk
    finally:
        if disk.mounted:
            subprocess.run(["umount", str(disk.folder)], check=True)
        subprocess.run(["losetup", "--detach", device], check=True)


def test_an_empty_disk_is_formatted_once_and_keeps_what_is_written(disk: Disk) -> None:
    assert disk.mount("first") == (0, "")
    (disk.folder / "file").write_text("kept")
    assert oct(disk.folder.stat().st_mode)[-4:] == "1777"
    assert disk.release("first") == "orch:free"
    assert not disk.mounted
    assert disk.mount("second", read_only=True) == (0, "")
    assert (disk.folder / "file").read_text() == "kept"
    with pytest.raises(OSError, match="Read-only"):
        (disk.folder / "file").write_text("changed")
    assert disk.release("second") == "orch:free"


def test_the_last_user_unmounts_it(disk: Disk) -> None:
    assert disk.mount("one", read_only=False)[0] == 0
    assert disk.mount("two")[0] == 0
    assert disk.release("one") == ""
    assert disk.mounted
    assert disk.release("two") == "orch:free"
    assert not disk.mounted
    assert disk.release("two") == "orch:free"


def test_what_is_no_file_system_is_refused_and_stays(disk: Disk) -> None:
    with open(disk.device, "r+b") as opened:
        opened.seek(MIB)
        opened.write(b"somebody's database")
    assert disk.mount("run") == (FOREIGN, "it is not empty, and holds no file system")
    with open(disk.device, "rb") as opened:
        opened.seek(MIB)
        assert opened.read(19) == b"somebody's database"
    assert not disk.mounted
    assert list((disk.home / "volume-users" / "vol-1").iterdir()) == []


def test_a_disk_that_existed_before_is_never_formatted(disk: Disk) -> None:
    code, told = disk.mount("run", ours=False)
    assert (code, told.partition(",")[0]) == (FOREIGN, "it is empty")


def test_a_file_system_grows_with_its_disk_at_the_next_mount(disk: Disk) -> None:
    disk.mount("run")
    before = disk.size_mib()
    disk.release("run")
    with disk.file.open("r+b") as opened:
        opened.truncate(96 * MIB)
    subprocess.run(["losetup", "--set-capacity", disk.device], check=True)
    assert disk.mount("run") == (0, "")
    assert disk.size_mib() > 2 * before
    disk.release("run")


def test_a_disk_that_does_not_appear_is_told_with_its_paths(disk: Disk) -> None:
    code, told = disk.mount("run", path="/dev/nor-here")
    assert code == FAILED
    assert told.endswith("/dev/not-there, /dev/nor-here")


def test_a_machine_that_is_still_being_prepared_is_waited_for(disk: Disk) -> None:
    (disk.home / "boot").mkdir()
    assert disk.mount("run")[0] == PREPARING
    (disk.home / "boot" / "ok").touch()
    assert disk.mount("run")[0] == 0
