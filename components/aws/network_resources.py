"""What a fleet stands on: network, who may reach whom, bastion, file systems. The plan, one to one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_aws as aws

from orch.components.aws.plan import AwsPlan, ExistingNetwork, NewNetwork, SecurityRule
from orch.components.aws.provider import provider_of
from orch.components.aws.storage.rules import EGRESS, INGRESS
from orch.components.cloud.machines.cloudinit import filled_for, packed64, wrapped64
from orch.components.file_systems import FileSystem
from orch.components.lifetime import TAG
from orch.components.resources import Keys, common_user_data
from orch.spec.models.backends.aws import AwsSettings

# What Session Manager's agent needs. AWS's own AmazonSSMManagedInstanceCore also reads all of the account's
# parameters. Source: Systems Manager user guide, "Create a custom IAM role for Session Manager".
SSM_ACTIONS = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)
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

# The service of AWS that has file systems of a type.
SERVICES = {"efs": "efs", "fsx-lustre": "fsx"}
Text = pulumi.Output[str]


class NetworkResources:
    """Registers it all as children of `parent`.

    `subnets` are the nodes' own, by the number of their group, `edge` one that leads to the internet; `ready`
    must be there before nodes are, the file systems among it.
    """

    def __init__(self, plan: AwsPlan, settings: AwsSettings, parent: pulumi.Resource) -> None:
        self.plan = plan
        self._parent = parent
        # Names and address ranges are unique: what replaces something comes after it.
        self.opts = pulumi.ResourceOptions(
            parent=parent, provider=self._cloud(settings), delete_before_replace=True
        )
        self.keys = Keys(f"{plan.fleet}-keys", opts=pulumi.ResourceOptions(parent=parent))
        self._fillings = pulumi.Output.all(self.keys.host_seed, self.keys.client_public_key)
        self.vpc, self.subnets, self.edge, self.ready = self._network()
        bastion_group = self._bastion_group()
        self.groups = self._node_groups(bastion_group)
        file_systems = FileSystemResources(self, settings.kms_key)
        self.ready_with_file_systems = [*self.ready, *file_systems.ready]
        self._sources = file_systems.sources
        self.profile = self._ssm_profile()
        self.bastion = self._bastion_machine(bastion_group)

    def _cloud(self, settings: AwsSettings) -> aws.Provider:
        # A provider whose endpoints differ is a change: fleets without file systems have those of before.
        services = {SERVICES[each.type] for each in self.plan.file_systems}
        name = f"{self.plan.fleet}-aws"
        return provider_of(name, self.plan.region, settings, self._parent, services=tuple(services))

    def tags(self, token: str, name: str, **more: str) -> dict[str, str]:
        """Tags of one resource. `orch:stack` and `orch:urn` find it again when its creation was cut short."""
        stack = f"{pulumi.get_project()}/{pulumi.get_stack()}/{self.plan.scope}"
        own = {"Name": name, "orch:stack": stack, "orch:urn": f"{token}::{name}"}
        return {**self.plan.tags, **own, **more}

    @property
    def ends(self) -> dict[str, str]:
        """The tag that tells a machine when it ends itself."""
        return {TAG: str(self.plan.lifetime.ends)} if self.plan.lifetime else {}

    def user_data(self, name: str, text: str) -> Text:
        return pulumi.Output.secret(
            self._fillings.apply(lambda keys: packed64(filled_for(name, text, *keys)))
        )

    def common_data(self, plan: AwsPlan) -> Text:
        """The user data of all nodes of a group."""
        sources = [self._sources[each.name] for each in self.plan.file_systems]
        return common_user_data(plan, self.plan.file_systems, self.keys, sources, wrapped64)

    def after(self, resources: Sequence[pulumi.Resource], **more: Any) -> pulumi.ResourceOptions:
        return self.with_options(depends_on=list(resources), **more)

    def with_options(self, **more: Any) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions.merge(self.opts, pulumi.ResourceOptions(**more))

    # The network

    def _network(self) -> tuple[Text, dict[int, Text], Text | None, list[pulumi.Resource]]:
        """The VPC, the nodes' subnets by group, one that leads to the internet, and what must be there before
        nodes."""
        network = self.plan.network
        if isinstance(network, ExistingNetwork):
            edge = pulumi.Output.from_input(network.edge_subnet) if network.edge_subnet else None
            groups = {each.number: each.network for each in self.plan.node_groups}
            subnets = {
                number: pulumi.Output.from_input(network_of_group.subnet)
                for number, network_of_group in groups.items()
                if isinstance(network_of_group, ExistingNetwork)
            }
            return pulumi.Output.from_input(network.vpc), subnets, edge, []
        name, opts = self.plan.fleet, self.opts
        vpc = aws.ec2.Vpc(
            f"{name}-vpc",
            cidr_block=network.cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=self.tags("aws:ec2/vpc:Vpc", f"{name}-vpc"),
            opts=opts,
        )
        gateway = aws.ec2.InternetGateway(
            f"{name}-internet",
            vpc_id=vpc.id,
            tags=self.tags("aws:ec2/internetGateway:InternetGateway", f"{name}-internet"),
            opts=opts,
        )
        nodes = self._made_subnet("nodes", network.nodes_cidr, vpc)
        route: dict[str, Any] = {"cidr_block": "0.0.0.0/0", "gateway_id": gateway.id}
        if network.edge_cidr is None:
            table, edge_ready = self._routed("nodes", nodes, vpc, route)
            more, more_ready = self._more_subnets(vpc, table)
            return vpc.id, {0: nodes.id, **more}, nodes.id, [*edge_ready, *more_ready]
        edge = self._made_subnet("edge", network.edge_cidr, vpc)
        _, edge_ready = self._routed("edge", edge, vpc, route)
        address = aws.ec2.Eip(
            f"{name}-nat",
            domain="vpc",
            tags=self.tags("aws:ec2/eip:Eip", f"{name}-nat"),
            opts=self.after([gateway]),
        )
        nat = aws.ec2.NatGateway(
            f"{name}-nat",
            allocation_id=address.id,
            subnet_id=edge.id,
            tags=self.tags("aws:ec2/natGateway:NatGateway", f"{name}-nat"),
            opts=self.after(edge_ready),
        )
        nat_route: dict[str, Any] = {"cidr_block": "0.0.0.0/0", "nat_gateway_id": nat.id}
        table, nodes_ready = self._routed("nodes", nodes, vpc, nat_route)
        more, more_ready = self._more_subnets(vpc, table)
        return vpc.id, {0: nodes.id, **more}, edge.id, [*edge_ready, *nodes_ready, *more_ready]

    def _more_subnets(
        self, vpc: aws.ec2.Vpc, table: aws.ec2.RouteTable
    ) -> tuple[dict[int, Text], list[pulumi.Resource]]:
        """A subnet for each further node group, in the group's zone, with the routes of the first."""
        subnets: dict[int, Text] = {}
        ready: list[pulumi.Resource] = []
        for group in self.plan.others:
            if isinstance(group.network, NewNetwork):
                part = f"nodes{group.suffix}"
                subnet = self._made_subnet(part, group.network.nodes_cidr, vpc, group.zone)
                subnets[group.number] = subnet.id
                name = f"{self.plan.fleet}-{part}"
                ready.append(
                    aws.ec2.RouteTableAssociation(
                        name, subnet_id=subnet.id, route_table_id=table.id, opts=self.opts
                    )
                )
        return subnets, ready

    def _made_subnet(self, part: str, cidr: str, vpc: aws.ec2.Vpc, zone: str | None = None) -> aws.ec2.Subnet:
        name = f"{self.plan.fleet}-{part}"
        return aws.ec2.Subnet(
            name,
            vpc_id=vpc.id,
            cidr_block=cidr,
            availability_zone_id=zone or self.plan.zone,
            map_public_ip_on_launch=False,
            tags=self.tags("aws:ec2/subnet:Subnet", name),
            opts=self.opts,
        )

    def _routed(
        self, part: str, subnet: aws.ec2.Subnet, vpc: aws.ec2.Vpc, route: Any
    ) -> tuple[aws.ec2.RouteTable, list[pulumi.Resource]]:
        name = f"{self.plan.fleet}-{part}"
        table = aws.ec2.RouteTable(
            name,
            vpc_id=vpc.id,
            routes=[route],
            tags=self.tags("aws:ec2/routeTable:RouteTable", name),
            opts=self.opts,
        )
        association = aws.ec2.RouteTableAssociation(
            name, subnet_id=subnet.id, route_table_id=table.id, opts=self.opts
        )
        return table, [association]

    # Who may reach whom. Rules are written in their group: only so a foreign one is seen and taken away.

    def _bastion_group(self) -> aws.ec2.SecurityGroup | None:
        bastion = self.plan.bastion
        if bastion is None:
            return None
        ingress = [self.rule(SecurityRule(cidr, 22, "SSH from ssh_cidrs"), None) for cidr in bastion.cidrs]
        egress = [self.rule(SecurityRule("0.0.0.0/0", None, "SSH to the nodes, and SSM"), None)]
        return self.group("bastion", ingress, egress)

    def _node_groups(self, bastion: aws.ec2.SecurityGroup | None) -> list[pulumi.Input[str]]:
        groups = self.plan.groups
        if groups.name is None:
            return list(groups.given)
        ingress = [self.rule(rule, bastion) for rule in groups.ingress]
        return [self.group("nodes", ingress, [self.rule(rule, bastion) for rule in groups.egress]).id]

    def group(self, part: str, ingress: Sequence[Any], egress: Sequence[Any]) -> aws.ec2.SecurityGroup:
        """A security group with these rules, each made by `rule`."""
        name = f"{self.plan.fleet}-{part}"
        return aws.ec2.SecurityGroup(
            name,
            name=f"{self.plan.base}-{part}",
            description=f"{part} of the orch fleet {self.plan.fleet}",
            vpc_id=self.vpc,
            ingress=ingress,
            egress=egress,
            tags=self.tags("aws:ec2/securityGroup:SecurityGroup", name),
            opts=self.opts,
        )

    def rule(self, rule: SecurityRule, bastion: aws.ec2.SecurityGroup | None) -> Any:
        """One rule as the provider takes it."""
        ports = {"protocol": "-1", "from_port": 0, "to_port": 0}
        if rule.port is not None:
            first, last = rule.port if isinstance(rule.port, tuple) else (rule.port, rule.port)
            ports = {"protocol": "tcp", "from_port": first, "to_port": last}
        if rule.peer == "nodes":
            return {**ports, "security_groups": self.groups, "description": rule.why}
        if rule.peer == "itself":
            return {**ports, "self": True, "description": rule.why}
        if rule.peer == "bastion" and bastion is not None:
            return {**ports, "security_groups": [bastion.id], "description": rule.why}
        return {**ports, "cidr_blocks": [rule.peer], "description": rule.why}

    def _ssm_profile(self) -> aws.iam.InstanceProfile | None:
        plan = self.plan
        if plan.ssm is None or (plan.ssm == "nodes" and plan.profile is not None):
            return None
        name = f"{plan.fleet}-ssm"
        trust = {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"Service": "ec2.amazonaws.com"},
                    "Action": "sts:AssumeRole",
                }
            ],
        }
        role = aws.iam.Role(
            name,
            name=f"{plan.base}-ssm",
            assume_role_policy=json.dumps(trust),
            tags=self.tags("aws:iam/role:Role", name),
            opts=self.opts,
        )
        statement = {"Effect": "Allow", "Action": list(SSM_ACTIONS), "Resource": "*"}
        policy = aws.iam.RolePolicy(
            name,
            name=name,
            role=role.name,
            policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
            opts=self.opts,
        )
        return aws.iam.InstanceProfile(
            name,
            name=f"{plan.base}-ssm",
            role=role.name,
            tags=self.tags("aws:iam/instanceProfile:InstanceProfile", name),
            opts=self.after([policy]),
        )

    def _bastion_machine(self, group: aws.ec2.SecurityGroup | None) -> aws.ec2.Instance | None:
        bastion = self.plan.bastion
        if bastion is None or group is None:
            return None
        subnet = self.edge if bastion.public and self.edge is not None else self.subnets[0]
        metadata: Any = {"http_tokens": "required", "http_put_response_hop_limit": 1}
        if self.ends and self.plan.tags_readable:
            metadata["instance_metadata_tags"] = "enabled"
        return aws.ec2.Instance(
            f"{self.plan.fleet}-bastion",
            ami=bastion.image,
            instance_type=bastion.instance_type,
            subnet_id=subnet,
            vpc_security_group_ids=[group.id, *self.plan.groups.given],
            associate_public_ip_address=bastion.public,
            iam_instance_profile=self.profile.name if self.profile is not None else None,
            metadata_options=metadata,
            instance_initiated_shutdown_behavior="terminate" if self.ends else None,
            root_block_device={"encrypted": True},
            user_data_base64=self.user_data(f"{self.plan.fleet}-bastion", self.plan.bastion_init),
            tags=self.tags("aws:ec2/instance:Instance", f"{self.plan.fleet}-bastion", **self.ends),
            # One that runs stays as it is: it may be the only way in.
            opts=self.after(self.ready, ignore_changes=["userDataBase64", "rootBlockDevice"]),
        )


class FileSystemResources:
    """Registers them all beside `network`.

    `sources`: what nodes mount, by name; `ready` must be there before nodes are.
    """

    def __init__(self, network: NetworkResources, kms_key: str | None) -> None:
        self._network, self._kms_key = network, kms_key
        self.sources: dict[str, Text] = {}
        self.ready: list[pulumi.Resource] = []
        for each in network.plan.file_systems:
            group = self._group(each)
            make = {"efs": self._efs, "fsx-lustre": self._lustre}[each.type]
            self.sources[each.name] = make(each, group)

    def _group(self, each: FileSystem) -> aws.ec2.SecurityGroup:
        network = self._network
        rules = [[network.rule(rule, None) for rule in side[each.type]] for side in (INGRESS, EGRESS)]
        return network.group(each.name, *rules)

    def _efs(self, each: FileSystem, group: aws.ec2.SecurityGroup) -> Text:
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
        zones = dict[str, Text]()
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

    def _lustre(self, each: FileSystem, group: aws.ec2.SecurityGroup) -> Text:
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
