"""A verification as an ordinary run: its task, its results, and what they are held against.

A library of collectives that cannot connect to a peer waits for minutes and names an address: before the run
each node is asked to connect to each other one, and what nobody reaches is named here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orch.catalog.fabrics import fabric
from orch.runner.errors import RunFailed
from orch.runner.events import Event, LogLine, LogLines, Processor
from orch.runner.hosts.checks.types import MeshView
from orch.runner.hosts.mesh import try_mesh
from orch.runner.hosts.network import ClusterAddress, ClusterNetwork
from orch.runner.ledger.history.verifications import KeptFigure
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.ledger.run_folder import RunFolder
from orch.runner.node_api.connector import Connector
from orch.runner.verify import results
from orch.runner.verify.job import bisection
from orch.runner.verify.judge import Terms, VerifiedNode
from orch.runner.verify.report import Key, Report, Shortfall
from orch.runner.verify.results import Results
from orch.spec.state import FleetState, NodeState
from orch.spec.suggest import counted

if TYPE_CHECKING:
    from orch.spec.models import Task

PROGRAM = Path(__file__).parent / "job"
"""The folder of what runs on the nodes."""
FILES = ("verify_program.py", "measures.py", "bisection.py", "nccl_log.py")

RUNS = (
    *("all_reduce", "all_gather", "alltoall", "sendrecv"),
    *("gemm", "memory", "host_to_device", "device_to_host", "cpu", "disk"),
)
"""What a verification can measure, in this order."""

LONGEST_S = 2 * 3600
"""A verification of a thousand nodes with all pairs takes less; one that hangs in the network ends."""
STOP_S = 30
SHARED_SLOW = 0.05
"""`bisection.SLOW` where all nodes are containers of one machine, whose processors all pairs share."""
# PyTorch drives these as CUDA devices.
_VENDORS = (None, "nvidia", "amd")


@dataclass(frozen=True)
class Request:
    """What is to be verified. `runs`: of RUNS; `size`: the largest message in bytes, None for the program's
    own; `min_busbw`: GB/s; `image`: in place of the fleet's."""

    runs: tuple[str, ...] = RUNS
    pairs: bool = False
    size: int | None = None
    min_busbw: float | None = None
    image: str | None = None


def on_one_machine(fleet: FleetState) -> bool:
    """Whether all nodes are containers of one machine: local ones, and those of a rehearsal."""
    return fleet.backend == "local" or fleet.simulated


def task_of(request: Request, fleet: FleetState) -> Task:
    """The task that verifies all nodes of `fleet`: a process for each accelerator, or for each node."""
    from orch.spec.models import Task

    words = ["--lines", "--runs", ",".join(request.runs)] if request.runs else ["--lines"]
    if request.pairs:
        words += ["--pairs", "--slow", str(_slow(fleet))]
    if request.size is not None:
        words += ["--size", str(request.size)]
    # A job of one node takes a part of it unless it asks for all.
    gpus = max((node.gpus.count for node in fleet.nodes), default=0)
    whole = {"resources": {"gpu": gpus}} if len(fleet.nodes) == 1 and gpus else {}
    return Task.model_validate(
        {
            "type": "task",
            "nodes": len(fleet.nodes),
            "fleets": [fleet.name],
            "files": list(FILES),
            "torchrun": {"program": FILES[0], "args": words},
            # Its processes compute on one core each; without it torchrun warns of that.
            "env": {"OMP_NUM_THREADS": "1"},
            "max_duration": f"{LONGEST_S}s",
            "stop_duration": f"{STOP_S}s",
            **({"image": request.image} if request.image is not None else {}),
            **whole,
        }
    )


def _slow(fleet: FleetState) -> float:
    return SHARED_SLOW if on_one_machine(fleet) else bisection.SLOW


def terms_of(
    request: Request, fleet: FleetState, row: RunRow, former: Mapping[Key, Sequence[float]]
) -> Terms:
    """What the results of a run are held against. Nodes are in the order of its ranks."""
    nodes = tuple(_verified(rank.node) for rank in plan_of(row).ranks)
    known = fabric(fleet.interconnect, nodes[0].instance_type)
    said, by = request.min_busbw, "what --min-busbw asks for"
    if said is None and fleet.health is not None and fleet.health.min_busbw is not None:
        said, by = float(fleet.health.min_busbw), "what `health.min_busbw` of the fleet asks for"
    return Terms(
        fleet=fleet.name,
        nodes=nodes,
        interconnect=fleet.interconnect,
        transports=known.transports if known is not None else (),
        min_busbw=said,
        min_busbw_by=by,
        former=former,
        one_machine=on_one_machine(fleet),
        simulated=fleet.simulated,
        slow=_slow(fleet),
    )


def _verified(node: NodeState) -> VerifiedNode:
    gpus = node.gpus.count if node.gpus.vendor in _VENDORS else 0
    return VerifiedNode(node.name, node.instance_type, gpus)


