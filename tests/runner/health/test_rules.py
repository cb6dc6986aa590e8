"""Rules that no recorded output shows: what ends a fault, limits, names of fields, odd input."""

from __future__ import annotations

import json
from contextlib import suppress
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.runner.errors import RunConflict, RunnerError
from orch.runner.health.examination import SHARED, command, read
from orch.runner.health.findings import LONGEST, MOST, Finding, HealthReport, SkippedCheck, report
from orch.runner.health.readers.dcgm import read_diagnostic, read_watches
from orch.runner.health.readers.kernel import Clocks, read_kernel
from orch.runner.health.readers.machine import (
    read_clock,
    read_disks,
    read_fabric,
    read_memory,
    read_memory_modules,
)
from orch.runner.health.readers.nvidia import GpuHealth, read_nvlink, read_smi
from orch.runner.health.readers.sections import Section, number
from orch.runner.health.readers.xids import XIDS, action_in, recovery_action
from orch.spec.access import OtherAccess, SshAccess
from orch.spec.state import Gpus, NodeState

pytestmark = pytest.mark.quick

NODE = NodeState(
    index=0, name="n0", access=SshAccess(address="10.0.0.1", user="root", host_key="k"), gpus=Gpus(count=1)
)
PCI = "0000:5d:00"
XID_95 = f"[ 812.4] NVRM: Xid (PCI:{PCI}): 95, pid=1, Uncontained: FBHUB. RST: Yes, D-RST: No"
XID_79 = f"[ 812.4] NVRM: Xid (PCI:{PCI}): 79, GPU has fallen off the bus."
LOAD = "[ 900.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15"


def section(name: str, *lines: str, code: int = 0) -> Section:
    return Section(name, "done", code, tuple("\n".join(lines).split("\n")))


def gpu(recovery: str | None = None, pending: bool | None = None, pci: str = PCI) -> GpuHealth:
    return GpuHealth(3, pci, "NVIDIA H100", recovery, pending)  # type: ignore[arg-type]


def kernel(
    *lines: str, gpus: tuple[GpuHealth, ...] = (), reset_s: float | None = None, contained: bool = False
):
    clocks = Clocks(1704067200.0, reset_s)
    return read_kernel(section("kernel", *lines), gpus, clocks, contained=contained, nvidia=True)


def smi(**fields: str) -> HealthReport:
    """One GPU with these fields, `__` for each level."""
    root = ElementTree.Element("gpu", id="00000000:5D:00.0")
    for path, value in {"gpu_recovery_action": "None", **fields}.items():
        at = root
        for name in path.split("__"):
            found = at.find(name)
            at = ElementTree.SubElement(at, name) if found is None else found
        at.text = value
    text = f"<nvidia_smi_log>{ElementTree.tostring(root, encoding='unicode')}</nvidia_smi_log>"
    return read_smi(section("smi", text), 1, simulated=False)[0]


def verdict(of: HealthReport) -> tuple[str, str]:
    return of.status, of.action


def test_a_fault_that_a_reset_mends_is_over_after_a_driver_load_or_a_reset() -> None:
    assert verdict(kernel(XID_95, gpus=(gpu(),))) == ("failure", "reset")
    assert verdict(kernel(XID_95, LOAD)) == ("healthy", "none")
    assert verdict(kernel(LOAD.replace("900.0", "1.0"), XID_95)) == ("failure", "reset")
    assert verdict(kernel(XID_95, reset_s=900.0)) == ("healthy", "none")
    assert verdict(kernel(XID_95, reset_s=800.0)) == ("failure", "reset")


def test_a_fault_that_a_reboot_mends_stays_after_a_reset() -> None:
    assert verdict(kernel(XID_79, reset_s=900.0, gpus=(gpu("none"),))) == ("failure", "reboot")
    assert verdict(kernel(XID_79, LOAD)) == ("healthy", "none")


def test_a_gpu_whose_driver_says_that_it_recovered_is_a_warning() -> None:
    found = kernel(XID_95, gpus=(gpu("none"),))
    assert verdict(found) == ("warning", "reset")
    assert found.reason.endswith(" UTC, and it recovered")
    assert verdict(kernel(XID_95, gpus=(gpu("reset"),))) == ("failure", "reset")


