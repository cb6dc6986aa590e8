"""What the kernel's files tell of RDMA ports: InfiniBand and RoCE. Pure.

No tool tells which ports a machine should have connected, so ports are judged by their like: a port that is
down is at fault where it was up since the driver was loaded, or where most of its kind are up. One that is
switched off, or belongs to a virtual function, is not. EFA has none of these states: its devices are counted
by `orch check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orch.runner.health.findings import HealthReport, ReportBuilder
from orch.runner.health.readers.sections import Section, number

DOWNS_MOST = 10
"""How often a link may have gone down since the driver was loaded; ours."""
SYMBOL_ERRORS_MOST = 1_000
"""Errors of symbols since the driver was loaded; ours."""


@dataclass(frozen=True)
class RdmaPort:
    """A port. `link`: `InfiniBand` or `Ethernet`; `rate`: in Gbit/s; `downs`: how often it went down."""

    device: str
    port: str
    driver: str
    link: str
    state: str
    physical: str
    rate: float | None
    virtual: bool
    downs: int
    symbol_errors: int
    kind: str

    def __str__(self) -> str:
        return f"{self.device} port {self.port}"

    @property
    def up(self) -> bool:
        return "ACTIVE" in self.state

    @property
    def off(self) -> bool:
        return "Disabled" in self.physical


def read_fabric(section: Section) -> HealthReport:
    """The health of a node's RDMA ports."""
    notes = ReportBuilder()
    ports = tuple(_ports(section.lines))
    judged = [port for port in ports if port.driver != "efa" and not port.virtual and port.state]
    if not judged:
        why = "EFA tells of no states" if any(port.driver == "efa" for port in ports) else "no RDMA ports"
        notes.skip("rdma", why)
        return notes.report()
    notes.made("rdma")
    for port in judged:
        like = [each for each in judged if (each.kind, each.link) == (port.kind, port.link)]
        _judge(port, like, notes)
    return notes.report()


def _judge(port: RdmaPort, like: list[RdmaPort], notes: ReportBuilder) -> None:
    if not port.up:
        if port.off and not port.downs:
            return
        reason = f"the port is {_word(port.state)} ({_word(port.physical)})"
        most_up = len(like) > 1 and 2 * sum(each.up for each in like) >= len(like)
        # Drivers count one while they start.
        (notes.fail if most_up or port.downs > 1 else notes.warn)("rdma", str(port), reason, "reboot")
        return
    full = max((each.rate or 0.0 for each in like if each.up), default=0.0)
    if port.rate and port.rate < full:
        reason = f"the port runs at {port.rate:g} of {full:g} Gbit/s"
        notes.warn("rdma", str(port), reason, "reboot")
    if port.downs >= DOWNS_MOST:
        notes.warn("rdma", str(port), f"the link went down {port.downs} times")
    if port.symbol_errors >= SYMBOL_ERRORS_MOST:
        notes.warn("rdma", str(port), f"{port.symbol_errors} errors of symbols on the link")


def _ports(lines: Iterable[str]) -> Iterable[RdmaPort]:
    """Lines of eleven fields with semicolons between, as node-health.sh.j2 makes them."""
    for line in lines:
        cells = [cell.strip() for cell in line.split(";")]
        if len(cells) == 11 and cells[0]:
            yield RdmaPort(
                *cells[:6],
                rate=number(cells[6]),
                virtual=cells[7] == "vf",
                downs=int(number(cells[8]) or 0),
                symbol_errors=int(number(cells[9]) or 0),
                kind=cells[10],
            )


def _word(state: str) -> str:
    """`ACTIVE` of `4: ACTIVE`."""
    return state.partition(":")[2].strip() or state
