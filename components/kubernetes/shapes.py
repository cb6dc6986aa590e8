"""Which nodes of a cluster serve a fleet, and what a pod of it has of one of them. Pure.

Nodes that are alike are one shape: the same accelerators, machine type and fabric. A fleet is of one shape,
so that its pods are alike; they have a whole node each, or as many accelerators of one as the file asks for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction

from orch.catalog.devices import model_of
from orch.catalog.records import GpuModel, InstanceType, arch_of
from orch.components.kubernetes.account.facts import ClusterNode, Taint
from orch.components.kubernetes.fabrics import NodeFabric, fabric_of
from orch.offers.match import Miss, type_misses
from orch.offers.query import MachineQuery
from orch.spec.grammar.quantities import MIB, amount, rendered

GPU_KEYS: Mapping[str, str] = {
    "nvidia.com/gpu": "nvidia",
    "amd.com/gpu": "amd",
    "gpu.intel.com/i915": "intel",
    "google.com/tpu": "google",
    "aws.amazon.com/neuron": "aws",
}
"""Resources that are accelerators, each with its vendor."""

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
PRODUCT = "nvidia.com/gpu.product"
MEMORY = "nvidia.com/gpu.memory"
AMD_PRODUCTS = ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
GKE_ACCELERATOR = "cloud.google.com/gke-accelerator"
HARD = ("NoSchedule", "NoExecute")


@dataclass(frozen=True)
class Tolerance:
    """Taints that pods may be given: those of accelerators' vendors, and what orch.yml lists."""

    listed: tuple[Mapping[str, str], ...]

    def needed(self, taint: Taint) -> Mapping[str, str] | None:
        """The toleration that a pod needs for a taint; None where it gets none."""
        if taint.key in GPU_KEYS:
            return {"key": taint.key, "operator": "Exists", "effect": taint.effect}
        return next((each for each in self.listed if _tolerates(each, taint)), None)


def _tolerates(toleration: Mapping[str, str], taint: Taint) -> bool:
    """Source: k8s.io/api core/v1 toleration.go, ToleratesTaint."""
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    if toleration.get("key") and toleration["key"] != taint.key:
        return False
    exists = toleration.get("operator", "Equal") == "Exists"
    return exists or (bool(toleration.get("key")) and toleration.get("value", "") == taint.value)


@dataclass(frozen=True)
class Shape:
    """Nodes that are alike. `labels`: those that tell them from others."""

    nodes: tuple[ClusterNode, ...]
    gpu: GpuModel | None
    product: str
    gpu_resource: str | None
    gpu_count: int
    gpu_memory_mib: int | None
    instance_type: str
    fabric: NodeFabric | None
    labels: Mapping[str, str]

    @property
    def key(self) -> str:
        """What tells it from other shapes of the cluster, recorded so that a fleet keeps its own."""
        return f"{self.instance_type}|{self.product}|{self.gpu_count}"

    def least(self, resource: str) -> Fraction:
        """What a pod can have of a resource on any of the nodes."""
        return min(max(node.usable(resource), Fraction(0)) for node in self.nodes)

    @property
    def words(self) -> str:
        gpus = f"{self.gpu_count} x {self.gpu.name if self.gpu else self.product}" if self.gpu_count else ""
        return ", ".join(filter(None, (self.instance_type, gpus or "no accelerators")))


