"""What `nvidia-smi nvlink -s` and `-e` tell of NVLinks. Pure.

GPUs on PCIe cards have links only where a bridge joins them, which no tool tells: a node without any active
link says nothing, and links of theirs that are down are a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from orch.runner.health.findings import HealthReport, ReportBuilder
from orch.runner.health.readers.sections import Section

ERRORS_MOST = 100
"""CRC and replay errors of a link since the driver was loaded; ours. The link mends them, at a low rate they
are normal. A recovery trains the link anew, which is not."""

_GPU = re.compile(r"GPU (\d+): (.*?)(?: \(UUID: .*)?$")
_LINK = re.compile(r"\s*Link (\d+): (.+)")
_ERRORS = re.compile(r"(Replay|Recovery|CRC(?: FLIT| Data)?) Errors?: (\d{1,20})$", re.IGNORECASE)
# Boards whose GPUs are all joined: SXM, and what has no other form.
_BOARD = re.compile(r"SXM|HBM3$|HBM3e?\b|\bH[12]00$|\bB[23]00\b|\bGB[23]00\b|\bGH200\b")


@dataclass
class _Gpu:
    index: int
    name: str
    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    none: bool = False

    def __str__(self) -> str:
        return f"GPU {self.index}"


def read_nvlink(status: Section, errors: Section, *, switched: bool) -> HealthReport:
    """The health of NVLinks. `switched`: NVSwitches join the GPUs."""
    notes = ReportBuilder()
    for section in (status, errors):
        if section.hung:
            notes.fail("nvlink", "node", "nvidia-smi did not answer about NVLinks", "reboot")
            return notes.report()
    gpus = _statuses(status.lines)
    if not any(gpu.up or gpu.down or gpu.none for gpu in gpus):
        notes.skip("nvlink", "the GPUs tell of no NVLinks")
        return notes.report()
    if not switched and not any(gpu.up for gpu in gpus):
        notes.skip("nvlink", "no NVLink is active: the GPUs may not be joined")
        return notes.report()
    notes.made("nvlink")
    for gpu in gpus:
        if not (gpu.down or gpu.none):
            continue
        links = ", ".join(map(str, gpu.down))
        reason = f"NVLink {links} of {len(gpu.up) + len(gpu.down)} is down"
        if not gpu.up:
            reason = "all its NVLinks are down"
        board = switched or _BOARD.search(gpu.name)
        (notes.fail if board else notes.warn)("nvlink", str(gpu), reason, "reset")
    for gpu, link, kind, many in _errors(errors.lines):
        if kind == "recovery" and many:
            notes.warn("nvlink", f"GPU {gpu} link {link}", f"it was trained anew {many} times", "reset")
        elif many >= ERRORS_MOST:
            notes.warn("nvlink", f"GPU {gpu} link {link}", f"{many} {kind} errors", "reset")
    return notes.report()


def _statuses(lines: Iterable[str]) -> tuple[_Gpu, ...]:
    gpus: list[_Gpu] = []
    for line in lines:
        if (found := _GPU.match(line.strip())) is not None:
            gpus.append(_Gpu(int(found[1]), found[2]))
        elif gpus and (link := _LINK.match(line)) is not None:
            down = "inactive" in link[2].lower()
            (gpus[-1].down if down else gpus[-1].up).append(int(link[1]))
        elif gpus and "all links are inactive" in line.lower():
            gpus[-1].none = True
    return tuple(gpus)


def _errors(lines: Iterable[str]) -> Iterable[tuple[int, int, str, int]]:
    gpu = 0
    for line in lines:
        if (found := _GPU.match(line.strip())) is not None:
            gpu = int(found[1])
        elif (link := _LINK.match(line)) is not None and (
            error := _ERRORS.match(link[2].strip())
        ) is not None:
            kind = error[1].lower()
            yield gpu, int(link[1]), kind.upper() if kind.startswith("crc") else kind, int(error[2])
