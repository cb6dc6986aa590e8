"""Records of the kernel's log, as `templates/kernel-records.sh.j2` prints them. Pure.

Each line is one record. Its text may hold names of processes and files, which belong to jobs; a pattern
therefore counts from the beginning of a record alone. A name of a process at the beginning has at most 15
bytes, and the kernel's own words follow it, so a pattern requires more than 15 bytes without a gap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_RECORD = re.compile(r"(?:\[\s*(\d{1,12}\.\d{1,9})\] )?(.*)")


@dataclass(frozen=True)
class KernelRecord:
    """A record of the kernel. `at_s`: seconds since the boot; None if the record has no time."""

    text: str
    at_s: float | None = None


def kernel_records(lines: Iterable[str]) -> tuple[KernelRecord, ...]:
    """Return the records in lines `[SECONDS] text`."""
    parsed = (_RECORD.match(line) for line in lines)
    return tuple(
        KernelRecord(each[2].rstrip(), float(each[1]) if each[1] is not None else None)
        for each in parsed
        if each is not None
    )
