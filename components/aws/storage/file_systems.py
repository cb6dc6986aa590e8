"""File systems of a fleet as Pulumi resources: the plan, one to one. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pulumi
import pulumi_aws as aws

from orch.components.aws.plan import AwsPlan, SecurityRule
from orch.components.aws.storage.rules import EGRESS, INGRESS
from orch.components.file_systems import FileSystem

# The version that clients of current kernels speak. Source: FSx for Lustre user guide, "Lustre file system
# and client kernel compatibility".
LUSTRE_VERSION = "2.15"
# What a file system cannot change holds for as long as it is there: nothing of a fleet replaces it, and the
# engine refuses to delete it until the user's word has taken its protection away.
_EFS_STAYS = ["availabilityZoneName", "creationToken", "encrypted", "kmsKeyId", "performanceMode"]
_LUSTRE_STAYS = [
    "deploymentType",
    "fileSystemTypeVersion",
    "kmsKeyId",
    "securityGroupIds",
    "storageType",
    "subnetIds",
]


SERVICES = {"efs": "efs", "fsx-lustre": "fsx"}
"""The service of AWS that has file systems of a type."""


class Network(Protocol):
    """What file systems are registered beside. `subnets`: by the number of their node group."""

    @property
    def plan(self) -> AwsPlan: ...
    @property
    def subnets(self) -> Mapping[int, pulumi.Output[str]]: ...
    def tags(self, token: str, name: str) -> dict[str, str]: ...
    def with_options(self, **more: Any) -> pulumi.ResourceOptions: ...
    def rule(self, rule: SecurityRule, bastion: aws.ec2.SecurityGroup | None) -> Any: ...
    def group(self, part: str, ingress: Sequence[Any], egress: Sequence[Any]) -> aws.ec2.SecurityGroup: ...


class FileSystemResources:
    """Registers them all beside `network`.

    `sources`: what nodes mount, by name; `ready` must be there before nodes are.
    """

    def __init__(self, network: Network, kms_key: str | None) -> None:
        self._network, self._kms_key = network, kms_key
        self.sources: dict[str, pulumi.Output[str]] = {}
        self.ready: list[pulumi.Resource] = []
        for each in network.plan.file_systems:
            group = self._group(each)
            make = {"efs": self._efs, "fsx-lustre": self._lustre}[each.type]
            self.sources[each.name] = make(each, group)

    def _group(self, each: FileSystem) -> aws.ec2.SecurityGroup:
        network = self._network
        rules = [[network.rule(rule, None) for rule in side[each.type]] for side in (INGRESS, EGRESS)]
        return network.group(each.name, *rules)

    def _efs(self, each: FileSystem, group: aws.ec2.SecurityGroup) -> pulumi.Output[str]:
        """An EFS, and a mount target in each zone of the fleet: a zone has one."""
        network, plan = self._network, self._network.plan
        name = f"{plan.fleet}-{each.name}"
        throughput: dict[str, Any] = {"throughput_mode": "elastic"}
        if each.throughput is not None:
            throughput = {
                "throughput_mode": "provisioned",
                "provisioned_throughput_in_mibps": each.throughput,
            }
        file_system = aws.efs.FileSystem(
            name,
            encrypted=True,
            kms_key_id=self._kms_key,
            performance_mode="generalPurpose",
            **throughput,
            tags=network.tags("aws:efs/fileSystem:FileSystem", name),
            opts=network.with_options(ignore_changes=_EFS_STAYS, protect=True),
        )
        zones = dict[str, pulumi.Output[str]]()
        for node_group in plan.node_groups:
            zones.setdefault(node_group.zone, network.subnets[node_group.number])
        for zone, subnet in zones.items():
            target = aws.efs.MountTarget(
                f"{name}-{zone}",
                file_system_id=file_system.id,
                subnet_id=subnet,
                security_groups=[group.id],
                opts=network.with_options(ignore_changes=["subnetId"]),
            )
            self.ready.append(target)
        return file_system.dns_name.apply(lambda host: f"{host}:/")

    def _lustre(self, each: FileSystem, group: aws.ec2.SecurityGroup) -> pulumi.Output[str]:
        """An FSx for Lustre in the subnet of the first nodes; all zones of the network reach it."""
        network, plan = self._network, self._network.plan
        name = f"{plan.fleet}-{each.name}"
        file_system = aws.fsx.LustreFileSystem(
            name,
            deployment_type="PERSISTENT_2",
            storage_type="SSD",
            storage_capacity=each.size,
            per_unit_storage_throughput=each.throughput,
            file_system_type_version=LUSTRE_VERSION,
            kms_key_id=self._kms_key,
            subnet_ids=network.subnets[plan.number],
            security_group_ids=[group.id],
            tags=network.tags("aws:fsx/lustreFileSystem:LustreFileSystem", name),
            opts=network.with_options(ignore_changes=_LUSTRE_STAYS, protect=True),
        )
        self.ready.append(file_system)
        names = pulumi.Output.all(file_system.dns_name, file_system.mount_name)

        def source(both: Sequence[str]) -> str:
            host, mount = both
            return f"{host}@tcp:/{mount}"

        return names.apply(source)
