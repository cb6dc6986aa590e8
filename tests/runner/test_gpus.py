"""GPUs of a node when one fails: what the kernel told, what that asks for, evidence, and the reset itself."""

from __future__ import annotations

import base64
import io
import os
import re
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from orch.runner.errors import RunnerError
from orch.runner.health.gpus import (
    BUSY,
    Gpu,
    GpuLook,
    evidence_command,
    keep_evidence,
    look_command,
    read_look,
    read_reset,
    reset_command,
    triage,
)
from orch.runner.health.readers.xids import Xid, xids_in
from orch.runner.node_api.commands import NODE_HOME, Command
from orch.runner.node_api.connector import Completed

pytestmark = pytest.mark.quick

KERNEL = """\
[   12.1] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15
[  812.4] NVRM: Xid (PCI:0000:18:00): 48, pid=4711, name=python, DBE (double bit error) LTC3 FBPA2
[  812.5] NVRM: Xid (PCI:0000:18:00): 48, pid=4711, name=python, DBE (double bit error) LTC3 FBPA2
[  900.0] NVRM: Xid (PCI:0000:28:00): 31, pid=4712, name=python, Ch 00000008, intr 00000000. MMU Fault
[  901.0] NVRM: GPU at PCI:0000:28:00: GPU-0b
"""


def gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(str(at), f"GPU-{at}", "1", f"0000:{0x18 + 0x10 * at:02x}:00", 0) for at in range(count))


def found(*xids: tuple[str, int], fabric: bool = False) -> GpuLook:
    return GpuLook(True, gpus(2), fabric, tuple(Xid(*each) for each in xids))


FIRST, SECOND = "0000:18:00", "0000:28:00"


def test_faults_are_read_from_the_kernel_s_lines() -> None:
    assert xids_in(KERNEL.splitlines()) == (Xid(FIRST, 48), Xid(SECOND, 31))


@pytest.mark.parametrize("number", [13, 31, 43])
def test_faults_of_applications_need_no_reset(number: int) -> None:
    assert triage(found((FIRST, number))).action == "none"
    # Also beside one that nothing is known of.
    assert triage(found((FIRST, number), (SECOND, 999))).action == "none"


@pytest.mark.parametrize(
    ("number", "action"),
    [(48, "reset"), (64, "reset"), (94, "reset"), (95, "reset"), (79, "reboot"), (92, "replace")],
)
def test_faults_of_the_hardware_say_what_helps(number: int, action: str) -> None:
    said = triage(found((FIRST, 31), (SECOND, number)))
    assert said.action == action
    assert f"Xid {number} at {SECOND}" in said.why
    assert "31" not in said.why


def test_the_gravest_fault_decides_and_an_unknown_one_nothing() -> None:
    assert triage(found((FIRST, 48), (SECOND, 79))).action == "reboot"
    assert triage(found((FIRST, 48), (SECOND, 92), (SECOND, 79))).action == "replace"
    assert (triage(found()).action, triage(found()).indices) == ("reset", ())
    assert "Xid 999 decides nothing" in triage(found((FIRST, 999))).why


def test_one_gpu_is_reset_where_no_switch_joins_it_to_others() -> None:
    assert triage(found((SECOND, 48))).indices == ("1",)
    assert triage(found((FIRST, 94), (SECOND, 48))).indices == ("0", "1")
    assert triage(found((SECOND, 48), fabric=True)).indices == ()
    # Its driver does not list one of them: whichever that is.
    assert triage(found((SECOND, 48), ("0000:99:00", 48))).indices == ()


