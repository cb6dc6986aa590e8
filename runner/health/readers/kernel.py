"""What the kernel's log tells: of GPUs, of memory, of disks. Pure.

Which records count: those that begin with the kernel's own words (see `records`). The log begins with the
boot, so what a reboot mends is not in it. A fault of an NVIDIA GPU that a reset mends is over when one of
these came after it: the driver was loaded again (it tells so in the log), `orch` reset the GPUs (it leaves
a file whose time is known), or the driver itself says now that the GPU needs no recovery
(`gpu_recovery_action`, since driver 560). In the last case it stays a warning, since it happened to a
running job; in the others nothing stays. Xid 154 counts by its last record alone. What only a reboot mends
(Xid 79) stays, unless the driver was loaded again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from orch.runner.health.findings import HealthReport, ReportBuilder, Severity
from orch.runner.health.readers.nvidia import GpuHealth
from orch.runner.health.readers.records import KernelRecord, kernel_records
from orch.runner.health.readers.sections import Section
from orch.runner.health.readers.xids import (
    NVLINK5,
    RECOVERY,
    XIDS,
    Action,
    Xid,
    recovery_action,
    short_pci,
    xid_in,
)

CORRECTED_MOST = 100
"""Corrected errors of the machine's memory that the kernel told; ours."""
IO_ERRORS_MOST = 10
"""I/O errors of a disk after which it is no longer trusted; ours."""

_PCI = r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)"
_DRIVER = re.compile(r"NVRM: loading NVIDIA UNIX")
_SWITCH = re.compile(r"nvidia-nvswitch(\d+): SXid \(PCI:([0-9A-Fa-f:.]+)\): (\d+), ?(.*)")

_AT = "[0-9a-f:.]{12,16}"
STARTS = "|".join(
    (
        *(
            r"NVRM: Xid \((PCI:)?[0-9A-Fa-f]{4,8}:",
            "NVRM: loading NVIDIA UNIX",
            "NVRM: The NVIDIA GPU [0-9a-f]",
        ),
        *("NVRM: fallen off the bus", f"NVRM: GPU {_AT}: RmInitAdapter failed"),
        *(r"nvidia-nvswitch[0-9]+: SXid \(PCI:", f"amdgpu {_AT}: .*(rror|reset|lost)"),
        rf"habanalabs ({_AT}: |hl[0-9]+: ([A-Z]|device )).*(NOT usable|disabled|ECC)",
        r"EDAC MC[0-9]+: [0-9]+ (UE|CE) [^][():]*on [^][():]+ \(",
        r"(EDAC [^ ]+ MC[0-9]+: )?(mce: )?(\[Hardware Error\]: )?CPU [0-9]+: Machine Check.*: [0-9a-f]+ Ban",
        *("Memory failure: 0x[0-9a-f]", r"(\{[0-9]+\})?\[Hardware Error\]: event severity: "),
        f"[0-9A-Za-z_-]+ {_AT}: (AER: )?(Multiple )?(Uncorrect|PCIe Bus Error: severity=Unc)",
        *(r"EXT4-fs error \(device ", r"EXT[34]-fs \([^ )]+\): (error: )?[Rr]emounting filesystem read-only"),
        r"BTRFS [a-z]+ \(device [^)]+\): forced read-?only",
        r"XFS \([^ )]+\): (Filesystem has been shut|User initiated shut|xfs_do_force_shutdown\()",
        r"XFS \([^ )]+\): (Corruption (of|detected)|Metadata corruption detected)",
        r"XFS \([^ )]+\): (Log |Metadata |log |metadata )?I/O [Ee]rror.*[Ss]hut",
        r"((blk_update_request|print_req_error|end_request): )?"
        r"(I/O|critical (medium|target)) error, dev [^ ,]+, sector [0-9]",
        "nvme nvme[0-9]+: (Removing after probe failure|Disabling device after reset failure)",
        "nvme nvme[0-9]+: (Device not ready; aborting|controller is down; will reset)",
    )
)
"""How the records begin that may matter, as `grep -E` reads it: a node sends no others. Each is longer than
the name of a process can be, so that jobs cannot push other records out of the answer either."""


