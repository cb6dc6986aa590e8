"""Jobs write into the kernel's log: names of their processes, and of the files that crash.

On the real kernel of this machine none of it counts, while what the kernel itself says does.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from kit.nodes.kernellog import as_kmsg
from kit.nodes.nodelab import docker

from orch import images
from orch.runner.health.examination import command
from orch.runner.health.findings import HealthReport
from orch.runner.health.readers.kernel import Clocks, read_kernel
from orch.runner.health.readers.sections import Section, sections_of
from orch.runner.health.readers.xids import Xid, xids_in
from orch.runner.node_api.commands import NODE_HOME
from orch.spec.access import SshAccess
from orch.spec.state import Gpus, NodeState
from orch.templates import render

KMSG = Path("/dev/kmsg")
NODE = NodeState(
    index=0,
    name="n0",
    access=SshAccess(address="10.0.0.1", user="root", host_key="k"),
    gpus=Gpus(count=1, vendor="nvidia"),
)
FAKES = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
    "NVRM: loading NVIDIA UNIX Open Kernel Module",
    "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed!",
    "nvidia-nvswitch0: SXid (PCI:0000:04:00.0): 22013, Fatal, Link 44",
    "amdgpu 0000:e3:00.0: amdgpu: GPU reset(2) failed",
    "habanalabs hl0: device is disabled",
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0 (channel:0 page:0x1)",
    "EDAC MC0: 1 UE on the bus on CPU_SrcID#0_MC#0 (channel:0 page:0x1)",
    "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 4: a600000000020408",
    "{1}[Hardware Error]: event severity: fatal",
    "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
    "EXT4-fs (sda1): Remounting filesystem read-only",
    "XFS (sda1): Corruption of in-memory data detected. Shutting down filesystem",
    "nvme nvme0: Removing after probe failure status: -19",
    "I/O error, dev sda, sector 12345 op 0x0",
    "Memory failure: 0x1234: recovery action for dirty LRU page: Recovered",
)
LOST = "NVRM: Xid (PCI:0000:5d:00): 79, pid=7, GPU has fallen off the bus."


def readable() -> bool:
    try:
        os.close(os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


real = pytest.mark.skipif(
    platform.machine() != "x86_64" or os.getuid() != 0 or not readable(),
    reason="the kernel's log is read as root, and the program that crashes is for x86-64",
)


def raw_log() -> str:
    """The records of /dev/kmsg."""
    found = subprocess.run(
        ["dd", f"if={KMSG}", "iflag=nonblock", "bs=8192"], capture_output=True, check=False
    )
    return found.stdout.decode()


def sent(kmsg: Path = KMSG, dmesg: Path | None = None, *, home: Path) -> Section:
    """What the script of a look sends of the log; `dmesg`: a file for it to print."""
    text = command(NODE, depth="light").text.replace(NODE_HOME, str(home)).replace(str(KMSG), str(kmsg))
    for sign in ("/.dockerenv", "/run/.containerenv", "/proc/1/environ", "KUBERNETES_SERVICE_HOST"):
        text = text.replace(sign, "ORCH_NO_SUCH_THING")
    path = os.environ["PATH"]
    if dmesg is not None:
        (home / "dmesg").write_text(f"#!/bin/sh\ncat {dmesg}\n")
        (home / "dmesg").chmod(0o755)
        path = f"{home}:{path}"
    words = ["sh", "-c", text.replace("exec sudo -n sh -c", "exec sh -c")]
    done = subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, check=False, timeout=60)
    return sections_of(done.stdout)["kernel"]


def judged(section: Section) -> HealthReport:
    return read_kernel(section, (), Clocks(), contained=False, nvidia=True)


def crashing_program() -> bytes:
    """A program for Linux on x86-64 that writes to address 0: an ELF header, one segment, `mov [0], al`."""
    code = b"\x31\xc0\x88\x00"
    start, size = 0x400000, 64 + 56 + len(code)
    numbers = ((2, 2), (62, 2), (1, 4), (start + 120, 8), (64, 8), (0, 8), (0, 4))
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += b"".join(value.to_bytes(width, "little") for value, width in numbers)
    header += b"".join(value.to_bytes(2, "little") for value in (64, 56, 1, 64, 0, 0))
    segment = b"".join(value.to_bytes(4, "little") for value in (1, 5))
    segment += b"".join(value.to_bytes(8, "little") for value in (0, start, start, size, size, 0x1000))
    return header + segment + code


def crash_as_a_job(folder: Path, names: dict[str, str]) -> None:
    """Crash a program under each name in a container without any right, until the kernel's log has each mark.

    It tells of ten crashes in five seconds at most.
    """
    folder.chmod(0o755)
    for name in names.values():
        file = folder / name
        file.write_bytes(crashing_program())
        file.chmod(0o755)
    rights = ("--user=65534", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none")
    end = time.monotonic() + 120
    while names and time.monotonic() < end:
        image = f"--volume={folder}:/job:ro", "--entrypoint=/bin/sh", images.ensure("node", progress=print)
        docker("run", "--rm", *rights, *image, "-c", 'for f in /job/*; do "$f"; done; true')
        log = raw_log()
        for mark in [mark for mark in names if mark in log]:
            (folder / names.pop(mark)).unlink()
        time.sleep(1)
    assert not names, "the kernel does not tell of crashes here"


@contextmanager
def file_system(folder: Path) -> Iterator[str]:
    """A new ext4 on a RAM disk of its own; its device's name."""
    control = Path("/sys/class/zram-control")
    if not control.is_dir():
        pytest.skip("there is no zram to fail")
    number = (control / "hot_add").read_text().strip()
    device = f"zram{number}"
    try:
        Path(f"/sys/block/{device}/disksize").write_text("32M")
        subprocess.run(["mkfs.ext4", "-q", f"/dev/{device}"], check=True)
        subprocess.run(["mount", f"/dev/{device}", folder], check=True)
        try:
            yield device
        finally:
            subprocess.run(["umount", folder], check=True)
    finally:
        Path(f"/sys/block/{device}/reset").write_text("1")
        (control / "hot_remove").write_text(number)


