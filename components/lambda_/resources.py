"""A Lambda fleet as Pulumi resources: the plan, one to one. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pulumi

from orch.components.cloud.plan import Node
from orch.components.lambda_.explain import PACKAGE
from orch.components.lambda_.plan import LambdaPlan
from orch.components.resources import ServedFleet, ServedResource


class SshKey(ServedResource):
    """The fleet's key in the account."""

    key_name: pulumi.Output[str]


class LambdaFleet(ServedFleet[LambdaPlan]):
    backend: ClassVar[str] = "lambda"
    package: ClassVar[str] = PACKAGE

    def make(self) -> dict[str, ServedResource]:
        plan = self._plan
        key = self._key()
        after = self._rules()
        made = self._file_systems()
        return {
            node.name: self._node(group, node, key.key_name, made, after)
            for group in plan.node_groups
            for node in group.nodes
        }

    def _props(self, name: str, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"name": name, "mark": self._mark, "spec": spec, **more}

    def _key(self) -> SshKey:
        name = f"{self._plan.fleet}-key"
        props = self._props(name, {"public_key": self._keys.client_public_key})
        return SshKey(f"{PACKAGE}:index:SshKey", name, props, self._opts, computed=("key_name",))

    def _rules(self) -> list[pulumi.Resource]:
        """The rules that let in to SSH, before any instance is there."""
        if not self._plan.ssh_from:
            return []
        rules = [
            {"protocol": "tcp", "port_range": [22, 22], "source_network": each}
            for each in self._plan.ssh_from
        ]
        name = f"{self._plan.fleet}-ssh"
        props = self._props(name, {"rules": rules})
        return [ServedResource(f"{PACKAGE}:index:FirewallRules", name, props, self._opts)]

    def _file_systems(self) -> dict[str, pulumi.Output[str]]:
        """The path -> the id of each that is made with the fleet. The engine deletes none by itself."""
        plan = self._plan
        opts = pulumi.ResourceOptions.merge(self._opts, pulumi.ResourceOptions(protect=True))
        made: dict[str, pulumi.Output[str]] = {}
        for each in plan.file_systems:
            name = f"{plan.fleet}-{each.name}"
            props = self._props(name, {"region": plan.region})
            made[each.path] = ServedResource(f"{PACKAGE}:index:FileSystem", name, props, opts).id
        return made

    def _node(
        self,
        plan: LambdaPlan,
        node: Node,
        key: pulumi.Output[str],
        made: Mapping[str, pulumi.Output[str]],
        after: Sequence[pulumi.Resource],
    ) -> ServedResource:
        """One instance. A running one keeps its user data until `layout` changes, the fingerprint of what
        only a new instance can have; and its key and tags, which a launch alone sets."""
        mounts = {**plan.attached, **made}
        spec: dict[str, Any] = {
            "region_name": plan.region,
            "instance_type_name": plan.instance_type,
            "ssh_key_names": [key],
            "hostname": node.name,
            "image": {"id": plan.image},
        }
        if mounts:
            spec["file_system_mounts"] = [
                {"file_system_id": each, "mount_point": path} for path, each in sorted(mounts.items())
            ]
        if plan.tags:
            spec["tags"] = [{"key": key, "value": value} for key, value in sorted(plan.tags.items())]
        kept = ["user_data", "spec"] if plan.layout_unchanged else []
        opts = pulumi.ResourceOptions.merge(
            self._opts, pulumi.ResourceOptions(ignore_changes=kept, depends_on=list(after))
        )
        props = self._props(
            node.name,
            spec,
            user_data=pulumi.Output.secret(self.user_data(plan.cloud_init, node.name)),
            status="active",
            waits=not self._plan.whole,
            layout=plan.layout,
        )
        return ServedResource(f"{PACKAGE}:index:Instance", node.name, props, opts)

    def disk_gb(self, group: LambdaPlan) -> int:
        return group.disk_gib


register = LambdaFleet.register
