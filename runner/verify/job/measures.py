"""What is measured on nodes and between them: collectives, pairs, cards, memory, processors and disks.

Needs PyTorch 1.13 or later and nothing else. A `Place` is this process among the others; its measures return
figures and print nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
import torch.distributed as dist  # pyright: ignore[reportMissingImports]

MIB = 1 << 20
BUDGET_S = 0.5
"""How long one size of a measure is repeated."""
MOST_REPEATS = 20
TOO_LONG_S = 10.0
"""A sweep ends at the size of which one operation takes longer."""
HASHES = 400_000
"""The work of one core: so many rounds of SHA-256, a few tenths of a second."""
PATIENCE = timedelta(minutes=10)
"""How long processes wait for each other: a fabric that hangs ends then."""
BLOCK = 4 * MIB
DISK_S = 5.0
"""A disk is written for so long at most."""

# What each link carries for each byte of the message: nccl-tests, doc/PERFORMANCE.md.
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "alltoall": lambda ranks: (ranks - 1) / ranks,
    "sendrecv": lambda ranks: 1.0,
}


class Place:
    """This process among all: its rank, its node, its device, and how it talks to the others.

    The default group is one of gloo: what processes tell each other loads no fabric that is measured. `data`
    is the group that is measured: NCCL's or RCCL's where there are accelerators.

    Raises RuntimeError where some processes have an accelerator and others have none.
    """

    def __init__(self) -> None:
        dist.init_process_group("gloo", timeout=PATIENCE)
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.local = int(os.environ.get("LOCAL_RANK", "0"))
        here = int(os.environ.get("ORCH_NODE_RANK") or os.environ.get("GROUP_RANK") or "0")
        cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
        everyone = self.gather([float(here), float(cards), float(self.local < cards)])
        self.nodes_of_ranks = [int(node) for node, _, _ in everyone]
        self.nodes = sorted(set(self.nodes_of_ranks))
        self.node = here
        self.gpu = any(has for _, _, has in everyone)
        without = [f"rank {rank} on node {int(node)} ({int(count)} there)"
                   for rank, (node, count, has) in enumerate(everyone) if not has]  # fmt: skip
        if self.gpu and without:
            more = f" and {len(without) - 8} more" if len(without) > 8 else ""
            raise RuntimeError(f"no accelerator for {', '.join(without[:8])}{more}; other ranks have one")
        self.backend = "nccl" if self.gpu else "gloo"
        if self.gpu:
            self.device = torch.device("cuda", self.local)
            torch.cuda.set_device(self.device)
            self.data: Any = dist.new_group(backend="nccl", timeout=PATIENCE)
        else:
            self.device = torch.device("cpu")
            torch.set_num_threads(1)
            self.data = dist.group.WORLD
        # Makes the library's communicator, which the sends of some ranks to others need, and its log.
        dist.all_reduce(torch.ones(1, device=self.device), group=self.data)

    @property
    def first_of_node(self) -> bool:
        """Whether this process measures what a node has once."""
        return self.rank == self.nodes_of_ranks.index(self.node)

    def ranks_of(self, node: int) -> list[int]:
        return [rank for rank, of in enumerate(self.nodes_of_ranks) if of == node]

    def wait(self) -> None:
        """Until all processes have come this far and their devices are done."""
        if self.gpu:
            torch.cuda.synchronize()
        dist.barrier()

    def finish(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The numbers of all ranks, by rank: each gives as many."""
        mine = torch.tensor(list(values), dtype=torch.float64)
        everyone = [torch.zeros_like(mine) for _ in range(self.ranks)]
        dist.all_gather(everyone, mine)
        return [each.tolist() for each in everyone]

    def gather_json(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank. They travel as text: PyTorch's own way needs NumPy and pickle."""
        text = json.dumps(value).encode()
        longest = int(max(each[0] for each in self.gather([float(len(text))])))
        mine = torch.zeros(longest, dtype=torch.uint8)
        mine[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
        everyone = [torch.zeros_like(mine) for _ in range(self.ranks)]
        dist.all_gather(everyone, mine)
        return [json.loads(bytes(each.tolist()).rstrip(b"\0")) for each in everyone]

    def worst(self, seconds: float) -> float:
        return max(each[0] for each in self.gather([seconds]))

    def seconds_of(self, operation: Callable[[], None]) -> float:
        """Seconds of one operation that all ranks take part in, and have done once before; the slowest
        rank's."""
        once = self._timed(operation, 1)
        if once > BUDGET_S:
            return once
        return self._timed(operation, max(1, min(MOST_REPEATS, int(BUDGET_S / max(once, 1e-6)))))

    def _timed(self, operation: Callable[[], None], repeats: int) -> float:
        self.wait()
        began = time.perf_counter()
        for _ in range(repeats):
            operation()
        self.finish()
        return self.worst((time.perf_counter() - began) / repeats)


def sizes(largest: int, gpu: bool) -> list[int]:
    """The messages of a sweep in bytes, up to the largest, which is the last."""
    factor, size = (2, MIB) if gpu else (4, 64 << 10)
    found: list[int] = []
    while size < largest:
        found.append(size)
        size *= factor
    return [*found, largest]


def collective(place: Place, name: str, largest: int) -> Iterator[dict[str, Any]]:
    """A row for each size: bytes of the message as nccl-tests counts them, seconds, algbw and busbw in GB/s,
    and how many values came out wrong. A size of which one operation takes too long is the last."""
    ranks, device = place.ranks, place.device
    for size in sizes(largest, place.gpu):
        # Whole values for each rank's part; so few bytes less that no figure shows it.
        count = max(1, size // 4 // ranks) * ranks
        share = count // ranks
        mine = torch.full((count,), float(place.rank + 1), device=device)
        if name == "all_reduce":
            operation, result, right = _all_reduce(mine, place), mine, [ranks * (ranks + 1) / 2]
        elif name == "all_gather":
            out = torch.zeros(count, device=device)
            operation, result = _all_gather(out, mine[:share].contiguous(), place), out
            right = [float(rank + 1) for rank in range(ranks)]
        elif name == "alltoall":
            out = torch.zeros(count, device=device)
            operation, result = _alltoall(out, mine, place), out
            right = [float(rank + 1) for rank in range(ranks)]
        else:
            out = torch.zeros(count, device=device)
            operation, result = _sendrecv(out, mine, place), out
            right = [float((place.rank - 1) % ranks + 1)]
        operation()
        place.finish()
        parts = result.chunk(len(right))
        wrong = sum(int((part != value).sum()) for part, value in zip(parts, right))  # noqa: B905 - Python 3.9
        if name == "all_reduce":
            mine.zero_()  # it would grow with each repetition
        seconds = place.seconds_of(operation)
        algbw = size / seconds / 1e9
        yield {
            "size": size,
            "seconds": seconds,
            "algbw": algbw,
            "busbw": algbw * BUS_FACTORS[name](ranks),
            "wrong": sum(int(each[0]) for each in place.gather([float(wrong)])),
        }
        if seconds > TOO_LONG_S:
            return


def _all_reduce(data: torch.Tensor, place: Place) -> Callable[[], None]:
    return lambda: dist.all_reduce(data, group=place.data) and None


def _all_gather(out: torch.Tensor, mine: torch.Tensor, place: Place) -> Callable[[], None]:
    if place.gpu:
        gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
        return lambda: gather(out, mine, group=place.data) and None
    parts = list(out.chunk(place.ranks))
    return lambda: dist.all_gather(parts, mine, group=place.data) and None


def _alltoall(out: torch.Tensor, mine: torch.Tensor, place: Place) -> Callable[[], None]:
    return lambda: dist.all_to_all_single(out, mine, group=place.data) and None


def _sendrecv(out: torch.Tensor, mine: torch.Tensor, place: Place) -> Callable[[], None]:
    """In a ring: each sends to the next rank and receives from the one before it."""
    return exchange(place, mine, out, (place.rank + 1) % place.ranks, (place.rank - 1) % place.ranks)


def exchange(place: Place, mine: torch.Tensor, out: torch.Tensor, to: int, by: int) -> Callable[[], None]:
    """Both ways at once."""

    def both() -> None:
        ways = [
            dist.P2POp(dist.isend, mine, to, group=place.data),
            dist.P2POp(dist.irecv, out, by, group=place.data),
        ]
        for work in dist.batch_isend_irecv(ways):
            work.wait()

    return both


def matching(place: Place, pairs: Sequence[tuple[int, int]], size: int) -> dict[tuple[int, int], float]:
    """GB/s in each direction of pairs of nodes that are measured at the same time, all their cards together:
    each with the card of the same number on the other node. Two ends exchange `size` bytes a card."""
    partner = {}
    for one, other in pairs:
        first, second = place.ranks_of(one), place.ranks_of(other)
        for here, there in zip(first, second):  # noqa: B905 - a node may have more cards than the other
            partner[here], partner[there] = there, here
    seconds = 0.0
    to = partner.get(place.rank)
    if to is None:
        place.wait()
        place.wait()
    else:
        mine = torch.zeros(max(1, size // 4), device=place.device)
        out = torch.empty_like(mine)
        both = exchange(place, mine, out, to, to)
        exchange(place, mine[:1], out[:1], to, to)()  # makes the connection
        place.wait()
        began = time.perf_counter()
        both()
        place.finish()
        once = time.perf_counter() - began
        # Both ends repeat it as often, not at all where once was long enough: the lower rank says how often.
        often = torch.tensor([float(min(MOST_REPEATS, int(BUDGET_S / max(once, 1e-6))))])
        if place.rank < to:
            dist.send(often, to)
        else:
            dist.recv(often, to)
        place.wait()
        repeats = int(often[0])
        began = time.perf_counter()
        for _ in range(repeats):
            both()
        place.finish()
        seconds = (time.perf_counter() - began) / repeats if repeats else once
    everyone = [each[0] for each in place.gather([seconds])]
    found: dict[tuple[int, int], float] = {}
    for one, other in pairs:
        ranks = [rank for rank in (*place.ranks_of(one), *place.ranks_of(other)) if everyone[rank] > 0]
        slowest = max(everyone[rank] for rank in ranks)
        found[one, other] = size * (len(ranks) // 2) / slowest / 1e9
    return found


def gemm(place: Place) -> dict[str, Any]:
    """TFLOP/s of this card: products of square matrices in bfloat16, the median and the best of the size that
    was quickest."""
    dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    by_size: dict[str, list[float]] = {}
    # All ranks measure the same sizes: they wait for each other before each.
    free = min(each[0] for each in place.gather([float(torch.cuda.mem_get_info()[0])]))
    for side in [side for side in (2048, 4096, 8192, 16384) if 4 * side * side * 2 < free]:
        factors = [torch.randn(side, side, device=place.device, dtype=dtype) for _ in range(2)]
        product = partial(torch.mm, *factors, out=torch.empty_like(factors[0]))
        rates = [2 * side**3 / seconds / 1e12 for seconds in _events(place, product)]
        by_size[str(side)] = [max(rates), statistics.median(rates)]
    best = max(by_size.values(), key=lambda each: each[1], default=[0.0, 0.0])
    detail = {side: [round(rate, 1) for rate in rates] for side, rates in by_size.items()}
    return {"value": best[1], "best": best[0], "dtype": str(dtype).replace("torch.", ""), "by_size": detail}


def memory(place: Place) -> dict[str, Any]:
    """GB/s of this card's memory: a copy within it, bytes read and bytes written counted."""
    size = min(1 << 30, torch.cuda.mem_get_info()[0] // 4)
    one = torch.zeros(size, dtype=torch.uint8, device=place.device)
    other = torch.empty_like(one)
    rates = [2 * size / seconds / 1e9 for seconds in _events(place, lambda: other.copy_(one))]
    return {"value": statistics.median(rates), "best": max(rates)}


def host(place: Place, to_device: bool) -> dict[str, Any]:
    """GB/s between pinned memory of the node and this card, one way, all cards of it at the same time."""
    size = 256 * MIB
    there = torch.empty(size, dtype=torch.uint8, device=place.device)
    here = torch.empty(size, dtype=torch.uint8).pin_memory()
    one, other = (there, here) if to_device else (here, there)
    rates = [size / seconds / 1e9 for seconds in _events(place, lambda: one.copy_(other, non_blocking=True))]
    return {"value": statistics.median(rates), "best": max(rates)}


def _events(place: Place, operation: Callable[[], Any]) -> list[float]:
    """Seconds of each repetition of something on this card, by its own clock."""
    for _ in range(3):
        operation()
    place.wait()
    found: list[float] = []
    until = time.perf_counter() + BUDGET_S
    while not found or time.perf_counter() < until:
        began = torch.cuda.Event(enable_timing=True)
        ended = torch.cuda.Event(enable_timing=True)
        began.record()
        operation()
        ended.record()
        ended.synchronize()
        found.append(began.elapsed_time(ended) / 1e3)
    return found


def processors(cores: Sequence[int] | None = None) -> dict[str, Any]:
    """Million rounds of SHA-256 a second of one core: the median of all cores that this process may use, and
    the slowest of them, all at work at the same time."""
    usable = sorted(os.sched_getaffinity(0)) if cores is None else list(cores)
    usable = usable[: _quota(len(usable))]
    seconds = [0.0] * len(usable)
    start = threading.Barrier(len(usable))

    def work(at: int, core: int) -> None:
        with contextlib.suppress(OSError):  # a container may take a core away
            os.sched_setaffinity(0, {core})  # of this thread alone
        start.wait()
        began = time.perf_counter()
        hashlib.pbkdf2_hmac("sha256", b"verify", b"core", HASHES)  # without the interpreter's lock
        seconds[at] = time.perf_counter() - began

    threads = [threading.Thread(target=work, args=each) for each in enumerate(usable)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rates = [HASHES / each / 1e6 for each in seconds]
    return {"value": statistics.median(rates), "slowest": min(rates), "cores": len(usable)}


def _quota(cores: int) -> int:
    """How many cores a container may use at once."""
    try:
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        return max(1, min(cores, int(int(most) / int(period))))
    except (OSError, ValueError):  # no limit, or cgroups of the first version
        return cores


def disk(folder: str | None, size: int) -> dict[str, Any]:
    """MB/s of a scratch file: `write` ends with fsync, before `read` the kernel is asked to forget it."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix="verify-") as file:
        free = os.statvfs(file.name)
        size = min(size, free.f_bavail * free.f_frsize // 4)
        if size < BLOCK:
            raise OSError(f"too little is free in {os.path.dirname(file.name)}")
        block, written = os.urandom(BLOCK), 0
        began = time.perf_counter()
        while written < size and time.perf_counter() - began < DISK_S:
            written += os.write(file.fileno(), block)
        os.fsync(file.fileno())
        write_s = time.perf_counter() - began
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        began = time.perf_counter()
        while os.read(file.fileno(), BLOCK):
            pass
        read_s = time.perf_counter() - began
    return {"write": written / write_s / 1e6, "read": written / read_s / 1e6, "bytes": written}
