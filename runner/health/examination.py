"""One look at the health of nodes: a script, and the report that its output comes to.

docs/reference/health.md has the table of what is read, and what comes of it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orch.runner.errors import RunConflict, RunnerError
from orch.runner.health.findings import HealthReport, ReportBuilder
from orch.runner.health.readers.amd import read_amd
from orch.runner.health.readers.dcgm import read_diagnostic, read_watches
from orch.runner.health.readers.gaudi import FIELDS, read_gaudi
from orch.runner.health.readers.kernel import STARTS, Clocks, read_kernel
from orch.runner.health.readers.machine import (
    read_clock,
    read_disks,
    read_fabric,
    read_memory,
    read_memory_modules,
)
from orch.runner.health.readers.nvidia import GpuHealth, read_nvlink, read_smi
from orch.runner.health.readers.sections import Section, number, sections_of
from orch.runner.health.readers.tenstorrent import read_tenstorrent
from orch.runner.health.readers.xids import XIDS
from orch.runner.node_api.commands import NODE_HOME, Command, as_root
from orch.runner.node_api.connector import Connector, NodeResult, fan_out
from orch.spec.state import NodeState
from orch.templates import render

Depth = Literal["light", "dcgm"]
"""`light`: what tools and the kernel tell at once. `dcgm`: `dcgmi diag -r 2` besides, which takes minutes and
wants idle GPUs."""

LOOK_S = 10.0
TOOL_S = 25
"""How long one tool may take: nvidia-smi with eight GPUs and without persistence mode takes ten seconds."""
LOG_S = 12
"""How long one reading of the kernel's log may take."""
LIGHT_S = 30
DIAGNOSTIC_S = 900
"""`dcgmi diag -r 2` takes two to eleven minutes."""
WAIT_S = 5
"""How long a look waits for another one."""
MOST_BYTES = 400_000
"""Of the output of one tool: nvidia-smi tells 8 KB of a GPU."""

SHARED = (
    *("rdma", "memory modules", "memory errors", "disk errors", "pcie errors"),
    *("disk space", "memory", "clock"),
)
"""What a container has in common with the machine that it is on, and others on it."""


def command(node: NodeState, *, depth: Depth, simulated: bool = False, contained: bool = False) -> Command:
    """Asks a node how it is; `read` reads the answer.

    `simulated`: its accelerators are a number alone, and files of its own may stand for its RDMA ports.
    `contained`: it is known to be a container; the node itself finds that out too.
    """
    vendor = (node.gpus.vendor or "nvidia") if node.gpus.count else None
    diagnose = depth == "dcgm" and vendor == "nvidia"
    limit_s = DIAGNOSTIC_S if diagnose else LIGHT_S
    silent = "|".join(str(rule.number) for rule in XIDS.values() if rule.severity is None)
    text = render(
        "node-health.sh.j2",
        home=NODE_HOME,
        limit_s=limit_s,
        tool_s=TOOL_S,
        log_s=LOG_S,
        starts=rf"^[^]]*\] ({STARTS})",
        silent=rf"^[^]]*\] NVRM: Xid [(][^)]*[)]: ({silent})($|[^0-9])",
        wait_s=WAIT_S,
        most_bytes=MOST_BYTES,
        contained=contained or node.is_pod,
        simulated=int(simulated),
        nvidia=vendor == "nvidia",
        amd=vendor == "amd",
        gaudi=",".join(FIELDS) if vendor == "intel" else None,
        tenstorrent=vendor == "tenstorrent",
        diagnose=diagnose,
    )
    return Command(as_root(text), "look at its health", timeout_s=limit_s + 30.0)


def read(node: NodeState, text: str) -> HealthReport:
    """The health of a node by what `command` printed there.

    Raises RunnerError where that is no answer, and RunConflict, of these, where another look is at work.
    """
    sections = sections_of(text)
    earlier = sections.get("earlier")
    if earlier is not None:
        return _blocked(node, earlier)
    if "orch" not in sections:
        detail = " ".join(text.split())[:200] or "it answers nothing"
        raise RunnerError(f"node {node.name} does not tell its health", where=node.name, detail=detail)
    context = _Context.of(sections["orch"])
    notes = ReportBuilder()
    gpus = _read_accelerators(node, sections, context, notes)
    notes.add(
        read_kernel(
            _section(sections, "kernel"),
            gpus,
            context.clocks,
            contained=context.contained,
            nvidia=bool(node.gpus.count) and node.gpus.vendor in (None, "nvidia"),
        )
    )
    if context.contained:
        stand_in = context.simulated and "rdma" in sections
        if stand_in:
            notes.add(read_fabric(sections["rdma"]))
        for check in SHARED:
            if check != "rdma" or not stand_in:
                notes.skip(check, "the node is a container, which shares this with its machine")
        return notes.report()
    notes.add(read_fabric(_section(sections, "rdma")))
    notes.add(read_memory_modules(_section(sections, "edac")))
    notes.add(read_disks(_joined(sections, "df", "mounts")))
    notes.add(read_memory(_section(sections, "memory")))
    notes.add(read_clock(_section(sections, "clock")))
    return notes.report()


