"""What the facts script prints of hardware: what vendors' tools say of accelerators, what is on the PCI bus,
and network interfaces and RDMA ports as /sys and `ip` have them.

Forms of output, each seen in the tool or its documentation:
- nvidia-smi: CSV by `--query-gpu`; the heading names the CUDA version the driver supports, since driver 610
  as `CUDA UMD Version`.
- amd-smi: a list, since ROCm 7 inside `gpu_data`; rocm-smi, which it replaces, has one key per card.
- hl-smi: CSV by `--query-aip`. tt-smi: a snapshot in which a chip behind another one has no bus address.
"""

from __future__ import annotations

import csv
import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from orch.runner.hosts.host_facts import Gpu, HostInterface, PciDevices, RdmaPort, Vendor

# PCI vendors of accelerators (https://pci-ids.ucw.cz), with the classes under which theirs appear: VGA 0300,
# 3D 0302, display 0380, processing accelerator 1200.
VENDORS: Mapping[str, tuple[Vendor, frozenset[str]]] = {
    "10de": ("nvidia", frozenset({"0300", "0302"})),
    "1002": ("amd", frozenset({"0300", "0302", "0380", "1200"})),
    "1da3": ("intel", frozenset({"1200"})),
    "1e52": ("tenstorrent", frozenset({"1200"})),
}

# Graphics inside AMD's processors (PCI ids, 2026-11): a server with one of these is a CPU host.
AMD_IN_CPUS = frozenset(
    {
        *("1304", "1309", "130f", "131d", "9874", "98e4"),  # Kaveri, Carrizo, Stoney
        *(
            "15dd",
            "15d8",
            "1636",
            "1638",
            "164c",
            "15e7",
        ),  # Raven, Picasso, Renoir, Cezanne, Lucienne, Barcelo
        *("163f", "1435", "164d", "1681", "1506", "164e", "13c0"),  # Van Gogh, Rembrandt, Mendocino, Raphael…
        *("15bf", "15c8", "1900", "1901", "150e", "1586", "1114"),  # Phoenix, Hawk Point, Strix, Krackan
    }
)

# Memory of one chip. Source: Tenstorrent's hardware pages, 2026-11.
TENSTORRENT_GIB = {
    "n150": 12,
    "n300": 12,
    "tt-galaxy-wh": 12,
    "p100": 28,
    "p150": 32,
    "p300": 32,
    "tt-galaxy-bh": 32,
}


class Reader(Protocol):
    """Calls a parser; where that fails, what was meant to be read is told, and something else given."""

    def __call__(self, part: str, parse: Callable[[], list[Gpu]], otherwise: list[Gpu]) -> list[Gpu]: ...


def _all(part: str, parse: Callable[[], list[Gpu]], otherwise: list[Gpu]) -> list[Gpu]:
    return parse()


def gpus(
    *,
    nvidia: str | None,
    nvidia_head: str | None,
    amd: str,
    amd_smi: str | None,
    gaudi: str | None,
    tt: str,
    tt_smi: str | None,
    read: Reader = _all,
) -> tuple[Gpu, ...]:
    """Equal accelerators together, by vendor, as their drivers know them."""
    devices = [
        *read("nvidia", lambda: list(_nvidia(nvidia, nvidia_head)), []),
        *(read("amd.smi", lambda: _amd_smi(amd_smi), []) or read("amd", lambda: _amd_kernel(amd), [])),
        *read("gaudi", lambda: list(_gaudi(gaudi)), []),
        *read("tt.smi", lambda: _tenstorrent(tt, tt_smi), []),
    ]
    module = _after(amd, "module ")
    devices = [
        g.model_copy(update={"driver": module}) if g.vendor == "amd" and not g.driver else g for g in devices
    ]
    counts = Counter(devices)
    return tuple(gpu.model_copy(update={"count": count}) for gpu, count in counts.items())


def cuda_version(head: str | None) -> str | None:
    """Return the CUDA version in nvidia-smi's heading. The table below it has names that jobs choose."""
    heading = (head or "").partition("Processes:")[0]
    match = re.search(r"CUDA(?: UMD)? Version *: *(\d+\.\d+)", heading)
    return match.group(1) if match else None


def pci_devices(text: str) -> tuple[PciDevices, ...]:
    """Accelerators on the bus, from `lspci -Dnn` (or its terser kin), or from /sys/bus/pci."""
    names_by_vendor: dict[Vendor, list[str | None]] = {}
    for line in text.splitlines():
        device = _pci(line)
        if device is None:
            continue
        pci_class, vendor_id, device_id, name = device
        vendor, classes = VENDORS.get(vendor_id, (None, frozenset[str]()))
        in_cpu = vendor == "amd" and device_id in AMD_IN_CPUS
        if vendor is not None and pci_class in classes and not in_cpu:
            names_by_vendor.setdefault(vendor, []).append(name)
    return tuple(
        PciDevices(vendor=vendor, count=len(names), name=next((name for name in names if name), None))
        for vendor, names in names_by_vendor.items()
    )


