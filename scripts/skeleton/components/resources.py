"""A Newcloud fleet as Pulumi resources: the plan, one to one. Decides nothing."""

from __future__ import annotations

import pulumi

from orch.components.cloud.plan import Node
from orch.components.newcloud.explain import INSTANCE, PACKAGE
from orch.components.newcloud.plan import NewcloudPlan
from orch.components.resources import ServedFleet, ServedResource


class NewcloudFleet(ServedFleet[NewcloudPlan]):
    backend = "newcloud"
    package = PACKAGE

    def make(self) -> dict[str, ServedResource]:
        groups = self._plan.node_groups
        return {node.name: self._node(group, node) for group in groups for node in group.nodes}

    def _node(self, plan: NewcloudPlan, node: Node) -> ServedResource:
        """Register a machine. A running one keeps its spec and user data until `layout` changes."""
        kept = ["user_data", "spec"] if plan.layout_unchanged else []
        props = {
            "name": node.name,
            "mark": self._mark,
            "spec": {
                "type": plan.instance_type,
                "region": plan.region,
                "image": plan.image,
                "ssh_from": list(plan.ssh_from),
            },
            "user_data": pulumi.Output.secret(self.user_data(plan.cloud_init, node.name)),
            "layout": plan.layout,
            "status": "running",
            "waits": not self._plan.whole,
        }
        opts = pulumi.ResourceOptions.merge(self._opts, pulumi.ResourceOptions(ignore_changes=kept))
        return ServedResource(INSTANCE, node.name, props, opts)

    def disk_gb(self, group: NewcloudPlan) -> int:
        return group.disk_gib


register = NewcloudFleet.register