@dataclass(frozen=True)
class Clocks:
    """When the node booted, as seconds since 1970, and when its GPUs were last reset, as seconds since the
    boot; None for what is not known."""

    booted: float | None = None
    reset_s: float | None = None

    def when(self, at_s: float | None) -> str:
        if at_s is None or self.booted is None or not (0 < self.booted < 1e11 and at_s < 1e10):
            return ""
        return f" at {datetime.fromtimestamp(self.booted + at_s, timezone.utc):%Y-%m-%d %H:%M} UTC"


def read_kernel(
    section: Section, gpus: Sequence[GpuHealth], clocks: Clocks, *, contained: bool, nvidia: bool
) -> HealthReport:
    """What the kernel's log tells of a node.

    `contained`: the log is that of the machine around the node, of which only what is said of its own GPUs
    counts. `nvidia`: it has NVIDIA's GPUs.
    """
    notes = ReportBuilder()
    checks = (("xid",) if nvidia else ()) + (
        () if contained else ("memory errors", "disk errors", "pcie errors")
    )
    if section.state != "done" or section.code:
        why = section.first_words or "dmesg did not answer"
        for check in checks:
            notes.skip(check, f"the kernel's log cannot be read: {why}")
        return notes.report()
    lines = kernel_records(section.lines)
    if nvidia:
        if contained and not gpus:
            notes.skip("xid", "which GPUs are the node's own is not known, and the log is the machine's")
        else:
            notes.made("xid")
            _judge_xids(lines, gpus, clocks, own_only=contained, notes=notes)
        if not contained:
            _judge_starts(lines, gpus, notes)
            _judge_switches(lines, notes)
    if contained:
        return notes.report()
    notes.made(*(check for check in checks if check != "xid"))
    _judge_others(lines, notes)
    _judge_memory(lines, notes)
    _judge_disks(lines, notes)
    return notes.report()


@dataclass
class _Told:
    many: int
    at_s: float | None
    text: str


def _judge_xids(
    lines: Sequence[KernelRecord],
    gpus: Sequence[GpuHealth],
    clocks: Clocks,
    *,
    own_only: bool,
    notes: ReportBuilder,
) -> None:
    by_pci = {gpu.pci: gpu for gpu in gpus}
    told: dict[Xid, _Told] = {}
    for line in lines:
        if _DRIVER.match(line.text):
            told.clear()
            continue
        found = xid_in(line.text)
        if found is None or (own_only and found[0].pci not in by_pci):
            continue
        xid, text = found
        # What is fatal of a kind that has both is told, whatever comes after it.
        former = told.get(xid)
        if former is not None and xid.number in NVLINK5 and not _mild(text) < _mild(former.text):
            text = former.text if not _mild(former.text) else text
        told[xid] = _Told((former.many if former else 0) + 1, line.at_s, text)
    for xid, last in told.items():
        _judge_xid(xid, last, by_pci.get(xid.pci), clocks, notes)


_FATAL = re.compile(r"(non-?)?fatal", re.IGNORECASE)


def _mild(text: str) -> bool:
    """Return whether the driver calls a fault not fatal. Its last word on that counts: the name of a process
    stands before it."""
    said = _FATAL.findall(text)
    return bool(said and said[-1])


