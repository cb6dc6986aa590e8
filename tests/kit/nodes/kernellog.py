"""Records of the kernel's log in the forms in which a node can read it."""

from __future__ import annotations

import re

_SYSLOG = re.compile(r"^(?:[^\[{]{0,120}?\bkernel: +)?(?:\[([^\]]*[\d:][^\]]*)\] )?(.*)$")


def records_of(text: str) -> list[tuple[float | None, str]]:
    """The records in lines of `dmesg`, of `dmesg -T` or of a syslog, each with its seconds since the boot."""
    records: list[tuple[float | None, str]] = []
    for line in text.splitlines():
        if line.startswith("  ") and records:  # as dmesg prints the other lines of a record
            at, first = records[-1]
            records[-1] = (at, f"{first}\n{line.strip()}")
            continue
        found = _SYSLOG.match(line)
        assert found is not None
        stamp = (found[1] or "").strip()
        records.append((float(stamp) if re.fullmatch(r"\d+\.\d+", stamp) else None, found[2]))
    return records


def as_read(text: str) -> str:
    """The same as a node prints them: a line for each record, or for each line of the driver's own."""
    return "\n".join(
        f"[{at}] {line}" if at is not None else line
        for at, record in records_of(text)
        for line in record.split("\n")
    )


def as_kmsg(*records: tuple[float, str], facility: int = 0) -> str:
    """Records as /dev/kmsg gives them: `priority,sequence,microseconds,flags;text`, with what is no plain
    character as an escape, and a line of their dictionary."""
    lines: list[str] = []
    for number, (at, text) in enumerate(records):
        escaped = "".join(
            chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in text.encode()
        )
        lines += [f"{facility * 8 + 6},{number},{at * 1e6:.0f},-;{escaped}", " SUBSYSTEM=pci"]
    return "".join(f"{line}\n" for line in lines)
