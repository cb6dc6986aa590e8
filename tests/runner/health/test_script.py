"""The script of a look, run by a real shell on this machine, with stubs of the tools before its own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.nodes.kernellog import as_kmsg, records_of

from orch.runner.health import examination
from orch.runner.health.examination import Depth, command, examine, read
from orch.runner.health.findings import HealthReport
from orch.runner.health.readers.kernel import Clocks, read_kernel
from orch.runner.health.readers.sections import Section, sections_of
from orch.runner.node_api.commands import NODE_HOME, Command
from orch.runner.node_api.connector import Completed
from orch.spec.access import SshAccess
from orch.spec.state import Gpus, NodeState

RECORDED = Path(__file__).with_name("recorded")
FAULTS: list[dict[str, Any]] = yaml.safe_load((RECORDED / "faults.yml").read_text("utf-8"))
CONTAINED = ("/.dockerenv", "/run/.containerenv", "/proc/1/environ", "KUBERNETES_SERVICE_HOST")


def node_of(gpus: int = 1, vendor: str = "nvidia") -> NodeState:
    access = SshAccess(address="10.0.0.1", user="root", host_key="ssh-ed25519 AAAA")
    return NodeState(index=0, name="n0", access=access, gpus=Gpus(count=gpus, vendor=vendor))


@dataclass
class Machine:
    """This machine as a node, with a folder of its own for `orch`, for tools and for the kernel's files.

    `contained`: whether it looks like a container to the script, whatever it is.
    """

    path: Path
    contained: bool = False

    def __post_init__(self) -> None:
        for folder in ("bin", "home", "infiniband", "mc"):
            (self.path / folder).mkdir()
        (self.path / "mounts").write_text("/dev/sda1 / ext4 rw,relatime 0 0\n")
        self.has(
            "dmesg", "echo '[    0.5] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04'"
        )
        self.has("nvidia-smi", f'case "$*" in "-q -x") cat {RECORDED / "h100.xml"};; esac')
        self.has("timedatectl", "echo NTPSynchronized=yes")
        self.has("df", "echo Filesystem; echo '/dev/sda1 100 40 60000000 40% /'")

    def has(self, name: str, script: str) -> None:
        file = self.path / "bin" / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def file(self, path: str, text: str) -> None:
        at = self.path / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(f"{text}\n")

    def text(self, asked: Command) -> str:
        text = asked.text.replace(NODE_HOME, str(self.path / "home"))
        text = text.replace("/sys/class/infiniband", str(self.path / "infiniband"))
        text = text.replace("/sys/devices/system/edac/mc", str(self.path / "mc"))
        text = text.replace("/proc/mounts", str(self.path / "mounts"))
        text = text.replace("/dev/kmsg", str(self.path / "kmsg"))
        for sign in CONTAINED:
            text = text.replace(sign, "/" if self.contained else "ORCH_NO_SUCH_THING")
        return text.replace("exec sudo -n sh -c", "exec sh -c")

    def run(self, node: NodeState, asked: Command, **_: object) -> Completed:
        path = {"PATH": f"{self.path / 'bin'}:{os.environ['PATH']}"}
        started = time.monotonic()
        done = subprocess.run(
            ["sh", "-c", self.text(asked)],
            env=path,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
        return Completed(
            node.name, asked, done.returncode, done.stdout, done.stderr, time.monotonic() - started
        )

    def look(self, node: NodeState | None = None, depth: Depth = "light", **more: bool) -> HealthReport:
        of = node or node_of()
        done = self.run(of, command(of, depth=depth, **more))
        assert (done.exit_code, done.stderr) == (0, "")
        return read(of, done.stdout)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_healthy_machine(machine: Machine) -> None:
    found = machine.look()
    assert (found.findings, found.status) == ((), "healthy")
    assert {"gpu count", "ecc", "xid", "disk errors", "disk space", "clock"} <= set(found.passed)
    assert {each.check: each.why for each in found.skipped}["dcgm health"] == "DCGM is not installed"
    assert not list(machine.path.glob("home/*.end"))


def test_a_tool_that_fails_and_one_that_is_not_there(machine: Machine) -> None:
    lost = "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost. Reboot the system"
    machine.has("nvidia-smi", f"echo '{lost}'; exit 15")
    found = machine.look()
    assert (found.status, found.action, found.findings[0].check) == ("failure", "reboot", "gpu lost")
    (machine.path / "bin/nvidia-smi").unlink()
    assert "is the driver installed?" in machine.look().reason
    simulated = machine.look(simulated=True)
    assert simulated.status == "healthy"
    assert "simulated" in {each.check: each.why for each in simulated.skipped}["gpus"]


def test_a_tool_that_hangs_is_ended_and_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "TOOL_S", 1)
    monkeypatch.setattr(examination, "LIGHT_S", 3)
    machine.has("nvidia-smi", "sleep 300")
    found = machine.look()
    assert (found.status, found.action) == ("failure", "reboot")
    assert "nvidia-smi did not answer" in found.reason
    # It was ended, so the next look is not kept waiting.
    monkeypatch.undo()
    machine.has("nvidia-smi", f"cat {RECORDED / 'h100.xml'}")
    assert machine.look().status == "healthy"


def test_a_tool_that_cannot_be_ended_does_not_hold_the_look(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in state D, where neither a signal nor `timeout` ends it: here no `timeout` is at work."""
    monkeypatch.setattr(examination, "TOOL_S", 1)
    monkeypatch.setattr(examination, "LIGHT_S", 1)
    monkeypatch.setattr(examination, "WAIT_S", 1)
    machine.has("timeout", 'shift 3; exec "$@"')
    machine.has("nvidia-smi", f"echo $$ >> {machine.path}/pids; exec sleep 300")
    try:
        found = machine.look()
        assert "nvidia-smi did not answer" in found.reason
        # What hangs keeps others from hanging too, and is told.
        again = machine.look()
        assert (again.status, again.action) == ("failure", "reboot")
        assert "an earlier look hangs, and cannot be ended: smi nvlink nvlink_errors" in again.reason
    finally:
        for pid in (machine.path / "pids").read_text().split():
            os.kill(int(pid), 9)


