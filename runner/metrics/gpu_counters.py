"""What NVIDIA's driver tells of each GPU of a node, under the names of NVIDIA's dcgm-exporter. Pure.

`nvidia-smi -q -x` has all of it in one call, whatever the driver's version: a query by fields fails as a
whole where a driver lacks one of them. What a driver does not tell is left out, never a zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from orch.runner.health.readers.xids import short_pci, xids_in

# What a node tells is not trusted: no machine has more GPUs.
MOST_GPUS = 64

Place = tuple[str, str]
"""A section of the driver's answer, "" for the GPU itself, and a value in it."""


@dataclass(frozen=True)
class Field:
    """A metric of dcgm-exporter: its text, and where the value is in the driver's answer.

    `places`: alternatives, the newest driver's first; each is a sum over its parts.
    """

    help: str
    places: tuple[tuple[Place, ...], ...]


def _of(section: str, *tags: str) -> tuple[Place, ...]:
    return tuple((section, tag) for tag in tags)


FIELDS: Mapping[str, Field] = {
    "DCGM_FI_DEV_SM_CLOCK": Field("SM clock frequency (in MHz).", (_of("clocks", "sm_clock"),)),
    "DCGM_FI_DEV_MEM_CLOCK": Field("Memory clock frequency (in MHz).", (_of("clocks", "mem_clock"),)),
    "DCGM_FI_DEV_GPU_TEMP": Field("GPU temperature (in C).", (_of("temperature", "gpu_temp"),)),
    "DCGM_FI_DEV_MEMORY_TEMP": Field("Memory temperature (in C).", (_of("temperature", "memory_temp"),)),
    "DCGM_FI_DEV_POWER_USAGE": Field(
        "Power draw (in W).",
        (
            _of("gpu_power_readings", "instant_power_draw"),
            _of("gpu_power_readings", "average_power_draw"),
            _of("gpu_power_readings", "power_draw"),
            _of("power_readings", "power_draw"),
        ),
    ),
    "DCGM_FI_DEV_GPU_UTIL": Field("GPU utilization (in %).", (_of("utilization", "gpu_util"),)),
    "DCGM_FI_DEV_MEM_COPY_UTIL": Field("Memory utilization (in %).", (_of("utilization", "memory_util"),)),
    "DCGM_FI_DEV_FB_FREE": Field("Framebuffer memory free (in MiB).", (_of("fb_memory_usage", "free"),)),
    "DCGM_FI_DEV_FB_USED": Field("Framebuffer memory used (in MiB).", (_of("fb_memory_usage", "used"),)),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": Field(
        "Corrected ECC errors since the driver was loaded.",
        (_of("volatile", "sram_correctable", "dram_correctable"), _of("single_bit", "total")),
    ),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": Field(
        "Uncorrected ECC errors since the driver was loaded.",
        (
            _of("volatile", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable"),
            _of("volatile", "sram_uncorrectable", "dram_uncorrectable"),
            _of("double_bit", "total"),
        ),
    ),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": Field("PCIe retries.", (_of("pci", "replay_counter"),)),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": Field(
        "Rows remapped for corrected errors.", (_of("remapped_rows", "remapped_row_corr"),)
    ),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": Field(
        "Rows remapped for uncorrected errors.", (_of("remapped_rows", "remapped_row_unc"),)
    ),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": Field(
        "Whether a row is remapped at the next reset.", (_of("remapped_rows", "remapped_row_pending"),)
    ),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": Field(
        "Whether remapping of rows has failed.", (_of("remapped_rows", "remapped_row_failure"),)
    ),
}
"""Source: dcgm-exporter, etc/default-counters.csv, and the schema of `nvidia-smi -q -x`."""

LINK_FIELDS: Mapping[str, tuple[str, str]] = {
    "CRC": ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVLink flow-control CRC errors, all links."),
    "Replay": ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLink retries, all links."),
    "Recovery": ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "NVLink recovery errors, all links."),
}
"""Counters of `nvidia-smi nvlink -e` by their word there."""

XID = "DCGM_FI_DEV_XID_ERRORS"
XID_HELP = "Value of the last Xid error of the kernel's log since the boot; 0 without one."

