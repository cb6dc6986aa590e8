"""What AMD's tools and its driver's files tell of Instinct accelerators. Pure.

`amd-smi` where it is there, the driver's RAS files in any case; `rocm-smi` tells only how many cards there
are, for it has no errors in its JSON (https://github.com/ROCm/legacy-rocm-build/issues/4374).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from orch.runner.health.findings import HealthReport, ReportBuilder
from orch.runner.health.readers.sections import Section, items, mapping, number

CORRECTED_MOST = 10_000
"""Corrected errors of a GPU; ours."""
REPLAYS_MOST = 1_000
"""PCIe replays of a GPU; ours."""

_RAS = re.compile(r"(card\d+) (\S+) (\w+)_err_count (ue|ce): (\d{1,18})")


def read_amd(metric: Section, bad_pages: Section, rocm: Section, ras: Section, count: int) -> HealthReport:
    """The health of a node's accelerators, of which there should be `count`."""
    notes = ReportBuilder()
    for section in (metric, bad_pages, rocm):
        if section.hung:
            notes.fail("amd", "node", f"{_TOOLS[section.name]} did not answer: a GPU hangs", "reboot")
            return notes.report()
    gpus = _gpus(metric.json())
    cards = {found[1] for line in ras.lines if (found := _RAS.match(line)) is not None}
    seen = len(gpus) or sum(key.startswith("card") for key in mapping(rocm.json())) or len(cards)
    if not seen:
        if metric.state == "done" or rocm.state == "done":
            said = metric.first_words or rocm.first_words
            notes.fail("gpu count", "node", f"AMD's tools list no GPU: {said}", "reboot")
        else:
            notes.skip("amd", "neither amd-smi nor rocm-smi is there, nor files of the driver")
        return notes.report()
    notes.made("gpu count", "ecc")
    if seen < count:
        notes.fail("gpu count", "node", f"AMD's tools list {seen} of {count} GPUs", "reboot")
    for gpu in gpus:
        _judge_gpu(gpu, notes)
    _judge_ras(ras.lines, notes)
    if bad_pages.state == "done":
        notes.made("retired pages")
        for gpu in _gpus(bad_pages.json()):
            _judge_pages(gpu, notes)
    else:
        notes.skip("retired pages", "amd-smi is not there")
    return notes.report()


_TOOLS = {"amd_metric": "amd-smi", "amd_pages": "amd-smi", "rocm": "rocm-smi"}


def _gpus(data: Any) -> list[Mapping[str, Any]]:
    """The GPUs of amd-smi's answer: a list, or since ROCm 7 an object that holds it."""
    listed = items(data) or items(mapping(data).get("gpu_data"))
    return [mapping(each) for each in listed if "gpu" in mapping(each)]


def _judge_gpu(gpu: Mapping[str, Any], notes: ReportBuilder) -> None:
    part = f"GPU {gpu['gpu']}"
    ecc = mapping(gpu.get("ecc"))
    bad = int(number(ecc.get("total_uncorrectable_count")) or 0)
    if bad:
        notes.fail("ecc", part, f"{bad} uncorrectable errors", "reset")
    mended = int(number(ecc.get("total_correctable_count")) or 0)
    if mended >= CORRECTED_MOST:
        notes.warn("ecc", part, f"{mended} corrected errors", "replace")
    pcie = mapping(gpu.get("pcie"))
    replays = int(number(pcie.get("replay_count")) or 0)
    notes.made("pcie")
    if replays >= REPLAYS_MOST:
        notes.warn("pcie", part, f"{replays} replays on its PCIe link")
    limits = mapping(gpu.get("limit"))
    heat = mapping(gpu.get("temperature"))
    for place, limit in (("hotspot", "slowdown_hotspot_temperature"), ("mem", "slowdown_vram_temperature")):
        now, most = number(heat.get(place)), number(limits.get(limit))
        if now is not None and most is not None and 0 < most <= now:
            notes.warn("thermal", part, f"its {place} is at {now:.0f} C, where its hardware slows it down")


def _judge_ras(lines: Iterable[str], notes: ReportBuilder) -> None:
    """Lines `CARD PCI BLOCK_err_count ue: N` of the driver's files (Linux, "AMDGPU RAS Support")."""
    for line in lines:
        if (found := _RAS.match(line)) is None:
            continue
        part, many = f"{found[1]} ({found[2]})", int(found[5])
        if found[4] == "ue" and many:
            notes.fail("ecc", part, f"{many} uncorrectable errors in {found[3]}", "reset")
        elif found[4] == "ce" and many >= CORRECTED_MOST:
            notes.warn("ecc", part, f"{many} corrected errors in {found[3]}", "replace")


def _judge_pages(gpu: Mapping[str, Any], notes: ReportBuilder) -> None:
    part = f"GPU {gpu['gpu']}"
    pending, stuck = items(gpu.get("pending")), items(gpu.get("un_res"))
    if pending:
        notes.warn("retired pages", part, f"{len(pending)} bad pages wait for a reset", "reset")
    if stuck:
        notes.fail("retired pages", part, f"{len(stuck)} bad pages cannot be taken out of use", "replace")