def test_output_is_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "MOST_BYTES", 5000)
    machine.has("nvidia-smi", "head -c 3000000 /dev/zero | tr '\\0' 'x'")
    log = ((1.0 + at / 1e6, "EXT4-fs error (device sda1): x") for at in range(50_000))
    machine.file("kmsg", as_kmsg(*log))
    node = node_of()
    done = machine.run(node, command(node, depth="light"))
    assert len(done.stdout) < 40_000
    assert {each.check for each in read(node, done.stdout).findings} == {"driver", "disk errors"}


def test_what_is_recorded_of_the_kernel_passes_the_script(machine: Machine) -> None:
    """Of all that a kernel says the script sends what may matter: of each log enough for its verdict."""
    other = [(float(at), f"usb 1-1: new high-speed USB device number {at}") for at in range(2000)]
    for case in (each for each in FAULTS if each["tool"] == "kernel"):
        recorded = records_of(case["lines"])
        own = [(3000.0 + place if at is None else at, text) for place, (at, text) in enumerate(recorded)]
        machine.file("kmsg", as_kmsg(*other, *own, *other))
        lines = sections_of(machine.run(node_of(), command(node_of(), depth="light")).stdout)["kernel"].lines
        assert not any("usb" in line for line in lines)
        nvidia = case.get("vendor", "nvidia") == "nvidia"
        found = read_kernel(Section("kernel", "done", 0, lines), (), Clocks(), contained=False, nvidia=nvidia)
        assert (found.status, found.action) == (case["status"], case["action"]), (case["name"], found)