class OfFolder:
    """A node that is a folder, with commands of its own before the machine's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "bin").mkdir()

    @property
    def home(self) -> Path:
        return self.path / "home"

    def has(self, name: str, script: str) -> None:
        file = self.path / "bin" / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def run(self, command: Command) -> Completed:
        text = command.text.replace(NODE_HOME, str(self.home)).replace("exec sudo -n sh -c", "exec sh -c")
        text = text.replace("/dev/kmsg", str(self.path / "kmsg"))
        path = {"PATH": f"{self.path / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-c", text], env=path, capture_output=True, text=True, timeout=60, check=False
        )
        return Completed("n0", command, done.returncode, done.stdout, done.stderr, 0.0)


@pytest.fixture
def node(tmp_path: Path) -> OfFolder:
    made = OfFolder(tmp_path)
    made.has("dmesg", f"cat <<'END'\n{KERNEL}END")
    made.has("pgrep", "exit 1")
    made.has(
        "nvidia-smi",
        f'echo "$*" >> {tmp_path}/calls\n'
        'case "$*" in\n'
        "*serial,pci.bus_id,ecc*) echo '0, GPU-a, 165, 00000000:18:00.0, 0'; "
        "echo '1, GPU-b, 166, 00000000:28:00.0, [N/A]';;\n"
        "esac",
    )
    made.has(
        "systemctl",
        f'echo "$*" >> {tmp_path}/units\n'
        'case "$*" in "is-active --quiet nvidia-persistenced"|"is-active --quiet nvidia-fabricmanager"|st*) '
        "exit 0;; esac; exit 3",
    )
    return made


def test_a_node_tells_its_gpus(node: OfFolder) -> None:
    look = read_look(node.run(look_command()).stdout)
    assert [(gpu.index, gpu.uuid, gpu.serial, gpu.pci, gpu.ecc) for gpu in look.gpus] == [
        ("0", "GPU-a", "165", FIRST, 0),
        ("1", "GPU-b", "166", SECOND, None),
    ]
    assert (look.present, look.fabric, look.trouble) == (True, False, "")
    assert look.xids == (Xid(FIRST, 48), Xid(SECOND, 31))
    node.has("nvidia-smi", "echo 'Unable to determine the device handle for GPU0: Unknown Error'; exit 255")
    assert "Unable to determine" in read_look(node.run(look_command()).stdout).trouble
    assert read_look("none\n") == GpuLook(present=False)
    assert read_look("gpu a, b\ngpu 1, 2, 3, 4\nfabric\n") == GpuLook(True, fabric=True)


def test_evidence_is_kept_under_names_that_are_known(node: OfFolder, tmp_path: Path) -> None:
    node.has("dcgmi", """echo '{"version": "3.3.5"}'""")
    kept = keep_evidence(node.run(evidence_command()).stdout, tmp_path / "kept")
    assert {each.name for each in kept} == {
        *("machine.txt", "nvidia-smi-q.txt", "nvidia-smi-L.txt", "gpus.csv"),
        *("dmesg-nvrm.txt", "dcgmi-diag.json", "dcgmi-diag.err"),
    }
    assert (tmp_path / "kept/dmesg-nvrm.txt").read_text() == re.sub(r"\[ +", "[", KERNEL)
    assert (tmp_path / "kept/dcgmi-diag.json").read_text() == '{"version": "3.3.5"}\n'
    assert {stat.S_IMODE(each.stat().st_mode) for each in kept} == {0o600}


def test_an_archive_of_a_hostile_node_writes_nothing_else(tmp_path: Path) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name in ("../gpus.csv", "/tmp/gpus.csv", "authorized_keys", "gpus.csv"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
        link = tarfile.TarInfo("machine.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    kept = keep_evidence(base64.b64encode(data.getvalue()).decode(), tmp_path / "kept")
    assert [each.name for each in kept] == ["gpus.csv"]
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["gpus.csv", "kept"]
    for text in ("", "not base64!", base64.b64encode(b"no archive").decode()):
        with pytest.raises(RunnerError, match="cannot be read"):
            keep_evidence(text, tmp_path / "kept")


def test_a_reset_stops_who_uses_the_gpus_and_starts_them_again(node: OfFolder) -> None:
    said = node.run(reset_command("change 1 of tests", ("0", "1"), fabric=False))
    assert read_reset(said) == "stopped nvidia-persistenced started nvidia-persistenced"
    assert (node.path / "calls").read_text() == "--gpu-reset -i 0,1\n"
    units = (node.path / "units").read_text().splitlines()
    changed = [each for each in units if not each.startswith("is-active")]
    assert changed == ["stop nvidia-persistenced", "start nvidia-persistenced"]
    assert not (node.home / "gpu-clients").exists()
    # The same change does it once; another one anew.
    again = node.run(reset_command("change 1 of tests", ("0", "1"), fabric=False))
    assert read_reset(again) == "was reset already"
    assert read_reset(node.run(reset_command("change 2 of tests", (), fabric=True))).startswith("stopped")
    assert (node.path / "calls").read_text() == "--gpu-reset -i 0,1\n--gpu-reset\n"
    assert "stop nvidia-fabricmanager" in (node.path / "units").read_text()


def test_a_reset_that_fails_starts_what_it_stopped_and_may_be_done_again(node: OfFolder) -> None:
    node.has("nvidia-smi", "echo 'GPU Reset could not run because GPU 00000000:18:00.0 is in use'; exit 255")
    failed = node.run(reset_command("change 1 of tests", (), fabric=False))
    with pytest.raises(RunnerError) as caught:
        read_reset(failed)
    assert "is in use" in str(caught.value.detail)
    assert "start nvidia-persistenced" in (node.path / "units").read_text()
    node.has("nvidia-smi", "exit 0")
    assert read_reset(node.run(reset_command("change 1 of tests", (), fabric=False))) != "was reset already"


def test_what_a_killed_call_stopped_is_started_by_the_next(node: OfFolder) -> None:
    node.home.mkdir()
    (node.home / "gpu-clients").write_text("nvidia-dcgm\n")
    said = read_reset(node.run(reset_command("change 1 of tests", (), fabric=False)))
    assert "started nvidia-dcgm" in said
    assert "started nvidia-persistenced" in said


def test_gpus_that_a_process_uses_are_not_reset(node: OfFolder) -> None:
    command = reset_command("change 1 of tests", (), fabric=False)
    done = Completed("n0", command, BUSY, "stopped dcgm\nclient 4711 python3\n", "", 1.0)
    with pytest.raises(RunnerError) as caught:
        read_reset(done)
    assert "by process 4711 python3" in str(caught.value.detail)


def test_a_process_says_nothing_of_a_reset_by_its_name(node: OfFolder, tmp_path: Path) -> None:
    """A process that has a GPU open and is called `x`, line feed, `already`."""
    folder = tmp_path / "proc/7"
    (folder / "fd").mkdir(parents=True)
    (folder / "fd/3").symlink_to("/dev/nvidia0")
    (folder / "comm").write_text("x\nalready\n")
    asked = reset_command("change-1", (), fabric=False)
    done = node.run(Command(asked.text.replace("/proc/", f"{tmp_path}/proc/")))
    assert done.exit_code == BUSY
    assert "client 7 x?already" in done.stdout.splitlines()
