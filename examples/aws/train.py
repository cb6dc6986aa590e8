"""Train a small classifier on however many ranks torchrun starts: over NCCL with GPUs, over gloo without.

Three interleaved spirals are told apart. At the end the ranks compare their weights and check that the loss
fell; the exit code is 1 when either is not so. With `NCCL_DEBUG=INFO` in `env`, NCCL says which transport it
uses: on EFA its lines name the provider `efa`.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ARMS = 3
POINTS_PER_ARM = 1000
REQUIRED_FALL = 5.0  # the loss must end at a fifth of its first value, or less


def spirals() -> tuple[torch.Tensor, torch.Tensor]:
    """Points (x, y) and the number of the spiral arm each lies on, the same on every rank."""
    generator = torch.Generator().manual_seed(7)
    points, labels = [], []
    for arm in range(ARMS):
        radius = torch.linspace(0.1, 1.0, POINTS_PER_ARM)
        noise = 0.05 * torch.randn(POINTS_PER_ARM, generator=generator)
        angle = 4.0 * radius + 2.0 * torch.pi * arm / ARMS + noise
        points.append(torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1))
        labels.append(torch.full((POINTS_PER_ARM,), arm))
    return torch.cat(points), torch.cat(labels)


def spread(value: torch.Tensor) -> tuple[float, float]:
    """The least and the largest of a value that each rank has one of."""
    least, most = value.clone(), value.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return least.item(), most.item()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=50)
    options = parser.parse_args()

    gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    def say(text: str) -> None:
        # One write with its line break: the ranks of a node share the pipe, and print() makes two of it where
        # Python does not buffer.
        sys.stdout.write(f"[rank {rank}] {text}\n")
        sys.stdout.flush()

    points, labels = (each.to(device) for each in spirals())
    say(f"{dist.get_backend()} over {world} ranks, on {torch.cuda.get_device_name() if gpus else 'CPUs'}")

    torch.manual_seed(rank)  # other weights on each rank: DDP has to make them equal
    network = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, ARMS))
    model = DistributedDataParallel(network.to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()

    shuffle = torch.Generator().manual_seed(7)  # the same order on all ranks, each takes its share
    first = last = torch.zeros(1, device=device)
    for epoch in range(1, options.epochs + 1):
        started = time.perf_counter()
        own = torch.randperm(len(points), generator=shuffle)[rank::world][: len(points) // world]
        losses = []
        for batch in own.to(device).split(options.batch_size):
            optimizer.zero_grad()
            loss = criterion(model(points[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        last = torch.stack(losses).mean().reshape(1)
        first = losses[0].reshape(1) if epoch == 1 else first
        say(f"epoch {epoch}: own loss {last.item():.4f}, {time.perf_counter() - started:.2f} s")

    weights = torch.stack([each.detach().double().sum() for each in model.parameters()]).sum().reshape(1)
    low, high = spread(weights)
    same = low == high
    fell = spread(first / last)[0] >= REQUIRED_FALL
    if rank == 0:
        say(f"weights {'identical on all' if same else 'DIFFERENT between'} {world} ranks")
        say(f"loss {first.item():.4f} -> {last.item():.4f}: {'ok' if fell else 'NOT ENOUGH'}")
    # The model holds on to the process group. Were it the last to, gloo's threads would be waited for under
    # the interpreter's lock, which one that frees a tensor needs: now and then a rank would never end.
    del model, optimizer
    gc.collect()
    dist.destroy_process_group()
    return 0 if same and fell else 1


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit("start me with torchrun, for example: torchrun --nproc_per_node=2 train.py")
    sys.exit(main())