def test_where_there_is_no_kmsg_dmesg_is_read_and_what_it_complains_of_is_told(machine: Machine) -> None:
    machine.has("dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1")
    skipped = {each.check: each.why for each in machine.look().skipped}
    assert "Operation not permitted" in skipped["xid"]
    machine.has("dmesg", "exit 0")
    assert "xid" in machine.look().passed
    # Without times nothing tells where a record begins.
    machine.has("dmesg", "echo 'NVRM: Xid (PCI:0000:00:06): 79, GPU has fallen off'")
    found = machine.look()
    assert (found.findings, "tells no times" in {each.check: each.why for each in found.skipped}["xid"]) == (
        (),
        True,
    )
    machine.has("dmesg", "echo '[  812.4] NVRM: Xid (PCI:0000:00:06): 79, GPU has fallen off'")
    assert machine.look().action == "reboot"


def test_what_is_told_again_and_again_pushes_no_fault_out(machine: Machine) -> None:
    lost = "NVRM: Xid (PCI:0000:00:06): 79, pid=7, GPU has fallen off the bus."
    repeated = (
        "NVRM: Xid (PCI:0000:00:06): 13, pid=7, Graphics SM Warp Exception",
        "NVRM: Xid (PCI:0000:00:06): 63, Row Remapper: New row marked for remapping",
        "I/O error, dev sda, sector 123456 op 0x0:(READ) flags 0x0",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_DIMM#0 (channel:0 page:0x12ab34)",
    )
    log = [lost, *(line for line in repeated for _ in range(25_000))]
    machine.file("kmsg", as_kmsg(*((10.0 + at / 1e3, text) for at, text in enumerate(log))))
    done = machine.run(node_of(), command(node_of(), depth="light"))
    assert len(done.stdout) < 200_000
    found = {each.check: each for each in read(node_of(), done.stdout).findings if each.severity == "failure"}
    assert set(found) == {"xid", "disk errors"}
    assert found["xid"].reason.startswith("Xid 79")
    assert "corrected memory errors" in str(read(node_of(), done.stdout).findings)


@pytest.mark.parametrize(
    "label", ["any memory", "unknown memory", "P0 CHANNEL A DIMM 0", "DIMM_A1 or DIMM_A2", "CPU_SrcID#0_MC#0"]
)
def test_memory_is_found_by_each_name_that_a_module_may_have(machine: Machine, label: str) -> None:
    # "any memory" and "unknown memory": drivers/edac/edac_mc.c, where the module cannot be told.
    fault = f"EDAC MC0: 1 UE Multi-bit ECC on {label} (page:0x1 offset:0x0 grain:1 - APEI location: node:0)"
    machine.file("kmsg", as_kmsg((10.0, fault)))
    found = [(each.part, each.severity) for each in machine.look().findings]
    assert found == [(label, "failure")]


@pytest.mark.parametrize("caller", ["[    T7]", " [    T7]", " [C1]"])
def test_a_kernel_that_tells_who_wrote_a_record_is_read(machine: Machine, caller: str) -> None:
    lost = f"[  812.400000]{caller} NVRM: Xid (PCI:0000:00:06): 79, GPU has fallen off"
    machine.has("dmesg", f"echo '{lost}'")
    assert machine.look().action == "reboot"


def test_the_end_of_a_log_that_was_overtaken_each_time_is_read_by_dmesg(machine: Machine) -> None:
    overtaken = "echo '4,1,1000000,-;old'; echo \"dd: error reading '/dev/kmsg': Broken pipe\" >&2; exit 1"
    machine.has("dd", overtaken)
    machine.has("dmesg", "echo '[ 2.0] NVRM: Xid (PCI:0000:00:06): 79, GPU has fallen off'")
    assert machine.look().action == "reboot"


def test_a_log_with_bytes_that_are_no_text_is_read(machine: Machine) -> None:
    machine.has(
        "dmesg",
        "printf '[ 1.0] \\000\\377\\200 boot\\n[ 2.0] NVRM: Xid (PCI:0000:00:06): 79, \\033[2J\\377\\n'",
    )
    found = machine.look()
    assert [each.reason[:6] for each in found.findings] == ["Xid 79"]
    assert all(each.reason.isprintable() for each in found.findings)


def test_a_kernels_log_that_hangs_is_skipped_and_holds_no_later_look(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "LOG_S", 1)
    machine.has("dmesg", "sleep 300")
    for _ in range(2):
        found = machine.look()
        assert found.status == "healthy"
        skipped = {each.check: each.why for each in found.skipped}
        assert skipped["xid"] == "the kernel's log cannot be read: dmesg did not answer"