def examine(
    nodes: Sequence[NodeState],
    connector: Connector,
    depth: Depth = "light",
    *,
    simulated: bool = False,
    deadline_s: float = LOOK_S,
    until: threading.Event | None = None,
) -> tuple[NodeResult[HealthReport], ...]:
    """Look at each node at once. A node that does not answer is an error in its place.

    `deadline_s`, `until`: as in `Connector.run`.
    """

    def look(node: NodeState) -> HealthReport:
        asked = command(node, depth=depth, simulated=simulated)
        done = connector.run(node, asked, deadline_s=deadline_s, until=until)
        return read(node, done.stdout or done.stderr)

    return fan_out(nodes, look)


@dataclass(frozen=True)
class _Context:
    """What the script says of the node itself. `switched`: it has NVSwitches."""

    contained: bool
    simulated: bool
    switched: bool
    clocks: Clocks

    @classmethod
    def of(cls, section: Section) -> _Context:
        told = {words[0]: words[1] for line in section.lines if len(words := line.split()) == 2}
        return cls(
            told.get("contained") == "1",
            told.get("simulated") == "1",
            told.get("switched") == "1",
            Clocks(number(told.get("booted")), number(told.get("reset"))),
        )


def _blocked(node: NodeState, earlier: Section) -> HealthReport:
    if earlier.state != "hung":
        raise RunConflict(
            f"another look at the health of node {node.name} is at work",
            where=node.name,
            hint="wait for it; `dcgmi diag` takes minutes",
        )
    notes = ReportBuilder()
    what = earlier.first_words or "a tool"
    notes.fail("hang", "node", f"an earlier look hangs, and cannot be ended: {what}", "reboot")
    notes.skip("all others", "an earlier look hangs")
    return notes.report()


def _read_accelerators(
    node: NodeState, sections: Mapping[str, Section], context: _Context, notes: ReportBuilder
) -> tuple[GpuHealth, ...]:
    """What the tools of the node's accelerators tell; the GPUs that NVIDIA's driver lists."""
    count, vendor = node.gpus.count, node.gpus.vendor or "nvidia"

    def of(name: str) -> Section:
        return _section(sections, name)

    if not count:
        return ()
    if vendor == "nvidia":
        report, gpus = read_smi(of("smi"), count, simulated=context.simulated)
        notes.add(report)
        linked = False
        if gpus:
            links = read_nvlink(of("nvlink"), of("nvlink_errors"), switched=context.switched)
            linked = not any(each.check == "nvlink" for each in links.skipped)
            notes.add(links)
        else:
            notes.skip("nvlink", "nvidia-smi lists no GPU")
        notes.add(read_watches(of("dcgm_health"), linked=linked))
        if "dcgm_diag" in sections:
            notes.add(read_diagnostic(of("dcgm_diag")))
        return gpus
    tool = {"amd": "amd_metric", "intel": "gaudi", "tenstorrent": "tenstorrent"}.get(vendor)
    if context.simulated and (tool is None or of(tool).state == "missing"):
        notes.skip("gpus", "the accelerators are simulated")
    elif vendor == "amd":
        notes.add(read_amd(of("amd_metric"), of("amd_pages"), of("rocm"), of("ras"), count))
    elif vendor == "intel":
        notes.add(read_gaudi(of("gaudi"), count))
    elif vendor == "tenstorrent":
        notes.add(read_tenstorrent(of("tenstorrent"), count))
    else:
        notes.skip("gpus", f"there is no reader for accelerators of {vendor}")
    return ()


def _section(sections: Mapping[str, Section], name: str) -> Section:
    return sections.get(name, Section(name))


def _joined(sections: Mapping[str, Section], *names: str) -> Section:
    parts = [_section(sections, name) for name in names]
    return Section(names[0], "done", lines=tuple(line for part in parts for line in part.lines))