@real
def test_names_of_a_job_are_no_findings_on_the_real_kernel(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex[:8]
    names: dict[str, str] = {}
    for number, fake in enumerate(FAKES):
        # After a line feed, and at the beginning, which is the name of the process too.
        text = fake.replace("/", "-")
        names[f"{mark}a{number:02}"] = f"x\n{text} {mark}a{number:02} on x"
        names[f"{mark}b{number:02}"] = f"{text} {mark}b{number:02} on x"
    (tmp_path / "job").mkdir()
    before = judged(sent(home=tmp_path))
    crash_as_a_job(tmp_path / "job", names)
    section = sent(home=tmp_path)
    assert not [line for line in section.lines if mark in line]
    assert judged(section).findings == before.findings
    # As a container without /dev/kmsg reads it.
    shown = subprocess.run(["dmesg", "-S"], capture_output=True, check=True).stdout
    (tmp_path / "shown").write_bytes(shown)
    assert shown.count(mark.encode()) >= 2 * len(FAKES)
    other = sent(tmp_path / "none", tmp_path / "shown", home=tmp_path)
    assert not [line for line in other.lines if mark in line]


@real
def test_what_the_kernel_says_is_found(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex[:8]
    # Whoever is root on the machine can write there too, but not in the kernel's name.
    KMSG.write_text(f"<2>EXT4-fs (sda1): Remounting filesystem read-only {mark}")
    (tmp_path / "disk").mkdir()
    with file_system(tmp_path / "disk") as device:
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text(mark)
        section = sent(home=tmp_path)
    assert [line.partition("] ")[2] for line in section.lines if mark in line] == [
        f"EXT4-fs error (device {device}): trigger_test_error:129: comm {comm()}: {mark}"
    ]
    assert ("disk errors", device) in {(each.check, each.part) for each in judged(section).findings}


def comm() -> str:
    return Path("/proc/self/comm").read_text().rstrip("\n")


@real
def test_a_job_that_was_killed_for_memory_is_told_from_one_that_says_so(tmp_path: Path) -> None:
    name, image = f"orch-{uuid.uuid4().hex[:8]}", images.ensure("node", progress=print)
    # Docker's own word on that may come too late: here it never does.
    (tmp_path / "docker").write_text("#!/bin/sh\nPATH=${PATH#*:}\ndocker \"$@\" | sed 's/|true|/|false|/'\n")
    (tmp_path / "docker").chmod(0o755)

    def observed() -> str:
        script = render("node-observe.sh.j2", name=name, home=str(tmp_path / "home"))
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", "-c", script], env=path, capture_output=True, text=True, check=True)
        return "|".join(done.stdout.split("|")[:3])

    def runs(text: str) -> None:
        docker("run", "--detach", f"--name={name}", "--memory=24m", "--entrypoint=/bin/sh", image, "-c", text)
        docker("wait", name)

    try:
        runs("exit 3")
        identifier, mark = docker("inspect", "-f", "{{.Id}}", name), uuid.uuid4().hex[:8]
        told = (
            f"constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={mark},mems_allowed=0,oom_memcg={identifier}"
        )
        (tmp_path / "job").mkdir()
        crash_as_a_job(tmp_path / "job", {mark: f"x\noom-kill:{told},"})
        assert observed() == "exited|3|false"
        docker("rm", "-f", name)
        runs("tail /dev/zero; exit 3")
        assert observed() == "exited|3|true"
    finally:
        docker("rm", "-f", name)


@pytest.mark.quick
def test_records_of_the_kernel_alone_count(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text(
        as_kmsg((1.0, LOST), facility=1)
        + as_kmsg((2.0, LOST)).replace(",-;", ",c;")
        + as_kmsg((3.0, LOST)).replace(",-;", ",-,caller=T7;").replace("5d:00", "3b:00")
    )
    section = sent(tmp_path / "kmsg", home=tmp_path)
    assert section.lines[:1] == (f"[3.000000] {LOST.replace('5d:00', '3b:00')}",)
    assert xids_in(section.lines) == (Xid("0000:3b:00", 79),)


@pytest.mark.quick
def test_a_record_of_the_driver_may_have_several_lines(tmp_path: Path) -> None:
    """What its lines begin with is longer than a name of a process, which is in them too."""
    text = (
        "NVRM: The NVIDIA GPU 0000:5d:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands."
    )
    named = "NVRM: Xid (PCI:0000:5d:00): 31, pid=7, name=x\nNVRM: Xid (PCI, Ch 00000008"
    (tmp_path / "kmsg").write_text(as_kmsg((1.0, text), (2.0, named)))
    found = judged(sent(tmp_path / "kmsg", home=tmp_path))
    assert [(each.part, each.action) for each in found.findings] == [("GPU at 0000:5d:00", "reboot")]
    (tmp_path / "shown").write_text(
        "".join(f"[    1.000000] {line}\n" for line in text.split("\n")) + "[    2.000000] x\n"
    )
    assert judged(sent(tmp_path / "none", tmp_path / "shown", home=tmp_path)).findings == found.findings


@pytest.mark.quick
def test_lines_of_dmesg_that_share_their_time_are_one_record(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.write_text(f"[    1.000000] x\n[    1.000000] {LOST}\n               {LOST}\n")
    assert sent(tmp_path / "none", shown, home=tmp_path).text == ""
    # What the driver says before a fault begins with more than a name.
    stamp = "[    1.000000][   T42]"
    shown.write_text(f"<6>{stamp} NVRM: GPU at PCI:0000:5d:00: GPU-0b6b7808\n<3>{stamp} {LOST}\n")
    assert xids_in(sent(tmp_path / "none", shown, home=tmp_path).lines) == (Xid("0000:5d:00", 79),)


@pytest.mark.quick
def test_a_driver_that_a_job_claims_was_loaded_clears_nothing(tmp_path: Path) -> None:
    fake = "x[7]: segfault at 0 ip 0 sp 0 error 6 in x\nNVRM: loading NVIDIA UNIX[161e,401000+78000]"
    (tmp_path / "kmsg").write_text(
        as_kmsg((1.0, LOST), (2.0, fake), (3.0, f"NVRM: loading N[7]: segfault {fake}"))
    )
    assert judged(sent(tmp_path / "kmsg", home=tmp_path)).action == "reboot"


@pytest.mark.quick
def test_a_name_of_a_process_says_nothing_of_a_link() -> None:
    fault = "NVRM: Xid (PCI:0000:5d:00): 149, pid=7, name={}, NETIR_LINK_EVT {} XC0 i0 Link 00 (0x0)"
    for name, word, status in (
        *(("nonfatal", "Fatal", "failure"), ("x", "Fatal", "failure")),
        *(("fatal", "Nonfatal", "warning"), ("x", "Non-fatal", "warning")),
    ):
        section = Section("kernel", "done", 0, (f"[1.0] {fault.format(name, word)}",))
        assert judged(section).status == status, (name, word)


@pytest.mark.quick
def test_what_begins_a_record_is_longer_than_a_name_of_a_process() -> None:
    """A name of 15 bytes and what the kernel writes after it are never what a reader looks for."""
    after = (
        "[7]: segfault at 0 in {}",
        ": {}",
        " (7): {}",
        " invoked oom-killer: gfp_mask=0x1, order=0 {}",
        "/7: {}",
    )
    lines = [
        f"[{at}.0] {fake[:15]}{text.format(fake)}"
        for at, (fake, text) in enumerate((f, t) for f in FAKES for t in after)
    ]
    lines += [
        f"[{at}.0] {fake[:cut]}{after[0].format(fake)}"
        for fake in FAKES
        for at, cut in pairwise(range(1, 16))
    ]
    assert judged(Section("kernel", "done", 0, tuple(lines))).findings == ()