def test_the_last_recovery_action_counts() -> None:
    asked = (
        f"NVRM: Xid (PCI:{PCI}): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    )
    done = (
        f"NVRM: Xid (PCI:{PCI}): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    )
    assert verdict(kernel(asked)) == ("failure", "reset")
    assert verdict(kernel(asked, done)) == ("healthy", "none")
    assert verdict(kernel(asked, gpus=(gpu("none"),))) == ("healthy", "none")


@pytest.mark.parametrize(
    ("words", "action"),
    [
        ("None", "none"),
        ("Reset", "reset"),
        ("PF FLR", "reset"),
        ("Drain P2P", "reset"),
        ("Drain and Reset", "reset"),
        ("OS Reboot", "reboot"),
        ("Reboot", "reboot"),
    ],
)
def test_words_of_a_recovery(words: str, action: str) -> None:
    assert action_in(words) == action
    told = recovery_action(f"GPU recovery action changed from 0x0 (None) to 0x1 ({words})")
    assert told == (action, words)


def test_a_row_that_was_remapped_is_no_fault() -> None:
    line = f"NVRM: Xid (PCI:{PCI}): 63, pid=1, Row Remapper: New row marked for remapping"
    assert verdict(kernel(line, gpus=(gpu(pending=True),))) == ("warning", "reset")
    assert verdict(kernel(line, gpus=(gpu(pending=False),))) == ("healthy", "none")


def test_a_container_counts_what_is_said_of_its_own_gpus() -> None:
    disk = "[ 1.0] EXT4-fs (sda1): Remounting filesystem read-only"
    own = kernel(XID_95, disk, gpus=(gpu(),), contained=True)
    assert [each.check for each in own.findings] == ["xid"]
    assert kernel(XID_95, disk, gpus=(gpu(pci="0000:99:00"),), contained=True).findings == ()
    unknown = kernel(XID_95, contained=True)
    assert (unknown.findings, [each.check for each in unknown.skipped]) == ((), ["xid"])


def test_an_xid_that_nobody_knows_is_told() -> None:
    found = kernel(f"[ 5.0] NVRM: Xid (PCI:{PCI}): 999, something new")
    assert verdict(found) == ("warning", "none")
    assert found.reason.startswith(
        f"GPU at {PCI}: Xid 999, which is not in the table: something new at 2024-01-01"
    )


def test_a_fatal_line_is_told_though_a_mild_one_follows() -> None:
    fatal = f"NVRM: Xid (PCI:{PCI}): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x0)"
    mild = f"NVRM: Xid (PCI:{PCI}): 149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 00 (0x0)"
    assert verdict(kernel(fatal, mild)) == ("failure", "reset")
    assert verdict(kernel(mild, fatal)) == ("failure", "reset")
    assert verdict(kernel(mild, mild)) == ("warning", "none")


def test_an_amd_gpu_that_its_driver_reset_is_a_warning() -> None:
    fault = "amdgpu 0000:e3:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!"
    reset = "amdgpu 0000:e3:00.0: amdgpu: GPU reset(2) succeeded!"
    block = (
        "amdgpu 0000:e3:00.0: amdgpu: socket: 0, die: 0, 3 new uncorrectable hardware errors detected in umc"
    )
    mended = block.replace("uncorrectable", "correctable")
    assert verdict(kernel(fault)) == ("failure", "reboot")
    assert verdict(kernel(fault, reset)) == ("warning", "none")
    assert verdict(kernel(fault, reset, fault)) == ("failure", "reboot")
    assert verdict(kernel(block)) == ("failure", "reset")
    assert verdict(kernel(mended)) == ("healthy", "none")


def test_every_failure_in_the_table_says_what_helps() -> None:
    assert {
        rule.number for rule in XIDS.values() if rule.severity == "failure" and rule.action == "none"
    } == {154}
    assert all(rule.action == "none" for rule in XIDS.values() if rule.severity is None)


def test_a_log_that_cannot_be_read_is_told_as_skipped() -> None:
    closed = section("kernel", "dmesg: read kernel buffer failed: Operation not permitted", code=1)
    found = read_kernel(closed, (), Clocks(), contained=False, nvidia=True)
    assert found.findings == ()
    assert {each.check for each in found.skipped} == {"xid", "memory errors", "disk errors", "pcie errors"}
    assert "Operation not permitted" in found.skipped[0].why


@pytest.mark.parametrize(
    ("fields", "status", "action", "check"),
    [
        ({"ecc_errors__volatile__dram_uncorrectable": "2"}, "warning", "reset", "ecc"),
        (
            {"ecc_errors__volatile__dram_uncorrectable": "2", "gpu_recovery_action": "N/A"},
            "failure",
            "reset",
            "ecc",
        ),
        (
            {"ecc_errors__volatile__double_bit__device_memory": "1", "gpu_recovery_action": ""},
            "failure",
            "reset",
            "ecc",
        ),
        ({"ecc_errors__volatile__sram_uncorrectable_parity": "1"}, "warning", "reset", "ecc"),
        ({"ecc_errors__volatile__dram_correctable": "20000"}, "warning", "replace", "ecc"),
        ({"ecc_errors__volatile__dram_correctable": "20"}, "healthy", "none", ""),
        ({"ecc_errors__aggregate__dram_uncorrectable": "9"}, "healthy", "none", ""),
        ({"ecc_errors__aggregate__sram_threshold_exceeded": "Yes"}, "failure", "replace", "ecc"),
        ({"ecc_errors__unrepairable_memory": "Yes"}, "failure", "replace", "ecc"),
        ({"ecc_errors__channel_repair_pending": "Yes"}, "warning", "reset", "ecc"),
        ({"ecc_errors__tpc_repair_pending": "Yes"}, "warning", "reset", "ecc"),
        ({"remapped_rows__remapped_row_failure": "Yes"}, "failure", "replace", "remapped rows"),
        ({"retired_pages__pending_blacklist": "Yes"}, "warning", "reset", "retired pages"),
        ({"retired_pages__pending_retirement": "Yes"}, "warning", "reset", "retired pages"),
        (
            {"retired_pages__double_bit_retirement__retired_count": "64"},
            "failure",
            "replace",
            "retired pages",
        ),
        ({"gpu_recovery_action": "Reboot"}, "failure", "reboot", "gpu recovery"),
        ({"gpu_recovery_action": "Drain and Reset"}, "failure", "reset", "gpu recovery"),
        (
            {"gpu_recovery_action": "N/A", "reset_status__reset_required": "Yes"},
            "failure",
            "reset",
            "gpu recovery",
        ),
        (
            {"reset_status__reset_required": "Requested functionality has been deprecated"},
            "healthy",
            "none",
            "",
        ),
        (
            {
                "pci__pci_gpu_link_info__link_widths__max_link_width": "16x",
                "pci__pci_gpu_link_info__link_widths__current_link_width": "8x",
            },
            "warning",
            "reboot",
            "pcie",
        ),
        (
            {
                "pci__pci_gpu_link_info__link_widths__max_link_width": "16x",
                "pci__pci_gpu_link_info__link_widths__current_link_width": "1x",
            },
            "failure",
            "reboot",
            "pcie",
        ),
        (
            {
                "pci__pci_gpu_link_info__pcie_gen__max_link_gen": "5",
                "pci__pci_gpu_link_info__pcie_gen__current_link_gen": "1",
            },
            "healthy",
            "none",
            "",
        ),
        ({"pci__replay_counter": "40000"}, "warning", "none", "pcie"),
        ({"pci__replay_rollover_counter": "1"}, "warning", "none", "pcie"),
        (
            {
                "clocks_throttle_reasons__clocks_throttle_reason_hw_slowdown": "Active",
                "clocks_throttle_reasons__clocks_throttle_reason_hw_thermal_slowdown": "Active",
            },
            "warning",
            "none",
            "thermal",
        ),
        (
            {"clocks_event_reasons__clocks_event_reason_hw_power_brake_slowdown": "Active"},
            "warning",
            "none",
            "power",
        ),
        (
            {"temperature__gpu_temp": "91 C", "temperature__gpu_temp_slow_threshold": "90 C"},
            "warning",
            "none",
            "thermal",
        ),
        (
            {"temperature__gpu_temp_tlimit": "-3 C", "temperature__gpu_temp_slow_tlimit_threshold": "-2 C"},
            "warning",
            "none",
            "thermal",
        ),
        (
            {"temperature__memory_temp": "96 C", "temperature__gpu_temp_max_mem_threshold": "95 C"},
            "warning",
            "none",
            "thermal",
        ),
        ({"fabric__state": "In Progress", "fabric__status": "N/A"}, "failure", "reboot", "fabric"),
        ({"fabric__state": "Completed", "fabric__status": "Success"}, "healthy", "none", ""),
        ({"fabric__state": "Completed", "fabric__status": "Unknown Error"}, "failure", "reboot", "fabric"),
        ({"fabric__health__bandwidth": "Degraded"}, "warning", "reset", "fabric"),
        ({"fabric__health__summary": "Unhealthy"}, "failure", "reset", "fabric"),
        ({"product_name": "GPU is lost"}, "failure", "reboot", "gpu lost"),
        ({"power_state": "GPU requires reset"}, "failure", "reset", "gpu recovery"),
    ],
)
def test_fields_of_nvidia_smi(fields: dict[str, str], status: str, action: str, check: str) -> None:
    found = smi(**fields)
    assert verdict(found) == (status, action), found.findings
    assert [each.check for each in found.findings] == ([check] if check else [])
    assert all(each.part == f"GPU 0 ({PCI})" for each in found.findings)


def test_gpus_that_are_missing_hang_or_are_simulated() -> None:
    one = '<nvidia_smi_log><gpu id="00000000:5D:00.0"/></nvidia_smi_log>'
    found, gpus = read_smi(section("smi", one), 8, simulated=False)
    assert (found.reason, found.action) == ("node: the driver lists 1 of 8 GPUs", "reboot")
    assert [str(each) for each in gpus] == [f"GPU 0 ({PCI})"]
    for hangs in (Section("smi", "hung"), Section("smi", "done", 124), Section("smi", "done", 137)):
        assert verdict(read_smi(hangs, 1, simulated=False)[0]) == ("failure", "reboot")
    assert verdict(read_smi(Section("smi", "missing"), 1, simulated=False)[0]) == ("failure", "none")
    assert read_smi(Section("smi", "missing"), 1, simulated=True)[0].status == "healthy"
    odd = section("smi", "Segmentation fault", code=139)
    assert "exit code 139: Segmentation fault" in read_smi(odd, 1, simulated=False)[0].reason
    listed = section(
        "smi", "Unable to determine the device handle for GPU0: 0000:01:00.0: Unknown Error", one
    )
    assert verdict(read_smi(listed, 1, simulated=False)[0]) == ("failure", "reboot")


def test_entities_of_a_document_are_not_expanded() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa">]><nvidia_smi_log><gpu id="&a;"/></nvidia_smi_log>'
    found, gpus = read_smi(section("smi", bomb), 1, simulated=False)
    assert (found.status, gpus) == ("failure", ())


def test_nvlinks_of_bridged_cards_and_errors_of_links() -> None:
    empty = section("nvlink_errors", "")
    pcie = [
        "GPU 0: NVIDIA A100 80GB PCIe (UUID: GPU-1)",
        "Link 0: <inactive>",
        "GPU 1: NVIDIA A100 80GB PCIe",
    ]
    assert read_nvlink(section("nvlink", *pcie), empty, switched=False).findings == ()
    joined = [*pcie, "Link 0: 25 GB/s"]
    assert verdict(read_nvlink(section("nvlink", *joined), empty, switched=False)) == ("warning", "reset")
    up = section("nvlink", "GPU 0: NVIDIA H100 80GB HBM3", "Link 0: 26.562 GB/s")
    errors = section(
        "nvlink_errors",
        "GPU 0: NVIDIA H100 80GB HBM3",
        "Link 0: Replay Errors: 3",
        "Link 4: Recovery Errors: 1",
        "Link 5: CRC Errors: 7000",
    )
    found = read_nvlink(up, errors, switched=True)
    assert [(each.part, each.reason) for each in found.findings] == [
        ("GPU 0 link 4", "it was trained anew 1 times"),
        ("GPU 0 link 5", "7000 CRC errors"),
    ]
    assert read_nvlink(Section("nvlink", "done", 124), empty, switched=True).action == "reboot"


def test_dcgm_that_is_absent_or_late_and_what_its_errors_ask_for() -> None:
    away = "Error: unable to establish a connection to the specified host: localhost"
    for asked, words in (
        (read_watches(Section("dcgm_health", "missing")), "DCGM is not installed"),
        (read_watches(section("dcgm_health", away, code=255)), "host engine does not answer"),
        (read_watches(Section("dcgm_health", "hung")), "did not answer in time"),
        (read_diagnostic(section("dcgm_diag", "Segmentation fault", code=139)), "dcgmi fails: Segmentation"),
    ):
        assert asked.findings == ()
        assert words in asked.skipped[0].why
    assert verdict(read_diagnostic(Section("dcgm_diag", "hung"))) == ("failure", "reboot")

    errors = {"NVLINK system": {"value": "Failure", "overflow": ["GPU 0's NvLink link 0 is currently down"]}}
    watched = {"0": {"value": "Failure", "children": {"Errors": {"children": errors}}}}
    body = {"Overall Health": {"value": "Failure"}, "GPU": {"children": watched}}
    links = section("dcgm_health", json.dumps({"body": body}))
    assert read_watches(links).reason == "GPU 0: NVLINK: GPU 0's NvLink link 0 is currently down"
    assert read_watches(links, linked=False).findings == ()

    def diagnosed(severity: int) -> tuple[str, str]:
        result = {
            "entity_group": "GPU",
            "entity_id": 2,
            "status": "Fail",
            "warnings": [{"error_severity": severity, "warning": "memory is bad"}],
        }
        tests = [{"name": "memory", "results": [result]}]
        data = {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]}}
        return verdict(read_diagnostic(section("dcgm_diag", json.dumps(data))))

    assert [diagnosed(each) for each in (1, 2, 4, 5, 6)] == [
        ("warning", "none"),
        ("failure", "replace"),
        ("failure", "replace"),
        ("warning", "none"),
        ("failure", "reset"),
    ]