def results_of(folder: RunFolder, row: RunRow, request: Request) -> Results:
    """What the ranks of a run printed: rank 0 the results, any other why it ended early.

    Raises RunFailed where it ended without results, or tells nothing of something that was asked for: what
    was not measured is not fine."""
    found = results.read(_texts(folder.log(0)))
    others = results.read(
        text for rank in row.ranks if rank.rank for text in _texts(folder.log(rank.rank)) if '"error"' in text
    )
    errors = (*found.errors, *others.errors)
    ended = found.ended and row.status == "done"
    untold = [name for name in _asked(request) if name not in found.told]
    if ended and not untold:
        return found
    why = [f"nothing is told of {', '.join(untold)}"] if ended else []
    why += [f"rank {each.rank}: {each.text}" for each in errors[:4]]
    why += [warning for each in errors[:2] for warning in each.warnings[:2]]
    networks = {each.network for each in errors if each.network}
    if networks:
        why.append(f"network: {' and '.join(sorted(networks))}")
    raise RunFailed(
        f"the verification of fleet {row.fleet} has no results",
        where=f"run {row.name}",
        detail="\n".join(why) or row.message or "it ended before it had measured everything",
        hint=f"`orch logs {row.name}` has what its ranks wrote",
        code="ORCH446",
    )


def _asked(request: Request) -> tuple[str, ...]:
    return (*request.runs, "pairs") if request.pairs else request.runs


def _texts(log: Path) -> Iterable[str]:
    """The lines of a kept log without their times; none where there is no log."""
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                yield line.rstrip("\r\n").partition(" ")[2]
    except OSError:
        return


def conditions_of(found: Results, terms: Terms) -> str:
    """What results must have in common to be compared with these: how many nodes and ranks, which library."""
    start = found.start
    if start is None:
        return ""
    library = start.library.partition(" ")[0]
    return f"{len(terms.nodes)} nodes, {start.ranks} ranks, {library}, {terms.interconnect}"


def figures_of(report: Report) -> tuple[KeptFigure, ...]:
    """What the ledger keeps of a report."""
    return tuple(
        KeptFigure(row.measure, row.subject, row.size, row.value, row.unit, row.judgement)
        for row in report.rows
    )


class Quietly:
    """Passes events of a verification on, but for its results, which are for programs."""

    def __init__(self, shown: Processor) -> None:
        self._shown = shown

    def handle(self, event: Event, /) -> None:
        if isinstance(event, LogLines):
            for line in event.each():
                self.handle(line)
        elif not (isinstance(event, LogLine) and results.is_result(event.text)):
            self._shown.handle(event)


UNREACHED = "ORCH447"
MOST_FAIL = 0.75
MOST_LINKS = 16
"""So many links are told one by one."""
_MTU = 1500
"""Packets of this size pass all networks that jobs use; larger ones are `orch check`'s matter."""


def unreached(fleet: FleetState, connector: Connector) -> tuple[Shortfall, ...]:
    """The nodes and links of a fleet over which no connection comes about, nodes first.

    Only what certainly listens is tried: nodes without python3, perl, socat or nc say nothing of their links,
    nor do those without an internal address, and those that do not answer at all.
    """
    addresses = tuple(
        ClusterAddress(node.name, node.internal_ip, "", _MTU) for node in fleet.nodes if node.internal_ip
    )
    if len(addresses) < 2:
        return ()
    network = ClusterNetwork(None, addresses)
    return shortfalls(try_mesh(fleet.nodes, network, connector, listening_only=True))


def shortfalls(views: Mapping[str, MeshView]) -> tuple[Shortfall, ...]:
    """What connections that fail say of nodes and of links. Pure.

    A node is at fault that fails with MOST_FAIL of the others, most of which fail with fewer than it does;
    what is left are links. Two halves of a fleet that do not reach each other are no fault of any node.
    """
    failures: dict[frozenset[str], str] = {}
    for name, view in views.items():
        for peer, why in view.unreached:
            failures.setdefault(frozenset((name, peer)), _printable(why))
    others = sum(view.failure is None for view in views.values()) - 1
    counts = Counter(name for pair in failures for name in pair)
    found: list[Shortfall] = []
    for name, many in sorted(counts.items()):
        peers = [counts[peer] for pair in failures if name in pair for peer in pair - {name}]
        if many < 2 or many < MOST_FAIL * others or 2 * sum(each < many for each in peers) <= many:
            continue
        why = next(why for pair, why in failures.items() if name in pair)
        text = f"node {name} and {many} of {counted(others, 'other node')} do not connect: {why}"
        found.append(Shortfall(UNREACHED, text, (name,), "node"))
    blamed = {name for each in found for name in each.nodes}
    links = {tuple(sorted(pair)): why for pair, why in failures.items() if not pair & blamed}
    if len(links) > MOST_LINKS:
        first, why = next(iter(links.items()))
        text = f"{len(links)} pairs of nodes do not connect, such as {' and '.join(first)}: {why}"
        found.append(
            Shortfall(UNREACHED, text, tuple(sorted({name for pair in links for name in pair})), "link")
        )
    else:
        for pair, why in links.items():
            text = f"{' and '.join(pair)} do not connect over the fleet's network: {why}"
            found.append(Shortfall(UNREACHED, text, pair, "link"))
    return tuple(found)


def _printable(text: str) -> str:
    """What a node says, on one line."""
    return " ".join("".join(each if each.isprintable() else " " for each in text[:400]).split())[:120]