@dataclass(frozen=True)
class PodSize:
    """What a pod has: `share` of a node's accelerators and fabric, from 0 to 1; CPUs; bytes of memory."""

    shape: Shape
    share: Fraction
    cpu: Fraction
    memory: Fraction
    type: InstanceType
    fits: tuple[ClusterNode, ...]

    @property
    def whole(self) -> bool:
        """Whether a pod has all that there is of a node."""
        rest = (self.shape.least("cpu"), self.shape.least("memory"))
        return self.share == 1 and (self.cpu, self.memory) == rest

    @property
    def per_node(self) -> int:
        """How many of these pods a node holds."""
        shape = self.shape
        bounds = [int(shape.least(name) / each) for name, each in self._parts if each]
        if self.type.gpu_count:
            bounds.append(shape.gpu_count // self.type.gpu_count)
        return max(min(bounds, default=1), 1)

    @property
    def _parts(self) -> tuple[tuple[str, Fraction], ...]:
        return (("cpu", self.cpu), ("memory", self.memory))

    @property
    def room(self) -> int:
        return len(self.fits) * self.per_node

    @property
    def fabric_requests(self) -> dict[str, str]:
        fabric = self.shape.fabric
        if fabric is None:
            return {}
        usable = {key: self.shape.least(key) for key in self.shape.nodes[0].allocatable}
        return fabric.asked(usable, self.share)

    def requests(self, *, fabric: bool) -> dict[str, str]:
        """What the pod asks for, in Kubernetes' words."""
        shape = self.shape
        found = {name: rendered(name, each) for name, each in self._parts}
        if shape.gpu_resource is not None and self.type.gpu_count:
            found[shape.gpu_resource] = str(self.type.gpu_count)
        if fabric and (asked := self.fabric_requests) and shape.fabric is not None:
            found |= asked
            for name, text in shape.fabric.row.requests.items():
                if shape.least(name) >= amount(text):
                    found[name] = text
        return found


def shapes_of(
    nodes: Sequence[ClusterNode], apis: frozenset[str], rdma_resource: str | None
) -> tuple[Shape, ...]:
    """The shapes of these nodes, by name."""
    groups = dict[tuple[object, ...], list[ClusterNode]]()
    fabrics = {node.name: fabric_of(node, apis, rdma_resource) for node in nodes}
    for node in nodes:
        resource, count = _accelerators(node)
        fabric = fabrics[node.name]
        told = (fabric.row.id, fabric.resource) if fabric is not None else None
        arch = node.labels.get("kubernetes.io/arch", "")
        groups.setdefault(
            (node.labels.get(INSTANCE_TYPE, ""), resource, count, _product(node), arch, told), []
        ).append(node)
    shapes = [_shape(group, fabrics[group[0].name]) for group in groups.values()]
    return tuple(sorted(shapes, key=lambda each: (each.key, each.fabric is None)))


def _shape(nodes: Sequence[ClusterNode], fabric: NodeFabric | None) -> Shape:
    first = nodes[0]
    resource, count = _accelerators(first)
    product = _product(first)
    model = model_of(product) if product else None
    memory = first.labels.get(MEMORY, "")
    if memory.isdigit():
        memory_mib: int | None = int(memory)
    else:
        memory_mib = model.sizes_mib[0] if model is not None and len(model.sizes_mib) == 1 else None
    told = (INSTANCE_TYPE, PRODUCT, *AMD_PRODUCTS, GKE_ACCELERATOR)
    return Shape(
        tuple(nodes),
        model,
        product,
        resource,
        count,
        memory_mib,
        first.labels.get(INSTANCE_TYPE, ""),
        fabric,
        {key: first.labels[key] for key in told if key in first.labels},
    )


def _accelerators(node: ClusterNode) -> tuple[str | None, int]:
    for key in GPU_KEYS:
        if node.allocatable.get(key, 0) > 0:
            return key, int(node.allocatable[key])
    return None, 0


def _product(node: ClusterNode) -> str:
    return next(
        (node.labels[key] for key in (PRODUCT, *AMD_PRODUCTS, GKE_ACCELERATOR) if key in node.labels), ""
    )


def usable_nodes(
    nodes: Sequence[ClusterNode],
    selector: Mapping[str, str],
    tolerance: Tolerance,
    instance_types: Collection[str],
) -> tuple[tuple[ClusterNode, ...], tuple[str, ...]]:
    """Nodes where pods of a fleet may run; and of the others why not, by reason."""
    left, reasons = list[ClusterNode](), dict[str, list[str]]()
    for node in nodes:
        why = next(_obstacles(node, selector, tolerance, instance_types), None)
        if why is None:
            left.append(node)
        else:
            reasons.setdefault(why, []).append(node.name)
    return tuple(left), tuple(
        f"{names[0] if len(names) == 1 else f'{len(names)} nodes'}: {why}" for why, names in reasons.items()
    )


def _obstacles(
    node: ClusterNode, selector: Mapping[str, str], tolerance: Tolerance, instance_types: Collection[str]
) -> Iterator[str]:
    if not node.ready:
        yield "not ready, or cordoned"
    for key, value in selector.items():
        if node.labels.get(key) != value:
            yield f"no label {key}={value}"
    here = node.labels.get(INSTANCE_TYPE, "")
    if instance_types and not any(fnmatchcase(here.lower(), each.lower()) for each in instance_types):
        yield f"instance type {here or 'not told'}, not {' or '.join(instance_types)}"
    for taint in node.taints:
        if taint.effect in HARD and tolerance.needed(taint) is None:
            yield f"taint {taint.words}"


def pod_size(shape: Shape, query: MachineQuery) -> tuple[PodSize | None, tuple[Miss, ...]]:
    """What a pod gets of a shape, and what the shape lacks: nothing where it serves.

    It is a whole node, or a part of one where the file asks for fewer accelerators or bounds CPUs or memory.
    Where it asks neither for accelerators nor for a type of machine, a pod has no accelerators.
    """
    gpus, count = query.resources.gpu.count, shape.gpu_count
    if not gpus.min and gpus.max is None and not query.instance_types:
        count = 0  # nobody asks for them, and others may
    elif gpus.max is not None:
        count = min(count, int(gpus.max))
    share = Fraction(count, shape.gpu_count) if shape.gpu_count else Fraction(1)
    rest = share or Fraction(1)
    cpu, memory = shape.least("cpu") * rest, shape.least("memory") * rest
    resources = query.resources
    if query.cpu_written and resources.cpu.count.max is not None:
        cpu = min(cpu, Fraction(resources.cpu.count.max))
    if query.memory_written and resources.memory_mib.max is not None:
        memory = min(memory, Fraction(resources.memory_mib.max) * MIB)
    machine = InstanceType(
        "kubernetes",
        shape.instance_type or "node",
        arch_of(shape.nodes[0].labels.get("kubernetes.io/arch", "amd64")) or "x86",
        int(cpu),
        int(memory // MIB),
        (shape.gpu or _unknown(shape)) if count else None,
        count,
        shape.gpu_memory_mib,
    )
    misses = tuple(type_misses(query, machine))
    if misses:
        return None, misses
    return PodSize(shape, share, cpu, memory, machine, shape.nodes), ()


def _unknown(shape: Shape) -> GpuModel | None:
    """A model that the catalogue does not know, by the name that its node tells."""
    if shape.gpu_resource is None:
        return None
    return GpuModel(shape.product or shape.gpu_resource, GPU_KEYS[shape.gpu_resource])
