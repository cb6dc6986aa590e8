"""What the properties of local nodes say of a fleet. Pure."""

from __future__ import annotations

from orch.components.explain import Explained, Row
from orch.components.local.plan import LocalPlan

_NODE = "orch:local:Node"

EXPLAINED = Explained(
    traits={"cpus": "CPUs", "memory": "memory", "image": "node image"},
    new_nodes=frozenset({"image"}),
    rows=(
        Row(_NODE, "cpus", "cpus"),
        Row(_NODE, "memory_mib", "memory", " MiB"),
        Row(_NODE, "image", "image"),
    ),
    lost="what is in their containers",
)


def traits(plan: LocalPlan) -> dict[str, str]:
    """What the nodes of a plan are."""
    first = next(iter(plan.nodes), None)
    cpus, memory = (first.cpus, first.memory_mib) if first is not None else (None, None)
    return {
        "cpus": f"{cpus:g}" if cpus else "all of this machine's",
        "memory": f"{memory} MiB" if memory else "all of this machine's",
        "image": plan.image,
    }
