"""From what a driver calls a device to the model the catalogue knows."""

from __future__ import annotations

import re
from functools import cache

from orch.catalog.load import gpu_models
from orch.catalog.records import GpuModel, gpu_key

# Drivers report up to 6% less than what a card is sold with, some a little more.
_NEAR = 0.1


@cache
def model_of(device: str) -> GpuModel | None:
    """The model of `NVIDIA H100 80GB HBM3`: the longest name that some words of the text in a row make up.

    So `NVIDIA H100 NVL` is an H100NVL, and `NVIDIA L40S` no L40.
    """
    words = [gpu_key(word) for word in re.split(r"[\s_./-]+", device) if word]
    matches = {
        "".join(words[first:last]) for first in range(len(words)) for last in range(first + 1, len(words) + 1)
    }
    fitting = [(len(key), model) for model in gpu_models().values() for key in model.keys if key in matches]
    return max(fitting, key=lambda each: each[0])[1] if fitting else None


def nominal_mib(device: str | None, memory_mib: int) -> int:
    """The size a device of this memory is sold with: 81,559 MiB of an H100 are 80 GiB."""
    model = model_of(device) if device else None
    sizes = model.sizes_mib if model else ()
    nearest = min(sizes, key=lambda size: abs(size - memory_mib), default=memory_mib)
    return nearest if abs(nearest - memory_mib) <= nearest * _NEAR else memory_mib
