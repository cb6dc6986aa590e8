"""Network profiles: what a network for RDMA allows. Sources: rehearsal/README.md, "GCP: networks"."""

from __future__ import annotations

from orch.rehearsal.gcp.api.errors import GcpError, not_found
from orch.rehearsal.gcp.api.methods import API, Request, method
from orch.rehearsal.gcp.data.tables import NetworkProfile, profiles, types, zones
from orch.rehearsal.store import Doc


def profile_named(request: Request, name: str) -> tuple[str, NetworkProfile] | None:
    """The zone and kind of a network profile; None when no profile has the name."""
    for kind, profile in profiles().items():
        zone = name.removesuffix(f"-{kind}")
        if zone != name and zone in profile_zones(request, profile):
            return zone, profile
    return None


def profile_zones(request: Request, profile: NetworkProfile) -> set[str]:
    """The zones with a profile of this kind: those of its machine types."""
    offered = request.cloud.knobs_now().offered
    return {zone for name in profile.types for zone in offered.get(name, types()[name].zones)} & set(zones())


def profile_of(request: Request, network: Doc) -> tuple[str, NetworkProfile] | None:
    link = network.get("networkProfile")
    return profile_named(request, link.rpartition("/")[2]) if link else None


def _profile(request: Request, zone: str, profile: NetworkProfile) -> Doc:
    name = f"{zone}-{profile.kind}"
    allowed = {True: "ALLOWED", False: "BLOCKED"}
    return {
        "kind": "compute#networkProfile",
        "name": name,
        "description": f"{profile.interface} network profile of {zone}",
        "selfLink": f"{API}projects/{request.project}/global/networkProfiles/{name}",
        "zone": f"{API}projects/{request.project}/zones/{zone}",
        "location": {"name": zone, "scope": "ZONE"},
        "profileType": {"vpcSubtype": "ROCE", "networkType": "VPC"},
        "features": {
            "interfaceTypes": [profile.interface],
            "allowMultiNicInSameNetwork": "ALLOWED",
            "allowAutoModeSubnet": "BLOCKED",
            "allowCloudRouter": "BLOCKED",
            "allowCloudNat": "BLOCKED",
            "allowExternalIpAccess": "BLOCKED",
            "allowDefaultNicAttachment": "BLOCKED",
            "allowVpcFirewallRules": "BLOCKED",
            "allowSubnetworkCreation": allowed[profile.subnets],
        },
    }


@method("networkProfiles.get", "GET", "global/networkProfiles/{networkProfile}")
def get_profile(request: Request) -> Doc:
    name = request.words["networkProfile"]
    zone_and_profile = profile_named(request, name)
    if zone_and_profile is None:
        raise not_found(request.path("networkProfiles", name))
    return _profile(request, *zone_and_profile)


@method("networkProfiles.list", "GET", "global/networkProfiles")
def list_profiles(request: Request) -> Doc:
    rows = [
        _profile(request, zone, profile)
        for profile in profiles().values()
        for zone in sorted(profile_zones(request, profile))
    ]
    return request.page(rows, "networkProfile")


def blocked(feature: str, network: str) -> GcpError:
    """The error for a feature that a network profile does not allow."""
    return GcpError("invalidUsage", f"{feature} is not supported by the network profile of '{network}'.")