def _judge_xid(xid: Xid, last: _Told, gpu: GpuHealth | None, clocks: Clocks, notes: ReportBuilder) -> None:
    part = str(gpu) if gpu is not None else f"GPU at {xid.pci}"
    tail = f"{f', {last.many} times, last' if last.many > 1 else ''}{clocks.when(last.at_s)}"
    rule = XIDS.get(xid.number)
    if rule is None:
        notes.warn("xid", part, f"Xid {xid.number}, which is not in the table: {last.text[:80]}{tail}")
        return
    severity: Severity | None = rule.severity
    action, reason = rule.action, f"Xid {xid.number}: {rule.title}"
    if xid.number == RECOVERY:
        asked = recovery_action(last.text)
        if asked is None or asked[0] == "none":
            return
        action, reason = asked[0], f"Xid {xid.number}: the GPU asks for {asked[1]}"
    elif xid.number in NVLINK5 and _mild(last.text):
        severity, action = "warning", "none"
    if severity is None:
        return
    if action == "reset":
        if last.at_s is not None and clocks.reset_s is not None and last.at_s < clocks.reset_s:
            return
        if xid.number == 63 and gpu is not None and gpu.remap_pending is False:
            return
        if gpu is not None and gpu.recovery == "none":
            if xid.number == RECOVERY:
                return
            if severity == "failure":
                severity, tail = "warning", f"{tail}, and it recovered"
    note = notes.fail if severity == "failure" else notes.warn
    note("xid", part, f"{reason}{tail}", action)


def _judge_switches(lines: Sequence[KernelRecord], notes: ReportBuilder) -> None:
    """Of NVSwitches only what they call fatal: of the others NVIDIA says that nothing is to be done, and some
    come whenever links train (NVIDIA Fabric Manager User Guide, "NVSwitch SXid Errors")."""
    for line in lines:
        found = _SWITCH.match(line.text)
        if found is not None and found[4].lower().startswith("fatal"):
            part = f"NVSwitch {found[1]} ({short_pci(found[2])})"
            notes.fail("xid", part, f"SXid {found[3]}: {found[4].partition(', ')[2][:60]}", "reboot")


_OFF_THE_BUS = "NVRM: fallen off the bus and is not responding"
_LISTED = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-f:.]+)")
_NOT_STARTED = re.compile(r"NVRM: GPU ([0-9a-f:.]+): RmInitAdapter failed")


def _judge_starts(lines: Sequence[KernelRecord], gpus: Sequence[GpuHealth], notes: ReportBuilder) -> None:
    """GPUs that the driver could not start. Those that it lists now were started in the end."""
    running = {gpu.pci for gpu in gpus}
    last = ""
    for line in lines:
        if (listed := _LISTED.match(line.text)) is not None:
            last = short_pci(listed[1])
        failed = _NOT_STARTED.match(line.text)
        if failed is not None and short_pci(failed[1]) not in running:
            part = f"GPU at {short_pci(failed[1])}"
            notes.fail("gpu lost", part, "its driver cannot start it (RmInitAdapter failed)", "reboot")
        elif line.text.startswith(_OFF_THE_BUS) and last not in running:
            notes.fail(
                "gpu lost", f"GPU at {last}" if last else "node", "it has fallen off the bus", "reboot"
            )


_AMD, _GAUDI = rf"amdgpu {_PCI}: .*?", rf"habanalabs (?:{_PCI}: |hl\d+: (?=(?-i:[A-Z])|device )).*?"


@dataclass(frozen=True)
class _Fault:
    """A fault that a record begins with. `action`: what helps."""

    record: re.Pattern[str]
    check: str
    reason: str
    action: Action


def _fault(record: str, check: str, reason: str, action: Action) -> _Fault:
    return _Fault(re.compile(record, re.IGNORECASE), check, reason, action)


