"""Xids: the faults that NVIDIA's driver tells the kernel's log, what each means, and what helps. Pure.

The table follows NVIDIA's catalogue (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html,
as of 2026-11): RESTART_APP is `none`, RESET_GPU `reset`, RESTART_BM and RESTART_VM `reboot`. Where NVIDIA
wants its support and nothing else helps, it is `replace`. Of an Xid that is not in it nothing is decided.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from orch.runner.health.readers.records import kernel_records

Action = Literal["none", "reset", "reboot", "replace"]
"""What helps: nothing done to the node, a reset of its accelerators, a reboot, another machine."""


@dataclass(frozen=True)
class XidRule:
    """What an Xid means, and what helps: nothing done to the node where an application is at fault.

    `severity`: a node with a `failure` gets no new job. None: it says nothing of the node's health.
    """

    number: int
    title: str
    action: Action
    severity: Literal["warning", "failure"] | None


XIDS = {
    rule.number: rule
    for rule in (
        XidRule(8, "the GPU stopped processing for a job", "none", None),
        XidRule(13, "graphics engine exception", "none", None),
        XidRule(31, "memory page fault", "none", None),
        XidRule(32, "invalid or corrupted push buffer", "none", None),
        XidRule(43, "the GPU stopped processing for a job", "none", None),
        XidRule(45, "a job's channels were removed", "none", None),
        XidRule(46, "the GPU stopped processing", "reset", "failure"),
        XidRule(48, "double-bit ECC error", "reset", "failure"),
        XidRule(54, "auxiliary power is not connected", "replace", "failure"),
        XidRule(61, "internal micro-controller breakpoint", "reset", "warning"),
        XidRule(62, "internal micro-controller halt", "reset", "failure"),
        XidRule(63, "a row of memory was recorded for remapping", "reset", "warning"),
        XidRule(64, "a row of memory could not be recorded for remapping", "reset", "failure"),
        XidRule(69, "graphics engine class error", "none", None),
        XidRule(74, "NVLink error", "reset", "failure"),
        XidRule(79, "the GPU has fallen off the bus", "reboot", "failure"),
        XidRule(92, "high rate of single-bit ECC errors", "replace", "warning"),
        XidRule(93, "InfoROM wear limit exceeded", "none", "warning"),
        XidRule(94, "contained ECC error", "reset", "warning"),
        XidRule(95, "uncontained ECC error", "reset", "failure"),
        XidRule(109, "context switch timeout", "reset", "failure"),
        XidRule(110, "security fault", "reset", "failure"),
        XidRule(119, "GSP firmware did not answer in time", "reset", "failure"),
        XidRule(120, "GSP firmware error", "reset", "failure"),
        XidRule(121, "corrected error of the C2C link", "reset", "warning"),
        XidRule(136, "NVLink training failed", "reset", "failure"),
        XidRule(137, "NVLink privilege error", "none", None),
        XidRule(140, "unrecovered ECC error", "reset", "failure"),
        XidRule(141, "CUDA fast path error", "none", None),
        XidRule(143, "GPU initialization failed", "reset", "failure"),
        XidRule(144, "NVLink SAW error", "reset", "failure"),
        XidRule(145, "NVLink RLW error", "reset", "failure"),
        XidRule(146, "NVLink TLW error", "reset", "failure"),
        XidRule(147, "NVLink TREX error", "reset", "failure"),
        XidRule(148, "NVLink NVLPW_CTRL error", "reset", "failure"),
        XidRule(149, "NVLink NETIR error", "reset", "failure"),
        XidRule(150, "NVLink MSE error", "reset", "failure"),
        XidRule(151, "key rotation error", "reboot", "failure"),
        XidRule(154, "GPU recovery action changed", "none", "failure"),
        XidRule(155, "NVLink is down by software", "reset", "warning"),
        XidRule(156, "a resource of the GPU is to be retired", "reset", "warning"),
        XidRule(157, "a resource of the GPU could not be retired", "replace", "warning"),
        XidRule(158, "GPU fatal timeout", "reset", "failure"),
        XidRule(160, "a memory channel is to be repaired", "reset", "warning"),
        XidRule(161, "a memory channel could not be repaired", "replace", "warning"),
        XidRule(162, "power smoothing is engaged again", "none", None),
        XidRule(163, "power smoothing is disengaged", "none", "warning"),
        XidRule(164, "power smoothing is near the end of its life", "none", "warning"),
        XidRule(165, "power smoothing is at the end of its life", "none", "warning"),
        XidRule(167, "PCIe fatal timeout", "reboot", "failure"),
        XidRule(168, "errors in the protected region of GPU memory", "reboot", "failure"),
        XidRule(169, "internal micro-controller halt", "reset", "failure"),
        XidRule(171, "uncorrectable DRAM error", "reset", "failure"),
        XidRule(172, "uncorrectable SRAM error", "reset", "failure"),
    )
}

NVLINK5 = range(144, 151)
"""These tell in their own text whether they are fatal."""
RECOVERY = 154
"""This one tells in its own text what helps."""

# With MIG the place is followed by the instance; drivers of 2012 wrote no `PCI:`.
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.\d)?)(?: [^)]*)?\): "
    r"(\d{1,5})(?:,\s*(.*))?"
)
_RECOVERY = re.compile(r"recovery action changed from \S+ \([^)]*\)\s+to (\S+) \(([^)]*)\)")


@dataclass(frozen=True)
class Xid:
    """A fault that the kernel told, of the GPU at a place of the PCI bus."""

    pci: str
    number: int


def xid_in(text: str) -> tuple[Xid, str] | None:
    """Return the fault that a record of the kernel begins with, and its own text."""
    found = _XID.match(text)
    return None if found is None else (Xid(short_pci(found[1]), int(found[2])), (found[3] or "").strip())


def xids_in(lines: Iterable[str]) -> tuple[Xid, ...]:
    """Return the faults in records of the kernel, each once for a GPU, in the order of their last records."""
    found = (xid_in(record.text) for record in kernel_records(lines))
    latest = dict.fromkeys(reversed([each[0] for each in found if each is not None]))
    return tuple(reversed(latest))


def recovery_action(text: str) -> tuple[Action, str] | None:
    """What the text of Xid 154 says helps, and its words; None for what it does not say."""
    found = _RECOVERY.search(text)
    return None if found is None else (action_in(found[2]), found[2])


def action_in(words: str) -> Action:
    """The action in a driver's words, as nvidia-smi and Xid 154 have them.

    `None`, `Reset`, `GPU Reset Required`, `PF FLR`, `Reboot`, `Node Reboot Required`, `OS Reboot`,
    `Drain P2P`, `Drain and Reset`: a drain ends in a reset (NVIDIA GPU Memory Error Management, "Error
    Recovery and Response Flags").
    """
    low = words.lower()
    if "reboot" in low:
        return "reboot"
    return "reset" if any(each in low for each in ("reset", "flr", "drain")) else "none"


def short_pci(pci: str) -> str:
    """A place of the PCI bus as one spelling: nvidia-smi and the kernel tell domains of other lengths, and
    the kernel leaves the function out."""
    domain, _, rest = pci.lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest.partition('.')[0]}"
