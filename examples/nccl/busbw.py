"""Bus bandwidth of an all-reduce by message size: NCCL or RCCL where ranks have GPUs, else gloo over TCP.

Start it with torchrun, one rank per GPU. At the end rank 0 prints a row for each size, as nccl-tests does:
the time of one all-reduce, the algorithm's bandwidth (size / time), and the bus bandwidth, which is
2 (n - 1) / n times that: what each link carries, whatever the number n of ranks. The line above the table
tells the transport that the library says it used.

    torchrun ... busbw.py [--min 8] [--max 8G] [--factor 2] [--rounds 20]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
WARM_UP = 3
# What NCCL and RCCL write of themselves with NCCL_DEBUG=INFO.
NETWORK = re.compile(r"Using network (.+?)\s*$", re.MULTILINE)
CHANNEL = re.compile(r" via ((?:NET|P2P|SHM|NVLS|COLLNET)\b\S*(?: [A-Z]\w*(?:/\S+)?)*)")


def size(text: str) -> int:
    """Bytes of `8`, `64K`, `1M` or `8G`."""
    found = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 8, 64K, 1M or 8G")
    return int(found[1]) * UNITS[found[2]]


def options(gpus: bool) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Bus bandwidth of an all-reduce by message size.")
    parser.add_argument("--min", type=size, default=8, help="the smallest message; 8 bytes")
    parser.add_argument("--max", type=size, default=size("8G" if gpus else "16M"), help="the largest message")
    parser.add_argument("--factor", type=int, default=2, help="from each size to the next")
    parser.add_argument("--rounds", type=int, default=20 if gpus else 5, help="all-reduces per size")
    chosen = parser.parse_args()
    if chosen.factor < 2 or chosen.rounds < 1 or not 4 <= chosen.min <= chosen.max:
        parser.error("--factor is 2 or more, --rounds 1 or more, and 4 <= --min <= --max")
    return chosen


def nccl_transport(log: str) -> str:
    """The network and the kinds of channels that an NCCL log names."""
    networks = sorted({name.strip() for name in NETWORK.findall(log)})
    kinds: dict[str, int] = {}
    for via in CHANNEL.findall(log):
        # NET/AWS Libfabric/3/GDRDMA: the number is a device's, and one kind has many.
        kind = re.sub(r"/\d+(\(\d+\))?(?=/|$)", "", via)
        kinds[kind] = kinds.get(kind, 0) + 1
    channels = ", ".join(f"{kind} ({count})" for kind, count in sorted(kinds.items()))
    network = " and ".join(networks) or "unknown: NCCL told none"
    return f"network {network}; channels of rank 0: {channels or 'none told'}"


def gloo_transport() -> str:
    """The addresses of this process's TCP connections to other ranks, as the kernel lists them."""
    own: set[str] = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(os.readlink(descriptor))
    pairs: set[tuple[str, str]] = set()
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_, inode = line.split()[:10]
        ports = {int(each.partition(":")[2], 16) for each in (local, remote)}
        # 01: established. What goes to the port of the rendezvous is no traffic between ranks.
        if state == "01" and f"socket:[{inode}]" in own and int(os.environ["MASTER_PORT"]) not in ports:
            pairs.add((_address(local), _address(remote)))
    ends = [" and ".join(sorted({pair[end] for pair in pairs})) or "unknown" for end in (0, 1)]
    return f"TCP from {ends[0]} to {ends[1]}"


def _address(text: str) -> str:
    """The address of `0100007F:1F90`, as /proc/net/tcp writes it."""
    return socket.inet_ntoa(int(text.partition(":")[0], 16).to_bytes(4, sys.byteorder))


def measure(message: int, rounds: int, device: torch.device) -> tuple[float, int]:
    """Seconds of one all-reduce of so many bytes, the slowest rank's, and how many values came out wrong."""
    ranks, count = dist.get_world_size(), max(1, message // 4)
    data = torch.ones(count, device=device)
    dist.all_reduce(data)
    wrong = int((data != ranks).sum())
    data.fill_(1)
    for _ in range(WARM_UP):
        dist.all_reduce(data)
    wait(device)
    began = time.perf_counter()
    for _ in range(rounds):
        dist.all_reduce(data)
    if device.type == "cuda":
        torch.cuda.synchronize()
    worst = torch.tensor([(time.perf_counter() - began) / rounds, float(wrong)], dtype=torch.float64)
    worst = worst.to(device)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return float(worst[0]), int(worst[1])


def wait(device: torch.device) -> None:
    """Until all ranks have come this far."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


def main() -> int:
    gpus = torch.cuda.is_available()
    chosen = options(gpus)
    log = Path(f"/tmp/nccl.{os.getpid()}.log")
    if gpus:
        # A file of its own: what NCCL says is read below, and the job's log has the table alone.
        os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(log)}
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        library = f"{'RCCL' if torch.version.hip else 'NCCL'} {'.'.join(map(str, torch.cuda.nccl.version()))}"
    else:
        device, library = torch.device("cpu"), "gloo"
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if gpus else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows: list[str] = []
    bandwidths: list[float] = []
    failed, message = 0, chosen.min
    while message <= chosen.max:
        seconds, wrong = measure(message, chosen.rounds, device)
        algbw = message / seconds / 1e9
        busbw = algbw * 2 * (ranks - 1) / ranks
        rows.append(f"{message:>12} {seconds * 1e6:>12.1f} {algbw:>14.4f} {busbw:>14.4f} {wrong:>8}")
        bandwidths.append(busbw)
        failed += wrong
        message *= chosen.factor
    if rank == 0:
        nodes = ranks // int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
        transport = nccl_transport(log.read_text(errors="replace")) if gpus else gloo_transport()
        print(f"# all_reduce of float32, {ranks} ranks on {nodes} nodes, {library}")
        print(f"# transport: {transport}")
        print(f"{'size [B]':>12} {'time [us]':>12} {'algbw [GB/s]':>14} {'busbw [GB/s]':>14} {'wrong':>8}")
        print("\n".join(rows))
        print(f"# largest busbw {max(bandwidths):.4f} GB/s", flush=True)
    log.unlink(missing_ok=True)
    dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
