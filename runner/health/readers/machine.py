"""What the kernel's files and the clock's tools tell of a machine: memory, disks, the clock. Pure."""

from __future__ import annotations

import re

from orch.runner.health.findings import HealthReport, ReportBuilder
from orch.runner.health.readers.sections import Section

CORRECTED_MOST = 1_000
"""Corrected errors of a memory module since the boot; ours."""
DISK_WARN, DISK_FAIL = 90, 98
"""Percent of a file system in use; ours. Docker and the runs of `orch` stop where there is no room."""
MEMORY_WARN = 5
"""Percent of the memory that is available; ours."""
OFFSET_MOST_S = 0.5
"""How far the clock may be off; ours."""

_EDAC = re.compile(r"(\S.*?) ue (\d{1,18}) ce (\d{1,18})$")
_DISK = re.compile(r"(/\S*) (\d{1,3})% (\d{1,20})$")
_MEMORY = re.compile(r"(MemTotal|MemAvailable): *(\d{1,18}) kB$")
_OFFSET = re.compile(r"System time\s*:\s*(\d{1,12}\.\d+) seconds (fast|slow) of NTP time")


def read_memory_modules(section: Section) -> HealthReport:
    """Errors that EDAC counted: lines `LABEL ue N ce N`."""
    notes = ReportBuilder()
    modules = [found for line in section.lines if (found := _EDAC.match(line)) is not None]
    if not modules:
        notes.skip("memory modules", "EDAC tells of no memory modules")
        return notes.report()
    notes.made("memory modules")
    for module in modules:
        bad, mended = int(module[2]), int(module[3])
        if bad:
            notes.fail("memory modules", module[1], f"{bad} uncorrected memory errors", "replace")
        if mended >= CORRECTED_MOST:
            notes.warn("memory modules", module[1], f"{mended} corrected memory errors", "replace")
    return notes.report()


def read_disks(section: Section) -> HealthReport:
    """Room and mode of the node's file systems: lines `PATH USED% FREE-KIB`, `PATH read-only`, and
    `PATH image` for one that is read-only by design."""
    notes = ReportBuilder()
    images = {line.removesuffix(" image") for line in section.lines if line.endswith(" image")}
    seen = False
    for line in section.lines:
        path, _, rest = line.partition(" ")
        if rest == "read-only" and path.startswith("/"):
            notes.fail("disk errors", path, "its file system is read-only", "reboot")
        elif (found := _DISK.match(line)) is not None and found[1] not in images:
            seen = True
            used, free = int(found[2]), int(found[3]) / (1 << 20)
            reason = f"{used} % of the disk is in use, {free:.1f} GiB are free"
            if used >= DISK_FAIL:
                notes.fail("disk space", found[1], reason)
            elif used >= DISK_WARN:
                notes.warn("disk space", found[1], reason)
    if seen:
        notes.made("disk space")
    else:
        notes.skip("disk space", "df tells nothing")
    return notes.report()


def read_memory(section: Section) -> HealthReport:
    """How much memory is left: lines of /proc/meminfo."""
    notes = ReportBuilder()
    told = {found[1]: int(found[2]) for line in section.lines if (found := _MEMORY.match(line)) is not None}
    total, available = told.get("MemTotal"), told.get("MemAvailable")
    if not total or available is None:
        notes.skip("memory", "the kernel tells nothing of it")
        return notes.report()
    notes.made("memory")
    if available * 100 < total * MEMORY_WARN:
        left = f"{available / (1 << 20):.1f} of {total / (1 << 20):.1f} GiB"
        notes.warn("memory", "node", f"{left} of memory are available")
    return notes.report()


def read_clock(section: Section) -> HealthReport:
    """Whether the clock is synchronized: `NTPSynchronized=yes` of timedatectl, or `chronyc tracking`."""
    notes = ReportBuilder()
    text = section.text
    offset = _OFFSET.search(text)
    if "NTPSynchronized=yes" in text or re.search(r"Leap status\s*: Normal", text):
        notes.made("clock")
        if offset is not None and float(offset[1]) > OFFSET_MOST_S:
            notes.warn("clock", "node", f"the clock is {float(offset[1]):.3f} s {offset[2]}")
    elif "NTPSynchronized=no" in text or re.search(r"Leap status\s*: Not synchroni[sz]ed", text):
        notes.made("clock")
        notes.warn("clock", "node", "the clock is not synchronized")
    else:
        notes.skip("clock", "neither timedatectl nor chronyc tells of it")
    return notes.report()
