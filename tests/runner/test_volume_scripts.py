"""The scripts that mount a volume on a node, on real block devices: loop devices on files of a container."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from kit.nodes.containershell import inside, shell_of
from kit.nodes.labmachine import docker
from kit.nodes.nodelab import Lab

from orch import images
from orch.runner.node.volumes import APPEAR_S, DETACHING, DETACHING_MIN, FAILED, FOREIGN, PREPARING
from orch.templates import render

MIB = 1 << 20
# A container sees no device that appears later, unless it has the folder of all of them; block devices of
# major number 7 are loop devices, 10:237 gives them out.
LOOP_DEVICES = ("--volume=/dev:/dev", "--device-cgroup-rule=b 7:* rmw", "--device-cgroup-rule=c 10:237 rmw")


@dataclass(frozen=True)
class Disk:
    """A loop device on the file `disk` of a container, and the folder of a node that has it."""

    container: str
    home: str
    device: str

    @property
    def folder(self) -> str:
        return f"{self.home}/volumes/vol-1"

    def run(self, script: str) -> str:
        return inside(self.container, script)

    def reserve(self, user: str) -> int:
        text = render(
            "node-volume-reserve.sh.j2",
            home=self.home,
            name=user,
            volume="vol-1",
            detaching_min=DETACHING_MIN,
            preparing=PREPARING,
            detaching=DETACHING,
            failed=FAILED,
        )
        return shell_of(self.container).run(text)[0]

    def mount(
        self, user: str, *, read_only: bool = False, ours: bool = True, path: str = ""
    ) -> tuple[int, str]:
        text = render(
            "node-volume.sh.j2",
            home=self.home,
            name=user,
            volume="vol-1",
            folder=self.folder,
            paths=("/dev/not-there", path or self.device),
            filesystem="ext4",
            read_only=read_only,
            may_format=ours and not read_only,
            simulated=False,
            appear_s=1 if path else APPEAR_S,
            failed=FAILED,
            foreign=FOREIGN,
        )
        code, _, told = shell_of(self.container).run(text)
        return code, told.strip()

    def release(self, user: str) -> str:
        text = render(
            "node-volume-release.sh.j2",
            home=self.home,
            name=user,
            volume="vol-1",
            folder=self.folder,
            token="t",
            detaching_min=DETACHING_MIN,
            failed=FAILED,
        )
        said = self.run(text)
        self.run(render("node-volume-detached.sh.j2", home=self.home, volume="vol-1", token="t"))
        return said

    @property
    def mounted(self) -> bool:
        return bool(self.run(f"grep -F ' {self.folder} ' /proc/self/mounts || true"))

    def size_mib(self) -> int:
        blocks, size = self.run(f"stat -f -c '%b %S' {self.folder}").split()
        return int(blocks) * int(size) // MIB


@pytest.fixture(scope="module")
def machine(lab: Lab) -> str:
    """A container that may mount and has the loop devices of this machine."""
    name = f"{lab.tag}-disks"
    docker(
        *("run", "--detach", "--name", name, "--label", f"orch.test={lab.tag}", "--network", "none"),
        *("--cap-add=SYS_ADMIN", "--security-opt=apparmor=unconfined", *LOOP_DEVICES),
        *("--entrypoint", "sleep", images.resolve("orch/node"), "infinity"),
    )
    return name


@pytest.fixture
def disk(machine: str) -> Iterator[Disk]:
    home = inside(machine, "mktemp -d /srv/disk.XXXXXX")
    device = inside(machine, f"truncate -s {32 * MIB} {home}/disk && losetup --find --show {home}/disk")
    disk = Disk(machine, home, device)
    try:
        yield disk
    finally:
        if disk.mounted:
            disk.run(f"umount {disk.folder}")
        disk.run(f"losetup --detach {device}")


def test_an_empty_disk_is_formatted_once_and_keeps_what_is_written(disk: Disk) -> None:
    assert disk.mount("first") == (0, "")
    disk.run(f"echo kept > {disk.folder}/file")
    assert disk.run(f"stat -c %a {disk.folder}") == "1777"
    assert disk.release("first") == "orch:free"
    assert not disk.mounted
    assert disk.mount("second", read_only=True) == (0, "")
    assert disk.run(f"cat {disk.folder}/file") == "kept"
    assert "Read-only" in disk.run(f"touch {disk.folder}/file 2>&1 || true")
    assert disk.release("second") == "orch:free"


def test_the_last_user_unmounts_it(disk: Disk) -> None:
    assert disk.mount("one")[0] == 0
    assert disk.mount("two")[0] == 0
    assert disk.release("one") == ""
    assert disk.mounted
    assert disk.release("two") == "orch:free"
    assert not disk.mounted
    assert disk.release("two") == "orch:free"


def test_what_is_no_file_system_is_refused_and_stays(disk: Disk) -> None:
    text = "somebody's database"
    disk.run(f"printf %s {shlex.quote(text)} | dd of={disk.device} bs=1M seek=1 conv=notrunc,fsync 2>&1")
    assert disk.mount("run") == (FOREIGN, "it is not empty, and holds no file system")
    assert disk.run(f"dd if={disk.device} bs=1M skip=1 count=1 2>/dev/null | head -c {len(text)}") == text
    assert not disk.mounted
    assert disk.run(f"ls {disk.home}/volume-users/vol-1") == ""


def test_a_disk_that_existed_before_is_never_formatted(disk: Disk) -> None:
    code, told = disk.mount("run", ours=False)
    assert (code, told.partition(",")[0]) == (FOREIGN, "it is empty")


def test_a_file_system_grows_with_its_disk_at_the_next_mount(disk: Disk) -> None:
    disk.mount("run")
    before = disk.size_mib()
    disk.release("run")
    disk.run(f"truncate -s {96 * MIB} {disk.home}/disk && losetup --set-capacity {disk.device}")
    assert disk.mount("run") == (0, "")
    assert disk.size_mib() > 2 * before
    disk.release("run")


def test_a_disk_that_does_not_appear_is_told_with_its_paths(disk: Disk) -> None:
    code, told = disk.mount("run", path="/dev/nor-here")
    assert code == FAILED
    assert told.endswith("/dev/not-there, /dev/nor-here")


def test_a_volume_in_use_is_not_unmounted_and_that_is_told(disk: Disk) -> None:
    disk.mount("run")
    disk.run(f"cd {disk.folder} && (exec sleep 600 >/dev/null 2>&1 & echo $! > {disk.home}/pid)")
    with pytest.raises(AssertionError, match=r"exit code 42: umount: .*target is busy"):
        disk.release("run")
    assert disk.mounted
    assert disk.reserve("next") == 0
    disk.run(f"kill $(cat {disk.home}/pid)")
    assert disk.release("next") == "orch:free"


def test_a_machine_that_is_still_being_prepared_is_waited_for(disk: Disk) -> None:
    disk.run(f"mkdir {disk.home}/boot")
    assert disk.reserve("run") == PREPARING
    disk.run(f"touch {disk.home}/boot/ok")
    assert disk.reserve("run") == 0
    assert disk.mount("run")[0] == 0
