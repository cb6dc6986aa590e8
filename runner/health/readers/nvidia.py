"""What nvidia-smi tells of NVIDIA's GPUs: their health (`-q -x`) and their NVLinks (`nvlink -s`, `-e`). Pure.

Names of fields differ from driver to driver; a field that is not there, or is `N/A`, says nothing. Limits of
NVIDIA: GPU Memory Error Management ("RMA Policy Thresholds", "Error Recovery and Response Flags") and Dynamic
Page Retirement; of nvidia-smi's exit codes: its manual. Where NVIDIA names no limit, it is ours.

GPUs on PCIe cards have links only where a bridge joins them, which no tool tells: a node without any active
link says nothing, and links of theirs that are down are a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from xml.etree import ElementTree

from orch.runner.health.findings import HealthReport, ReportBuilder
from orch.runner.health.readers.sections import MISSING, Section, answer_of, is_forged, number
from orch.runner.health.readers.xids import Action, action_in, short_pci

CHECKS = (
    "gpu count",
    "gpu lost",
    "driver",
    "ecc",
    "remapped rows",
    "retired pages",
    "gpu recovery",
    "pcie",
    "thermal",
    "power",
    "fabric",
)

CORRECTED_MOST = 10_000
"""Corrected errors since the driver was loaded; ours: no job is at risk, but such memory is failing."""
RETIRED_MOST = 60
"""Retired pages that NVIDIA replaces a GPU for."""
REPLAYS_MOST = 1_000
"""PCIe replays since the GPU's reset; ours."""

_EXITS: dict[int, tuple[str, str, Action]] = {
    # (check, reason, what helps) by nvidia-smi's exit code.
    4: ("driver", "nvidia-smi is not permitted to ask the driver", "none"),
    6: ("gpu lost", "the driver finds no GPU", "reboot"),
    8: ("power", "external power cables of a GPU are not attached", "replace"),
    9: ("driver", "the NVIDIA driver is not loaded", "reboot"),
    10: ("driver", "the driver found an interrupt issue with a GPU", "reboot"),
    12: ("driver", "NVIDIA's management library is not found", "none"),
    13: ("driver", "the local driver does not have this function", "none"),
    15: ("gpu lost", "a GPU has fallen off the bus", "reboot"),
    18: ("driver", "driver and library differ in version: the driver was updated without a reboot", "reboot"),
}
# The words for the same where the exit code is another, as of old drivers and wrappers.
_WORDS: tuple[tuple[str, int], ...] = (
    ("GPU is lost", 15),
    ("Unable to determine the device handle", 15),
    ("No devices were found", 6),
    ("version mismatch", 18),
    ("couldn't communicate with the NVIDIA driver", 9),
    ("Driver Not Loaded", 9),
)
_HANDLE = re.compile(r"device handle for GPU\s?\d*:?\s?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_INFOROM = re.compile(r"infoROM is corrupted at gpu ([0-9A-Fa-f:.]+)", re.IGNORECASE)


@dataclass(frozen=True)
class GpuHealth:
    """A GPU as its driver lists it, for what else tells of it.

    `recovery`: what the driver itself says helps now; None where it tells nothing of that, as before
    driver 560. `remap_pending`: whether rows of memory wait for a reset.
    """

    index: int
    pci: str
    name: str
    recovery: Action | None
    remap_pending: bool | None

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.pci})"


def read_smi(section: Section, count: int, *, simulated: bool) -> tuple[HealthReport, tuple[GpuHealth, ...]]:
    """The health of a node's GPUs, of which there should be `count`, and the GPUs themselves."""
    notes = ReportBuilder()
    if section.state == "missing":
        if simulated:
            notes.skip("gpus", "the accelerators are simulated")
        else:
            notes.fail("driver", "node", "nvidia-smi is not there: is the driver installed?")
        return notes.report(), ()
    if section.hung:
        notes.fail("driver", "node", "nvidia-smi did not answer: a GPU or its driver hangs", "reboot")
        return notes.report(), ()
    root = answer_of(section.text)
    gpus = root.findall("gpu") if root is not None else []
    if root is not None and is_forged(root, gpus):
        notes.warn("driver", "node", "a name of a process spoils what nvidia-smi says of the GPUs")
        return notes.report(), ()
    _judge_call(section, notes, listed=bool(gpus))
    found = tuple(_judge_gpu(each, index, notes) for index, each in enumerate(gpus))
    if gpus:
        notes.made(*CHECKS)
        if len(gpus) < count:
            notes.fail("gpu count", "node", f"the driver lists {len(gpus)} of {count} GPUs", "reboot")
    return notes.report(), found