def port(name: str, state: str, physical: str = "5: LinkUp", rate: int = 400, **more: object) -> str:
    words = {"driver": "mlx5_core", "of": "pf", "downs": 0, "symbols": 0, **more}
    return (
        f"{name};1;{words['driver']};InfiniBand;{state};{physical};{rate} Gb/sec (4X NDR);"
        f"{words['of']};{words['downs']};{words['symbols']};MT4129"
    )


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (port("mlx5_1", "1: DOWN", "2: Polling"), "failure"),
        (port("mlx5_1", "2: INIT"), "failure"),
        (port("mlx5_1", "1: DOWN", "3: Disabled"), "healthy"),
        (port("mlx5_1", "1: DOWN", "2: Polling", of="vf"), "healthy"),
        (port("mlx5_1", "4: ACTIVE", rate=100), "warning"),
        (port("mlx5_1", "4: ACTIVE", downs=30), "warning"),
        (port("mlx5_1", "4: ACTIVE", symbols=5000), "warning"),
        (port("mlx5_1", "4: ACTIVE"), "healthy"),
    ],
)
def test_a_port_is_judged_by_its_like(line: str, status: str) -> None:
    found = read_fabric(section("rdma", port("mlx5_0", "4: ACTIVE"), line))
    assert found.status == status, found.findings
    assert all(each.part == "mlx5_1 port 1" for each in found.findings)


