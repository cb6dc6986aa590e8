"""Network interfaces of an instance: their number, types and networks.

Sources: rehearsal/README.md, "GCP: interfaces".
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from itertools import combinations

from orch.rehearsal.gcp.api.errors import GcpError, invalid, required
from orch.rehearsal.gcp.api.methods import API, Request, fingerprint
from orch.rehearsal.gcp.api.network.profiles import profile_of
from orch.rehearsal.gcp.api.network.subnets import take_address
from orch.rehearsal.gcp.data.tables import NetworkProfile, Type, zones
from orch.rehearsal.store import Doc

FIELD = "resource.networkInterfaces"
RDMA = "MRDMA"


@dataclass(frozen=True)
class InterfaceRequest:
    """One requested interface. `type`: empty when the cloud chooses."""

    index: int
    network: str
    subnet: str
    type: str
    range: str | None
    profile: tuple[str, NetworkProfile] | None
    body: Doc

    @property
    def rdma(self) -> bool:
        return self.type == RDMA


def checked(request: Request, rows: list[Doc], kind: Type, zone: str) -> tuple[InterfaceRequest, ...]:
    """The checked interfaces of an instance. Raises the API's error."""
    if not rows:
        raise GcpError(
            "invalid", f"Invalid value for field '{FIELD}': ''. At least one network interface is required."
        )
    requested = tuple(_interface(request, index, row, kind, zone) for index, row in enumerate(rows))
    hosts = [one for one in requested if not one.rdma]
    rdma = [one for one in requested if one.rdma]
    for group, most, label in (
        (hosts, kind.hosts, "network interfaces"),
        (rdma, kind.rdma, f"{RDMA} interfaces"),
    ):
        if len(group) > most:
            why = f"Too many {label}. The maximum number allowed for machine type {kind.name} is {most}."
            raise invalid(FIELD, "", why)
    if not hosts or requested[0].rdma:
        raise invalid(f"{FIELD}[0].nicType", RDMA, "The first network interface must be a regular one.")
    for one in requested:
        _check_profile(one, kind, zone)
    if len({one.network for one in rdma}) > 1:
        raise invalid(
            f"{FIELD}[{rdma[-1].index}].network",
            rdma[-1].network,
            f"All {RDMA} interfaces of an instance must be in one network.",
        )
    if len({one.network for one in hosts}) < len(hosts):
        raise GcpError("INVALID_USAGE", "Networks must be distinct for NICs attached to a VM.")
    for one, other in combinations([one for one in requested if one.range], 2):
        if one.subnet != other.subnet and ipaddress.ip_network(one.range or "").overlaps(
            ipaddress.ip_network(other.range or "")
        ):
            raise invalid(
                f"{FIELD}[{other.index}].subnetwork",
                other.subnet,
                f"The IP range {other.range} overlaps with that of interface nic{one.index} ({one.range}).",
            )
    return requested


def _interface(request: Request, index: int, row: Doc, kind: Type, zone: str) -> InterfaceRequest:
    field = f"{FIELD}[{index}]"
    if not row.get("subnetwork"):
        if not row.get("network"):
            raise required(f"{field}.network")
        raise invalid(
            f"{field}.subnetwork", "", "Network must have a subnetwork given in custom subnet mode."
        )
    path = request.link(f"{field}.subnetwork", row["subnetwork"])
    subnet = request.thing("subnetwork", path)
    network = subnet["network"].removeprefix(API)
    if row.get("network") and request.link(f"{field}.network", row["network"]) != network:
        raise GcpError("badRequest", f'Subnetwork "{path}" is not valid for Network "{row["network"]}".')
    if path.split("/")[3] != zones()[zone]:
        raise invalid(f"{field}.subnetwork", path, "The subnetwork resource is not in the instance's region.")
    nic_type = str(row.get("nicType") or (kind.nics[0] if kind.gpus or "b" in kind.flags else ""))
    if nic_type and nic_type not in {*kind.nics, *([RDMA] if kind.rdma else [])}:
        raise invalid(
            f"{field}.nicType",
            nic_type,
            f"Network interface type is not supported by machine type {kind.name}.",
        )
    stack = row.get("stackType", "IPV4_ONLY")
    if stack == "IPV4_IPV6" and subnet["stackType"] != "IPV4_IPV6":
        raise invalid(f"{field}.stackType", stack, "The subnetwork has no IPv6 range.")
    profile = profile_of(request, request.thing("network", network))
    return InterfaceRequest(index, network, path, nic_type, subnet.get("ipCidrRange"), profile, row)


def _check_profile(one: InterfaceRequest, kind: Type, zone: str) -> None:
    """Check that MRDMA is in an RDMA network of the zone, and every other interface in a regular one."""
    field = f"{FIELD}[{one.index}]"
    if (one.profile is not None) != one.rdma:
        nic_type = one.type or "unset"
        why = (
            f"Network '{one.network}' supports {RDMA} interfaces only."
            if one.profile
            else f"{RDMA} interfaces need a network with an RDMA network profile."
        )
        raise invalid(f"{field}.nicType", nic_type, why)
    if one.profile is None:
        return
    profile_zone, profile = one.profile
    if profile_zone != zone:
        raise invalid(
            f"{field}.network",
            one.network,
            f"The network profile of the network is of zone {profile_zone}, not of {zone}.",
        )
    if kind.name not in profile.types:
        raise invalid(
            f"{field}.network", one.network, f"Its network profile does not support machine type {kind.name}."
        )
    if one.body.get("accessConfigs"):
        raise invalid(
            f"{field}.accessConfigs", "", "The network profile does not allow external IP addresses."
        )


def attach(request: Request, owner: str, requested: tuple[InterfaceRequest, ...]) -> list[Doc]:
    """Create the interfaces of a new instance, with their addresses."""
    return [_attach(request, owner, one) for one in requested]


def _attach(request: Request, owner: str, one: InterfaceRequest) -> Doc:
    subnet = request.thing("subnetwork", one.subnet)
    doc: Doc = {
        "kind": "compute#networkInterface",
        "name": f"nic{one.index}",
        "network": API + one.network,
        "subnetwork": API + one.subnet,
        "stackType": subnet["stackType"] if one.range is None else one.body.get("stackType", "IPV4_ONLY"),
    }
    if one.type:
        doc["nicType"] = one.type
    address = take_address(request, one.subnet, owner, one.body.get("networkIP"))
    if address is not None:
        doc["networkIP"] = address
    if doc["stackType"] != "IPV4_ONLY":
        prefix = ipaddress.IPv6Network(str(subnet["internalIpv6Prefix"]))
        doc["ipv6Address"] = str(prefix[request.store.count(f"v6 {one.subnet}") + 15])
        doc["ipv6AccessType"] = "INTERNAL"
    configs = one.body.get("accessConfigs") or []
    if configs:
        number = request.store.count("external addresses")
        doc["accessConfigs"] = [
            {
                "kind": "compute#accessConfig",
                "name": configs[0].get("name", "external-nat"),
                "type": "ONE_TO_ONE_NAT",
                "networkTier": configs[0].get("networkTier", "PREMIUM"),
                "natIP": str(ipaddress.IPv4Address("198.18.0.0") + number),
            }
        ]
    for path, role in ((one.network, "instance"), (one.subnet, "instance")):
        request.store.refer(owner, path, role)
    doc["fingerprint"] = fingerprint(doc)
    return doc
