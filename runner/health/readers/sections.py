"""The output of the script that looks at a node: a section for each tool, with how the tool ended. Pure.

Each line of a tool has the section's name and a bar before it, so that no tool's output is taken for that of
another or for how it ended: `NAME|text`, and `@NAME STATE CODE` before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from xml.etree import ElementTree

State = Literal["done", "missing", "hung", "skipped"]

MISSING = 127
TIMED_OUT = (124, 137)
"""How `timeout` ends: after its limit, and after a kill."""


@dataclass(frozen=True)
class Section:
    """What one tool printed. `missing`: it is not there; `hung`: it was not done when the look ended."""

    name: str
    state: State = "skipped"
    code: int = 0
    lines: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def present(self) -> bool:
        return self.state in ("done", "hung")

    @property
    def hung(self) -> bool:
        """Whether the tool did not answer in time."""
        return self.state == "hung" or (self.state == "done" and self.code in TIMED_OUT)

    @property
    def first_words(self) -> str:
        """What it says, on one line, shortened."""
        return " ".join(self.text.split())[:200]

    def json(self) -> Any:
        """What a tool printed as JSON, whatever stands before and after it; None where there is none."""
        text = self.text
        starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
        for start in sorted(starts):
            try:
                return json.JSONDecoder().raw_decode(text, start)[0]
            except (ValueError, RecursionError):
                continue
        return None


def sections_of(text: str) -> dict[str, Section]:
    """The sections of a look, by name."""
    lines: dict[str, list[str]] = {}
    ends: dict[str, tuple[State, int]] = {}
    for line in text.split("\n"):
        if line.startswith("@"):
            words = line[1:].split()
            if len(words) == 3 and words[1] in ("done", "missing", "hung", "skipped"):
                ends[words[0]] = (cast(State, words[1]), int(words[2]) if words[2].isdigit() else 0)
            continue
        name, bar, rest = line.partition("|")
        if bar and name.isidentifier():
            lines.setdefault(name, []).append(rest.rstrip("\r"))
    return {
        name: Section(name, *ends.get(name, ("hung", 0)), lines=tuple(lines.get(name, ())))
        for name in {**ends, **lines}
    }


def mapping(value: Any) -> Mapping[str, Any]:
    """An object of JSON; empty for what is none."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """A list of JSON; empty for what is none."""
    return cast("list[Any]", value) if isinstance(value, list) else []


_LARGEST = 1e24


def number(value: Any) -> float | None:
    """The number that a tool tells, as a number, as text with its unit, or as `{"value": 1, "unit": "C"}`."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value) if abs(value) < _LARGEST else None
    if isinstance(value, dict):
        return number(cast("dict[str, Any]", value).get("value"))
    if isinstance(value, str):
        word = value.strip().split(" ")[0].rstrip("xX%C,")
        digits = word.removeprefix("-")
        if len(digits) < 24 and digits.replace(".", "", 1).isascii() and digits.replace(".", "", 1).isdigit():
            return float(word)
    return None


def is_forged(root: ElementTree.Element, gpus: Sequence[ElementTree.Element]) -> bool:
    """Return whether the answer lists a GPU twice, or more of them than its head counts.

    No driver does; a process may be called like a part of the document.
    """
    attached = (root.findtext("attached_gpus") or "").strip()
    places = {each.get("id") for each in gpus}
    return len(places) < len(gpus) or (attached.isdigit() and len(gpus) > int(attached))


def answer_of(text: str) -> ElementTree.Element | None:
    """The document in what nvidia-smi printed. Entities are not its way: a document with any is not read."""
    start, end = text.find("<nvidia_smi_log"), text.rfind("</nvidia_smi_log>")
    if start < 0 or end < 0:
        return None
    try:
        # From the root element on there is no document type, so there are no entities to expand.
        root = ElementTree.fromstring(text[start : end + len("</nvidia_smi_log>")])
    except ElementTree.ParseError:
        return None
    # Jobs choose the names of their processes: a GPU's faults are not in there.
    for gpu in root.findall("gpu"):
        for section in (*gpu.findall("processes"), *gpu.findall("accounted_processes")):
            gpu.remove(section)
    return root