def test_ports_without_states() -> None:
    efa = read_fabric(section("rdma", ";".join(["rdmap16s27", "1", "efa", *[""] * 8])))
    assert (efa.findings, efa.skipped) == ((), (SkippedCheck("rdma", "EFA tells of no states"),))
    assert read_fabric(Section("rdma", "done")).skipped == (SkippedCheck("rdma", "no RDMA ports"),)


def test_memory_disks_and_the_clock() -> None:
    modules = read_memory_modules(
        section("edac", "mc0 CPU_SrcID#0_DIMM#1 ue 1 ce 0", "mc1 DIMM ue 0 ce 5000")
    )
    assert [(each.part, each.severity) for each in modules.findings] == [
        ("mc0 CPU_SrcID#0_DIMM#1", "failure"),
        ("mc1 DIMM", "warning"),
    ]
    disks = read_disks(
        section("df", "/ 91% 9000000", "/var/lib/docker 99% 1000", "/ read-only", "/tmp 50% 1")
    )
    assert [(each.check, each.severity) for each in disks.findings] == [
        ("disk errors", "failure"),
        ("disk space", "failure"),
        ("disk space", "warning"),
    ]
    image = read_disks(section("df", "/ 100% 0", "/var 10% 9000000", "/ image"))
    assert (image.findings, image.passed) == ((), ("disk space",))
    assert (
        read_memory(section("memory", "MemTotal: 1000000 kB", "MemAvailable: 10000 kB")).status == "warning"
    )
    for text, status in (
        ("NTPSynchronized=no", "warning"),
        ("Leap status     : Not synchronised", "warning"),
        ("System time     : 2.000000000 seconds slow of NTP time\nLeap status     : Normal", "warning"),
        ("System time     : 0.000000001 seconds slow of NTP time\nLeap status     : Normal", "healthy"),
        ("NTPSynchronized=yes", "healthy"),
    ):
        assert read_clock(section("clock", text)).status == status
    assert read_clock(section("clock", "")).skipped[0].check == "clock"