def test_tools_are_asked_in_the_language_that_is_read(machine: Machine) -> None:
    machine.has("timedatectl", '[ "$LC_ALL" = C ] && echo NTPSynchronized=yes || echo NTPSynchronized=oui')
    assert "clock" in machine.look().passed


def test_a_reset_by_orch_ends_what_it_mends(machine: Machine) -> None:
    machine.has(
        "nvidia-smi", f"sed 's/<gpu_recovery_action>None/<gpu_recovery_action>N\\/A/' {RECORDED}/h100.xml"
    )
    machine.has(
        "dmesg",
        'read -r up _ < /proc/uptime; echo "[ $((${up%.*} - 60)).5] NVRM: Xid (PCI:0000:00:06): 95, x"',
    )
    assert machine.look().findings[0].part == "GPU 0 (0000:00:06)"
    machine.file("home/gpu-reset", "change-1")
    assert machine.look().status == "healthy"
    os.utime(machine.path / "home/gpu-reset", (time.time() - 3600, time.time() - 3600))
    assert machine.look().status == "failure"


def test_the_files_of_the_kernel(machine: Machine) -> None:
    for name, state, physical in (("mlx5_0", "4: ACTIVE", "5: LinkUp"), ("mlx5_1", "1: DOWN", "2: Polling")):
        port = f"infiniband/{name}/ports/1"
        machine.file(f"{port}/state", state)
        machine.file(f"{port}/phys_state", physical)
        machine.file(f"{port}/link_layer", "InfiniBand")
        machine.file(f"{port}/rate", "400 Gb/sec (4X NDR)")
        machine.file(f"{port}/counters/link_downed", "0")
        machine.file(f"infiniband/{name}/hca_type", "MT4129")
    machine.file("mc/mc0/dimm1/dimm_ue_count", "2")
    machine.file("mc/mc0/dimm1/dimm_ce_count", "0")
    machine.file("mc/mc0/dimm1/dimm_label", "CPU_SrcID#0_MC#0_Chan#0_DIMM#1")
    machine.file("mounts", "/dev/sda1 / ext4 rw 0 0\n/dev/sdb1 /var/lib/docker ext4 ro,relatime 0 0")
    machine.has("df", "echo Filesystem; echo '/dev/sda1 100 99 1000 99% /'")
    machine.has("timedatectl", "echo NTPSynchronized=no")
    found = {each.check: (each.severity, each.part) for each in machine.look().findings}
    assert found == {
        "rdma": ("failure", "mlx5_1 port 1"),
        "memory modules": ("failure", "mc0 CPU_SrcID#0_MC#0_Chan#0_DIMM#1"),
        "disk errors": ("failure", "/var/lib/docker"),
        "disk space": ("failure", "/"),
        "clock": ("warning", "node"),
    }


def test_a_root_that_is_an_image_is_no_full_disk(machine: Machine) -> None:
    machine.file("mounts", "/dev/root / ext2 ro,relatime 0 0")
    machine.has("df", "echo Filesystem; echo '/dev/root 100 100 0 100% /'")
    assert machine.look().findings == ()


def test_a_container_reads_its_own_alone(machine: Machine) -> None:
    machine.contained = True
    machine.file("mounts", "/dev/sdb1 /var/lib/docker ext4 ro,relatime 0 0")
    machine.has(
        "dmesg",
        "echo '[ 1.0] EXT4-fs (sda1): Remounting filesystem read-only'; "
        "echo '[ 2.0] NVRM: Xid (PCI:0000:99:00): 79, x'; echo '[ 3.0] NVRM: Xid (PCI:0000:00:06): 48, x'",
    )
    found = machine.look()
    assert [each.part for each in found.findings] == ["GPU 0 (0000:00:06)"]
    assert {"rdma", "clock", "disk space", "memory"} <= {each.check for each in found.skipped}


