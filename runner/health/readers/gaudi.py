"""What `hl-smi` tells of Intel's Gaudi accelerators. Pure."""

from __future__ import annotations

from orch.runner.health.findings import HealthReport, ReportBuilder
from orch.runner.health.readers.sections import Section, number

FIELDS = (
    "module_id",
    "bus_id",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.corrected.volatile.total",
    "temperature.aip",
)
"""What is asked for, in this order: Intel Gaudi, "System Management Interface Tool"."""

CORRECTED_MOST = 10_000
"""Corrected errors since the driver was loaded; ours."""


def read_gaudi(section: Section, count: int) -> HealthReport:
    """The health of a node's accelerators, of which there should be `count`."""
    notes = ReportBuilder()
    if section.state == "missing":
        notes.skip("gaudi", "hl-smi is not there")
        return notes.report()
    if section.hung:
        notes.fail("gaudi", "node", "hl-smi did not answer: a card or its driver hangs", "reboot")
        return notes.report()
    rows = [
        cells
        for line in section.lines
        if len(cells := [cell.strip() for cell in line.split(",")]) == len(FIELDS) and ":" in cells[1]
    ]
    if not rows:
        said = section.first_words or f"exit code {section.code}"
        notes.fail("gpu count", "node", f"hl-smi lists no card: {said}", "reboot")
        return notes.report()
    notes.made("gpu count", "ecc")
    if len(rows) < count:
        notes.fail("gpu count", "node", f"hl-smi lists {len(rows)} of {count} cards", "reboot")
    for module, place, uncorrected, corrected, _heat in rows:
        part = f"card {module} ({place})"
        if bad := int(number(uncorrected) or 0):
            notes.fail("ecc", part, f"{bad} uncorrectable errors since the driver was loaded", "reset")
        if (mended := int(number(corrected) or 0)) >= CORRECTED_MOST:
            notes.warn("ecc", part, f"{mended} corrected errors since the driver was loaded", "replace")
    return notes.report()
