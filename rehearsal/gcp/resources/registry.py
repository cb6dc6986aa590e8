"""Token -> what the type is."""

from __future__ import annotations

from orch.rehearsal.gcp.resources import instance_groups, instance_templates, instances, networks
from orch.rehearsal.gcp.resources.kinds import Kind

KINDS: dict[str, Kind] = {
    "gcp:compute/network:Network": networks.Network(),
    "gcp:compute/subnetwork:Subnetwork": networks.Subnetwork(),
    "gcp:compute/firewall:Firewall": networks.Firewall(),
    "gcp:compute/router:Router": networks.Router(),
    "gcp:compute/routerNat:RouterNat": networks.RouterNat(),
    "gcp:compute/resourcePolicy:ResourcePolicy": networks.ResourcePolicy(),
    "gcp:compute/instanceTemplate:InstanceTemplate": instance_templates.InstanceTemplate(),
    "gcp:compute/instanceFromTemplate:InstanceFromTemplate": instances.InstanceFromTemplate(),
    "gcp:compute/instance:Instance": instances.Instance(),
    "gcp:compute/instanceGroupManager:InstanceGroupManager": instance_groups.InstanceGroupManager(),
    "gcp:compute/resizeRequest:ResizeRequest": instance_groups.ResizeRequest(),
}
