"""Measures nodes and what is between them. Start it with torchrun: one process per accelerator, or per node.

    torchrun --nproc-per-node=1 verify_program.py [--runs all_reduce,gemm,...] [--pairs] [--size 1G]

Rank 0 prints what all have measured: for people, or with `--lines` for orch, a marker and JSON in each line.
NCCL or RCCL where there are accelerators, else gloo. All of it runs on Python 3.9 and PyTorch 1.13 or later.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orch.runner.verify.job import bisection, measures, nccl_log
else:
    import bisection
    import measures
    import nccl_log

MARKER = "orch-verify:"
VERSION = 1
MIB = 1 << 20
COLLECTIVES = ("all_reduce", "all_gather", "alltoall", "sendrecv")
OF_CARDS = {
    "gemm": "TFLOP/s",
    "memory": "GB/s",
    "host_to_device": "GB/s",
    "device_to_host": "GB/s",
}
RUNS = (*COLLECTIVES, *OF_CARDS, "cpu", "disk")
MOST_LOG = 64 * MIB
"""Of a log of NCCL, so much is read."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size_of(text: str) -> int:
    """Bytes of `8`, `64K`, `1M` or `8G`."""
    found = re.fullmatch(r"([1-9]\d{0,11})([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 64K, 1M or 8G")
    return int(found[1]) * _UNITS[found[2].upper()]


def runs_of(text: str) -> list[str]:
    found = [word for word in text.split(",") if word]
    if not found or any(word not in RUNS for word in found):
        raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(RUNS)}")
    return [name for name in RUNS if name in found]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure nodes and what is between them.")
    parser.add_argument("--runs", type=runs_of, default=list(RUNS), help=",".join(RUNS))
    parser.add_argument("--pairs", action="store_true", help="each node with each other one")
    parser.add_argument("--size", type=size_of, help="the largest message; 2G, 4M without accelerators")
    parser.add_argument("--pair-size", type=size_of, help="of a pair; 256M a card or less, 4M without")
    parser.add_argument(
        "--slow", type=float, default=bisection.SLOW, help="a slow pair reaches less of the others"
    )
    parser.add_argument("--scratch", help="a folder on the disk that is measured")
    parser.add_argument("--disk-size", type=size_of, help="of its scratch file; 1G, 64M without accelerators")
    parser.add_argument("--lines", action="store_true", help="print lines for orch")
    return parser.parse_args()


class Printer:
    """Prints results; of rank 0 alone, but for errors."""

    def __init__(self, lines: bool) -> None:
        self._lines = lines

    def __call__(self, kind: str, **fields: Any) -> None:
        if self._lines:
            text = f"{MARKER} {json.dumps({'v': VERSION, 'kind': kind, **fields})}"
        else:
            text = self._for_people(kind, fields)
        # In one call: lines of several processes go to one pipe.
        os.write(1, (text[:4000] + "\n").encode())

    @staticmethod
    def _for_people(kind: str, fields: dict[str, Any]) -> str:
        if kind == "collective":
            return (
                f"{fields['measure']:<14} {fields['size']:>12} B {fields['seconds'] * 1e6:>12.1f} us  algbw "
                f"{fields['algbw']:>9.3f} GB/s  busbw {fields['busbw']:>9.3f} GB/s  wrong {fields['wrong']}"
            )
        if kind == "figure":
            of = f"rank {fields['rank']}" if "rank" in fields else f"node {fields['node']}"
            more = {
                key: value
                for key, value in fields.items()
                if key not in ("measure", "rank", "node", "value", "unit")
            }
            shown = ", ".join(
                f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}"
                for key, value in more.items()
            )
            return f"{fields['measure']:<14} {of:<8} {fields['value']:>10.3f} {fields['unit']}  ({shown})"
        if kind == "pair":
            again = " (again)" if fields["again"] else ""
            return (
                f"pair           round {fields['round']}: {fields['a']} <-> {fields['b']} "
                f"{fields['bandwidth']:.3f} GB/s{again}"
            )
        return f"{kind:<14} " + ", ".join(f"{key} {value}" for key, value in fields.items())


def silent(kind: str, **fields: Any) -> None:
    """What other ranks print."""
    del kind, fields


def main() -> int:
    chosen = options()
    log = Path(tempfile.mkdtemp(prefix="verify-")) / f"nccl.{os.getpid()}.log"
    # A file of its own: what the library says is read at the end, and the output has the figures alone.
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,P2P,SHM", NCCL_DEBUG_FILE=str(log))
    printer = Printer(chosen.lines)
    began = time.perf_counter()
    try:
        place = measures.Place()
        say = printer if place.rank == 0 else silent
        tell_start(place, say)
        for name in chosen.runs:
            measure(place, say, name, chosen)
        if chosen.pairs:
            pairs(place, say, chosen)
        transport(place, say, log)
        say("end", seconds=round(time.perf_counter() - began, 3))
        measures.dist.destroy_process_group()
    except Exception as error:
        rank = int(os.environ.get("RANK", "0"))
        found = nccl_log.read(lines_of(log))
        printer("error", rank=rank, text=f"{type(error).__name__}: {error}"[:1000], **fields_of(found))
        raise
    finally:
        shutil.rmtree(log.parent, ignore_errors=True)
    return 0