def _judge_call(section: Section, notes: ReportBuilder, *, listed: bool) -> None:
    before, _, rest = section.text.partition("<nvidia_smi_log")
    text = f"{before}\n{rest.rpartition('</nvidia_smi_log>')[2]}"
    head = " ".join(before.partition("<?xml")[0].split())
    for place in _INFOROM.findall(text):
        notes.warn("gpu recovery", f"GPU at {short_pci(place)}", "its infoROM is corrupted", "replace")
    code = section.code
    if code in (0, 14) and listed:
        # Some drivers list the others and end well.
        code = next((exit_code for words, exit_code in _WORDS if words in text), 0)
    elif code not in _EXITS:
        code = next((exit_code for words, exit_code in _WORDS if words in text), code)
    if code == MISSING:
        notes.fail("driver", "node", "nvidia-smi cannot be run: is the driver installed?")
    elif code in _EXITS:
        check, reason, action = _EXITS[code]
        place = _HANDLE.search(text)
        part = f"GPU at {short_pci(place[1])}" if place is not None else "node"
        notes.fail(check, part, f"{reason}{f' ({_quoted(head)})' if head else ''}", action)
    elif code or not listed:
        said = _quoted(head) if head else "it says nothing"
        how = f"fails with exit code {code}" if code else "gives no report that can be read"
        notes.fail("driver", "node", f"nvidia-smi {how}: {said}", "reboot")


def _quoted(text: str) -> str:
    return text[:120].rstrip(" .")


@dataclass(frozen=True)
class _Fields:
    """The fields of a GPU, by path. `part`: its name in findings."""

    gpu: ElementTree.Element
    part: str

    def text(self, path: str) -> str:
        return (self.gpu.findtext(path) or "").strip()

    def count(self, *paths: str) -> int:
        return sum(int(number(self.text(path)) or 0) for path in paths)

    def yes(self, path: str) -> bool:
        return self.text(path).lower() in ("yes", "true")

    def says(self, words: str) -> bool:
        """Whether any field has these words: the driver puts errors where values belong."""
        return any(words in (each.text or "") for each in self.gpu.iter())


def _judge_gpu(gpu: ElementTree.Element, index: int, notes: ReportBuilder) -> GpuHealth:
    pci = short_pci(gpu.get("id") or gpu.findtext("pci/pci_bus_id") or "?")
    fields = _Fields(gpu, f"GPU {index} ({pci})")
    words = fields.text("gpu_recovery_action")
    told = words not in ("", "N/A", "Unknown Error") and "deprecated" not in words
    recovery = action_in(words) if told else None
    pending = {"Yes": True, "No": False}.get(fields.text("remapped_rows/remapped_row_pending"))
    part = fields.part
    if fields.says("GPU is lost"):
        notes.fail("gpu lost", part, "the GPU is lost: its driver cannot reach it", "reboot")
    elif fields.says("requires reset"):
        notes.fail("gpu recovery", part, "the GPU requires a reset", "reset")
    if recovery in ("reset", "reboot"):
        notes.fail("gpu recovery", part, f"its driver asks for a recovery: {words}", recovery)
    elif fields.yes("reset_status/reset_required"):
        notes.fail("gpu recovery", part, "its driver asks for a reset", "reset")
    elif fields.yes("reset_status/drain_and_reset_recommended"):
        notes.fail("gpu recovery", part, "its driver asks for a drain and a reset", "reset")
    _judge_ecc(fields, recovery, notes)
    _judge_rows(fields, notes)
    _judge_pcie(fields, notes)
    _judge_heat(fields, notes)
    _judge_fabric(fields, notes)
    return GpuHealth(index, pci, fields.text("product_name"), recovery, pending)


