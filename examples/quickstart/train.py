"""Train a small classifier with DistributedDataParallel on however many ranks torchrun starts.

The task: points on three interleaved spirals, each to be told from the other two. Every rank makes the same
3,000 points from a fixed seed, then trains on its own share of them; gradients are averaged over the ranks
after each batch. At the end the ranks compare their weights and check that the loss fell; the exit code is 1
when either is not so.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

ARMS = 3
POINTS_PER_ARM = 1000
REQUIRED_FALL = 5.0  # the loss must end at a fifth of its first value, or less

# Tensors that went through a collective live to the end. A process of torch 1.13 can hang at its exit when
# gloo's own thread drops the last reference to a tensor: the thread waits for Python's lock while Python
# waits for the thread.
kept: list[torch.Tensor] = []


def spirals() -> TensorDataset:
    """Points (x, y) and the number of the spiral arm each lies on, the same on every rank."""
    generator = torch.Generator().manual_seed(7)
    points, labels = [], []
    for arm in range(ARMS):
        radius = torch.linspace(0.1, 1.0, POINTS_PER_ARM)
        noise = 0.05 * torch.randn(POINTS_PER_ARM, generator=generator)
        angle = 4.0 * radius + 2.0 * torch.pi * arm / ARMS + noise
        points.append(torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1))
        labels.append(torch.full((POINTS_PER_ARM,), arm))
    return TensorDataset(torch.cat(points), torch.cat(labels))


def mean_over_ranks(total: float, count: int) -> float:
    """The mean over all ranks' samples of a value that each rank has summed over its own."""
    both = torch.tensor([total, float(count)], dtype=torch.float64)
    kept.append(both)
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


def fingerprints(model: nn.Module) -> list[str]:
    """SHA-256 of the weights of every rank, in rank order."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.contiguous().numpy().tobytes())
    mine = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
    all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    kept.extend([mine, *all_ranks])
    dist.all_gather(all_ranks, mine)
    return [bytes(one.tolist()).hex() for one in all_ranks]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=50)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    def say(text: str) -> None:
        # One write with its line break: the ranks of a node share the pipe, and print() makes two of it where
        # Python does not buffer.
        sys.stdout.write(f"[rank {rank}] {text}\n")
        sys.stdout.flush()

    data = spirals()
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=True, seed=7)
    loader = DataLoader(data, batch_size=options.batch_size, sampler=sampler)
    say(f"on {socket.gethostname()}, torch {torch.__version__}, {len(sampler)} of {len(data)} points")

    torch.manual_seed(rank)  # other weights on each rank: DDP has to make them equal
    network = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, ARMS))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()

    first = last = float("nan")
    for epoch in range(1, options.epochs + 1):
        started = time.perf_counter()
        sampler.set_epoch(epoch)
        total, right, count = 0.0, 0, 0
        for points, labels in loader:
            optimizer.zero_grad()
            scores = model(points)
            loss = criterion(scores, labels)
            loss.backward()
            optimizer.step()
            if epoch == 1 and count == 0:
                first = mean_over_ranks(loss.item(), 1)
            total += loss.item() * len(labels)
            right += int((scores.argmax(dim=1) == labels).sum())
            count += len(labels)
        last = mean_over_ranks(total, count)
        took = time.perf_counter() - started
        say(f"epoch {epoch}: own loss {total / count:.4f}, own accuracy {right / count:.1%}, {took:.2f} s")

    hashes = fingerprints(network)
    same = len(set(hashes)) == 1
    fell = first / last >= REQUIRED_FALL
    say(f"weights {hashes[rank][:12]}, {'identical on' if same else 'DIFFERENT between'} {world} ranks")
    if rank == 0:
        verdict = "ok" if fell else "NOT ENOUGH"
        say(f"loss {first:.4f} -> {last:.4f}, {first / last:.1f} times lower: {verdict}")
    dist.destroy_process_group()
    return 0 if same and fell else 1


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit("start me with torchrun, for example: torchrun --nproc_per_node=2 train.py")
    sys.exit(main())
