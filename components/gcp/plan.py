"""What a planned GCP fleet consists of: frozen records that `resources.py` registers one to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from orch.components.cloud.plan import CloudPlan
from orch.spec.models.ssh import Jump

# The fleet's own instances, as a peer of a firewall rule.
NODES = "nodes"
BASTION = "bastion"


@dataclass(frozen=True)
class Subnet:
    """A subnet. `cidr` None: it was there before, or the network's profile makes it."""

    name: str
    cidr: str | None
    dual: bool = False


@dataclass(frozen=True)
class Vpc:
    """One network.

    `role`: host carries IP traffic, data GPU traffic over gVNICs, rdma that of RDMA interfaces. `origin`:
    made with the fleet, made for several fleets by a stack of their own, or given. `profile`: the network
    profile (`us-central1-b-vpc-roce`), which ties the network to its zone.
    """

    name: str
    role: Literal["host", "data", "rdma"]
    mtu: int
    subnets: tuple[Subnet, ...]
    origin: Literal["made", "shared", "given"] = "made"
    profile: str | None = None
    dual: bool = False


@dataclass(frozen=True)
class Firewall:
    """A rule for traffic into a network. `peers`: address ranges, or `nodes` or `bastion` by their tag.

    `target`: who is reached. `port` None: all of TCP, UDP and ICMP.
    """

    name: str
    vpc: str
    peers: tuple[str, ...]
    target: Literal["nodes", "bastion", "all"]
    port: int | None
    why: str


@dataclass(frozen=True)
class Networks:
    """All networks of a node, in order of its interfaces, and what is made beside them.

    `nat`: name of the Cloud Router and NAT to make, None where there is one or none is needed. `project`: of
    the given networks, None for the fleet's own.
    """

    vpcs: tuple[Vpc, ...]
    firewalls: tuple[Firewall, ...]
    nat: str | None
    project: str | None

    @property
    def first(self) -> Vpc:
        return self.vpcs[0]


@dataclass(frozen=True)
class NetworkStack:
    """Networks that several fleets of one zone share (`network.name`): a stack of their own.

    `shape` tells what they are for; fleets that share them must all have it. `zonal`: whether they serve the
    one zone only, by an RDMA profile; else all of the region.
    """

    name: str
    base: str
    region: str
    zone: str
    shape: str
    networks: Networks

    @property
    def zonal(self) -> bool:
        return any(each.profile for each in self.networks.vpcs)

    @property
    def pins(self) -> dict[str, str]:
        """What its stack keeps, for fleets that come later."""
        where = {"region": self.region, **({"zone": self.zone} if self.zonal else {})}
        return {"backend": "gcp", "base": self.base, "shape": self.shape, **where}


@dataclass(frozen=True)
class Interface:
    """One interface of a node. `subnet` is a name in `vpc`."""

    vpc: str
    subnet: str
    kind: Literal["GVNIC", "IDPF", "MRDMA"]
    stack: Literal["IPV4_ONLY", "IPV4_IPV6", "IPV6_ONLY"] = "IPV4_ONLY"


@dataclass(frozen=True)
class Access:
    """How SSH reaches the nodes: over the bastion, over given hops, through IAP, or straight."""

    way: Literal["bastion", "given", "iap", "direct"]
    jumps: tuple[Jump, ...] = ()


@dataclass(frozen=True)
class Placement:
    """What keeps nodes close. `kind` policy: of instances; workload: of a group. `topology`: 1x72."""

    name: str
    kind: Literal["policy", "workload"]
    topology: str | None


@dataclass(frozen=True)
class ManagedGroup:
    """A managed instance group whose members come all at once, by one resize request per batch."""

    name: str
    batches: tuple[int, ...]
    run_s: int


@dataclass(frozen=True)
class Scheduling:
    """How instances are paid for, and what maintenance and the end of their time do to them."""

    model: Literal["STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND"]
    on_maintenance: Literal["TERMINATE", "MIGRATE"]
    restart: bool
    ends: Literal["DELETE"] | None = None
    run_s: int | None = None


@dataclass(frozen=True)
class Disk:
    """The root disk."""

    size_gb: int
    type: str


@dataclass(frozen=True, kw_only=True)
class GcpPlan(CloudPlan):
    """A fleet on GCP.

    `template`: the name of the instance template, which changes with its content. `given_policy`: the
    placement policy of the reservation. `group`: the managed group of the nodes; None: each is an instance of
    its own. `confidential`: the user data may hold secrets, as it has steps of the file. `host_keys`: by
    node, the instance that showed its host key, and the key. `labels`: on everything that takes labels.
    """

    project: str
    networks: Networks
    shared: NetworkStack | None
    interfaces: tuple[Interface, ...]
    access: Access
    public: bool
    placement_policy: Placement | None
    given_policy: str | None
    group: ManagedGroup | None
    reservation: str | None
    scheduling: Scheduling
    template: str
    image: str
    disk: Disk
    accelerator: tuple[str, int] | None
    service_account: str | None
    confidential: bool
    host_keys: Mapping[str, tuple[str, str]]
    labels: Mapping[str, str]
    rank_by_host: bool

    @property
    def base(self) -> str:
        """What names of cloud resources begin with."""
        return base_name(self.fleet, self.scope)

    @property
    def tag(self) -> str:
        """The network tag of the nodes."""
        return f"{self.base}-nodes"

    @property
    def makers(self) -> dict[str, str]:
        """Node -> the resource that made it, where nodes are members of a group: the request of its batch."""
        if self.group is None:
            return {}
        batches = [batch for batch, size in enumerate(self.group.batches) for _ in range(size)]
        return {
            node.name: f"{self.fleet}-batch-{batch}" for node, batch in zip(self.nodes, batches, strict=False)
        }


def base_name(fleet: str, scope: str) -> str:
    """`orch-FLEET-SCOPE`: 53 of the 63 letters that a name may have, for the longest name of a fleet."""
    return f"orch-{fleet}-{scope}"