def _judge_ecc(gpu: _Fields, recovery: Action | None, notes: ReportBuilder) -> None:
    now = "ecc_errors/volatile"
    dram = gpu.count(f"{now}/dram_uncorrectable", f"{now}/double_bit/device_memory")
    sram = gpu.count(
        f"{now}/sram_uncorrectable",
        f"{now}/sram_uncorrectable_parity",
        f"{now}/sram_uncorrectable_secded",
        *(f"{now}/double_bit/{each}" for each in ("l1_cache", "l2_cache", "register_file", "texture_memory")),
    )
    for what, errors in (("DRAM", dram), ("SRAM", sram)):
        if not errors:
            continue
        reason = f"{errors} uncorrectable {what} errors since the driver was loaded"
        # The driver contained them where it says that nothing is left to do.
        if recovery == "none":
            notes.warn("ecc", gpu.part, f"{reason}, and it recovered", "reset")
        else:
            notes.fail("ecc", gpu.part, reason, "reset")
    corrected = gpu.count(f"{now}/dram_correctable", f"{now}/sram_correctable", f"{now}/single_bit/total")
    if corrected >= CORRECTED_MOST:
        reason = f"{corrected} corrected memory errors since the driver was loaded"
        notes.warn("ecc", gpu.part, reason, "replace")
    if gpu.yes("ecc_errors/aggregate/sram_threshold_exceeded"):
        notes.fail("ecc", gpu.part, "more uncorrectable SRAM errors than NVIDIA allows", "replace")
    if gpu.yes("ecc_errors/unrepairable_memory"):
        notes.fail("ecc", gpu.part, "memory that cannot be repaired", "replace")
    for repair, what in (("channel_repair_pending", "memory channel"), ("tpc_repair_pending", "TPC")):
        if gpu.yes(f"ecc_errors/{repair}"):
            notes.warn("ecc", gpu.part, f"the repair of a {what} waits for a reset", "reset")


def _judge_rows(gpu: _Fields, notes: ReportBuilder) -> None:
    """Rows of memory that were replaced by spare ones, or pages that were taken out of use before Ampere."""
    rows, pages = "remapped_rows", "retired_pages"
    if gpu.yes(f"{rows}/remapped_row_failure"):
        notes.fail("remapped rows", gpu.part, "a row of memory could not be remapped", "replace")
    if gpu.yes(f"{rows}/remapped_row_pending"):
        reason = "the remapping of rows of memory waits for a reset"
        notes.warn("remapped rows", gpu.part, reason, "reset")
    if banks := gpu.count(f"{rows}/row_remapper_histogram/row_remapper_histogram_none"):
        notes.warn("remapped rows", gpu.part, f"{banks} banks of memory have no spare row left")
    retired = gpu.count(
        f"{pages}/multiple_single_bit_retirement/retired_count",
        f"{pages}/double_bit_retirement/retired_count",
    )
    if retired >= RETIRED_MOST:
        notes.fail("retired pages", gpu.part, f"{retired} pages of memory are retired", "replace")
    if gpu.yes(f"{pages}/pending_retirement") or gpu.yes(f"{pages}/pending_blacklist"):
        reason = "the retirement of pages of memory waits for a reset"
        notes.warn("retired pages", gpu.part, reason, "reset")


def _judge_pcie(gpu: _Fields, notes: ReportBuilder) -> None:
    """Of the link only its width is judged: its generation drops while a GPU is idle."""
    widths = "pci/pci_gpu_link_info/link_widths"
    now, most = gpu.count(f"{widths}/current_link_width"), gpu.count(f"{widths}/max_link_width")
    if 0 < now < most:
        note = notes.fail if now * 4 <= most else notes.warn
        note("pcie", gpu.part, f"its PCIe link has {now} of {most} lanes", "reboot")
    if (replays := gpu.count("pci/replay_counter")) >= REPLAYS_MOST:
        notes.warn("pcie", gpu.part, f"{replays} replays on its PCIe link")
    if rollovers := gpu.count("pci/replay_rollover_counter"):
        notes.warn("pcie", gpu.part, f"the counter of PCIe replays ran over {rollovers} times")


def _judge_heat(gpu: _Fields, notes: ReportBuilder) -> None:
    text, part = gpu.text, gpu.part

    def active(reason: str) -> bool:
        return any(
            text(f"clocks_{word}_reasons/clocks_{word}_reason_{reason}") == "Active"
            for word in ("event", "throttle")
        )

    degrees = text("temperature/gpu_temp")
    now, slow = number(degrees), number(text("temperature/gpu_temp_slow_threshold"))
    margin = number(text("temperature/gpu_temp_tlimit"))
    slow_margin = number(text("temperature/gpu_temp_slow_tlimit_threshold"))
    hot = now is not None and slow is not None and 0 < slow <= now
    near = margin is not None and slow_margin is not None and margin <= slow_margin
    memory, most = (
        number(text("temperature/memory_temp")),
        number(text("temperature/gpu_temp_max_mem_threshold")),
    )
    if active("hw_thermal_slowdown"):
        notes.warn("thermal", part, f"its hardware slows it down for heat, at {degrees or '?'}")
    elif hot or near:
        notes.warn("thermal", part, f"it is at {degrees}, where its hardware slows it down")
    elif active("sw_thermal_slowdown"):
        notes.warn("thermal", part, f"its driver slows it down for heat, at {degrees or '?'}")
    if memory is not None and most is not None and 0 < most <= memory:
        notes.warn("thermal", part, f"its memory is at {memory:.0f} C, and may be at {most:.0f} C")
    if active("hw_power_brake_slowdown"):
        notes.warn("power", part, "a power brake of the machine slows it down: is a power supply out?")
    elif active("hw_slowdown") and not active("hw_thermal_slowdown"):
        notes.warn("power", part, "its hardware slows it down")