def test_a_simulated_node_may_have_ports_and_a_container_that_is_none_has_not(machine: Machine) -> None:
    machine.contained = True
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        machine.file(f"home/simulated/infiniband/{name}/ports/1/state", state)
        machine.file(f"home/simulated/infiniband/{name}/ports/1/link_layer", "InfiniBand")
    found = machine.look(simulated=True)
    assert [(each.check, each.part) for each in found.findings] == [("rdma", "mlx5_1 port 1")]
    assert "rdma" not in {each.check for each in found.skipped}
    found = machine.look()
    assert (found.findings, "rdma" in {each.check for each in found.skipped}) == ((), True)
    # Of a machine the kernel's files count, whatever else is there.
    machine.contained = False
    assert machine.look(simulated=True).findings == ()


def test_dcgm_has_its_watches_set_and_a_diagnostic_is_run_where_asked(machine: Machine) -> None:
    healthy = '{"body": {"Overall Health": {"value": "Healthy"}}}'
    warnings = [{"error_severity": 2, "warning": "bad"}]
    result = {"entity_group": "GPU", "entity_id": 0, "status": "Fail", "warnings": warnings}
    tests = [{"name": "memory", "results": [result]}]
    failed = json.dumps({"DCGM Diagnostic": {"test_categories": [{"tests": tests}]}})
    machine.has(
        "dcgmi",
        f'echo "$*" >> {machine.path}/asked\ncase "$*" in "health -c -j") echo \'{healthy}\';; '
        f"\"diag -r 2 -j\") echo '{failed}'; exit 226;; esac",
    )
    assert "dcgm health" in machine.look().passed
    assert (machine.path / "asked").read_text().split("\n")[:2] == ["health -s a", "health -c -j"]
    found = machine.look(depth="dcgm")
    assert (found.status, found.action, found.findings[0].check) == ("failure", "replace", "dcgm diagnostic")


def test_other_vendors(machine: Machine) -> None:
    metric = json.dumps([{"gpu": 0, "ecc": {"total_uncorrectable_count": 3}}])
    pages = json.dumps([{"gpu": 0, "pending": [{"page_address": "0x1"}], "un_res": "No bad pages found."}])
    machine.has("amd-smi", f"case \"$1\" in metric) echo '{metric}';; *) echo '{pages}';; esac")
    found = machine.look(node_of(2, "amd"))
    assert {(each.check, each.action) for each in found.findings} == {
        ("gpu count", "reboot"),
        ("ecc", "reset"),
        ("retired pages", "reset"),
    }
    machine.has("hl-smi", 'case "$*" in *ecc.errors.uncorrected*) echo "3, 0000:1a:00.0, 5, 0, 41";; esac')
    found = machine.look(node_of(1, "intel"))
    assert found.reason == "card 3 (0000:1a:00.0): 5 uncorrectable errors since the driver was loaded"
    machine.has("tt-smi", "echo 'Traceback (most recent call last):'; exit 1")
    assert "tt-smi lists no card: Traceback" in machine.look(node_of(1, "tenstorrent")).reason
    (machine.path / "bin/tt-smi").unlink()
    assert machine.look(node_of(1, "tenstorrent")).status == "healthy"
    assert "no reader" in str(machine.look(node_of(4, "google")).skipped)


def test_nodes_are_looked_at_at_once_and_one_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    machines = [Machine(tmp_path / "0"), Machine(tmp_path / "1")]
    machines[1].has("nvidia-smi", "echo 'No devices were found'; exit 6")
    nodes = [node_of().model_copy(update={"index": at, "name": f"n{at}"}) for at in range(3)]

    class Nodes:
        def run(self, node: NodeState, asked: Command, **more: object) -> Completed:
            if node.index == 2:
                return Completed(node.name, asked, 127, "", "sudo: not found", 0.0)
            return machines[node.index].run(node, asked, **more)

    results = examine(nodes, Nodes())  # type: ignore[arg-type]
    assert [each.value.status if each.value else None for each in results] == ["healthy", "failure", None]
    assert "sudo: not found" in str(results[2].error and results[2].error.detail)
