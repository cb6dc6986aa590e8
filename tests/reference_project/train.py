"""The training that the reference tasks call: real PyTorch over gloo, and a line of what it saw at the end.

It takes every option that one of them writes. A linear model is fitted by all ranks together; each rank tells
the digest of its weights, which are equal only where every step was reduced over all of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
from pathlib import Path

import torch
import torch.distributed as dist

FEATURES = 32
SECRETS = ("HF_TOKEN", "WANDB_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
BREAKS_AT = 2
"""The epoch in which a training with checkpoints at intervals is lost, unless it was resumed."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--model")
    parser.add_argument("--model-path", type=Path)
    parser.add_argument("--wandb-project")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--checkpoint-dir", type=Path)
    parser.add_argument("--checkpoint-interval", type=int)
    parser.add_argument("--resume", type=Path)
    return parser.parse_args()


def join() -> tuple[int, int]:
    """Rank and number of ranks: torchrun's, else one process on each node of the run."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        return dist.get_rank(), dist.get_world_size()
    rank, ranks = int(os.environ["DSTACK_NODE_RANK"]), int(os.environ["DSTACK_NODES_NUM"])
    if ranks > 1:
        meet = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=ranks)
    return rank, ranks


def save(folder: Path, model: torch.nn.Module, epoch: int) -> None:
    """Write `latest.pt` whole or not at all."""
    new = folder / f".{os.getpid()}.pt"
    torch.save({"model": model.state_dict(), "epoch": epoch}, new)
    new.rename(folder / "latest.pt")


def found_before(folder: Path | None) -> int | None:
    """The epoch of a checkpoint that another run has left."""
    latest = folder / "latest.pt" if folder is not None else None
    return torch.load(latest)["epoch"] if latest is not None and latest.exists() else None


def digest_of(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def main() -> None:
    chosen = options()
    torch.set_num_threads(1)
    rank, ranks = join()
    torch.manual_seed(1)
    truth, model = torch.randn(FEATURES, 1), torch.nn.Linear(FEATURES, 1)
    facts: dict[str, object] = {
        "rank": rank,
        "ranks": ranks,
        "node": int(os.environ["DSTACK_NODE_RANK"]),
        "gpus": int(os.environ["DSTACK_GPUS_PER_NODE"]),
        "folder": os.getcwd(),
        "python": platform.python_version(),
        "shm_mib": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize >> 20,
        "lengths": {name: len(os.environ[name]) for name in SECRETS if name in os.environ},
        "learning_rate": os.environ.get("LEARNING_RATE"),
        "model": chosen.model,
        "batch": chosen.batch_size,
        "before": found_before(chosen.checkpoint_dir),
    }
    if chosen.data is not None:
        facts["data"] = digest_of(chosen.data)
    if chosen.model_path is not None:
        facts["model_path"] = digest_of(chosen.model_path)
    if chosen.config is not None:
        facts["config"] = chosen.config.read_text().strip()
        key = Path("~/ssh/id_rsa").expanduser()
        facts["key"] = [hashlib.sha256(key.read_bytes()).hexdigest()[:12], oct(key.stat().st_mode & 0o777)]
    first = 0
    if chosen.resume is not None:
        kept = torch.load(chosen.resume)
        model.load_state_dict(kept["model"])
        facts["resumed"] = first = kept["epoch"]
    # A folder of each node is written on each; one that all nodes see, by rank 0 alone.
    writes = chosen.checkpoint_dir is not None and os.environ.get("LOCAL_RANK", str(rank)) == "0"
    torch.manual_seed(100 + rank)
    losses: list[float] = []
    for epoch in range(first + 1, chosen.epochs + 1):
        batch = torch.randn(chosen.batch_size, FEATURES)
        model.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), batch @ truth)
        loss.backward()
        for parameter in model.parameters():
            if ranks > 1:
                dist.all_reduce(parameter.grad)
            # By hand: the first step of torch.optim imports the compiler, seconds of a core for each rank.
            parameter.data -= 0.05 / ranks * parameter.grad
        losses.append(loss.item())
        if writes:
            save(chosen.checkpoint_dir, model, epoch)
        if chosen.checkpoint_interval and chosen.resume is None and epoch == BREAKS_AT and rank == 0:
            print(f"lost in epoch {epoch}, with a checkpoint", flush=True)
            sys.exit(1)
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    facts |= {"loss": [losses[0], losses[-1]], "weights": hashlib.sha256(weights).hexdigest()[:12]}
    # In one write: workers of torchrun share a pipe, and `print` without a buffer writes the newline apart.
    os.write(1, f"trained {json.dumps(facts)}\n".encode())
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