def _pci(line: str) -> tuple[str, str, str, str | None] | None:
    """Class, vendor, device and name."""
    if match := re.match(r"sys \S+ 0x([0-9a-f]{4})\w* 0x([0-9a-f]{4}) 0x([0-9a-f]{4})", line):
        return match.group(1), match.group(2), match.group(3), None
    if match := re.match(r"[0-9a-f:.]+ .*?\[([0-9a-f]{4})\]: (.*?) ?\[([0-9a-f]{4}):([0-9a-f]{4})\]", line):
        return match.group(1), match.group(3), match.group(4), match.group(2) or None
    if match := re.match(r"[0-9a-f:.]+ (?:Class )?([0-9a-f]{4}): ([0-9a-f]{4}):([0-9a-f]{4})", line):
        return match.group(1), match.group(2), match.group(3), None
    return None


def _nvidia(text: str | None, head: str | None) -> Iterable[Gpu]:
    cuda = cuda_version(head)
    for row in _csv(text):
        if len(row) >= 3 and not row[0].startswith("No devices"):
            yield Gpu(
                vendor="nvidia",
                name=_value_or_none(row[0]),
                count=1,
                memory_mib=_integer(row[1]),
                driver=_value_or_none(row[2]),
                toolkit=cuda,
            )


def _gaudi(text: str | None) -> Iterable[Gpu]:
    for row in _csv(text):
        if len(row) >= 3:
            yield Gpu(
                vendor="intel",
                name=_value_or_none(row[0]),
                count=1,
                memory_mib=_integer(row[1]),
                driver=_value_or_none(row[2]),
            )


def _amd_smi(text: str | None) -> list[Gpu]:
    data = _json_in(text)
    if isinstance(data, dict) and "gpu_data" in data:
        data = data["gpu_data"]
    if isinstance(data, list):
        return [_amd_row(row) for row in data if "asic" in row]
    if isinstance(data, dict):
        driver = _value_or_none(str(_table(data.get("system")).get("Driver version", "")))
        return [
            Gpu(
                vendor="amd",
                name=_value_or_none(
                    str(_table(card).get("Card Series") or _table(card).get("Card series") or "")
                ),
                count=1,
                memory_mib=(_integer(str(_table(card).get("VRAM Total Memory (B)", ""))) or 0) >> 20 or None,
                driver=driver,
            )
            for key, card in data.items()
            if re.fullmatch(r"card\d+", key)
        ]
    return []


def _amd_row(row: dict[str, Any]) -> Gpu:
    size = _table(row.get("vram")).get("size")
    size = size.get("value") if isinstance(size, dict) else size
    driver = _table(row.get("driver"))
    version = driver.get("version") or driver.get("driver_version")
    return Gpu(
        vendor="amd",
        name=_value_or_none(str(_table(row["asic"]).get("market_name", ""))),
        count=1,
        memory_mib=_integer(str(size or "")),
        driver=_value_or_none(str(version or "")),
    )


def _amd_kernel(text: str) -> list[Gpu]:
    """Without a tool: nodes with compute units in the kernel's own topology."""
    memory = [line[5:] for line in text.splitlines() if line.startswith("node ")]
    name = _after(text, "product ")
    return [
        Gpu(vendor="amd", name=name, count=1, memory_mib=(_integer(size) or 0) >> 20 or None)
        for size in memory
    ]


def _tenstorrent(text: str, snapshot: str | None) -> list[Gpu]:
    driver = _after(text, "module ")
    data = _json_in(snapshot)
    rows = data.get("device_info") if isinstance(data, dict) else None
    boards = [_table(row.get("board_info")) for row in rows or ()]
    if driver is None and isinstance(data, dict):
        match = re.search(r"\d[\w.]*", str(_table(data.get("host_info")).get("Driver", "")))
        driver = match.group() if match else None
    devices: list[Gpu] = []
    for board in boards:
        if str(board.get("bus_id")) == "N/A":
            continue
        chips = [board, *(other for other in boards if _is_secondary_chip(other, board))]
        gib = sum(_tenstorrent_gib(_board(chip)) for chip in chips)
        devices.append(
            Gpu(
                vendor="tenstorrent", name=_board(board), count=1, memory_mib=gib << 10 or None, driver=driver
            )
        )
    return devices


def _is_secondary_chip(chip: dict[str, Any], board: dict[str, Any]) -> bool:
    """Whether a chip hangs on another one of the same card, and not on the bus."""
    return str(chip.get("bus_id")) == "N/A" and chip.get("board_id") == board.get("board_id")


def _board(board: dict[str, Any]) -> str:
    """`n300` for `n300 L`."""
    return re.sub(r" [LR]$", "", str(board.get("board_type") or "unknown").strip())


def _tenstorrent_gib(name: str) -> int:
    return next((gib for prefix, gib in TENSTORRENT_GIB.items() if name.startswith(prefix)), 0)


def _csv(text: str | None) -> Iterable[list[str]]:
    return (row for row in csv.reader((text or "").splitlines(), skipinitialspace=True) if row)


