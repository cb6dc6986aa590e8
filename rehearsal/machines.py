"""Machines of simulated accounts: what an instance or a pod is, and where its local node is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Endpoint:
    """The address of an instance's local node: from this machine; `internal_ip`: from other nodes."""

    instance: str
    container: str
    address: str
    port: int
    user: str
    host_key: str
    internal_ip: str
    placeholders: tuple[str, ...] = ()


@dataclass(frozen=True)
class PodContainer:
    """What the container of a pod is made of. `command`: the string that its cloud was given; `volumes`: the
    path of each of its account's volumes."""

    image: str
    command: str
    env: Mapping[str, str]
    volumes: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class SimulatedMachine:
    """An instance with what its local node needs.

    `slug` ends its container's name; `user_data` is what cloud-init would read. `pod`: of a container that is
    the node itself, which has no user data. `file_systems`: those that its cloud mounts, each with its path.
    """

    instance: str
    slug: str
    hostname: str
    type: str
    user_data: bytes
    placeholders: tuple[str, ...]
    pod: PodContainer | None = None
    file_systems: tuple[tuple[str, str], ...] = ()


def device_files(gpus: int, cards: int = 0) -> tuple[str, ...]:
    """Return the files of a machine in /dev: those of NVIDIA for its GPUs, and of its InfiniBand cards."""
    control = ("/dev/nvidiactl", "/dev/nvidia-uvm") if gpus else ()
    numbered = [f"/dev/nvidia{number}" for number in range(gpus)]
    return (*numbered, *control, *(f"/dev/infiniband/uverbs{number}" for number in range(cards)))
