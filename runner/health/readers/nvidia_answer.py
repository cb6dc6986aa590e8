"""The document that `nvidia-smi -q -x` prints. Jobs choose the names of processes in it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree


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