def _json_in(text: str | None) -> Any:
    """The JSON in a tool's output, after any warnings it prints before."""
    start = re.search(r"^[\[{]", text or "", re.MULTILINE)
    if start is None or text is None:
        return None
    try:
        return _encodable(json.JSONDecoder().raw_decode(text[start.start() :])[0])
    except ValueError:
        return None


def _encodable(value: Any) -> Any:
    """The same without halves of a character: JSON may escape one alone, and no file or terminal takes it."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_encodable(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in cast("dict[Any, Any]", value).items()}
    return value


def _table(value: object) -> dict[str, Any]:
    """A part of a tool's JSON; nothing where the tool knows nothing (`N/A`)."""
    if value is None or (isinstance(value, str) and _value_or_none(value) is None):
        return {}
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} stands where a mapping is expected")
    return value


def _after(text: str, word: str) -> str | None:
    return (
        next((line[len(word) :].strip() for line in text.splitlines() if line.startswith(word)), None) or None
    )


def _value_or_none(value: str) -> str | None:
    """None for what tools print when they do not know."""
    value = value.strip()
    return (
        None
        if value.strip("[]").lower() in ("", "n/a", "unknown", "not supported", "not available")
        else value
    )


def _integer(value: str) -> int | None:
    match = re.match(r"\s*([0-9]{1,19})(?![0-9])", value)
    return int(match.group(1)) if match else None


# -- networks ----------------------------------------------------------------------------------------------


@dataclass
class _Link:
    """An interface as /sys has it."""

    mtu: int
    speed: int
    kinds: frozenset[str]
    rdma: tuple[str, ...]
    lower: tuple[str, ...]
    addresses: list[str] = field(default_factory=list)


def interfaces(text: str) -> tuple[tuple[HostInterface, ...], bool, tuple[str, ...]]:
    """The interfaces by name, whether their addresses could be told, and what stood for one and is none."""
    links: dict[str, _Link] = {}
    bad_addresses: list[str] = []
    has_ip_command = True
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["if"] and len(words) == 7:
            links[words[1]] = _Link(
                _int(words[2]), _int(words[3]), frozenset(_list(words[4])), _list(words[5]), _list(words[6])
            )
        elif words[:1] == ["addr"] and len(words) == 3 and words[1] in links and "/" in words[2]:
            # A peer's address (point to point) follows the own one and is left out by the script.
            if _is_address(words[2]):
                links[words[1]].addresses.append(words[2])
            else:
                bad_addresses.append(words[2])
        elif words == ["noip"]:
            has_ip_command = False
    return tuple(_interface(name, links) for name in sorted(links)), has_ip_command, tuple(bad_addresses)


def _is_address(text: str) -> bool:
    try:
        return "%" not in text and bool(ipaddress.ip_interface(text))
    except ValueError:
        return False


def _interface(name: str, links: Mapping[str, _Link]) -> HostInterface:
    link = links[name]
    below = [name, *_below(name, links)]
    speeds = [links[each].speed for each in below if links[each].speed > 0]
    return HostInterface(
        name=name,
        kind=_kind(name, links),
        mtu=link.mtu,
        # A bond tells the sum of its links itself; a bridge or VLAN is as fast as what it is built on.
        speed_mbps=link.speed if link.speed > 0 else max(speeds, default=None),
        addresses=tuple(link.addresses),
        rdma=tuple(dict.fromkeys(device for each in below for device in links[each].rdma)),
    )


def _kind(name: str, links: Mapping[str, _Link]) -> Literal["physical", "bridge", "virtual", "loopback"]:
    if "loopback" in links[name].kinds:
        return "loopback"
    if "device" in links[name].kinds or any("device" in links[each].kinds for each in _below(name, links)):
        return "physical"
    return "bridge" if "bridge" in links[name].kinds else "virtual"


def _below(name: str, links: Mapping[str, _Link]) -> tuple[str, ...]:
    """What an interface is built on, all the way down."""
    lower: dict[str, None] = {}
    pending = list(links[name].lower)
    while pending:
        each = pending.pop()
        if each in links and each not in lower and each != name:
            lower[each] = None
            pending += links[each].lower
    return tuple(lower)


def rdma(text: str) -> tuple[tuple[RdmaPort, ...], bool]:
    """The ports of RDMA devices, and whether programs can open them (/dev/infiniband)."""
    ports: list[RdmaPort] = []
    for line in text.splitlines():
        match = re.fullmatch(r"port (\S+) ([0-9]{1,9}) \| (?:\d+: )?(.*?) \| (.*?) \| (.*)", line)
        if match:
            device, port, state, layer, rate = (part.strip() for part in match.groups())
            ports.append(RdmaPort(device=device, port=int(port), state=state, layer=layer, rate=rate))
    return tuple(ports), "files" in text.splitlines()


def _list(word: str) -> tuple[str, ...]:
    """`a,b:` as its parts: the colon keeps an empty list a word of its own."""
    return tuple(part for part in word.removesuffix(":").split(",") if part)


def _int(word: str) -> int:
    return int(word) if re.fullmatch(r"-?[0-9]{1,18}", word) else -1