def _judge_fabric(gpu: _Fields, notes: ReportBuilder) -> None:
    part = gpu.part

    def told(field: str) -> str:
        value = gpu.text(f"fabric/{field}")
        return "" if value in ("N/A", "Not Supported", "None") or "deprecated" in value else value

    state, status = told("state"), told("status")
    if state and state != "Completed":
        reason = f"it is not part of the NVLink fabric ({state.lower()}): does the fabric manager run?"
        notes.fail("fabric", part, reason, "reboot")
    elif state and status not in ("", "Success"):
        notes.fail("fabric", part, f"the NVLink fabric refused it: {status}", "reboot")
    if told("health/summary").lower() == "unhealthy" or told("health/route_unhealthy") in ("True", "Yes"):
        notes.fail("fabric", part, "the NVLink fabric has no sound routes for it", "reset")
    elif told("health/bandwidth").lower() == "degraded":
        notes.warn("fabric", part, "the NVLink fabric has less than its full bandwidth", "reset")
    wrong = told("health/incorrect_configuration")
    if wrong not in ("", "False", "No"):
        notes.fail("fabric", part, f"the NVLink fabric is set up wrongly: {wrong}")


LINK_ERRORS_MOST = 100
"""CRC and replay errors of a link since the driver was loaded; ours. The link mends them, at a low rate they
are normal. A recovery trains the link anew, which is not."""

_LINKED_GPU = re.compile(r"GPU (\d+): (.*?)(?: \(UUID: .*)?$")
_LINK = re.compile(r"\s*Link (\d+): (.+)")
_LINK_ERRORS = re.compile(r"(Replay|Recovery|CRC(?: FLIT| Data)?) Errors?: (\d{1,20})$", re.IGNORECASE)
# Boards whose GPUs are all joined: SXM, and what has no other form.
_BOARD = re.compile(r"SXM|HBM3$|HBM3e?\b|\bH[12]00$|\bB[23]00\b|\bGB[23]00\b|\bGH200\b")


@dataclass
class _LinkedGpu:
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
    gpus = _link_statuses(status.lines)
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
    for gpu, link, kind, many in _link_errors(errors.lines):
        if kind == "recovery" and many:
            notes.warn("nvlink", f"GPU {gpu} link {link}", f"it was trained anew {many} times", "reset")
        elif many >= LINK_ERRORS_MOST:
            notes.warn("nvlink", f"GPU {gpu} link {link}", f"{many} {kind} errors", "reset")
    return notes.report()


def _link_statuses(lines: Iterable[str]) -> tuple[_LinkedGpu, ...]:
    gpus: list[_LinkedGpu] = []
    for line in lines:
        if (found := _LINKED_GPU.match(line.strip())) is not None:
            gpus.append(_LinkedGpu(int(found[1]), found[2]))
        elif gpus and (link := _LINK.match(line)) is not None:
            down = "inactive" in link[2].lower()
            (gpus[-1].down if down else gpus[-1].up).append(int(link[1]))
        elif gpus and "all links are inactive" in line.lower():
            gpus[-1].none = True
    return tuple(gpus)


def _link_errors(lines: Iterable[str]) -> Iterable[tuple[int, int, str, int]]:
    gpu = 0
    for line in lines:
        if (found := _LINKED_GPU.match(line.strip())) is not None:
            gpu = int(found[1])
        elif (link := _LINK.match(line)) is not None and (
            error := _LINK_ERRORS.match(link[2].strip())
        ) is not None:
            kind = error[1].lower()
            yield gpu, int(link[1]), kind.upper() if kind.startswith("crc") else kind, int(error[2])
