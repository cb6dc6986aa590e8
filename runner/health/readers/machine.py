"""What the kernel's files and the clock's tools tell of a machine: memory, disks, clock, RDMA ports. Pure.

No tool tells which RDMA ports (InfiniBand, RoCE) a machine should have connected, so ports are judged by
their like: a port that is down is at fault where it was up since the driver was loaded, or where most of its
kind are up. One that is switched off, or belongs to a virtual function, is not. EFA has none of these states:
its devices are counted by `orch check`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from orch.runner.health.findings import HealthReport, ReportBuilder
from orch.runner.health.readers.sections import Section, number

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


DOWNS_MOST = 10
"""How often a link may have gone down since the driver was loaded; ours."""
SYMBOL_ERRORS_MOST = 1_000
"""Errors of symbols since the driver was loaded; ours."""


@dataclass(frozen=True)
class RdmaPort:
    """A port. `link`: `InfiniBand` or `Ethernet`; `rate`: in Gbit/s; `downs`: how often it went down."""

    device: str
    port: str
    driver: str
    link: str
    state: str
    physical: str
    rate: float | None
    virtual: bool
    downs: int
    symbol_errors: int
    kind: str

    def __str__(self) -> str:
        return f"{self.device} port {self.port}"

    @property
    def up(self) -> bool:
        return "ACTIVE" in self.state

    @property
    def off(self) -> bool:
        return "Disabled" in self.physical


def read_fabric(section: Section) -> HealthReport:
    """The health of a node's RDMA ports."""
    notes = ReportBuilder()
    ports = tuple(_ports(section.lines))
    judged = [port for port in ports if port.driver != "efa" and not port.virtual and port.state]
    if not judged:
        why = "EFA tells of no states" if any(port.driver == "efa" for port in ports) else "no RDMA ports"
        notes.skip("rdma", why)
        return notes.report()
    notes.made("rdma")
    for port in judged:
        like = [each for each in judged if (each.kind, each.link) == (port.kind, port.link)]
        _judge_port(port, like, notes)
    return notes.report()


def _judge_port(port: RdmaPort, like: list[RdmaPort], notes: ReportBuilder) -> None:
    if not port.up:
        if port.off and not port.downs:
            return
        reason = f"the port is {_state_word(port.state)} ({_state_word(port.physical)})"
        most_up = len(like) > 1 and 2 * sum(each.up for each in like) >= len(like)
        # Drivers count one while they start.
        (notes.fail if most_up or port.downs > 1 else notes.warn)("rdma", str(port), reason, "reboot")
        return
    full = max((each.rate or 0.0 for each in like if each.up), default=0.0)
    if port.rate and port.rate < full:
        reason = f"the port runs at {port.rate:g} of {full:g} Gbit/s"
        notes.warn("rdma", str(port), reason, "reboot")
    if port.downs >= DOWNS_MOST:
        notes.warn("rdma", str(port), f"the link went down {port.downs} times")
    if port.symbol_errors >= SYMBOL_ERRORS_MOST:
        notes.warn("rdma", str(port), f"{port.symbol_errors} errors of symbols on the link")


def _ports(lines: Iterable[str]) -> Iterable[RdmaPort]:
    """Lines of eleven fields with semicolons between, as node-health.sh.j2 makes them."""
    for line in lines:
        cells = [cell.strip() for cell in line.split(";")]
        if len(cells) == 11 and cells[0]:
            yield RdmaPort(
                *cells[:6],
                rate=number(cells[6]),
                virtual=cells[7] == "vf",
                downs=int(number(cells[8]) or 0),
                symbol_errors=int(number(cells[9]) or 0),
                kind=cells[10],
            )


def _state_word(state: str) -> str:
    """`ACTIVE` of `4: ACTIVE`."""
    return state.partition(":")[2].strip() or state
