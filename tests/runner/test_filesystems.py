"""Which folders other machines see too, by the lists of mounts of Linux and macOS, and whose clock counts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orch.runner.ledger.database import (
    SHARED,
    filesystem_type,
    is_shared,
    read_mount,
    read_mountinfo,
    server_time,
)

LINUX = r"""22 28 0:21 / /proc rw,nosuid - proc proc rw
28 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 28 0:45 / /home rw,relatime shared:2 master:3 - nfs4 server:/export/home rw,vers=4.2
31 30 8:2 / /home/ada/scratch rw - xfs /dev/sdb1 rw
32 28 0:50 / /mnt/my\040disk rw - fuse.sshfs ada@host:/ rw
33 28 0:51 / /over rw - ext4 /dev/sdc1 rw
34 28 0:52 / /over rw - ceph mon:/ rw
"""
MAC = """/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
server:/export/home on /Users/ada (homes) (nfs, nodev, nosuid, mounted by ada)
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ada/fleets/.orch", "nfs4"),
        ("/home/ada/scratch/.orch", "xfs"),
        ("/homestead", "ext4"),
        ("/mnt/my disk/.orch", "fuse.sshfs"),
        ("/over/x", "ceph"),
        ("/srv", "ext4"),
    ],
)
def test_a_folder_lies_on_the_deepest_mount_above_it(path: str, kind: str):
    assert filesystem_type(Path(path), read_mountinfo(LINUX)) == kind


def test_the_list_of_macos_is_read_too():
    assert read_mount(MAC) == (("/", "apfs"), ("/Users/ada (homes)", "nfs"))
    assert filesystem_type(Path("/Users/ada (homes)/x"), read_mount(MAC)) in SHARED


def test_a_folder_of_this_machine_is_not_shared_and_its_clock_is_ours(tmp_path: Path):
    assert not is_shared(tmp_path)
    before = time.time()
    assert before - 1 < server_time(tmp_path) < time.time() + 1
    assert list(tmp_path.iterdir()) == []