def test_a_report_survives_its_text() -> None:
    found = report(
        [Finding("a", "warning", "n", "x"), Finding("b", "failure", "g", "é\x1b[31m\nz", "reboot")],
        [SkippedCheck("c", "d")],
        ["e", "a"],
    )
    assert [each.check for each in found.findings] == ["b", "a"]
    assert found.reason == "g: é [31m z; and 1 more"
    assert found.passed == ("e",)
    assert HealthReport.from_json(found.to_json()) == found
    assert "\n" not in found.to_json()


def wrong(**fields: object) -> str:
    finding = {"check": "a", "severity": "failure", "part": "n", "reason": "r", "action": "none", **fields}
    return json.dumps({"findings": [finding]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        '{"findings": 1}',
        '{"findings": [{}]}',
        wrong(severity="grave"),
        wrong(action="explode"),
        wrong(check=1),
        wrong(reason=None),
        '{"passed": [1]}',
        "[" * 100_000,
        '{"more": "' + "x" * 2_000_000 + '"}',
    ],
)
def test_a_text_that_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(RunnerError, match="cannot be read"):
        HealthReport.from_json(text)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                (
                    *(
                        "body",
                        "GPU",
                        "children",
                        "0",
                        "Errors",
                        "value",
                        "overflow",
                        "Overall Health",
                        "gpu",
                        "ecc",
                    ),
                    *(
                        "DCGM Diagnostic",
                        "test_categories",
                        "tests",
                        "results",
                        "status",
                        "warnings",
                        "gpu_data",
                    ),
                    *("error_severity", "total_uncorrectable_count", "pcie", "replay_count", "temperature"),
                    *("device_info", "board_info", "bus_id", "telemetry", "limits", "pending", "un_res"),
                )
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)
NAMES = (
    *(
        "orch",
        "smi",
        "nvlink",
        "nvlink_errors",
        "dcgm_health",
        "dcgm_diag",
        "kernel",
        "amd_metric",
        "amd_pages",
    ),
    *("rocm", "ras", "gaudi", "tenstorrent", "rdma", "edac", "df", "mounts", "memory", "clock", "earlier"),
)


