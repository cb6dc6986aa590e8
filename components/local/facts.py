"""What must be asked of this machine before local nodes are planned."""

from __future__ import annotations

from dataclasses import dataclass

from orch.catalog.records import Arch, arch_of
from orch.images.client import connect


@dataclass(frozen=True)
class LocalFacts:
    """The machine that Docker runs on. `node_image`: the image of a node that this orch would make today."""

    cpus: int
    memory_mib: int
    node_image: str
    arch: Arch | None = None


def ask(node_image: str | None = None) -> LocalFacts:
    """Ask Docker (which may run in a smaller virtual machine than this process sees).

    `node_image` is the project's own, where orch.yml names one.

    Raises DockerUnavailable.
    """
    from orch.images.build import resolve

    info = connect().info()
    return LocalFacts(
        cpus=int(info["NCPU"]),
        memory_mib=int(info["MemTotal"]) >> 20,
        node_image=resolve(node_image or "orch/node"),
        arch=arch_of(info.get("Architecture")),
    )