_SECTIONS = frozenset(section for field in FIELDS.values() for place in field.places for section, _ in place)
# Sections that have values of the same names, in which nothing is read.
_OTHERS = (
    *("bar1_memory_usage", "cc_protected_memory_usage", "aggregate", "applications_clocks", "max_clocks"),
    *("default_applications_clocks", "max_customer_boost_clocks", "mig_devices"),
)
_VALUES = frozenset(tag for field in FIELDS.values() for place in field.places for _, tag in place)
_NAMES = ("uuid", "product_name", "minor_number")
TAGS = (
    r"<gpu id=|</?("
    + "|".join(sorted(_SECTIONS | frozenset(_OTHERS)))
    + ")>|<("
    + "|".join(sorted(_VALUES | frozenset(_NAMES)))
    # Drivers before R535 call the reasons of events reasons of throttling.
    + r"|clocks_(event|throttle)_reason_[hs]w_thermal_slowdown)>"
)
"""An extended regular expression of the lines that `read_gpus` takes: a tenth of the driver's answer."""
_GPU = re.compile(r'<gpu id="([0-9A-Fa-f:.]{1,20})">')
_BORDER = re.compile(r"<(/?)([a-z0-9_]+)>")
_VALUE = re.compile(r"<([a-z0-9_]+)>([^<]{0,200})</\1>")
_NUMBER = re.compile(r"(-?[0-9]{1,18}(?:\.[0-9]{1,6})?)(?: [A-Za-z%]+)?")
_LINK = re.compile(r"([0-9]{1,3}) (CRC|Replay|Recovery) ([0-9]{1,18})")


@dataclass(frozen=True)
class GpuCounters:
    """A GPU as its driver tells it; `values` by the names of dcgm-exporter.

    `pci` is as the kernel writes it, domain of four digits and without a function. `slowed_by_heat` is None
    where the driver does not tell. A GPU that only the kernel's log tells of, for it has fallen off the bus,
    has no `index`.
    """

    index: int | None
    uuid: str
    model: str
    pci: str
    minor: str
    values: tuple[tuple[str, float], ...]
    slowed_by_heat: bool | None = None


def read_gpus(lines: Iterable[str]) -> tuple[GpuCounters, ...]:
    """The GPUs in a node's answer: lines `smi …` of the driver, `link GPU COUNTER SUM`, `xid …` of the kernel
    and `kernel`, where its log could be read."""
    kinds: dict[str, list[str]] = {"smi": [], "link": [], "xid": [], "kernel": []}
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind in kinds:
            kinds[kind].append(rest)
    links = _links(kinds["link"])
    last = {xid.pci: xid.number for xid in xids_in(kinds["xid"])}
    found: list[GpuCounters] = []
    for at, gpu in enumerate(_gpus(kinds["smi"])):
        if at == MOST_GPUS:
            break
        values = [*gpu.values, *sorted(links.get(at, {}).items())]
        if kinds["kernel"]:
            values.append((XID, float(last.pop(gpu.pci, 0))))
        found.append(replace(gpu, index=at, values=tuple(values)))
    lost = [GpuCounters(None, "", "", pci, "", ((XID, float(number)),)) for pci, number in last.items()]
    return (*found, *lost[:MOST_GPUS])


def _gpus(lines: Iterable[str]) -> Iterator[GpuCounters]:
    told: dict[Place, str] = {}
    pci, section, sliced = "", "", False
    for line in lines:
        if "mig_devices>" in line:  # parts of a GPU, which tell of themselves alone
            sliced = "</" not in line
        if sliced:
            continue
        if value := _VALUE.match(line):
            told.setdefault((section, value[1]), value[2].strip())
        elif border := _BORDER.match(line):
            section = "" if border[1] else border[2]
        elif begun := _GPU.match(line):
            if pci:
                yield _gpu(pci, told)
            told, pci, section = {}, short_pci(begun[1]), ""
    if pci:
        yield _gpu(pci, told)


def _gpu(pci: str, told: Mapping[Place, str]) -> GpuCounters:
    values = ((name, _value(field, told)) for name, field in FIELDS.items())
    heat = [text for (_, tag), text in told.items() if tag.endswith("w_thermal_slowdown")]
    return GpuCounters(
        None,
        told.get(("", "uuid"), ""),
        told.get(("", "product_name"), ""),
        pci,
        told.get(("", "minor_number"), ""),
        tuple((name, value) for name, value in values if value is not None),
        "Active" in heat if heat else None,
    )


def _value(field: Field, told: Mapping[Place, str]) -> float | None:
    for place in field.places:
        parts = [_number(told.get(part)) for part in place]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            return sum(known)
    return None


def _number(text: str | None) -> float | None:
    if text in ("Yes", "No"):
        return float(text == "Yes")
    match = _NUMBER.fullmatch(text or "")
    return float(match[1]) if match else None


def _links(lines: Iterable[str]) -> dict[int, dict[str, float]]:
    """The sums over the links of each GPU, by its index."""
    found: dict[int, dict[str, float]] = {}
    for line in lines:
        if counter := _LINK.fullmatch(line):
            found.setdefault(int(counter[1]), {})[LINK_FIELDS[counter[2]][0]] = float(counter[3])
    return found