@given(
    st.dictionaries(
        st.sampled_from(NAMES), st.one_of(JSON.map(json.dumps), st.text(max_size=40)), max_size=8
    ),
    st.sampled_from(("nvidia", "amd", "intel", "tenstorrent")),
)
def test_whatever_a_node_prints_is_read_or_refused(texts: dict[str, str], vendor: str) -> None:
    lines = ["@orch done 1"]
    for name, text in texts.items():
        lines += [f"@{name} done 0", *(f"{name}|{line}" for line in text.splitlines())]
    node = NODE.model_copy(update={"gpus": Gpus(count=2, vendor=vendor)})
    with suppress(RunnerError):
        found = read(node, "\n".join(lines))
        assert HealthReport.from_json(found.to_json()) == found


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**400, "9" * 500, [1], {"value": {}}])
def test_odd_numbers_are_no_numbers(value: object) -> None:
    assert number(value) is None


def test_times_that_no_calendar_has_are_left_out() -> None:
    found = kernel(f"[999999999999.9] NVRM: Xid (PCI:{PCI}): 79, x")
    assert found.reason == f"GPU at {PCI}: Xid 79: the GPU has fallen off the bus"


def test_a_report_is_bounded() -> None:
    many = [
        {"check": "a", "severity": "warning", "part": str(at), "reason": "x" * 400, "action": "none"}
        for at in range(3 * MOST)
    ]
    found = HealthReport.from_json(json.dumps({"findings": many, "more": {}}))
    assert len(found.findings) == MOST
    assert all(len(each.reason) <= LONGEST for each in found.findings)
    assert "left out" in found.findings[-1].reason