def tell_start(place: measures.Place, say: Callable[..., None]) -> None:
    torch = measures.torch
    name, memory, library = "", 0, "gloo"
    if place.gpu:
        properties = torch.cuda.get_device_properties(place.device)
        name, memory = properties.name, properties.total_memory // MIB
        version = ".".join(map(str, torch.cuda.nccl.version()))
        library = f"{'RCCL' if torch.version.hip else 'NCCL'} {version}"
    cards = place.gather_json([name, memory])
    say(
        "start",
        backend=place.backend,
        library=library,
        torch=str(torch.__version__),
        python=sys.version.split()[0],
        ranks=place.ranks,
        nodes=len(place.nodes),
    )
    for rank, (card, mebibytes) in enumerate(cards):
        say("rank", rank=rank, node=place.nodes_of_ranks[rank], card=card, memory_mib=mebibytes)


def measure(place: measures.Place, say: Callable[..., None], name: str, chosen: argparse.Namespace) -> None:
    if name in COLLECTIVES:
        if place.ranks == 1:
            say("skipped", measure=name, why="there is one process: nothing is between it and others")
            return
        largest = chosen.size or (2048 * MIB if place.gpu else 4 * MIB)
        last = 0
        for row in measures.collective(place, name, largest):
            say("collective", measure=name, **row)
            last = row["size"]
        if last < largest:
            say("skipped", measure=name, why=f"messages larger than {last} bytes take too long")
    elif name in OF_CARDS:
        if not place.gpu:
            say("skipped", measure=name, why="PyTorch sees no accelerators here")
            return
        measured = {
            "gemm": lambda: measures.gemm(place),
            "memory": lambda: measures.memory(place),
            "host_to_device": lambda: measures.host(place, True),
            "device_to_host": lambda: measures.host(place, False),
        }[name]()
        for rank, figure in enumerate(place.gather_json(measured)):
            say("figure", measure=name, rank=rank, unit=OF_CARDS[name], **figure)
        measures.torch.cuda.empty_cache()
    elif name == "cpu":
        of_nodes(place, say, name, "MH/s", measures.processors)
    else:
        size = chosen.disk_size or (1024 * MIB if place.gpu else 64 * MIB)
        scratch = chosen.scratch or os.environ.get("ORCH_SCRATCH") or None
        of_nodes(place, say, name, "MB/s", lambda: measures.disk(scratch, size))


def of_nodes(
    place: measures.Place, say: Callable[..., None], name: str, unit: str, look: Callable[[], dict[str, Any]]
) -> None:
    """What a node has once, measured by one of its processes while the others of it wait."""
    place.wait()
    mine: dict[str, Any] = {}
    if place.first_of_node:
        try:
            mine = look()
        except OSError as error:
            mine = {"why": str(error)}
    for rank, figure in enumerate(place.gather_json(mine)):
        node = place.nodes_of_ranks[rank]
        if "why" in figure:
            say("skipped", measure=name, node=node, why=figure["why"])
        elif name == "disk" and figure:
            size = figure.pop("bytes")
            for way, value in figure.items():
                say("figure", measure=f"disk_{way}", node=node, unit=unit, value=value, bytes=size)
        elif figure:
            say("figure", measure=name, node=node, unit=unit, **figure)


def pairs(place: measures.Place, say: Callable[..., None], chosen: argparse.Namespace) -> None:
    """Each node with each other one, and the suspects once more: see `bisection`."""
    nodes = place.nodes
    if len(nodes) == 1:
        say("skipped", measure="pairs", why="there is one node")
        return
    usual = 256 * MIB if place.gpu else 4 * MIB
    size = chosen.pair_size or min(usual, chosen.size or usual)
    measured: dict[tuple[int, int], float] = {}
    again: dict[tuple[int, int], float] = {}

    def take(round_: int, matchings: bisection.Matchings, kept: dict[tuple[int, int], float]) -> None:
        for numbers in matchings:
            found = measures.matching(place, [(nodes[one], nodes[other]) for one, other in numbers], size)
            for one, other in numbers:
                kept[one, other] = bandwidth = found[nodes[one], nodes[other]]
                say(
                    "pair",
                    round=round_,
                    a=nodes[one],
                    b=nodes[other],
                    bandwidth=bandwidth,
                    again=kept is again,
                    size=size,
                )

    rounds = bisection.rounds(len(nodes))
    for number, matchings in enumerate(rounds, 1):
        take(number, matchings, measured)
    # All ranks have the same figures, and so the same suspects.
    found = bisection.suspects(measured, chosen.slow)
    take(len(rounds) + 1, bisection.confirmation(measured, found, chosen.slow), again)
    verdict = bisection.verdict(measured, again, chosen.slow)
    if chosen.lines:
        return  # orch judges the pairs itself
    for fault in verdict.faults:
        other = None if fault.other is None else nodes[fault.other]
        say(
            "fault",
            node=nodes[fault.node],
            other=other,
            bandwidth=fault.bandwidth,
            reference=verdict.reference,
        )


def transport(place: measures.Place, say: Callable[..., None], log: Path) -> None:
    """What each process's library used, by its own log."""
    if not place.gpu:
        return
    for rank, found in enumerate(place.gather_json(fields_of(nccl_log.read(lines_of(log))))):
        say("transport", rank=rank, **found)


def lines_of(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            return file.read(MOST_LOG).decode(errors="replace").splitlines()
    except OSError:
        return []


def fields_of(found: nccl_log.Transport) -> dict[str, Any]:
    return {
        "network": found.network,
        "family": found.family,
        "provider": found.provider,
        "gpu_direct": found.gpu_direct,
        "devices": list(found.devices),
        "channels": dict(found.channels),
        "warnings": [text[:200] for text in found.warnings[:4]],
    }


if __name__ == "__main__":
    sys.exit(main())
