"""What `tt-smi -s` tells of Tenstorrent's cards. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orch.runner.health.findings import HealthReport, ReportBuilder
from orch.runner.health.readers.sections import Section, items, mapping, number


def read_tenstorrent(section: Section, count: int) -> HealthReport:
    """The health of a node's cards, of which there should be `count`.

    A chip that its card's first chip leads to (the right one of an n300) has no place on the bus of its own,
    and is no card.
    """
    notes = ReportBuilder()
    if section.state == "missing":
        notes.skip("tenstorrent", "tt-smi is not there")
        return notes.report()
    if section.hung:
        notes.fail("tenstorrent", "node", "tt-smi did not answer: a card hangs", "reset")
        return notes.report()
    chips = [mapping(each) for each in items(mapping(section.json()).get("device_info"))]
    if not chips:
        said = section.first_words or f"exit code {section.code}"
        notes.fail("gpu count", "node", f"tt-smi lists no card: {said}", "reset")
        return notes.report()
    notes.made("gpu count", "ecc", "thermal")
    cards = sum(":" in str(mapping(chip.get("board_info")).get("bus_id")) for chip in chips)
    if cards < count:
        notes.fail("gpu count", "node", f"tt-smi lists {cards} of {count} cards", "reset")
    for index, chip in enumerate(chips):
        _judge_chip(index, chip, notes)
    return notes.report()


def _judge_chip(index: int, chip: Mapping[str, Any], notes: ReportBuilder) -> None:
    board = mapping(chip.get("board_info"))
    part = f"chip {index} ({board.get('bus_id', '?')})"
    if board.get("dram_status") in (False, "False", "Fail"):
        # tt-smi says so of sound p100a cards too: https://github.com/tenstorrent/tt-smi/pull/223.
        notes.warn("ecc", part, "its DRAM did not train, says tt-smi", "reset")
    now = number(mapping(chip.get("telemetry")).get("asic_temperature"))
    most = number(mapping(chip.get("limits")).get("thm_limit"))
    if now is not None and most is not None and 0 < most <= now:
        notes.warn("thermal", part, f"it is at {now:.0f} C, and may be at {most:.0f} C")