# Of other vendors' drivers and of PCIe.
_FAULTS = (
    _fault(
        rf"{_AMD}uncorrectable hardware error\(\w+\) detected",
        *("amd", "uncorrectable hardware error", "reboot"),
    ),
    _fault(
        rf"{_AMD}[1-9]\d* (?:new )?uncorrectable hardware errors detected",
        *("amd", "uncorrectable hardware errors", "reset"),
    ),
    _fault(rf"{_AMD}GPU reset(?:\(\d+\))? failed", "amd", "its reset failed", "reboot"),
    _fault(
        rf"{_AMD}(?:Fatal error during GPU init|device lost from bus)",
        *("amd", "its driver cannot start it", "reboot"),
    ),
    _fault(
        rf"{_GAUDI}(?:Device is NOT usable|device is disabled)",
        *("gaudi", "its driver cannot use it", "reboot"),
    ),
    _fault(
        rf"{_GAUDI}(?:(?:uncorrectable|double).*ECC|ECC.*derr)", "gaudi", "uncorrectable ECC error", "reset"
    ),
    _fault(
        rf"[\w-]+ {_PCI}: (?:AER: )?(?:(?:Multiple )?Uncorrect(?:ed|able) \(Fatal\) error|"
        r"PCIe Bus Error: severity=Uncorrect(?:ed|able) \(Fatal\))",
        *("pcie errors", "uncorrected fatal PCIe error", "reboot"),
    ),
)


_RECOVERED = re.compile(rf"{_AMD}GPU reset(?:\(\d+\))? succeeded", re.IGNORECASE)


def _judge_others(lines: Sequence[KernelRecord], notes: ReportBuilder) -> None:
    """What is said of a part, each kind once. A fault of an AMD GPU that its driver has reset since is a
    warning."""
    told: dict[tuple[str, str, str], tuple[Severity, Action, str]] = {}
    for line in lines:
        if (mended := _RECOVERED.match(line.text)) is not None:
            place = short_pci(mended[1])
            for key in [key for key in told if key[:2] == ("amd", place)]:
                told[key] = ("warning", "none", ", and it recovered")
        for fault in _FAULTS:
            if (found := fault.record.match(line.text)) is not None:
                part = short_pci(found[1]) if found[1] else "node"
                told[fault.check, part, fault.reason] = ("failure", fault.action, "")
                break
    for (check, part, reason), (severity, action, more) in told.items():
        note = notes.fail if severity == "failure" else notes.warn
        note(check, part, f"{reason}{more}", action)


# A process may be called `EDAC MC0: 1 UE `: what the kernel writes after a name has brackets or a colon.
_EDAC = re.compile(r"EDAC MC\d+: (\d{1,9}) (UE|CE) [^\]\[():]*?\bon ([^\]\[():]+) \(")
_MACHINE_CHECK = re.compile(
    r"(?:EDAC \S+ MC\d+: )?(?:mce: )?(?:\[Hardware Error\]: )?"
    r"CPU (\d+): Machine Check(?: Exception| Event)?: \w+ Bank (\d+): ([0-9a-f]{16})"
)
_BAD_PAGE = re.compile(r"Memory failure: 0x[0-9a-f]+:")
_FIRMWARE = re.compile(r"(?:\{\d+\})?\[Hardware Error\]: event severity: (fatal|recoverable)")
_UNCORRECTED, _STATE_LOST = 1 << 61, 1 << 57
_LEFT_OVER_S = 10.0
"""What a processor tells so soon after the boot it kept from before."""


