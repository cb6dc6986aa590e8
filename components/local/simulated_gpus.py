"""Accelerators that local nodes have in number only: `simulate_gpu` of the backend `local`. Pure.

Placement, shares of blocks, environments and host files count them as they count real ones. A job is given no
device and no driver, so a framework finds none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orch.catalog.devices import model_of
from orch.catalog.records import gpu_key
from orch.spec.findings import PlanError
from orch.spec.grammar.values import render_size
from orch.spec.models.resources import GpuSpec, Range
from orch.spec.state import Gpus

_DEVICES = {
    "nvidia": "/dev/nvidia{}",
    "amd": "/dev/dri/card{}",
    "intel": "/dev/accel/accel{}",
    "google": "/dev/accel{}",
    "aws": "/dev/neuron{}",
}


def simulated_gpus(kinds: Sequence[GpuSpec], asked: GpuSpec, blocks: int | str) -> Gpus:
    """The accelerators of each node: the first of `kinds` that `asked` fits, as many as it permits.

    Counts that `blocks` divides come first. None where `asked` can do without.
    Raises PlanError("ORCH211") where it cannot.
    """
    for kind in kinds:
        fitting = list(_fitting(kind, asked))
        if fitting:
            parts = 1 if blocks == "auto" else int(blocks)
            return next((gpus for gpus in fitting if gpus.count % parts == 0), fitting[0])
    if 0 in asked.count:
        return Gpus()
    example = _text(asked)
    raise PlanError(
        "ORCH211",
        "local nodes have no accelerators"
        if not kinds
        else f"no simulated accelerators fit {example}: `simulate_gpu` has {', '.join(map(_text, kinds))}",
        path="resources.gpu",
        detail="they are containers on this machine, and this version passes no device into them",
        hint=f"write `simulate_gpu: {example}` for the backend `local` in `orch.yml`: nodes then count "
        "them, without devices"
        if not kinds
        else f"add `{example}` to the list `simulate_gpu` in `orch.yml`",
    )


def placeholders(gpus: Gpus) -> tuple[str, ...]:
    """Paths of the device files that such accelerators would have on a node.

    None where `orch check` would take them for cards: those of Tenstorrent are counted by their files.
    """
    pattern = _DEVICES.get(gpus.vendor or "")
    return tuple(pattern.format(index) for index in range(gpus.count)) if pattern else ()


def described(gpus: Gpus) -> str:
    """`8 H100 80GB`."""
    memory = f" {render_size(gpus.memory_mib)}" if gpus.memory_mib else ""
    return f"{gpus.count} {gpus.name or gpus.vendor}{memory}"


def _fitting(kind: GpuSpec, asked: GpuSpec) -> Iterator[Gpus]:
    """What nodes may have of a kind: the larger memory first, then the larger number."""
    name = kind.names[0] if kind.names else None
    model = model_of(name) if name is not None else None
    vendor = model.vendor if model is not None else kind.vendor or "nvidia"
    capability = _end(kind.compute_capability) or (model.compute_capability if model is not None else None)
    keys = model.keys if model is not None else {gpu_key(name)} if name is not None else set[str]()
    if asked.vendor not in (None, vendor) or (
        asked.names and not keys.intersection(_model_keys(asked.names))
    ):
        return
    if asked.compute_capability is not None and (
        capability is None or capability not in asked.compute_capability
    ):
        return
    limit = int(_end(kind.count) or 1)
    for memory in _memories(kind, limit, model.sizes_mib if model is not None else ()):
        if asked.memory_mib is not None and (memory is None or memory not in asked.memory_mib):
            continue
        for count in range(limit, 0, -1):
            total = None if memory is None else memory * count
            in_total = asked.total_memory_mib is None or (
                total is not None and total in asked.total_memory_mib
            )
            if count in asked.count and in_total:
                yield Gpus(
                    count=count,
                    vendor=vendor,
                    name=model.name if model is not None else name,
                    memory_mib=memory,
                )


def _model_keys(names: Sequence[str]) -> frozenset[str]:
    """`gpu_key` of the names, and of the models they mean: `A100-80GB` is an A100."""
    models = (model_of(name) for name in names)
    return frozenset(key for model in models if model is not None for key in model.keys) | frozenset(
        map(gpu_key, names)
    )


def _memories(kind: GpuSpec, count: int, sizes: Sequence[int]) -> Sequence[int | None]:
    """MiB of one accelerator: as written, else those that the model is sold with, the largest first."""
    memory, total = _end(kind.memory_mib), _end(kind.total_memory_mib)
    if memory or total:
        return (int(memory or (total or 0) // count),)
    return sorted(sizes, reverse=True) or (None,)


def _end(size: Range | None) -> float | None:
    """What a machine has of a range: its upper end, else the lower one."""
    lower, upper = (size.min, size.max) if size is not None else (None, None)
    return upper if upper is not None else lower


def _text(gpu: GpuSpec) -> str:
    """`A100:80GB:8`, as `simulate_gpu` may be written."""
    memory = _end(gpu.memory_mib)
    parts = [gpu.names[0]] if gpu.names else [gpu.vendor] if gpu.vendor else []
    parts += [render_size(int(memory))] if memory else []
    return ":".join([*parts, str(int(_end(gpu.count) or 1))])