def test_a_node_that_does_not_answer_or_is_being_looked_at() -> None:
    for text in ("", "bash: sudo: command not found", "smi|@orch done 1"):
        with pytest.raises(RunnerError, match="does not tell its health"):
            read(NODE, text)
    with pytest.raises(RunConflict, match="another look"):
        read(NODE, "@earlier done 0\n")
    hangs = read(NODE, "@earlier hung 0\nearlier|smi\n")
    assert (verdict(hangs), hangs.reason) == (
        ("failure", "reboot"),
        "node: an earlier look hangs, and cannot be ended: smi",
    )


def test_a_tool_cannot_speak_for_another() -> None:
    lines = (
        "@orch done 1",
        "@smi done 0",
        "smi|@kernel done 0",
        "smi|kernel|NVRM: Xid (PCI:0000:01:00): 79, x",
    )
    assert "xid" not in {each.check for each in read(NODE, "\n".join(lines)).findings}


def test_a_container_tells_what_it_skips() -> None:
    found = read(NODE, "@orch done 1\norch|contained 1\norch|simulated 1\n@smi missing 0\n")
    assert found.findings == ()
    assert set(SHARED) | {"gpus"} <= {each.check for each in found.skipped}


def test_what_is_asked_depends_on_the_vendor_and_the_depth() -> None:
    access = OtherAccess(kind="pod")
    light = command(NODE, depth="light")
    deep = command(NODE, depth="dcgm")
    assert "dcgmi diag" not in light.text
    assert "dcgmi diag -r 2 -j" in deep.text
    assert (light.timeout_s or 0) < 90 < (deep.timeout_s or 0)
    for vendor, tool in (("amd", "amd-smi"), ("intel", "hl-smi"), ("tenstorrent", "tt-smi")):
        asked = command(NODE.model_copy(update={"gpus": Gpus(count=8, vendor=vendor)}), depth="dcgm")
        assert tool in asked.text
        assert "nvidia-smi" not in asked.text
        assert asked.timeout_s == light.timeout_s
    pod = NodeState(index=0, name="p", access=access, runtime="process", gpus=Gpus(count=1))
    assert "contained=1\nif" not in command(pod, depth="light").text
    none = command(NODE.model_copy(update={"gpus": Gpus()}), depth="light")
    assert "smi" not in none.text


def test_a_process_that_is_called_like_a_fault_is_none() -> None:
    text = (
        f'<nvidia_smi_log><gpu id="00000000:{PCI[5:]}.0"><gpu_recovery_action>None</gpu_recovery_action>'
        "<processes><process_info><process_name>{}</process_name></process_info></processes></gpu></nvidia_smi_log>"
    )
    for name in ("GPU is lost", "GPU requires reset", "Unknown Error"):
        assert read_smi(section("smi", text.format(name)), 1, simulated=False)[0].findings == ()
    lost = "<product_name>GPU is lost</product_name></gpu>"
    for place in (f"00000000:{PCI[5:]}.0", "00000000:99:00.0"):
        name = f'x</process_name></process_info></processes></gpu><gpu id="{place}">{lost}'
        name += '<gpu id="1"><processes>'
        forged = text.replace("<gpu id", "<attached_gpus>1</attached_gpus><gpu id", 1).format(
            f"{name}<process_info><process_name>"
        )
        found = read_smi(section("smi", forged), 1, simulated=False)[0]
        assert [(each.check, each.severity, each.action) for each in found.findings] == [
            ("driver", "warning", "none")
        ]