def _judge_memory(lines: Sequence[KernelRecord], notes: ReportBuilder) -> None:
    """EDAC's and the processor's words on memory. Of a machine check's status, bit 61 says that it was not
    corrected, and bit 57 that the processor's state is lost (Intel SDM 3B, 17.3.2.2)."""
    corrected: dict[str, int] = {}
    checks: dict[str, int] = {}
    for line in lines:
        if (edac := _EDAC.match(line.text)) is not None:
            if edac[2] == "UE":
                notes.fail("memory errors", edac[3], "uncorrected memory error", "replace")
            else:
                corrected[edac[3]] = corrected.get(edac[3], 0) + int(edac[1])
        elif (check := _MACHINE_CHECK.match(line.text)) is not None:
            part = f"CPU {check[1]} bank {check[2]}"
            if line.at_s is not None and line.at_s < _LEFT_OVER_S:
                notes.warn("memory errors", part, "machine check from before the boot")
            elif int(check[3], 16) & (_UNCORRECTED | _STATE_LOST):
                notes.fail("memory errors", part, "machine check that was not corrected", "replace")
            else:
                checks[part] = checks.get(part, 0) + 1
        elif _BAD_PAGE.match(line.text):
            notes.warn("memory errors", "node", "the kernel took a page of bad memory out of use", "reboot")
        elif _FIRMWARE.match(line.text):
            notes.fail("memory errors", "node", "the firmware tells of a hardware error", "replace")
    for part, many in corrected.items():
        if many >= CORRECTED_MOST:
            notes.warn("memory errors", part, f"{many} corrected memory errors", "replace")
    for part, many in checks.items():
        notes.warn("memory errors", part, f"{many} corrected machine check{'s' if many > 1 else ''}")


_READ_ONLY = re.compile(
    r"EXT[34]-fs \(([\w-]+)\): (?:error: )?[Rr]emounting filesystem read-only"
    r"|BTRFS [a-z]+ \(device ([\w-]+)[^)]*\): forced read-?only"
)
_SHUT_DOWN = re.compile(
    r"XFS \(([\w-]+)\): (?:Filesystem has been shut down|User initiated shutdown|xfs_do_force_shutdown\(|"
    r"Corruption (?:of|detected)|Metadata corruption detected|"
    r"(?:Log |Metadata |log |metadata )?I/O [Ee]rror.*[Ss]hut ?(?:down|ting down))"
)
_EXT_ERROR = re.compile(r"EXT4-fs error \(device ([\w-]+)\)")
_IO_ERROR = re.compile(
    r"(?:(?:blk_update_request|print_req_error|end_request): )?"
    r"(?:I/O|critical (?:medium|target)) error, dev ([\w-]+), sector \d"
)
_NVME_GONE = re.compile(
    r"nvme (nvme\d+): (?:Removing after probe failure|Disabling device after reset failure|"
    r"Device not ready; aborting)"
)
_NVME_DOWN = re.compile(r"nvme (nvme\d+): controller is down; will reset")
# No disks of a cluster: loop devices, floppies, optical drives, RAM disks, and what a client maps for a user.
_NO_DISK = re.compile(r"(?:loop|fd|sr|ram|nbd)\d")


def _judge_disks(lines: Sequence[KernelRecord], notes: ReportBuilder) -> None:
    errors: dict[str, int] = {}
    for line in lines:
        text = line.text
        if (found := _READ_ONLY.match(text)) is not None and not _NO_DISK.match(found[1] or found[2]):
            disk = found[1] or found[2]
            notes.fail("disk errors", disk, "its file system was made read-only after an error", "reboot")
        elif (found := _SHUT_DOWN.match(text)) is not None and not _NO_DISK.match(found[1]):
            notes.fail("disk errors", found[1], "its file system was shut down after an error", "reboot")
        elif (found := _EXT_ERROR.match(text)) is not None and not _NO_DISK.match(found[1]):
            notes.warn("disk errors", found[1], "errors in its file system", "reboot")
        elif (found := _NVME_GONE.match(text)) is not None:
            notes.fail("disk errors", found[1], "the disk is gone: its controller does not start", "replace")
        elif (found := _NVME_DOWN.match(text)) is not None:
            notes.warn("disk errors", found[1], "the disk's controller was reset", "reboot")
        elif (found := _IO_ERROR.match(text)) is not None and not _NO_DISK.match(found[1]):
            errors[found[1]] = errors.get(found[1], 0) + 1
    for disk, many in errors.items():
        if many >= IO_ERRORS_MOST:
            notes.fail("disk errors", disk, f"{many} I/O errors", "replace")
        else:
            notes.warn("disk errors", disk, f"{many} I/O error{'s' if many > 1 else ''}", "replace")
