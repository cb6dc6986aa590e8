"""Bus bandwidth of an all-gather, the largest message last. With GPUs over NCCL, without them over gloo."""

import os
import time

import torch
import torch.distributed as dist

WARM_UP, ROUNDS = 2, 10
MIB = 1024 * 1024


def main() -> None:
    gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpus else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    for size in (8, 64, 512, 4096) if gpus else (1, 4):
        part = torch.ones(size * MIB // ranks // 4, device=device)
        whole = [torch.empty_like(part) for _ in range(ranks)]
        for turn in range(WARM_UP + ROUNDS):
            if turn == WARM_UP:
                wait(gpus)
                start = time.perf_counter()
            dist.all_gather(whole, part)
        wait(gpus)
        seconds = (time.perf_counter() - start) / ROUNDS
        if rank == 0:
            speed = size * MIB / seconds * (ranks - 1) / ranks / 1e9
            print(f"all_gather {size} MiB over {ranks} ranks: {speed:.2f} GB/s bus bandwidth", flush=True)
    dist.destroy_process_group()


def wait(gpus: bool) -> None:
    """Until all ranks have come this far."""
    if gpus:
        torch.cuda.synchronize()
    dist.barrier()


if __name__ == "__main__":
    main()
