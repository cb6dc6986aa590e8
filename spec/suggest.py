"""What was probably meant: the closest word, and the habits people bring from other tools."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

# What other tools call it -> where it is written here. A path with a dot is inside a block.
HABITS = {
    "gpus": "resources.gpu",
    "num_gpus": "resources.gpu",
    "gpu_count": "resources.gpu",
    "gres": "resources.gpu",
    "gpus_per_node": "resources.gpu",
    "accelerators": "resources.gpu",
    "cpus": "resources.cpu",
    "num_cpus": "resources.cpu",
    "cpus_per_task": "resources.cpu",
    "cores": "resources.cpu",
    "mem": "resources.memory",
    "ram": "resources.memory",
    "disk_size": "resources.disk",
    "shm": "resources.shm_size",
    "num_nodes": "nodes",
    "node_count": "nodes",
    "nnodes": "nodes",
    "replicas": "nodes",
    "count": "nodes",
    "size": "nodes",
    "command": "commands",
    "cmd": "commands",
    "run": "commands",
    "script": "commands",
    "args": "commands",
    "partition": "fleets",
    "queue": "fleets",
    "fleet": "fleets",
    "time": "max_duration",
    "time_limit": "max_duration",
    "walltime": "max_duration",
    "timeout": "max_duration",
    "job_name": "name",
    "workdir": "working_dir",
    "chdir": "working_dir",
    "cwd": "working_dir",
    "docker_image": "image",
    "container": "image",
    "container_image": "image",
    "environment": "env",
    "envs": "env",
    "labels": "tags",
    "mounts": "volumes",
    "provider": "backend",
    "cloud": "backend",
    "idle_timeout": "idle_duration",
    "mpi": "mpirun",
    "torch": "torchrun",
}

# Words of Slurm that no one property replaces -> the property that has to be there, and what to write.
SAYINGS = {
    "ntasks": (
        "ntasks_per_node",
        "write `nodes` and `ntasks_per_node`: Slurm's `ntasks`, divided by the nodes",
    ),
    "requeue": ("retry", "write `retry: {on_events: [interruption, error]}`"),
}


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that begins with the word, is within two edits, or has a likeness of 0.6 or more.

    Words of up to four letters allow one edit, and likeness alone says nothing of them.
    """
    key = word.lower().replace("-", "_")
    best: tuple[float, str] | None = None
    for candidate in candidates:
        candidate_key = candidate.lower().replace("-", "_")
        allowed = 2 if len(key) > 4 else 1
        begins = len(key) > 2 and candidate_key.startswith(key)
        near = begins or _edits(key, candidate_key, allowed) <= allowed
        if not near and len(key) <= 4:
            continue
        matcher = SequenceMatcher(None, key, candidate_key)
        least = 0.0 if near else 0.6
        # Each is an upper bound of the next and much cheaper.
        if matcher.real_quick_ratio() < least or matcher.quick_ratio() < least:
            continue
        likeness = 1.0 if candidate_key == key else matcher.ratio()
        if likeness >= least and (best is None or likeness > best[0]):
            best = (likeness, candidate)
    return best[1] if best else None


def _edits(one: str, other: str, limit: int) -> int:
    """Edit distance with a swap of neighbours as one edit; anything beyond `limit` counts as `limit + 1`."""
    if abs(len(one) - len(other)) > limit:
        return limit + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, char in enumerate(one, 1):
        before, previous, row = row, before, [i]
        for j, wanted in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (char != wanted))
            if i > 1 and j > 1 and char == other[j - 2] and one[i - 2] == wanted:
                cost = min(cost, previous[j - 2] + 1)
            row.append(cost)
    return min(row[-1], limit + 1)


def listed(words: Iterable[str]) -> str:
    """`a`, `b` or `c`."""
    quoted = [f"`{word}`" for word in words]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]


def few(names: Iterable[str], most: int = 4, separator: str = ", ") -> str:
    """`a, b, c, d and 3 more`."""
    found = tuple(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return separator.join(found[:most]) + more


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def hint_for(word: str, candidates: Iterable[str]) -> str | None:
    """`did you mean 'x'?`, or None when nothing is close."""
    match = closest(word, candidates)
    return f"did you mean '{match}'?" if match else None
