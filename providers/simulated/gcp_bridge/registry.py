"""Token -> what the type is."""

from __future__ import annotations

from orch.providers.simulated.gcp_bridge import groups, machines, networks, templates
from orch.providers.simulated.gcp_bridge.kinds import Kind

KINDS: dict[str, Kind] = {
    "gcp:compute/network:Network": networks.Network(),
    "gcp:compute/subnetwork:Subnetwork": networks.Subnetwork(),
    "gcp:compute/firewall:Firewall": networks.Firewall(),
    "gcp:compute/router:Router": networks.Router(),
    "gcp:compute/routerNat:RouterNat": networks.RouterNat(),
    "gcp:compute/resourcePolicy:ResourcePolicy": networks.ResourcePolicy(),
    "gcp:compute/instanceTemplate:InstanceTemplate": templates.InstanceTemplate(),
    "gcp:compute/instanceFromTemplate:InstanceFromTemplate": machines.InstanceFromTemplate(),
    "gcp:compute/instance:Instance": machines.Instance(),
    "gcp:compute/instanceGroupManager:InstanceGroupManager": groups.InstanceGroupManager(),
    "gcp:compute/resizeRequest:ResizeRequest": groups.ResizeRequest(),
}
